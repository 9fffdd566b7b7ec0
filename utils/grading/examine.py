"""Examine a submission: run it in the sandbox, and judge it by what its workers did.

The same lab and the same judge as for a learner's own check; only that nothing the
program says is believed, and that it runs where it can do no harm: in each world (one
worker, two, ...) in a sandbox and a folder of their own, so that no world can touch
what another one left behind.

A program shares its process with the observer. One that replaces what it is observed
with, traces itself, or writes to its report is refused where Python or the observer
sees it; who knows the observer's source could still forge the reports of a world.
"""

import contextlib
import os
from dataclasses import replace
from pathlib import Path

import numpy as np

from utils.base import course, files
from utils.base.programs import as_python_reads_it
from utils.checking import checks, exercises, lab
from utils.checking.judges import judge
from utils.grading import sandbox
from utils.grading.examined import Examined
from utils.grading.gradebook import CRASHED, GRADER_ERROR, HUNG, OK
from utils.grading.submissions import REFUSED
from utils.lessons.verdict import UNDECIDED, WRONG, Verdict

NAME = "submission.py"
# What a program and the lab need of this package; judges and grader are none of it.
SHOWN = (
    *("__init__.py", "base", "training", "running", "checking/__init__.py"),
    *("checking/lab.py", "checking/evidence.py", "checking/messenger.py"),
    "checking/observers",
)
LIMITS = sandbox.Limits(seconds=lab.START + lab.LIMIT)
LOG = 8_000  # bytes of what each worker printed

# What a judge meets where records contradict one another.
_NO_TRAINING = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)

# What a program was ended for, as status and in words.
_BREACHES = {
    "time": (HUNG, "it did not end within {0.seconds:.0f} s"),
    "memory": (REFUSED, "it used more than {0.memory:.2g} bytes of memory"),
    "processes": (REFUSED, "it started more than {0.processes} processes"),
    "files": (REFUSED, "it wrote more than {0.file_bytes:.2g} bytes of files"),
    "output": (REFUSED, "it printed more than {0.output_bytes:.2g} bytes"),
}


def examine(
    program: Path,
    limits: sandbox.Limits = LIMITS,
    silence: float = lab.SILENCE,
    steps: tuple[int, ...] | None = None,
) -> Examined:
    """Examine one program; what is right with which step, and how it behaved.

    program: named like the exercise that it is (see `exercises.find`).
    silence: of a program that is taken for hung, see `lab.prepare`.
    steps: the steps to look at; by default all of the exercise's.
    Raises CourseError if the sandbox or the lab can't be used on this machine.
    """
    isolation = sandbox.probe()
    isolation_notes = (f"Isolation: {isolation.how}.", *isolation.describe())
    content, exercise = program.read_bytes(), exercises.find(script=program)
    verdicts = checks.at_once(content, exercise, steps or exercise.steps)
    wanted = [step for step, verdict in verdicts.items() if verdict is None]
    if not wanted:
        return _result(verdicts, isolation_notes, "", 0.0)
    with files.scratch() as place, contextlib.ExitStack() as stack:
        folder = place.resolve()
        stack.callback(sandbox.remove, folder)
        if not isolation.files:  # then the unprivileged user comes to it by this way
            folder.chmod(0o711)
        text = as_python_reads_it(content)
        observed: dict[str, judge.Observed] = {}
        seconds, stopped = 0.0, None
        for name in exercise.worlds(wanted):
            world, ended, stopped = _perform(
                name, text, exercise, folder, silence, limits, isolation
            )
            observed |= world
            seconds += ended.seconds
            if stopped:
                break
        log = _log(observed) or ended.output
        if not stopped:
            try:
                with np.errstate(all="ignore"):  # forged numbers may be of any size
                    verdicts |= {
                        step: exercise.judge(step, observed) for step in wanted
                    }
            except _NO_TRAINING as error:
                # Each record is what a worker reports; together they are no training.
                kind = type(error).__name__
                stopped = (REFUSED, f"what it reported does not fit together ({kind})")
        if stopped:
            verdicts |= {step: _stopped(exercise, step, *stopped) for step in wanted}
        return _result(verdicts, isolation_notes, log, seconds, stopped)


def _perform(
    name: str,
    program: str,
    exercise: exercises.Exercise,
    folder: Path,
    silence: float,
    limits: sandbox.Limits,
    isolation: sandbox.Isolation,
) -> tuple[dict[str, judge.Observed], sandbox.Ended, tuple[str, str] | None]:
    """Run a program in one world, in a sandbox and a folder of its own.

    Gives the world by its name, how the sandbox ended, and status and reason where the
    program was ended. Raises CourseError for what is no program's fault.
    """
    world, place = lab.WORLDS[name], _place(folder, name)
    place.mkdir()
    script = place / NAME
    if not world.reference:  # it is compared with what this program can't touch
        script.write_text(program, encoding="utf-8", newline="\n")
    job = exercise.job(script, (name,), place)
    readable = [course.PACKAGE / name for name in SHOWN]
    if world.after:
        earlier = _reports_of(folder, world.after)
        job = replace(job, earlier=str(earlier))
        readable.append(earlier)
    lab.prepare(place, [job], silence)
    ended = sandbox.run(
        lab.command(place),
        place,
        readable=readable,
        environment=lab.environment(),
        limits=limits,
        isolation=isolation,
    )
    observed = judge.read(_reports_of(folder, name).parent)
    if ended.breach:
        status, reason = _BREACHES[ended.breach]
        return observed, ended, (status, f"{reason.format(limits)}, and was ended")
    if lab.BEGINS not in ended.output:
        raise course.CourseError(f"the lab failed: {ended.output[-2000:]}")
    if ended.status or name not in observed or observed[name].statuses == {}:
        stopped = (REFUSED, "it ended the processes that watch over it")
        return observed, ended, stopped
    reports = _reports_of(folder, name)
    if os.path.realpath(reports) != str(reports):
        # A later life would be shown what the link leads to.
        return observed, ended, (REFUSED, "it moved the folder of its reports")
    return observed, ended, None


def _place(folder: Path, world: str) -> Path:
    """Where a world's sandbox may write."""
    return folder / world.replace(" ", "-")


def _reports_of(folder: Path, world: str) -> Path:
    """Where in there the lab and the workers leave what they report."""
    return _place(folder, world) / "0" / world


def _stopped(
    exercise: exercises.Exercise, step: int, status: str, reason: str
) -> Verdict:
    expected, seen = exercise.expected[step], f"{reason[0].upper()}{reason[1:]}."
    return Verdict(step, f"step-{step}.{status}", WRONG, expected, seen)


def _log(observed: dict[str, judge.Observed]) -> str:
    """What the workers printed, one after the other; none of it is believed."""
    parts = []
    for world in observed.values():
        for rank in world.ranks:
            try:
                text = rank.text("out")[:LOG] + rank.text("err")[-LOG:]
            except judge.Unreadable as error:
                text = f"(unreadable: {error})"
            if text.strip():
                parts.append(f"--- rank {rank.number} of {world.size}\n{text}")
    return "\n".join(parts)


def _result(
    known: dict[int, Verdict],
    isolation: tuple[str, ...],
    log: str,
    seconds: float,
    stopped: tuple[str, str] | None = None,
) -> Examined:
    verdicts = tuple(known.values())
    if stopped:
        return Examined(verdicts, stopped[0], isolation, log, seconds, stopped[1])
    failures = [v for v in verdicts if not v.ok]
    endings = {v.id.partition(".")[2]: v for v in reversed(failures)}
    for name, status in (
        (judge.TAMPERED, REFUSED),
        (judge.FLOOD, REFUSED),
        (judge.CRASHED, CRASHED),
        (judge.DEADLOCK, HUNG),
        (judge.HUNG, HUNG),
    ):
        if name in endings:
            seen = endings[name].seen
            return Examined(verdicts, status, isolation, log, seconds, seen)
    if any(v.state == UNDECIDED for v in failures):
        reason = next(v.seen for v in failures if v.state == UNDECIDED)
        return Examined(verdicts, GRADER_ERROR, isolation, log, seconds, reason)
    return Examined(verdicts, WRONG if failures else OK, isolation, log, seconds)
