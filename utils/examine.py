"""Examine a submission: run it in the sandbox, and judge it by what its workers did.

The same lab and the same judge as for a learner's own check; only that nothing the
program says is believed, and that it runs where it can do no harm. A program shares
its process with the observer. Who knows the observer's source could forge the reports
of all workers so that they agree in every number; a program that replaces what it is
observed with, or spoils a report, is refused.
"""

import os
import tempfile
from pathlib import Path

from utils import checks, course, exercises, judge, lab, sandbox
from utils.grade import Examined
from utils.gradebook import CRASHED, GRADER_ERROR, HUNG, OK
from utils.submissions import REFUSED
from utils.verdict import UNDECIDED, WRONG, Verdict

NAME = "submission.py"
# What a program and the lab need of this package; the grader is none of it.
SHOWN = (
    *("__init__", "course", "data", "devices", "display", "drawn", "fetch", "hosts"),
    *("lab", "launch", "logs", "messenger", "networks", "observe", "profiles"),
    *("observe_graphs", "observe_replicas", "observe_scaled", "observe_survive"),
    *("stacks", "steps", "supervise", "survival", "tasks", "watch", "worker"),
)
LIMITS = sandbox.Limits(seconds=lab.START + lab.LIMIT)
LOG = 8_000  # bytes of what each worker printed

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
    told = (f"Isolation: {isolation.how}.", *isolation.describe())
    content, exercise = program.read_bytes(), exercises.find(script=program)
    known = checks.at_once(content, exercise, steps or exercise.steps)
    wanted = [step for step, verdict in known.items() if verdict is None]
    if not wanted:
        return _result(known, told, "", 0.0)
    # By this name the next supervisor knows the folder, should this one be killed.
    folder = Path(tempfile.mkdtemp(prefix=f"course-{os.getpid()}-")).resolve()
    try:
        script = folder / NAME
        script.write_bytes(content)
        lab.prepare(folder, [exercise.job(script, wanted, folder)], silence)
        ended = sandbox.run(
            lab.command(folder),
            folder,
            readable=[Path(__file__).with_name(f"{name}.py") for name in SHOWN],
            environment=lab.environment(),
            limits=limits,
            isolation=isolation,
        )
        observed = judge.read(folder / "0")
        log = _log(observed) or ended.output
        if ended.breach:
            status, reason = _BREACHES[ended.breach]
            stopped = (status, f"{reason.format(limits)}, and was ended")
        elif ended.status and not any((folder / "0").glob("*/rank.*.jsonl")):
            raise course.CourseError(f"the lab failed: {ended.output[-2000:]}")
        elif ended.status:
            stopped = (REFUSED, "it ended the processes that watch over it")
        else:
            stopped = None
        if not stopped:
            try:
                known |= {step: exercise.judge(step, observed) for step in wanted}
            except (AttributeError, IndexError, KeyError, TypeError, ValueError):
                # No worker reports what the judge can't even read.
                stopped = (REFUSED, "it spoilt the reports of what it did")
        if stopped:
            known |= {step: _stopped(exercise, step, *stopped) for step in wanted}
        return _result(known, told, log, ended.seconds, stopped)
    finally:
        sandbox.remove(folder)


def _stopped(
    exercise: exercises.Exercise, step: int, status: str, reason: str
) -> Verdict:
    expected, seen = exercise.expected[step], f"{reason[0].upper()}{reason[1:]}."
    return Verdict(step, f"step-{step}.{status}", WRONG, expected, seen)


def _log(observed: dict[str, judge.World]) -> str:
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
    found = [v for v in verdicts if not v.ok]
    endings = {v.id.partition(".")[2]: v for v in reversed(found)}
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
    if any(v.state == UNDECIDED for v in found):
        reason = next(v.seen for v in found if v.state == UNDECIDED)
        return Examined(verdicts, GRADER_ERROR, isolation, log, seconds, reason)
    return Examined(verdicts, WRONG if found else OK, isolation, log, seconds)
