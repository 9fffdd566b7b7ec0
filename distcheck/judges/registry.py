"""Which judge checks which part of an exercise: said beside its function,

    task = exercise("scaled", options="--epochs 3").part

    @task("A", scenarios=("machine",), expected="The learning rate is ...")
    def scales_the_rate(runs): ...

and known once its module is imported. Then `registered("scaled").checks["A"]` is how
task A is checked; `utils.checking.exercises` looks there.
"""

import shlex
from collections.abc import Callable
from dataclasses import dataclass, field

from distcheck.judges.runs import Judge
from distcheck.judges.verdicts import Check
from distcheck.parts import Part


@dataclass(frozen=True)
class Registered:
    """How an exercise is checked. options: what its program is run with. checks: of the
    parts that have a judge."""

    options: tuple[str, ...]
    checks: dict[Part, Check] = field(default_factory=dict)

    def part(
        self, part: Part, *, scenarios: tuple[str, ...], expected: str
    ) -> Callable[[Judge], Judge]:
        """Register the decorated function as what judges this step or task."""

        def decorate(judge: Judge) -> Judge:
            self.checks[part] = Check(part, expected, scenarios, judge)
            return judge

        return decorate


_EXERCISES: dict[str, Registered] = {}


def exercise(name: str, options: str) -> Registered:
    """Register an exercise, whose judges are registered with what this returns."""
    _EXERCISES[name] = Registered(tuple(shlex.split(options)))
    return _EXERCISES[name]


def registered(name: str) -> Registered:
    """What was registered of an exercise. Raises KeyError for none."""
    return _EXERCISES[name]
