"""Check a program each time it is saved: the next open part, then the one after it.

One lab does this, and has imported TensorFlow by the time that a learner saves.
"""

import contextlib
import functools
import os
import time
from collections.abc import Callable
from pathlib import Path

from distcheck import files, lab
from distcheck.parts import Part, called, title
from distcheck.show import Page, in_notebook
from utils.checking import checks, exercises
from utils.lessons import outline, progress, work

POLL_SECONDS = 0.1  # between two looks at the program
AGAIN = "to have it checked again"
# How one ends it.
CTRL_C = "Ctrl-C ends this."
STOP_BUTTON = "The stop button, or Kernel > Interrupt Kernel, ends this."

Stamp = tuple[int, ...]  # of a file: another one after each save


def watch(
    tell: Callable[[object], None],
    part: Part | None = None,
    exercise: str | None = None,
    script: str | os.PathLike | None = None,
) -> bool:
    """Check the next open part now and on each save, until the last one is right.

    tell: gets each report, and what is done next. part: the first to check; default,
    the first that is not known to be right. exercise, script: see `checks.check`.

    Returns False if Ctrl-C ended it before. Raises UserError as `checks.report_on`.
    """
    chosen = exercises.find(exercise, script)
    program = checks.program_of(chosen, script)
    if part is None:
        part = _first_open(chosen, program)
    first = chosen.parts.index(outline.exercise(chosen.name).part(part))
    name = files.shown(program)
    with (
        contextlib.suppress(KeyboardInterrupt),
        lab.staying(exercises.IMAGES) as perform,
    ):
        for part in chosen.parts[first:]:
            checked = None
            while True:
                saved = _next_save(program, checked)
                tell(f"Checking {called(part)} of {name} ...")
                wanted = functools.partial(_is_still, program, saved)
                do = functools.partial(perform, wanted=wanted)
                try:
                    report = checks.report_on(part, chosen.name, program, do)
                except lab.Withdrawn:
                    continue
                tell(report)
                if report.ok:
                    tell(f"{title(part)} is right.")
                    break
                checked = saved
                end = STOP_BUTTON if in_notebook() else CTRL_C
                tell(f"Save {name} {AGAIN}. {end}")
        return True
    return False


def check_on_save(
    part: Part | None = None,
    exercise: str | None = None,
    script: str | os.PathLike | None = None,
) -> None:
    """A cell that keeps watching: it shows the verdict on each save of the program.

    It runs until the last part is right, or until it is stopped; as long as it runs,
    no other cell of this notebook does. Arguments and errors: see `watch`.
    """
    from IPython.display import DisplayHandle

    handle = DisplayHandle()
    handle.display(Page())
    verdicts = Page()

    def tell(said: object) -> None:
        """What is said comes below the verdicts, which stay until there are others."""
        nonlocal verdicts
        if isinstance(said, Page):
            verdicts = said
        handle.update(Page(*verdicts.parts, *([said] if isinstance(said, str) else [])))

    if not watch(tell, part, exercise, script):
        tell("Stopped: saving the program has nothing checked any more.")


def _first_open(exercise: exercises.Exercise, program: Path) -> Part:
    """The first part that the last check did not find right, or that the program still
    marks as to be done; of a finished program and of one that isn't the learner's own,
    the first part of all."""
    if program.resolve() != exercise.program.resolve():
        return exercise.parts[0]
    todo = work.todo_lines(program.read_text("utf-8", errors="replace"))
    right = progress.found_right(exercise.name) - todo.keys()
    left = [part for part in exercise.parts if part not in right]
    return (left or exercise.parts)[0]


def _next_save(program: Path, former: Stamp | None) -> Stamp:
    """Wait until there is a program other than the former one."""
    while (stamp := _stamp(program)) in (None, former):
        time.sleep(POLL_SECONDS)
    return stamp


def _is_still(program: Path, stamp: Stamp) -> bool:
    return _stamp(program) == stamp


def _stamp(program: Path) -> Stamp | None:
    """None while there is no such file: some editors save by replacing it."""
    try:
        facts = program.stat()
    except FileNotFoundError:
        return None
    return facts.st_mtime_ns, facts.st_size, facts.st_ino
