"""Examine a submission: run it in the sandbox, and judge it by what its workers did.

The same lab and the same judge as for a learner's own check; only that the program
runs where it can do no harm: in each scenario (one worker, two, ...) in a sandbox and a
folder of their own, so that no scenario can touch what another one left behind.

A program shares its process with the recorder, whose reports are taken on trust. One
that replaces what it is observed with is refused.
"""

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from distcheck import errors, files, lab
from distcheck.judges import runs
from distcheck.judges.runs import Run
from distcheck.parts import Part
from distcheck.programs import as_python_reads_it
from distcheck.recorder.recorder import recorder_of
from distcheck.scenarios import SCENARIOS
from distcheck.verdict import UNDECIDED, WRONG, Verdict
from utils.base import course
from utils.checking import exercises
from utils.checking.exercises import Stopped
from utils.grading import sandbox
from utils.grading.examined import Examined
from utils.grading.gradebook import CRASHED, GRADER_ERROR, HUNG, OK
from utils.grading.submissions import REFUSED

NAME = "submission.py"
# What a program and the lab need of the course; judges and grader are none of it.
SHOWN = (
    *(
        f"distcheck/{path.name}"
        for path in sorted((course.PACKAGE_ROOT / "distcheck").iterdir())
        if path.name not in ("judges", "__pycache__")
    ),
    *("utils/__init__.py", "utils/base", "utils/training"),
    *("utils/running", "utils/checking/__init__.py", "utils/checking/images.py"),
    "utils/checking/recorders",
)
LIMITS = sandbox.Limits(seconds=lab.START + lab.TIME_LIMIT)
LOG = 8_000  # bytes of what each worker printed

# What a program was ended for, as status and in words.
_BREACHES = {
    "time": (HUNG, "it did not end within {0.seconds:.0f} s"),
    "memory": (REFUSED, "it used more than {0.memory:.2g} bytes of memory"),
    "processes": (REFUSED, "it started more than {0.processes} processes"),
    "files": (REFUSED, "it wrote more than {0.file_bytes:.2g} bytes of files"),
    "output": (REFUSED, "it printed more than {0.output_bytes:.2g} bytes"),
}

# What the first verdict whose id ends so is, as a status.
_ENDINGS = {
    "tampered": REFUSED,
    "flood": REFUSED,
    "crashed": CRASHED,
    "deadlock": HUNG,
    "hung": HUNG,
}


def examine(
    program: Path,
    limits: sandbox.Limits = LIMITS,
    may_compute: float = lab.MAY_COMPUTE,
    parts: tuple[Part, ...] | None = None,
    protected: bool = True,
) -> Examined:
    """Examine one program; which of its parts are right, and how it behaved.

    program: named like the exercise that it is (see `exercises.find`).
    may_compute: see `lab.prepare`.
    parts: the parts to look at; by default all of the exercise's.
    protected: if not, it runs without the sandbox's protection.
    Raises UserError if the sandbox or the lab can't be used on this machine.
    """
    content, exercise = program.read_bytes(), exercises.find(script=program)
    with _scratch() as folder:
        sandboxed = _Sandboxed(
            content, exercise, folder, limits, may_compute, protected
        )
        verdicts = exercise.judge(content, parts or exercise.parts, sandboxed.observe)
    return sandboxed.examined(tuple(verdicts.values()))


@contextlib.contextmanager
def _scratch() -> Iterator[Path]:
    """A scratch folder for sandboxes, whatever they leave there."""
    with files.scratch() as place:
        folder = place.resolve()
        try:
            yield folder
        finally:
            sandbox.remove(folder)


@dataclass
class _Sandboxed:
    """A program that is observed in one sandbox after the other.

    folder: for these. log: what its workers printed. seconds: that all sandboxes took.
    stopped: why no more of them were needed, if so.
    """

    content: bytes
    exercise: exercises.Exercise
    folder: Path
    limits: sandbox.Limits
    may_compute: float
    protected: bool
    log: str = ""
    seconds: float = 0.0
    stopped: Stopped | None = None

    def observe(self, scenarios: tuple[str, ...]) -> dict[str, Run]:
        """Run it in these scenarios; return what was observed.

        Raises Stopped for what it did, UserError for what is no program's fault.
        """
        observed: dict[str, Run] = {}
        try:
            for scenario in scenarios:
                self._perform(scenario, observed)
        except Stopped as stopped:
            self.stopped = stopped
            raise
        finally:
            self.log = _log(observed) or self.log
        return observed

    def _perform(self, name: str, observed: dict[str, Run]) -> None:
        """Run it in one scenario, in a folder of its own, and add what was observed."""
        scenario, place = SCENARIOS[name], _place(self.folder, name)
        place.mkdir()
        script = place / NAME
        if not scenario.reference:  # it is compared with what this program can't touch
            text = as_python_reads_it(self.content)
            script.write_text(text, encoding="utf-8", newline="\n")
        job = self.exercise.job(script, (name,), place)
        readable = [course.PACKAGE_ROOT / name for name in SHOWN]
        if recorder := recorder_of(scenario):
            readable += recorder.needs()
        if scenario.after:
            earlier = _reports_of(self.folder, scenario.after)
            job = replace(job, earlier=str(earlier))
            readable.append(earlier)
        lab.prepare(place, [job], self.may_compute)
        ended = sandbox.run(
            lab.command(place),
            place,
            readable=readable,
            environment=lab.environment(),
            limits=self.limits,
            protected=self.protected,
        )
        self.seconds += ended.seconds
        self.log = ended.output
        reports = _reports_of(self.folder, name)
        observed |= runs.read(reports.parent)
        if ended.breach:
            status, reason = _BREACHES[ended.breach]
            raise Stopped(status, f"{reason.format(self.limits)}, and was ended")
        if lab.BEGINS not in ended.output:
            raise errors.UserError(f"the lab failed: {ended.output[-2000:]}")
        if ended.status or name not in observed or observed[name].statuses == {}:
            raise Stopped(REFUSED, "it ended the processes that watch over it")
        if os.path.realpath(reports) != str(reports):
            # A later life would be shown what the link leads to.
            raise Stopped(REFUSED, "it moved the folder of its reports")

    def examined(self, verdicts: tuple[Verdict, ...]) -> Examined:
        """What the examination gives, with these verdicts."""
        status, reason = self._status(verdicts)
        said = sandbox.PROTECTED if self.protected else sandbox.UNPROTECTED
        return Examined(verdicts, status, said, self.log, self.seconds, reason)

    def _status(self, verdicts: tuple[Verdict, ...]) -> tuple[str, str]:
        """How it behaved, in a word, and why; "" where the verdicts say it."""
        if self.stopped:
            return self.stopped.status, self.stopped.reason
        failures = [verdict for verdict in verdicts if not verdict.ok]
        seen = {v.id.partition(".")[2]: v.seen for v in reversed(failures)}
        for name, status in _ENDINGS.items():
            if name in seen:
                return status, seen[name]
        for verdict in failures:
            if verdict.state == UNDECIDED:
                return GRADER_ERROR, verdict.seen
        return (WRONG if failures else OK), ""


def _place(folder: Path, scenario: str) -> Path:
    """Where a scenario's sandbox may write."""
    return folder / scenario.replace(" ", "-")


def _reports_of(folder: Path, scenario: str) -> Path:
    """Where in there the lab and the workers leave what they report."""
    return _place(folder, scenario) / "0" / scenario


def _log(observed: dict[str, Run]) -> str:
    """What the workers printed, one after the other; none of it is believed."""
    parts = []
    for run in observed.values():
        for rank in run.ranks:
            try:
                text = rank.text("out")[:LOG] + rank.text("err")[-LOG:]
            except runs.Unreadable as error:
                text = f"(unreadable: {error})"
            if text.strip():
                parts.append(f"--- rank {rank.number} of {run.size}\n{text}")
    return "\n".join(parts)
