"""Which GPUs a worker has, as a pretended nvidia-smi tells it."""

import io
import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from utils.running import watch

ME = os.getpid()
GPUS = "0, GPU-aa\n1, GPU-bb"


@pytest.fixture
def samples(monkeypatch, tmp_path, pretend):
    """Samples this process as rank 0, where nvidia-smi gives these answers."""

    def take(apps, numbered=True, on_gpus=True):
        smi = tmp_path / "nvidia-smi"
        answers = {"compute-apps=pid": apps, "gpu=index,uuid": GPUS}
        answers["gpu=index,memory"] = "0, 3100\n1, 2"
        cases = [f"--query-{q}*) echo '{text}';;" for q, text in answers.items()]
        smi.write_text("\n".join(["#!/bin/sh", 'case "$1" in', *cases, "esac"]))
        smi.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
        monkeypatch.setattr(watch, "numbered_as_by_the_driver", lambda: numbered)
        process = watch.psutil.Process()
        monkeypatch.setattr(watch, "worker_processes", lambda folder: {0: process})
        pretend(gpus=2)
        (reading,) = watch.Watch(tmp_path, on_gpus).sample()
        return SimpleNamespace(**reading)

    return take


def test_all_gpus_of_a_worker_are_seen(samples):
    seen = samples(f"{ME}, GPU-bb, 900\n1, GPU-aa, 70\n{ME}, GPU-aa, 2100")
    assert seen.gpus == {"GPU 0": 2100, "GPU 1": 900}
    assert seen.in_use == {}


def test_memory_that_the_driver_does_not_tell_is_memory_all_the_same(samples):
    assert samples(f"{ME}, GPU-bb, [N/A]").gpus == {"GPU 1": 1}


@pytest.mark.parametrize("apps", ["", "4026531, GPU-aa, 3100"])
def test_in_a_container_the_memory_of_each_gpu_is_seen(samples, apps):
    seen = samples(apps, numbered=False)
    assert (seen.gpus, seen.in_use) == ({}, {"GPU 0": 3100, "GPU 1": 2})


def test_a_container_with_the_host_s_numbers_is_like_the_host(samples):
    seen = samples(f"{ME}, GPU-aa, 3100", numbered=False)
    assert (seen.gpus, seen.in_use) == ({"GPU 0": 3100}, {})


def test_where_processes_can_be_told_a_worker_without_a_gpu_has_none(samples):
    seen = samples("1, GPU-aa, 3100")
    assert (seen.gpus, seen.in_use) == ({}, {})
    assert seen.core.startswith("core")


def test_nobody_is_asked_of_workers_on_cores(samples):
    seen = samples(f"{ME}, GPU-aa, 3100", on_gpus=False)
    assert (seen.gpus, seen.in_use) == ({}, {})


def test_an_nvidia_smi_that_fails_ends_nothing(samples):
    samples("")
    broken = "#!/bin/sh\necho 0, 1, 2\nexit 9\n"
    Path(shutil.which("nvidia-smi")).write_text(broken)
    assert watch.gpus_of_processes() == {}
    assert watch.gpus_in_use() == {}


def test_the_table_names_gpus_or_says_what_can_not_be_seen(samples):
    from rich.console import Console

    console = Console(width=120, record=True, file=io.StringIO())
    told = samples(f"{ME}, GPU-aa, 3100\n{ME}, GPU-bb, 9")
    console.print(watch._table([vars(told)]))
    assert "GPU 0, GPU 1" in console.export_text()
    console.print(watch._table([vars(samples("", numbered=False))]))
    text = console.export_text()
    assert "GPU 0: 3,100 MiB" in text
    assert "--pid=host" in text
