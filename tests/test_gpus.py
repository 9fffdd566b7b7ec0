"""The page on where to get a GPU: its table of GPUs is what the course's packages say,
and what it says of the course is so."""

import re
import subprocess
import sys

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from utils.base import course
from utils.checking import gpu
from utils.lessons import outline

PAGE = (course.PACKAGE_ROOT / "exercises" / "gpus.md").read_text()
ROWS = re.findall(r"^\| (.*) \| (\d+)\.(\d) \| (.*) \| (.*)\|$", PAGE, re.MULTILINE)
# cuDNN 9.11 is the first for CUDA 12 that lacks GPUs older than these.
CUDNN = Version("9.11")
LEAST_FOR_CUDNN = (7, 5)


@pytest.fixture(scope="module")
def built() -> tuple[str, list[str]]:
    """The CUDA and the kinds of GPU that this TensorFlow was built for."""
    code = (
        "import tensorflow as tf; facts = tf.sysconfig.get_build_info(); "
        "targets = facts.get('cuda_compute_capabilities', []); "
        "print(facts.get('cuda_version', ''), *targets)"
    )
    facts = subprocess.check_output(
        [sys.executable, "-c", code], text=True, timeout=120, stderr=subprocess.DEVNULL
    )
    if not facts.strip():
        pytest.skip("this TensorFlow, for macOS or ARM, was built without CUDA")
    cuda, *targets = facts.split()
    return cuda, targets


def test_the_table_has_old_and_new_gpus():
    capabilities = [(int(major), int(minor)) for _, major, minor, *_ in ROWS]
    assert capabilities == sorted(capabilities)
    assert capabilities[0] < LEAST_FOR_CUDNN < capabilities[-1]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_a_gpu_is_used_as_the_table_says(row, built):
    _, major, minor, said, driver = row
    capability = (int(major), int(minor))
    cuda, targets = built
    how, _ = gpu.how_it_runs(capability, targets)
    wanted = {"there": "kernels are there", "compiled": "compiled at the first start"}
    if capability < LEAST_FOR_CUDNN:
        assert said == "no: too old for cuDNN"
    elif capability >= (10, 0):
        assert (how, said) == ("compiled", "compiling was seen to fail")
    else:
        assert said == wanted[how]
        least, *_ = gpu.least_driver(cuda, how == "compiled")
        assert driver == f"{least} or newer "


def test_the_locked_cudnn_lacks_what_the_table_says():
    lock = (course.PACKAGE_ROOT / "requirements.lock").read_text()
    (pin,) = re.findall(r"^(nvidia-cudnn-cu12\S+)", lock, re.MULTILINE)
    (version,) = Requirement(pin).specifier
    assert Version(version.version) >= CUDNN


def test_the_lessons_that_two_gpus_change_are_named():
    (said,) = re.findall(r"difference in lessons ([^.]*?), and for the two", PAGE)
    parts = [part.split(" to ") for part in re.split(r", | and ", said)]
    named = {f"{n:02}" for first, *to in parts for n in span(first, *to)}
    wanted = {
        lesson.number
        for lesson in outline.read().notebooks.values()
        if "GPUs" in lesson.devices
    }
    assert named == wanted


def span(first: str, last: str = "") -> range:
    return range(int(first), int(last or first) + 1)


def test_the_page_has_a_date_and_its_sources():
    assert re.search(r"as of \w+ 20\d\d", PAGE)
    sections = dict(part.split("\n", 1) for part in PAGE.split("\n## ")[1:])
    for host in ("Kaggle", "Colab"):
        assert sections[host].count("](https://") >= 3
        assert "**What ends it.**" in sections[host]


def test_its_links_lead_somewhere_in_a_class_s_folder_too():
    from utils.grading import hand_out

    local = re.findall(r"\]\((?!https://)([^)#]+)", PAGE)
    assert local
    assert set(local) <= set(hand_out.PAGES)


def test_its_commands_exist():
    makefile = (course.PACKAGE_ROOT / "Makefile").read_text()
    targets = set(re.findall(r"`make (\w+)", PAGE))
    assert {"lab", "setup", "gpu"} <= targets
    for target in targets:
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
