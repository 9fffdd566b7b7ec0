"""Run one worker's program as `python program.py` would, with two additions.

A worker that fails ends at once, without the handshake at exit that MPI and Horovod
would wait in for the other workers; so the whole job ends and the error is seen.
And on request (recording.py) the worker keeps what happened to its weights.

    mpirun -np 2 python -m utils.running.worker program.py --epochs 3
"""

import json
import os
import sys
from pathlib import Path

from distcheck import errors, files, tasks, worker
from utils.running import stacks


def _leave(status: int) -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def _rank() -> int:
    """This worker's number: as a task of a cluster, or as mpirun tells it."""
    return int(os.environ.get("DISTCHECK_TASK", worker.rank()))


def _report(**facts) -> None:
    """Tell the launcher about this worker, in a file of its own."""
    folder = os.environ.get("COURSE_RUN")
    if folder:
        path = Path(folder, "workers", f"{_rank()}.json")
        path.parent.mkdir(exist_ok=True)
        files.write_whole(path, json.dumps({"pid": os.getpid(), **facts}))


def _write_to_files(folder: Path) -> None:
    """Append what this process says to files of its rank, named as mpirun's.

    horovodrun would begin the file of a rank anew for each process that has it.
    """
    target = folder / "1" / f"rank.{_rank()}"
    target.mkdir(parents=True, exist_ok=True)
    for number, name in ((1, "stdout"), (2, "stderr")):
        file = os.open(target / name, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o666)
        os.dup2(file, number)
        os.close(file)


def main() -> None:
    if "COURSE_OUTPUT" in os.environ:
        _write_to_files(Path(os.environ["COURSE_OUTPUT"]))
    worker.quiet()
    script, *arguments = sys.argv[1:]
    if "COURSE_HOMES" in os.environ:  # as if each worker had a disk of its own
        script = str(Path(script).resolve())
        home = Path(os.environ["COURSE_HOMES"], str(_rank()))
        home.mkdir(parents=True, exist_ok=True)
        os.chdir(home)
    sys.argv = [script, *arguments]
    sys.path[0] = str(Path(script).resolve().parent)
    # Before it is known to anybody: who does not expect the signal, is ended by it.
    if "COURSE_RUN" in os.environ:
        stacks.answer_from_now_on(Path(os.environ["COURSE_RUN"]), _rank())
    _report()
    try:
        tasks.enter()
    except errors.UserError as error:
        print(f"UserError: {error}", file=sys.stderr)
        _report(error=str(error))
        _leave(2)
    if "COURSE_RECORD" in os.environ:
        from utils.running import recording

        recording.start(int(os.environ["COURSE_RECORD"]))
    if "COURSE_FINGERPRINT" in os.environ:
        from utils.running import fingerprint

        fingerprint.start()
    failure = worker.run_program(script)
    if failure:
        status = failure.pop("status")
        _report(**failure)
        _leave(status)


if __name__ == "__main__":
    main()
