"""The strategies of TensorFlow 2.21, and what works under each: said, and tried out.

    python -m utils.measure.strategies

`KINDS` is the one place for what works. `try_out` runs solutions/any_strategy.py, and
`surprises` says where what happened is not what stands here; the tests want none.
"""

import difflib
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from distcheck import errors, files, machine
from distcheck.show import Table
from utils.base import course
from utils.lessons import markup
from utils.running import launch

TIME_LIMIT = 240.0  # seconds for a run; on an idle machine it takes about fifteen
ONLY_SERVERS = "has no attribute '_cluster_coordinator'"

# The ways to use a strategy, as solutions/any_strategy.py calls them.
WAYS = {
    "fit": "`Model.fit`",
    "loop": "own loop, `strategy.run`",
    "coordinator": "`ClusterCoordinator`",
    "save": "save and load",
}


@dataclass(frozen=True)
class Kind:
    """A strategy: its option, its class, where its variables are and who computes.

    refuses: the ways that don't work, each with a part of what TensorFlow says then;
    `start` if it can't even be made here. processes: how many any_strategy needs.
    """

    name: str
    title: str
    variables: str
    replicas: str
    refuses: dict[str, str]
    processes: int = 1

    def verdict(self, way: str) -> str:
        if "start" in self.refuses:
            return "not run"
        return "no" if way in self.refuses else "works"


KINDS = (
    Kind(
        "default",
        "the default strategy",
        "where TensorFlow puts them",
        "one",
        {"coordinator": ONLY_SERVERS},
    ),
    Kind(
        "one_device",
        "OneDeviceStrategy",
        "on the device you name",
        "one",
        {"coordinator": ONLY_SERVERS},
    ),
    Kind(
        "mirrored",
        "MirroredStrategy",
        "a copy on each device",
        "devices of one machine",
        {"coordinator": ONLY_SERVERS},
    ),
    Kind(
        "central_storage",
        "CentralStorageStrategy",
        "one copy, on one device",
        "devices of one machine",
        {"coordinator": ONLY_SERVERS},
    ),
    Kind(
        "multi_worker",
        "MultiWorkerMirroredStrategy",
        "a copy on each device",
        "devices of many machines",
        {"coordinator": ONLY_SERVERS},
        processes=2,
    ),
    Kind(
        "parameter_server",
        "ParameterServerStrategy",
        "shared out to servers",
        "one in each worker",
        {"loop": "ClusterCoordinator.create_per_worker_dataset"},
    ),
    Kind(
        "tpu",
        "TPUStrategy",
        "a copy on each TPU core",
        "TPU cores",
        {"start": "NotFoundError"},
    ),
)
NAMES = tuple(kind.name for kind in KINDS)

# Strategies that can be tried in one process, one after the other.
TOGETHER = (
    ("default", "one_device", "mirrored", "central_storage", "tpu"),
    ("multi_worker",),
    ("parameter_server",),
)


def places() -> Table:
    """Where each strategy has its variables, and on what it computes."""
    rows = [(kind.title, kind.variables, kind.replicas) for kind in KINDS]
    return Table(("Strategy", "Variables", "Replicas"), rows)


def table() -> Table:
    """The strategies and the ways to use them, as it stands in `KINDS`."""
    rows = [(k.title, *(k.verdict(way) for way in WAYS)) for k in KINDS]
    return Table(("Strategy", *WAYS.values()), rows)


def try_out(*names: str, ways: Sequence[str] = tuple(WAYS)) -> dict[str, list[dict]]:
    """Run solutions/any_strategy.py under these strategies, by default under all. It
    computes on cores, as it did when `KINDS` was written: GPUs were not there to try.

    Returns, for each, what happened in each of its processes: {"start": None, "fit":
    None, "coordinator": "AttributeError: ...", "replicas": 2, ...}, where None is all
    right. Raises UserError for an unknown strategy, RunFailed as `launch.run` does.
    """
    for name in names:
        if name not in NAMES:
            raise errors.UserError(
                f"there is no strategy {name!r}: choose from {', '.join(NAMES)}."
            )
    outcomes = {}
    for group in TOGETHER:
        chosen = [name for name in group if name in (names or NAMES)]
        if not chosen:
            continue
        (processes,) = {kind.processes for kind in KINDS if kind.name in chosen}
        run = launch.run(
            course.root() / "solutions" / "any_strategy.py",
            *("--strategy", *chosen, "--ways", *ways),
            workers=1,
            tasks={"worker": processes} if processes > 1 else None,
            time_limit=TIME_LIMIT,
            quiet=True,
            environment=machine.HIDDEN,
        )
        reports = [json.loads(p.read_text()) for p in run.folder.glob("tried*.json")]
        if len(reports) != processes:
            raise errors.UserError(
                f"{len(reports)} of {processes} processes wrote down what happened. "
                f"See {files.shown(run.log)}."
            )
        outcomes |= {name: [report[name] for report in reports] for name in chosen}
    return outcomes


def tried(outcomes: dict[str, list[dict]]) -> Table:
    """What `try_out` found, in the form of `table`."""

    def cell(processes: list[dict], way: str) -> str:
        if processes[0]["start"]:
            return "not run"
        return "works" if all(process[way] is None for process in processes) else "no"

    ways = [
        way
        for way in WAYS
        if any(way in processes[0] for processes in outcomes.values())
    ]
    rows = [
        (kind.title, *(cell(outcomes[kind.name], way) for way in ways))
        for kind in KINDS
        if kind.name in outcomes
    ]
    return Table(("Strategy", *(WAYS[way] for way in ways)), rows)


def surprises(outcomes: dict[str, list[dict]]) -> list[str]:
    """A sentence for each difference between what `try_out` found and `KINDS`."""
    sentences = []
    for kind in KINDS:
        for process, happened in enumerate(outcomes.get(kind.name, [])):
            for way, error in happened.items():
                if way == "replicas":
                    continue
                expected = kind.refuses.get(way)
                if (error is None) != (expected is None) or (
                    expected and expected not in error
                ):
                    sentences.append(
                        f"{kind.title}, {way}, process {process}: "
                        f"{error or 'works'}; expected: {expected or 'works'}"
                    )
    return sentences


# ------------------------------------------------------------------ which one?

# What a learner chooses in lesson 14, by the questions of its chart: for each situation
# the choices that are right, and why.
SITUATIONS = {
    "one GPU now, and the same program on several later": (
        ("one_device",),
        "one device, which the strategy names; the code stays the same later",
    ),
    "model.fit on one machine with four GPUs": (
        ("mirrored", "horovod"),
        "all in one machine; mirrored is the smaller change",
    ),
    "four hosts with two GPUs each, all yours until the end": (
        ("multi_worker", "horovod"),
        "several machines, and all workers may keep in step",
    ),
    "cheap hosts, each of which may be taken away at any time": (
        ("elastic_horovod",),
        "workers come and go, and the others go on in step",
    ),
    "fast and slow hosts, and a table of which a step needs a few rows": (
        ("parameter_server",),
        "nobody may wait for the slowest, and stale gradients seldom meet in a row",
    ),
    "a host with eight TPU cores": (("tpu",), "only one strategy knows TPU cores"),
}


def judged(choices: Sequence[str]) -> Table:
    """A row for each of SITUATIONS: what was chosen, whether that is right, and why
    once it was chosen. Raises UserError for another number of choices."""
    if len(choices) != len(SITUATIONS):
        raise errors.UserError(
            f"there are {len(SITUATIONS)} situations, not {len(choices)}: "
            'leave "" where you have not chosen.'
        )
    rows = []
    for choice, (situation, right_ones) in zip(
        choices, SITUATIONS.items(), strict=True
    ):
        right, why = right_ones
        verdict = "right: " + why if choice in right else "go through the chart again"
        rows.append((situation, choice, verdict if choice else "not chosen yet"))
    return Table(("Situation", "Your choice", "Is it right?"), rows)


# ------------------------------------------------------------------ lines changed


def code_lines(text: str) -> list[str]:
    """The lines of a program that are neither empty nor comments alone."""
    stripped = (line.strip() for line in text.splitlines())
    return [line for line in stripped if line and not line.startswith("#")]


def lines_changed(source: Path) -> tuple[int, int, int]:
    """What the parts of an annotated program do to its code: the lines it had before,
    the lines taken out, the lines put in. Comments and indentation do not count."""
    text = source.read_text()
    before = code_lines(markup.render(text, 0))
    after = code_lines(markup.render(text, len(markup.parts_of(text))))
    signs = [line[0] for line in difflib.ndiff(before, after)]
    return len(before), signs.count("-"), signs.count("+")


def changes(*exercises: str) -> Table:
    """`lines_changed` of the annotated programs of exercises, such as "mirrored".
    Raises UserError for one that has none."""
    rows = [
        (exercise, *map(str, lines_changed(markup.source_of(exercise))))
        for exercise in exercises
    ]
    return Table(("Program", "Lines of code", "Taken out", "Put in"), rows)


def main() -> int:
    """Try everything out, show it. Returns 0 if it is as `KINDS` says, else 1."""
    from rich.console import Console

    outcomes = try_out()
    console = Console()
    console.print(tried(outcomes))
    for sentence in surprises(outcomes):
        console.print(sentence)
    return int(bool(surprises(outcomes)))


if __name__ == "__main__":
    sys.exit(main())
