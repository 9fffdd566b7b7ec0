"""Judge step 1: does every worker start Horovod, and use a GPU of its own?"""

from distcheck.judges.runs import Problem, Rank, Run, in_line, short
from distcheck.judges.steps.common import step
from distcheck.recorder.tensors import SMALL
from distcheck.scenarios import SCENARIOS


@step(
    1,
    scenarios=("two", "one", "given", "crowded", "hosts"),
    expected=(
        "Every worker calls hvd.init() before it asks for its rank, and uses one GPU "
        "of its own with memory growth on. It chooses the GPU before TensorFlow "
        "touches a device: the one whose number is its local rank, or the only one "
        "that a scheduler lets it see. Without GPUs the program runs, too."
    ),
)
def starts_and_pins(runs: dict[str, Run]) -> None:
    two = runs["two"]
    _starts_before_it_asks(two)
    _pins_before_tensorflow(two)
    if not _started(two):
        two.raise_if_in_trouble()
        raise Problem("not-started", "No worker called hvd.init().")
    _pins_to_its_own_gpu(two)
    _takes_the_keras_interface(two)
    if "given" in runs:
        _takes_what_is_given(runs["given"])
    if "hosts" in runs:
        _counts_its_own_machine(runs["hosts"])
    if "crowded" in runs:
        _shares_no_gpu(runs["crowded"])
    if "one" in runs and not two.failures():
        _needs_no_gpu(runs["one"])


def _started(run: Run) -> list[Rank]:
    """The ranks that have called hvd.init()."""
    return [rank for rank in run.ranks if rank.collectives("init")]


def _starts_before_it_asks(run: Run) -> None:
    """All ranks start Horovod, or none does yet; and none asks it anything before."""
    started = _started(run)
    if 0 < len(started) < run.size:
        numbers = ", ".join(str(rank.number) for rank in started)
        raise Problem(
            "started-by-some",
            f"Only rank {numbers} called hvd.init().",
            started[0].collectives("init")[0]["line"],
        )
    for rank in run.ranks:
        for event in rank.all("asked"):
            if event["too_early"]:
                raise Problem(
                    "asked-too-early",
                    f"Rank {rank.number} called hvd.{event['name']}() in line "
                    f"{event['line']}, before hvd.init().",
                    event["line"],
                )


def _pins_before_tensorflow(run: Run) -> None:
    """No rank chooses its GPU when TensorFlow has set up its devices already."""
    for rank, failure in run.failures():
        if "cannot be modified after being initialized" in failure["error"]:
            touched = next((e["line"] for e in rank.all("devices")), None)
            raise Problem(
                "too-late",
                f"TensorFlow set up its devices{in_line(touched)}, before the "
                f"GPU was chosen in line {failure['line']}.",
                failure["line"],
            )


def _pins_to_its_own_gpu(run: Run) -> None:
    """Each rank sees a single GPU, that of its local rank, with memory growth on."""
    devices = [rank.first("devices") for rank in run.ranks]
    visible = [event["visible"] for event in devices]
    where = "On a machine with four GPUs"
    touched = devices[0]["line"]
    pinned = run.ranks[0].all("pinned")
    line = pinned[-1]["line"] if pinned else touched
    fault = _wrong_choice(visible, SCENARIOS[run.name].gpus)
    if fault:
        local_ranks = SCENARIOS[run.name].local_ranks
        message = "; ".join(
            f"rank {rank} with local rank {local_rank} saw {_gpus(gpus)}"
            for rank, (local_rank, gpus) in enumerate(
                zip(local_ranks, visible, strict=True)
            )
        )
        if fault == "not-pinned":
            message += f"; TensorFlow set up the devices{in_line(touched)}"
        raise Problem(fault, f"{where}, {message}.", line)
    for rank, event in enumerate(devices):
        (gpu,) = event["visible"]
        if gpu not in event["growth"]:
            raise Problem(
                "no-memory-growth",
                f"{where}, rank {rank} saw only its own GPU, {gpu}, but memory growth "
                "was not on for it.",
                line,
            )


def _wrong_choice(visible: list[list[int]], gpus: int) -> str:
    """What is wrong with the GPUs that each rank sees, of so many; "" if nothing is."""
    if all(len(seen) == gpus for seen in visible):
        return "not-pinned"
    if visible[0] == visible[1] and visible[0]:
        return "same-gpu"
    if any(len(seen) != 1 for seen in visible):
        return "wrong-gpu"
    if sorted(visible) == [[rank] for rank in range(len(visible))]:
        return "rank-for-local-rank"  # by local rank, the first GPUs are other workers'
    return ""


def _needs_no_gpu(run: Run) -> None:
    """On a machine without a GPU it gets as far as its first batch."""
    failures = run.failures()
    if failures and not run.ranks[0].all("forward"):
        _, failure = failures[0]
        raise _failed("needs-gpu", "On a machine without a GPU, the program", failure)


def _failed(name: str, who: str, failure: dict) -> Problem:
    """The Problem of a failure where a right program gets on."""
    error = short(failure["error"])
    seen = f"{who} failed{in_line(failure['line'])}: {error}"
    return Problem(name, seen, failure["line"])


def _takes_the_keras_interface(run: Run) -> None:
    """Only horovod.tensorflow.keras has callbacks. A program that trains with fit, and
    hasn't found a way without them, is told now, before a later step fails."""
    rank = run.ranks[0]
    names = {name for fit in rank.all("fit") for name in fit["modules"]}
    alone = "horovod.tensorflow" in names and _KERAS not in names
    found_a_way = any(
        e["op"] == "broadcast" or ("reduce" in e["op"] and e["elements"] > SMALL)
        for e in rank.all("collective_start")
    )
    failed = any(
        "'horovod.tensorflow' has no attribute" in failure["error"]
        for _, failure in run.failures()
    )
    if failed or (alone and not found_a_way):
        raise Problem(
            "other-interface",
            f"The program has imported horovod.tensorflow, but not {_KERAS}. Only "
            "the latter has the callbacks for steps 4 and 6.",
            rank.collectives("init")[0]["line"],
        )


_KERAS = "horovod.tensorflow.keras"


def _takes_what_is_given(run: Run) -> None:
    """A scheduler has let this worker see a single GPU, the first of four."""
    (rank,), (local_rank,) = run.ranks, SCENARIOS[run.name].local_ranks
    where = (
        "A scheduler had given each worker one GPU, with CUDA_VISIBLE_DEVICES. "
        f"The worker with local rank {local_rank}"
    )
    for _, failure in run.failures():
        who = f"{where} saw only its GPU, and"
        raise _failed("given-gpu-not-found", who, failure)
    if not rank.all("devices"):
        run.raise_if_in_trouble()
    event = rank.first("devices")
    if event["visible"] != [0]:
        raise Problem(
            "given-gpu-not-used",
            f"{where} was given GPU 0, but saw {_gpus(event['visible'])}. The "
            "scheduler's choice must not be changed.",
            event["line"],
        )


def _counts_its_own_machine(run: Run) -> None:
    """Each worker is alone on a machine with a GPU."""
    where = "On two machines with one worker and one GPU each"
    for rank, failure in run.failures():
        raise _failed("fails-on-hosts", f"{where}, rank {rank.number}", failure)
    for rank in run.ranks:
        event = rank.first("devices")
        if (event["visible"], event["growth"]) != ([0], [0]):
            raise Problem(
                "not-pinned-on-hosts",
                f"{where}, rank {rank.number} saw {_gpus(event['visible'])}, and "
                f"memory growth was on for {_gpus(event['growth'])}. The number of all "
                "workers doesn't tell how many GPUs a machine has.",
                event["line"],
            )


def _shares_no_gpu(run: Run) -> None:
    """There are more workers than GPUs: to end with an error is right, and so is to
    compute on cores."""
    (rank,), (local_rank,) = run.ranks, SCENARIOS[run.name].local_ranks
    for event in rank.all("devices"):
        if event["visible"]:
            raise Problem(
                "shared-gpu",
                "On a machine with two GPUs for four workers, the worker with local "
                f"rank {local_rank} took {_gpus(event['visible'])}, which another "
                "worker has. Two workers on one GPU are slower than one, run out of "
                "memory, and NCCL refuses them. Let the program fail instead.",
                event["line"],
            )


def _gpus(numbers: list[int]) -> str:
    if not numbers:
        return "no GPU"
    return f"GPU{'s' * (len(numbers) > 1)} {', '.join(map(str, numbers))}"
