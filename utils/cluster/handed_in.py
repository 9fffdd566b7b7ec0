"""What is wrong with what is handed to a cluster: a command, a script, a description.

Each function reads a text as it would be handed in, and returns one sentence on what
would go wrong, or "" where it asks for what it should. Nothing is started. What only
the cluster can know (is there such a network, partition, image?) is not looked at.
"""

import ast
import re
import shlex
from collections.abc import Mapping
from itertools import pairwise

# Of MPI, for starting and for messages; of NCCL, on GPUs.
NETWORKS = ("oob_tcp_if_include", "btl_tcp_if_include")
NCCL = ("NCCL_SOCKET_IFNAME", "NCCL_DEBUG")


def mpirun_problem(text: str, hosts: Mapping[str, int], network: str) -> str:
    """Of a line for `mpirun`: one worker for each slot of these hosts, and this network
    card named to Open MPI and to NCCL.

    hosts: name -> slots.
    """
    try:
        words = shlex.split(text.replace("\\\n", " "), comments=True)
    except ValueError as error:
        return f"The shell could not read it: {error}."
    if words[:1] != ["mpirun"]:
        return "It does not begin with mpirun."
    if "python" not in words:
        return "It names no program: `python` and a file."
    words = words[: words.index("python")]
    given = {a: b for a, b in pairwise(words) if a.startswith("-")}
    listed = given.get("-H") or given.get("--host") or ""
    pairs = [entry.partition(":") for entry in listed.split(",") if entry]
    found = {name: int(slots) if slots.isdigit() else 1 for name, _, slots in pairs}
    if found != dict(hosts):
        wanted = ",".join(f"{name}:{slots}" for name, slots in hosts.items())
        return f"-H says {listed or 'nothing'}; these hosts are {wanted}."
    workers = given.get("-np") or given.get("-n")
    if workers != str(sum(hosts.values())):
        return (
            f"-np says {workers or 'nothing'}; these hosts have "
            f"{sum(hosts.values())} slots."
        )
    mca = dict(re.findall(r"--mca (\w+) (\S+)", " ".join(words)))
    for name in NETWORKS:
        if mca.get(name) != network:
            return f"{name} is {mca.get(name) or 'not set'}: the network is {network}."
    passed = [b for a, b in pairwise(words) if a == "-x"]
    variables = dict(word.partition("=")[::2] for word in passed)
    for name in NCCL:
        if not variables.get(name):
            return f"No -x passes {name} with a value to the other host."
    if variables["NCCL_SOCKET_IFNAME"].lstrip("=") != network:
        return f"NCCL_SOCKET_IFNAME is not {network}."
    return ""


def sbatch_problem(text: str, nodes: int, gpus: int, hours: int, warning: int) -> str:
    """Of a batch script for Slurm: so many nodes, a task for each of so many GPUs of a
    node, so many hours, and a signal so many seconds before the end, at least."""
    asked = dict(re.findall(r"^#SBATCH\s+--([\w-]+)(?:[= ]\s*(\S+))?\s*$", text, re.M))
    wanted = {"nodes": nodes, "ntasks-per-node": gpus, "gpus-per-node": gpus}
    for name, number in wanted.items():
        if asked.get(name) != str(number):
            return f"--{name} is {asked.get(name) or 'not there'}, not {number}."
    time = re.fullmatch(r"(?:(\d+)-)?(\d+):(\d\d):(\d\d)", asked.get("time", ""))
    if not time:
        return f"--time is {asked.get('time') or 'not there'}: write hours:00:00."
    days, hour, minute, second = (int(part or 0) for part in time.groups())
    seconds = 86_400 * days + 3600 * hour + 60 * minute + second
    if seconds != 3600 * hours:
        return f"--time asks for {seconds / 3600:g} hours, not {hours}."
    signal = re.fullmatch(r"B:USR1@(\d+)", asked.get("signal", ""))
    if not signal:
        return (
            f"--signal is {asked.get('signal') or 'not there'}: the trap waits for "
            "USR1, sent to the batch script (B)."
        )
    if int(signal[1]) < warning:
        return f"USR1 comes {signal[1]} s before the end; saving takes {warning} s."
    if "requeue" not in asked:
        return "Without --requeue a node that fails ends the job."
    return ""


def mpijob_problem(text: str, pods: int, slots: int) -> str:
    """Of an MPIJob for Kubernetes: so many pods with so many workers each, a core for
    each worker, and an image of one's own in both places."""
    import yaml

    try:
        job = next(yaml.safe_load_all(text))
        spec = job["spec"]
        parts = {
            kind: (row["replicas"], row["template"]["spec"]["containers"][0])
            for kind, row in spec["mpiReplicaSpecs"].items()
        }
        count, worker = parts["Worker"]
        cores = float(worker["resources"]["limits"]["cpu"])
        images = {kind: container["image"] for kind, (_, container) in parts.items()}
    except (yaml.YAMLError, KeyError, TypeError, ValueError, StopIteration) as error:
        return (
            f"It is no MPIJob: {type(error).__name__}, {' '.join(str(error).split())}"
        )
    if count != pods:
        return f"Worker has {count} replicas, not {pods}."
    if spec.get("slotsPerWorker", 1) != slots:
        return f"slotsPerWorker is {spec.get('slotsPerWorker', 1)}, not {slots}."
    if cores < slots:
        return f"A pod has {cores:g} cores for {slots} workers."
    for kind, image in images.items():
        if image.startswith("REGISTRY"):
            return f"{kind} takes the image {image}: nobody has that."
    if len(set(images.values())) > 1:
        return "Launcher and Worker have different images."
    return ""


def spark_problem(text: str, workers: int, seconds: int) -> str:
    """Of a call of `horovod.spark.run`: of `train` with `args` on so many workers, that
    have so many seconds to start, with Gloo."""
    try:
        call = ast.parse(text.strip(), mode="eval").body
    except SyntaxError as error:
        return f"Python could not read it: {error.msg}, line {error.lineno}."
    if not isinstance(call, ast.Call) or ast.unparse(call.func) != "horovod.spark.run":
        return "It is no call of horovod.spark.run."
    if [ast.unparse(word) for word in call.args] != ["train"]:
        return "What comes first is the function, train, and not what it returns."
    given = {word.arg: ast.unparse(word.value) for word in call.keywords}
    if given.get("args") != "(args,)":
        return "args is what train gets, as a tuple: (args,)."
    if given.get("num_proc") != str(workers):
        return f"num_proc is {given.get('num_proc', 'not there')}, not {workers}."
    if given.get("start_timeout") != str(seconds):
        start = given.get("start_timeout", "not there")
        return f"start_timeout is {start}, not {seconds}: by default it is 600."
    if given.get("use_gloo") != "True":
        return "use_gloo=True is missing: Horovod would take an mpirun if it finds one."
    return ""
