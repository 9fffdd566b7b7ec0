"""The profile in force follows COURSE_PROFILE, then CI, then the GPUs."""

import os
import stat

import pytest

from distcheck import machine
from utils.base import profiles

NO_GPU = not machine.gpus()


@pytest.fixture(autouse=True)
def _nothing_chosen(monkeypatch):
    for name in ("COURSE_PROFILE", "CI", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def nvidia_smi(monkeypatch, tmp_path):
    """Put a program called `nvidia-smi` on the path; the test gives its body."""

    def install(body: str) -> None:
        program = tmp_path / "nvidia-smi"
        program.write_text(f"#!/bin/sh\n{body}\n")
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
        monkeypatch.setattr(machine, "has_cudnn", lambda: True)

    return install


needs_no_gpu = pytest.mark.skipif(not NO_GPU, reason="this machine has GPUs")


def test_cpu_where_there_is_no_gpu(pretend):
    pretend(gpus=0)
    assert profiles.settings() == profiles.PROFILES["cpu"]


@needs_no_gpu
def test_gpu_with_one_worker_per_gpu(nvidia_smi):
    nvidia_smi("echo 'GPU 0: A100 (UUID: x)'; echo 'GPU 1: A100 (UUID: y)'")
    settings = profiles.settings()
    assert (settings.name, settings.workers, settings.width) == ("gpu", 2, 10)


@needs_no_gpu
def test_a_driver_that_fails_drives_no_gpu(nvidia_smi):
    nvidia_smi("echo 'GPU 0: from a broken driver'; exit 9")
    assert machine.gpus() == 0


def test_ci_goes_before_the_machine(monkeypatch):
    monkeypatch.setenv("CI", "true")
    assert profiles.settings() == profiles.PROFILES["ci"]


def test_the_choice_goes_before_ci(monkeypatch):
    monkeypatch.setenv("CI", "true")
    monkeypatch.setenv("COURSE_PROFILE", "cpu")
    assert profiles.settings() == profiles.PROFILES["cpu"]


def test_a_lesson_may_take_as_long_as_its_profile_needs(pretend):
    """Where there are fewer GPUs than workers, they train on cores, as `cpu` has it."""
    pretend(gpus=2)
    limits = [profiles.profile(name).time_limit for name in ("ci", "cpu", "gpu")]
    assert limits == sorted(limits)
    assert limits[0] < limits[-1]
    pretend(gpus=1)
    assert profiles.profile("gpu").time_limit == limits[1]


def test_each_profile_is_listed_under_its_own_name():
    assert {name: s.name for name, s in profiles.PROFILES.items()} == {
        name: name for name in ("ci", "cpu", "gpu")
    }


@pytest.mark.parametrize(
    ("told", "found"),
    [
        ({"flags": "sse2 avx2 avx512_bf16"}, {"avx512_bf16"}),
        ({"flags": "sse2 avx2"}, set()),
        ({"Features": "fp asimd bf16 svebf16"}, {"bf16"}),  # ARM
        ({}, set()),  # macOS
    ],
)
def test_bfloat16_is_found_on_any_processor(monkeypatch, told, found):
    monkeypatch.setattr(machine, "_cpuinfo", lambda key: told.get(key, ""))
    assert machine.bfloat16() == found
    assert ("bfloat16" in machine.summary()) == bool(found)


@pytest.mark.parametrize(
    ("files", "most"),
    [
        ({"cpu.max": "150000 100000\n"}, 1),
        ({"cpu.max": "50000 100000\n"}, 1),
        ({"cpu.max": "max 100000\n"}, 64),
        ({"cpu/cpu.cfs_quota_us": "400000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 4),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, 64),
        ({}, 64),
    ],
)
def test_a_container_has_as_many_cores_as_its_limit(monkeypatch, tmp_path, files, most):
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(machine, "CGROUP", tmp_path)
    monkeypatch.setattr(
        machine.os, "sched_getaffinity", lambda _: range(64), raising=False
    )
    assert machine.cores() == most
