"""The image of the Containerfile, used: `make image` builds it and then runs this."""

import json
import os
import shlex
import subprocess

import pytest

IMAGE = os.environ.get("COURSE_IMAGE", "")
# podman, docker, or buildah, and what its `run` is to be told.
TOOL, *OPTIONS = shlex.split(os.environ.get("COURSE_CONTAINERS", "podman"))

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(
        not IMAGE, reason="needs the course's image; `make image` builds and tries it"
    ),
]


def call(*words):
    done = subprocess.run(words, capture_output=True, text=True, timeout=800)
    assert done.returncode == 0, f"{shlex.join(words)}\n{done.stdout}{done.stderr}"
    return done.stdout.strip()


@pytest.fixture(scope="module")
def in_container():
    """Runs a command in a container of the image, and returns what it prints. With
    podman and docker each has its own, without a network."""
    if TOOL != "buildah":
        settings = ("--rm", "--network", "none", "--shm-size", "1g", *OPTIONS)
        yield lambda *words: call(TOOL, "run", *settings, IMAGE, *words)
        return
    container = call(TOOL, "from", "--pull-never", IMAGE)
    try:
        yield lambda *words: call(TOOL, "run", *OPTIONS, container, "--", *words)
    finally:
        call(TOOL, "rm", container)


def test_nobody_is_root_in_it(in_container):
    assert in_container("id", "--user", "--name") == "learner"


def test_the_doctor_finds_all_that_the_course_needs(in_container):
    facts = json.loads(in_container("course", "doctor", "--json"))
    assert facts["ok"], facts


def test_two_workers_train_in_it(in_container):
    program = "solutions/fashion_mnist_after_step_06.py"
    options = ("--epochs", "1", "--train-images", "600")
    words = ("course", "run", "-np", "2", "--json", program, "--", *options)
    facts = json.loads(in_container(*words))
    assert facts["workers"] == 2, facts
    assert [epoch["epoch"] for epoch in facts["history"]] == [0], facts


def test_a_notebook_runs_in_it(in_container):
    words = ("course", "notebooks", "03", "--profile", "ci", "--json")
    (notebook,) = json.loads(in_container(*words))
    assert notebook["ok"], notebook
