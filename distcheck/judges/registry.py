"""Which judge checks which part of an exercise: said beside its function,

    task = checks("scaled", options="--epochs 3").part

    @task("A", scenarios=("machine",), expected="The learning rate is ...")
    def scales_the_rate(runs): ...

and known once its module is imported. Then `checks_of("scaled").of["A"]` is how task A
is checked; `utils.checking.exercises` looks there.
"""

import shlex
from collections.abc import Callable
from dataclasses import dataclass, field

from distcheck.judges.runs import Judge
from distcheck.judges.verdicts import Check
from distcheck.parts import Part


@dataclass(frozen=True)
class Checks:
    """How an exercise is checked. options: what its program is run with."""

    options: tuple[str, ...]
    of: dict[Part, Check] = field(default_factory=dict)

    def part(
        self, part: Part, *, scenarios: tuple[str, ...], expected: str
    ) -> Callable[[Judge], Judge]:
        """Register the decorated function as what judges this step or task."""

        def decorate(judge: Judge) -> Judge:
            self.of[part] = Check(part, expected, scenarios, judge)
            return judge

        return decorate


_EXERCISES: dict[str, Checks] = {}


def checks(exercise: str, options: str) -> Checks:
    """The checks of an exercise, none as yet."""
    _EXERCISES[exercise] = Checks(tuple(shlex.split(options)))
    return _EXERCISES[exercise]


def checks_of(exercise: str) -> Checks:
    """Those that were registered. Raises KeyError without any."""
    return _EXERCISES[exercise]
