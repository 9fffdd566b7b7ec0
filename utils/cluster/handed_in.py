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
from pathlib import Path

NOTHING = "Nothing is written yet."
NCCL = ("NCCL_SOCKET_IFNAME", "NCCL_DEBUG")
# sbatch's short options that stand for one of those that are looked at.
SHORT = {"-N": "--nodes", "-t": "--time"}


def mpirun_problem(
    text: str, hosts: Mapping[str, int], network: str, gpus: bool = True
) -> str:
    """Of a line for `mpirun`: one worker for each slot of these hosts, and this network
    card named to Open MPI and to NCCL. Open MPI's messages may go by UCX instead, which
    calls cards otherwise: then it is enough that one is named.

    hosts: name -> slots. gpus: have they GPUs, and InfiniBand?
    """
    if not text.strip():
        return NOTHING
    try:
        words = shlex.split(text.replace("\\\n", " "), comments=True)
    except ValueError as error:
        return f"The shell could not read it: {error}."
    if not words or Path(words[0]).name != "mpirun":
        return "It does not begin with mpirun."
    pythons = (re.fullmatch(r"python[\d.]*", Path(word).name) for word in words)
    program = next((number for number, found in enumerate(pythons) if found), None)
    if program is None:
        return "It names no program: `python` and a file."
    words = words[:program]
    # Open MPI takes its long options with one dash, too.
    given = {a.lstrip("-"): b for a, b in pairwise(words) if a.startswith("-")}
    listed = given.get("H") or given.get("host") or ""
    pairs = [entry.partition(":") for entry in listed.split(",") if entry]
    found = {name: int(slots) if slots.isdigit() else 1 for name, _, slots in pairs}
    if found != dict(hosts):
        wanted = ",".join(f"{name}:{slots}" for name, slots in hosts.items())
        return f"-H says {listed or 'nothing'}; these hosts are {wanted}."
    workers = next((given[name] for name in ("np", "n", "c") if name in given), "")
    if workers != str(sum(hosts.values())):
        return (
            f"-np says {workers or 'nothing'}; these hosts have "
            f"{sum(hosts.values())} slots."
        )
    mca = dict(re.findall(r"-mca (\w+) (\S+)", " ".join(words)))
    passed = [b for a, b in pairwise(words) if a == "-x"]
    variables = dict(word.partition("=")[::2] for word in passed)
    by_tcp = mca.get("pml") == "ob1" or not gpus
    if not by_tcp and not variables.get("UCX_NET_DEVICES"):
        return (
            "On InfiniBand, messages go by UCX, whatever btl_tcp_if_include says: "
            "--mca pml ob1 keeps them on TCP."
        )
    for name in ("oob_tcp_if_include", *["btl_tcp_if_include"] * by_tcp):
        if mca.get(name) != network:
            return f"{name} is {mca.get(name) or 'not set'}: the network is {network}."
    for name in NCCL if gpus else ():
        if not variables.get(name):
            return f"No -x passes {name} with a value to the other host."
    if gpus and variables["NCCL_SOCKET_IFNAME"].lstrip("=") != network:
        return f"NCCL_SOCKET_IFNAME is not {network}."
    return ""


def sbatch_problem(text: str, nodes: int, gpus: int, hours: int, warning: int) -> str:
    """Of a batch script for Slurm: so many nodes, a task for each of so many GPUs of a
    node, so many hours, and a signal so many seconds before the end, at least."""
    try:
        asked = _asked_of_sbatch(text)
    except ValueError as error:
        return f"sbatch could not read it: {error}."
    wanted = {"nodes": nodes, "ntasks-per-node": gpus, "gpus-per-node": gpus}
    for name, number in wanted.items():
        # Of GPUs, a kind may be named before how many: h100:8.
        kind = r"(\w+:)?" * (name == "gpus-per-node")
        if not re.fullmatch(f"{kind}{number}", asked.get(name, "")):
            return f"--{name} is {asked.get(name) or 'not there'}, not {number}."
    seconds = _seconds(asked.get("time", ""))
    if seconds is None:
        return f"--time is {asked.get('time') or 'not there'}: write hours:00:00."
    if seconds != 3600 * hours:
        return f"--time asks for {seconds / 3600:g} hours, not {hours}."
    if problem := _signal_problem(asked):
        return problem
    seconds = int(asked["signal"].partition("@")[2])
    if seconds < warning:
        return f"USR1 comes {seconds} s before the end; saving takes {warning} s."
    if "requeue" not in asked:
        return "Without --requeue a node that fails ends the job."
    return ""


def two_nodes_problem(text: str, signal: bool) -> str:
    """Of a batch script for Slurm: two nodes with a task each, some time, and an
    `mpirun` or `srun` that trains into $RUN.

    signal: must it ask for USR1 before its end, and to be started again?
    """
    try:
        asked = _asked_of_sbatch(text)
    except ValueError as error:
        return f"sbatch could not read it: {error}."
    if not text.lstrip().startswith("#!"):
        return "sbatch wants a first line that begins with #!, such as #!/bin/bash."
    for name, number in (("nodes", "2"), ("ntasks-per-node", "1")):
        if asked.get(name) != number:
            return f"--{name} is {asked.get(name) or 'not there'}, not {number}."
    if _seconds(asked.get("time", "")) is None:
        return f"--time is {asked.get('time') or 'not there'}: write hours:00:00."
    commands = "\n".join(re.findall(r"^(?!\s*#).*$", text, re.M))
    if not re.search(r"\b(mpirun|srun)\b", commands):
        return "Neither mpirun nor srun is called: one process would train alone."
    if not re.search(r"\$\{?RUN\b", commands):
        return "The program is not told to keep anything in $RUN."
    if signal and (problem := _signal_problem(asked)):
        return problem
    if signal and "slurm_resume.sh" not in commands and "trap" not in commands:
        return "Nothing waits for USR1: it would end the script."
    return ""


def _signal_problem(asked: Mapping[str, str]) -> str:
    signal = asked.get("signal", "")
    if re.fullmatch(r"B:(?:SIG)?USR1@\d+", signal):
        return ""
    return (
        f"--signal is {signal or 'not there'}: the trap waits for USR1, sent to the "
        "batch script (B)."
    )


def _asked_of_sbatch(text: str) -> dict[str, str]:
    """The options in the lines with #SBATCH, by their long names without dashes."""
    words = []
    for line in re.findall(r"^#SBATCH\s(.*)$", text, re.M):
        for word in shlex.split(line, comments=True):
            # -N4 is -N 4, and --nodes=4 is --nodes 4.
            option, value = re.fullmatch(r"(-\w|--[\w-]+|)=?(.*)", word, re.S).groups()
            words += [SHORT.get(option, option)] * bool(option) + [value] * bool(value)
    asked = {}
    for word, following in pairwise([*words, "-"]):
        if word.startswith("--"):
            asked[word[2:]] = "" if following.startswith("-") else following
    return asked


def _seconds(time: str) -> int | None:
    """Of a time as Slurm reads it: minutes, with :seconds behind or hours: before them;
    after `days-`, hours come first."""
    if not re.fullmatch(r"(\d+-\d+(:\d+){0,2}|\d+(:\d+){0,2})", time):
        return None
    days, _, rest = time.rpartition("-")
    parts = [int(part) for part in rest.split(":")]
    if not days and len(parts) < 3:
        parts = [0, *parts]
    hours, minutes, seconds = (*parts, 0, 0)[:3]
    return 86_400 * int(days or 0) + 3600 * hours + 60 * minutes + seconds


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
        # Kubernetes counts cores in thousandths, too: 8000m are 8.
        limit = str(worker["resources"]["limits"]["cpu"])
        cores = float(limit.removesuffix("m")) / (1000 if limit.endswith("m") else 1)
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


def merged(text: str, changes: str) -> str:
    """A description in YAML with changes to it, in YAML too: of mappings, the keys that
    are named; of lists of things with names, the things; all else is replaced.

    Documents behind the first are left out. Raises ValueError for what is no mapping.
    """
    import yaml

    job = next(yaml.safe_load_all(text))
    try:
        changed = yaml.safe_load(changes)
    except yaml.YAMLError as error:
        raise ValueError(f"YAML could not read it: {error}") from error
    if not isinstance(changed, dict):
        raise ValueError("it is no mapping: begin with `spec:`")
    return yaml.safe_dump(_merge(job, changed), sort_keys=False)


def _merge(old: object, new: object) -> object:
    if isinstance(old, dict) and isinstance(new, dict):
        added = {key: _merge(old.get(key), value) for key, value in new.items()}
        return old | added
    if _named(old) and _named(new):
        rows = {row["name"]: row for row in old}
        for row in new:
            rows[row["name"]] = _merge(rows.get(row["name"]), row)
        return list(rows.values())
    return new


def _named(rows: object) -> bool:
    return isinstance(rows, list) and all(
        isinstance(row, dict) and "name" in row for row in rows
    )


def spark_problem(text: str, workers: int, seconds: int) -> str:
    """Of a call of `horovod.spark.run`: of `train` with `args` on so many workers, that
    have so many seconds to start, with Gloo."""
    if not text.strip():
        return NOTHING
    try:
        call = ast.parse(text.strip(), mode="eval").body
    except SyntaxError as error:
        return f"Python could not read it: {error.msg}, line {error.lineno}."
    if not isinstance(call, ast.Call) or ast.unparse(call.func) != "horovod.spark.run":
        return "It is no call of horovod.spark.run."
    names = ("fn", "args", "kwargs", "num_proc", "start_timeout")
    by_place = zip(names, call.args, strict=False)
    given = {name: ast.unparse(value) for name, value in by_place}
    given |= {word.arg: ast.unparse(word.value) for word in call.keywords}
    if given.get("fn") != "train":
        return "What comes first is the function, train, and not what it returns."
    if given.get("args") not in ("(args,)", "[args]"):
        return "args is what train gets, as a tuple: (args,)."
    if given.get("num_proc") != str(workers):
        return f"num_proc is {given.get('num_proc', 'not there')}, not {workers}."
    if given.get("start_timeout") != str(seconds):
        start = given.get("start_timeout", "not there")
        return f"start_timeout is {start}, not {seconds}: by default it is 600."
    if given.get("use_gloo") != "True":
        return "use_gloo=True is missing: Horovod would take an mpirun if it finds one."
    return ""
