"""The Kubernetes files: nothing runs them here, so they are held against the operator's
published schema, and against each other, the image, the program and the set-up."""

import ast
import copy
import json
import os
import re
import runpy
import shlex
import sys
from pathlib import Path

import jsonschema
import pytest
import yaml
from processes import captured

from distcheck import machine, mpi, tasks
from utils.base import course
from utils.cluster import handed_in, namespaces, tried
from utils.running import launch

CLUSTER = course.PACKAGE_ROOT / "solutions" / "cluster"
SCHEMA = json.loads(
    Path(__file__).with_name("schemas").joinpath("mpijob_v2beta1.json").read_text()
)
JOB, CLAIM = yaml.safe_load_all((CLUSTER / "mpijob.yaml").read_text())
SPEC = JOB["spec"]
GPU_JOB, GPU_CLAIM = yaml.safe_load_all((CLUSTER / "mpijob_gpu.yaml").read_text())
REPLICAS = SPEC["mpiReplicaSpecs"]
UNITS = {"Mi": 2**20, "Gi": 2**30}


def container(replica):
    (entry,) = REPLICAS[replica]["template"]["spec"]["containers"]
    return entry


def problems(job):
    """What the schema has against a job: the path of each complaint."""
    errors = jsonschema.Draft202012Validator(SCHEMA).iter_errors(job)
    return [".".join(map(str, error.absolute_path)) for error in errors]


def image():
    """The instructions of the Containerfile: (name, words)."""
    text = (course.PACKAGE_ROOT / "Containerfile").read_text()
    text = re.sub(r"^#.*\n", "", text, flags=re.M).replace("\\\n", " ")
    lines = [line.split(maxsplit=1) for line in text.splitlines() if line.strip()]
    return [(name, words.strip()) for name, words in lines]


def instruction(name):
    return [words for keyword, words in image() if keyword == name]


def test_the_job_keeps_to_the_published_schema():
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    assert problems(JOB) == problems(GPU_JOB) == []


@pytest.mark.parametrize(
    ("path", "value", "where"),
    [
        (["apiVersion"], "kubeflow.org/v1", "apiVersion"),
        (["spec", "slotsPerWorker"], "2", "spec.slotsPerWorker"),
        (["spec", "cleanPodPolicy"], "Running", "spec"),  # that was v1's place
        (["spec", "runPolicy", "cleanPodPolicy"], "Always", "spec.runPolicy"),
        (["spec", "mpiReplicaSpecs", "Master"], {}, "spec.mpiReplicaSpecs"),
        (["spec", "mpiReplicaSpecs", "Launcher", "replicas"], 2, "Launcher.replicas"),
        (["spec", "mpiReplicaSpecs", "Worker", "template"], {}, "Worker.template"),
    ],
)
def test_the_schema_notices_a_mistake(path, value, where):
    job = copy.deepcopy(JOB)
    place = job
    for name in path[:-1]:
        place = place[name]
    place[path[-1]] = value
    assert [problem for problem in problems(job) if where in problem]


def test_each_slot_has_a_core_and_its_memory():
    limits = container("Worker")["resources"]["limits"]
    slots = SPEC["slotsPerWorker"]
    passed = dict(word.split("=") for word in after("-x"))
    assert {passed[name] for name in mpi.thread_variables(1)} == {"1"}
    assert int(limits["cpu"]) == slots * int(passed["OMP_NUM_THREADS"])
    amount, unit = re.fullmatch(r"(\d+)(\w+)", limits["memory"]).groups()
    assert int(amount) * UNITS[unit] >= slots * launch.MEMORY_PER_WORKER


def after(option):
    """What follows each `option` among the launcher's arguments."""
    words = container("Launcher")["args"]
    return [words[i + 1] for i, word in enumerate(words) if word == option]


def test_the_launcher_runs_a_program_of_the_image_with_options_that_it_has():
    launcher = container("Launcher")
    assert launcher["command"] == ["mpirun"]
    words = launcher["args"]
    assert "-np" not in words  # replicas and slots say it
    program = words[words.index("python") + 1]
    source = course.PACKAGE_ROOT / program
    assert source.is_file()  # and the image has the whole course
    tree = ast.parse(source.read_text())
    known = {
        call.args[0].value
        for call in ast.walk(tree)
        if isinstance(call, ast.Call) and getattr(call.func, "id", "") == "option"
    }
    arguments = words[words.index(program) + 1 :]
    assert {word for word in arguments if word.startswith("--")} <= known
    (workdir,) = instruction("WORKDIR")
    assert launcher["workingDir"] == workdir
    assert f"PATH={workdir}/.venv/bin:" in instruction("ENV")[0]


def test_only_what_the_set_up_reads_has_it_done_again():
    names = [name for name, _ in image()]
    copies = [shlex.split(words)[1:-1] for words in instruction("COPY")]
    done = [words.startswith("make setup") for _, words in image()].index(True)
    count = names[:done].count("COPY")
    before = {path for paths in copies[:count] for path in paths}
    # As the stages of the set-up and the package of the course have it.
    assert before == {
        *("Makefile", "pyproject.toml", "requirements.lock"),
        *("distcheck/__init__.py", "utils/__init__.py", "utils/setup"),
        "utils/running/messages",
    }
    assert all((course.PACKAGE_ROOT / name).exists() for name in before)
    assert copies[-1] == ["."]


def test_the_image_is_for_learners_and_not_for_root():
    assert instruction("USER") == ["learner"]
    opens = json.loads(instruction("CMD")[0])
    assert opens[:2] == ["jupyter", "lab"]
    assert (course.PACKAGE_ROOT / opens[-1]).is_file()
    assert instruction("ARG")[-1] == "GPU=0"


def test_editors_build_the_machine_that_the_image_is_built_on():
    folder = course.PACKAGE_ROOT / ".devcontainer"
    text = (folder / "devcontainer.json").read_text()
    settings = json.loads(re.sub(r"^\s*//.*\n", "", text, flags=re.M))
    build = settings["build"]
    recipe = (folder / build["dockerfile"]).resolve()
    assert recipe == course.PACKAGE_ROOT / "Containerfile"
    assert recipe.parent == (folder / build["context"]).resolve()
    assert f"AS {build['target']}" in instruction("FROM")[0]
    assert settings["remoteUser"] == instruction("USER")[0]
    # Binder takes only a file of this name.
    assert (course.PACKAGE_ROOT / "Dockerfile").resolve() == recipe


def test_the_image_has_the_packages_that_the_installation_asks_for():
    page = (course.PACKAGE_ROOT / "INSTALL.md").read_text()
    line = re.search(r"Debian, Ubuntu \| `sudo apt install (.*?)`", page)
    packages = line[1].split()
    installed = instruction("RUN")[0].split()
    assert set(packages) - {"git"} <= set(installed)  # the course is there already
    assert {"openssh-server", "openssh-client"} <= set(installed)


def test_launcher_and_workers_agree_on_ssh():
    home = "/home/" + instruction("USER")[0]
    assert SPEC["sshAuthMountPath"] == f"{home}/.ssh"
    client, server = instruction("RUN")[1:3]
    worker = container("Worker")
    port = worker["readinessProbe"]["tcpSocket"]["port"]
    assert f"Port {port}" in client
    assert f"'Port {port}'" in server
    assert f"'HostKey {home}/.ssh/id_rsa'" in server
    assert server.endswith(f"> {worker['args'][-1]}")
    images = {container(name)["image"] for name in REPLICAS}
    assert len(images) == 1


def test_what_must_outlive_the_pods_is_on_the_claim_that_all_workers_mount():
    pod = REPLICAS["Worker"]["template"]["spec"]
    volumes = {entry["name"]: entry for entry in pod["volumes"]}
    mounts = {
        entry["mountPath"]: entry["name"]
        for entry in container("Worker")["volumeMounts"]
    }
    claim = volumes[mounts["/shared"]]["persistentVolumeClaim"]["claimName"]
    assert claim == CLAIM["metadata"]["name"]
    assert CLAIM["spec"]["accessModes"] == ["ReadWriteMany"]
    for folder in after("--checkpoint") + after("--log-dir"):
        assert folder.startswith("/shared/")
    assert len(after("--checkpoint")) == 1  # or a restart would begin anew
    assert REPLICAS["Launcher"]["restartPolicy"] == "OnFailure"


# ------------------------------------------------------------ with GPUs


def differences(a, b, path=""):
    """The places where two values differ."""
    if isinstance(a, dict) and isinstance(b, dict):
        for name in a.keys() | b.keys():
            yield from differences(a.get(name), b.get(name), f"{path}/{name}")
    elif isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        for one, other in zip(a, b, strict=True):
            yield from differences(one, other, path)
    elif a != b:
        # Kubernetes' own names may have a slash, too.
        yield re.split(r"/(?!gpu)", path)[-1]


def test_with_gpus_nothing_differs_but_what_they_need():
    found = {*differences(JOB, GPU_JOB)}
    assert found == {
        *("name", "image", "args", "cpu", "memory", "nvidia.com/gpu", "claimName")
    }
    assert {*differences(CLAIM, GPU_CLAIM)} == {"name"}


def test_each_slot_has_a_gpu_and_all_threads():
    replicas = GPU_JOB["spec"]["mpiReplicaSpecs"]
    (worker,) = replicas["Worker"]["template"]["spec"]["containers"]
    (launcher,) = replicas["Launcher"]["template"]["spec"]["containers"]
    slots = GPU_JOB["spec"]["slotsPerWorker"]
    assert worker["resources"]["limits"]["nvidia.com/gpu"] == slots
    assert "nvidia.com/gpu" not in launcher["resources"]["limits"]
    words = launcher["args"]
    assert not any("THREADS" in word for word in words)
    assert "CUDA_CACHE_PATH=/shared/cuda_cache" in words
    # The guard, and then what is run without GPUs, with the same options.
    guard = words.index("solutions/cluster/on_gpus.py")
    assert words[guard - 1] == "python"
    plain = container("Launcher")["args"]
    assert words[guard + 1 :] == plain[plain.index("python") + 1 :]


@pytest.mark.slow
def test_without_a_gpu_nothing_is_trained(tmp_path):
    program = tmp_path / "trains.py"
    program.write_text("print('trains')")
    done = captured(
        [sys.executable, str(CLUSTER / "on_gpus.py"), str(program)],
        env=dict(os.environ, **machine.HIDDEN),
    )
    assert done.returncode == 1
    assert "TensorFlow sees no GPU here, so nothing is trained" in done.stderr
    assert "trains" not in done.stdout


def test_with_a_gpu_the_program_gets_its_own_words(tmp_path, monkeypatch, capsys):
    import tensorflow as tf

    program = tmp_path / "trains.py"
    program.write_text("import sys, other\nprint(__name__, sys.argv[1:])")
    (tmp_path / "other.py").write_text("")  # beside it, as for any program
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: ["a GPU"])
    monkeypatch.setattr(sys, "argv", ["on_gpus.py", str(program), "--epochs", "2"])
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("TF_USE_LEGACY_KERAS", "1")
    runpy.run_path(str(CLUSTER / "on_gpus.py"), run_name="__main__")
    assert capsys.readouterr().out == "__main__ ['--epochs', '2']\n"


# ------------------------------------------------------------ workers of tf.distribute

JOB_SCHEMA = json.loads(
    Path(__file__).with_name("schemas").joinpath("job_v1.json").read_text()
)


def filled_in(workers):
    """Service, job and claim of the template, as lesson 25 fills it in."""
    hosts = [f"workers-{index}.workers:2222" for index in range(workers)]
    text = (CLUSTER / "workers_job.yaml").read_text()
    text = text.replace("WORKERS", str(workers)).replace("HOSTS", json.dumps(hosts))
    return list(yaml.safe_load_all(text))


def test_the_workers_job_keeps_to_the_documented_fields():
    jsonschema.Draft202012Validator.check_schema(JOB_SCHEMA)
    validator = jsonschema.Draft202012Validator(JOB_SCHEMA)
    _, job, _ = filled_in(3)
    assert not list(validator.iter_errors(job))
    for name, wrong in (("completions", "3"), ("completionMode", "indexed")):
        broken = job | {"spec": job["spec"] | {name: wrong}}
        assert list(validator.iter_errors(broken))


def test_each_pod_gets_a_tf_config_that_a_worker_accepts():
    service, job, claim = filled_in(3)
    pod = job["spec"]["template"]["spec"]
    (worker,) = pod["containers"]
    # Kubernetes puts in only what stands before it in the list.
    index, config = worker["env"]
    assert "job-completion-index" in index["valueFrom"]["fieldRef"]["fieldPath"]
    for number in range(3):
        text = config["value"].replace("$(INDEX)", str(number))
        task = tasks.this_task({"TF_CONFIG": text})
        assert (task.type, task.index) == ("worker", number)
        host, port = task.cluster["worker"][number].split(":")
        pod_name, domain = host.split(".")
        assert pod_name == f"{job['metadata']['name']}-{number}"
        assert domain == service["metadata"]["name"] == pod["subdomain"]
        assert int(port) == service["spec"]["ports"][0]["port"]
    assert service["spec"]["selector"] == {"job-name": job["metadata"]["name"]}
    (volume,) = pod["volumes"]
    named = volume["persistentVolumeClaim"]["claimName"]
    assert named == claim["metadata"]["name"]
    program = course.PACKAGE_ROOT / worker["command"][1]
    options = [word for word in worker["args"] if word.startswith("--")]
    assert all(f'option("{name}"' in program.read_text() for name in options)


CHANGES = """
spec:
  slotsPerWorker: 1
  mpiReplicaSpecs:
    Launcher:
      template:
        spec:
          containers:
            - name: launcher
              image: registry.example/mine
              args: [--bind-to, none, python, solutions/cluster/who_is_there.py]
    Worker:
      replicas: 3
      template:
        spec:
          containers:
            - name: worker
              image: registry.example/mine
              resources: {limits: {cpu: "1"}}
"""
JOB_TEXT = (CLUSTER / "mpijob.yaml").read_text()


def test_changes_are_merged_into_a_job_that_keeps_to_the_schema():
    merged = yaml.safe_load(handed_in.merged(JOB_TEXT, CHANGES))
    assert problems(merged) == []
    (worker,) = merged["spec"]["mpiReplicaSpecs"]["Worker"]["template"]["spec"][
        "containers"
    ]
    assert worker["resources"]["limits"] == {"cpu": "1", "memory": "4Gi"}
    assert worker["command"] == ["/usr/sbin/sshd"]  # what isn't named, stays


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ("spec: [", "can't be read"),
        ("spec", "begin with `spec:`"),
        (CHANGES.replace("replicas: 3", "replicas: 2"), "2 replicas"),
        (CHANGES.replace("who_is_there.py", "train.py"), "who_is_there.py"),
    ],
)
def test_changes_that_ask_for_something_else_are_named(changes, says):
    attempt = tried.pods(JOB_TEXT, changes, 3, 1)
    assert not attempt.right
    assert says in repr(attempt)


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_hosts_play_the_pods_of_a_job():
    if why := namespaces.why_not():
        pytest.skip(why)
    attempt = tried.pods(JOB_TEXT, CHANGES, 3, 1)
    assert attempt.right, attempt
