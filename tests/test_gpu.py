"""What the doctor makes of GPUs: of answers that are made up, as no GPU is needed."""

import pytest
from machines import GPUS, PROBED_GPU

from utils.checking import doctor, gpu
from utils.checking.doctor import LIMITED, MISSING, OK

A100, V100, H100, B200, T4, K80 = (f"0, {answer}" for answer in GPUS.values())
OLD = ["sm_50", "sm_60", "sm_70", "sm_75", "compute_80"]  # TensorFlow 2.15.1
NEW = PROBED_GPU["built_for"]


def test_the_answer_of_nvidia_smi_is_read_line_by_line():
    a100, h100 = gpu.read(f"{A100}\n{H100}\n3, broken, [N/A], 550.54.15, [N/A], 0\n")
    assert (a100.capability, a100.driver) == ((8, 0), (550, 54, 15))
    assert "H100 80GB HBM3, compute capability 9.0, 80 of 80 GiB free" in str(h100)
    assert gpu.read("NVIDIA-SMI has failed because it couldn't communicate") == []


@pytest.mark.parametrize(
    ("capability", "built", "how"),
    [
        ((8, 0), OLD, ("there", "sm_80")),
        ((8, 6), OLD, ("there", "sm_80")),
        ((9, 0), OLD, ("compiled", "compute_80")),
        ((7, 5), OLD, ("there", "sm_75")),
        ((7, 2), OLD, ("there", "sm_70")),
        ((8, 0), NEW, ("there", "sm_80")),
        ((8, 6), NEW, ("there", "sm_80")),
        ((8, 9), NEW, ("there", "sm_89")),
        ((9, 0), NEW, ("there", "sm_90")),
        ((10, 0), NEW, ("compiled", "compute_90")),
        ((12, 0), ["sm_120", "compute_90"], ("there", "sm_120")),
        ((5, 0), NEW, ("", "")),
        ((3, 7), OLD, ("", "")),
    ],
)
def test_how_a_gpu_gets_its_kernels(capability, built, how):
    assert gpu.how_it_runs(capability, built) == how


@pytest.mark.parametrize(
    ("cuda", "compiles", "driver"),
    [
        ("12.5.1", False, (525, 60)),
        ("12.5.1", True, (555, 42)),
        ("12.2", True, (535, 54)),
        ("11.4", True, (520, 61)),
        ("14.0", False, ()),
    ],
)
def test_the_driver_that_a_cuda_needs(cuda, compiles, driver):
    assert gpu.least_driver(cuda, compiles) == driver


def test_versions_that_libraries_tell_as_a_number():
    assert gpu.of_library(8902) == (8, 9, 2)
    assert gpu.of_library(90300) == (9, 3, 0)
    assert gpu.of_library(22707) == (2, 27, 7)


@pytest.mark.parametrize(
    ("answer", "changes", "forbids", "limits"),
    [
        (A100, {}, "", ""),
        (H100, {"built_for": OLD, "cuda": "12.2"}, "", "compiles them from compute_80"),
        (H100, {}, "", ""),
        (B200, {}, "", "CUDA_ERROR_INVALID_PTX"),
        (H100.replace("560.35", "550.54"), {}, "", ""),
        (K80, {}, "no kernels for compute capability 3.7", ""),
        (K80, {}, "driver 470.57.2 is too old", ""),
        (T4, {}, "", "GPU 0 has less than 12 GiB free"),
        (A100, {"cudnn": 8902}, "built for cuDNN 9, but this machine has 8.9.2", ""),
        (V100, {"cudnn": 91000}, "", ""),
        (V100, {"cudnn": 91100}, "cuDNN 9.11.0 has no kernels for compute cap", ""),
        (A100, {"cudnn": 0}, "this machine has none that loads", ""),
        (
            A100,
            {"built_cudnn": "8"},
            "built for cuDNN 8, but this machine has 9.3.0",
            "",
        ),
        (A100, {"built_cudnn": "9.3", "cudnn": 90100}, "cuDNN 9.3, but this", ""),
        (A100, {"built_for": [], "cuda": ""}, "", ""),
    ],
)
def test_what_does_not_fit_is_said_with_its_remedy(answer, changes, forbids, limits):
    found = gpu.problems(gpu.read(answer), PROBED_GPU | changes)
    for words, sentences in zip((forbids, limits), found, strict=True):
        assert words in ". ".join(sentences)
        if not words and answer not in (K80, B200):
            assert sentences == []


@pytest.mark.parametrize(
    ("installed", "answer", "changes", "states", "words"),
    [
        (0, "", {}, [OK], "none is needed"),
        (1, A100, {"gpus": 0}, [LIMITED], "1, of which TensorFlow sees 0"),
        (1, A100, {}, [OK, OK], "one worker; several workers use processor cores"),
        (1, A100, {}, [OK, OK], "CUDA 12.5.1; cuDNN 9.3.0; NCCL 2.27.7"),
        (1, "", {}, [OK, OK], "convolution in 1.5 s; an all-reduce with NCCL"),
        (1, A100, {"cudnn": 8902}, [MISSING, OK], "cuDNN 8.9.2"),
        (1, B200, {}, [LIMITED, OK], "compute capability 10.0"),
        (2, A100, {"gpus": 2, "nccl": 0}, [LIMITED, OK], "Horovod, in memory"),
        (1, A100, {"right": False, "last": "oops"}, [OK, MISSING], "failed: oops"),
        (1, A100, {"sum": None}, [OK, MISSING], "no all-reduce: no answer in time"),
        (
            2,
            f"{A100}\n{A100}",
            {"gpus": 2, "workers": 2, "sum": 3.0},
            [OK, OK],
            "2 workers added 1 and 2 with NCCL",
        ),
        (
            2,
            A100,
            {"gpus": 2, "workers": 2, "sum": 1.0},
            [OK, MISSING],
            "no all-reduce",
        ),
    ],
)
def test_the_doctor_s_lines(installed, answer, changes, states, words):
    lines = doctor._gpu_lines(installed, gpu.read(answer), PROBED_GPU | changes)
    assert [line.state for line in lines] == states
    assert words in " ".join(line.found for line in lines)
    assert [bool(line.fix) for line in lines] == [state != OK for state in states]


def test_a_missing_driver_is_said_where_gpus_were_set_up_for(monkeypatch):
    monkeypatch.setattr(doctor.machine, "has_cudnn", lambda: True)
    (line,) = doctor._gpu_lines(0, [], {})
    assert line.state == LIMITED
    assert "none seen, although cuDNN" in line.found
    assert "525.60 or newer" in line.fix
    assert "GPU=0" in line.fix


def test_a_convolution_that_does_not_end_may_still_be_compiling():
    facts = {name: PROBED_GPU[name] for name in ("gpus", "cuda", "built_for")}
    line = doctor._gpu_lines(1, gpu.read(H100), facts)[-1]
    assert (line.state, "still be compiling" in line.found) == (MISSING, True)
    assert "CUDA_CACHE_PATH" in line.fix
