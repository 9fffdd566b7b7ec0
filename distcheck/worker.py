"""Be a worker: which rank it has, and how its program is run."""

import logging
import os
import runpy
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping
from typing import Any


def rank(environment: Mapping[str, str] = os.environ) -> int:
    """This process's rank, as its launcher tells it; 0 for a process on its own.

    Known before Horovod starts, so that data and log files can differ by rank in
    programs that have not called `hvd.init()` yet.
    """
    for name in (
        "HOROVOD_RANK",
        "OMPI_COMM_WORLD_RANK",
        "PMI_RANK",
        "SLURM_PROCID",
    ):
        if name in environment:
            return int(environment[name])
    return 0


def line_in(script: str, places: Iterable[tuple[str, int | None]]) -> int | None:
    """The first of these places, pairs of a file and a line, that is in `script`: its
    line there."""
    return next((line for file, line in places if file == script), None)


def run_program(
    script: str, line_of: Callable[[list[tuple]], Any] | None = None
) -> dict | None:
    """Run `script` as Python runs a program; return None once it has ended well.

    Else what went wrong: status, error, and the program's line, if it has one. The
    error has been shown by then.

    line_of: gives the line, by where the error came from: pairs of a file and a line,
    the innermost first. Else it is the innermost one of `script`.
    """
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as leaving:
        if leaving.code in (None, 0):
            return None
        status = leaving.code if isinstance(leaving.code, int) else 1
        if not isinstance(leaving.code, int):
            print(leaving.code, file=sys.stderr)
        return {"status": status, "error": f"sys.exit({leaving.code!r})", "line": None}
    except BaseException as error:
        # The frames of this module and of runpy are not the learner's.
        frames = traceback.extract_tb(error.__traceback__)
        first = next((i for i, f in enumerate(frames) if f.filename == script), 0)
        tb = error.__traceback__
        for _ in range(first):
            tb = tb and tb.tb_next
        traceback.print_exception(type(error), error, tb)
        places = [(f.filename, f.lineno) for f in reversed(frames)]
        if isinstance(error, SyntaxError) and error.filename:
            places.insert(0, (error.filename, error.lineno))
        line = line_of(places) if line_of else line_in(script, places)
        text = f"{type(error).__name__}: {error}"
        return {"status": 1, "error": text, "line": line}
    return None


def quiet() -> None:
    """Leave out a warning that every right program would get."""
    logging.getLogger("tensorflow").addFilter(_not_the_broadcast)


def _not_the_broadcast(record: logging.LogRecord) -> bool:
    """Keras warns of slow callbacks; the first batch's broadcast is one, rightly."""
    return "is slow compared to the batch time" not in record.getMessage()
