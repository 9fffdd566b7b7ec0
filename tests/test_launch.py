"""Runs under a real mpirun: how they end, what they say, and that nothing survives."""

import contextlib
import json
import queue
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from unittest import mock

import psutil
import pytest
from processes import (
    PROGRAM,
    assert_none_is_left,
    descendants_of_runs_in,
    empty_course,
    in_a_plain_shell,
    program,
    wait_for,
    wait_until_none_is_left,
)

from distcheck import errors, files, supervise
from utils.running import explain, follow, launch, watch
from utils.running.follow import Followed
from utils.running.result import Run, RunFailed

START = "from utils import run; run('program.py', 'sleep', time_limit=120)"


@pytest.fixture
def folder(tmp_path):
    """An empty course with a program in it; nothing of a run is left after."""
    program(tmp_path)
    before = scratch_files()
    with empty_course(tmp_path):
        yield tmp_path
    assert_none_is_left(tmp_path)
    # A plain mpirun of a test beside this one has segments too, until it ends.
    wait_for(lambda: scratch_files() <= before, what="the files of runs to go")


def scratch_files():
    """What a run keeps outside its folder while it lasts, of runs that have ended."""
    paths = set(Path("/dev/shm").glob("vader_segment*"))
    if paths:  # all processes are asked
        paths -= mapped_files()
    for parent in {tempfile.gettempdir(), "/dev/shm"}:
        paths |= {
            path
            for path in Path(parent).glob(f"{files.SCRATCH}*-*")
            if not psutil.pid_exists(files.owner(path))
        }
    return paths


def mapped_files():
    """The files that running processes have in their memory; Linux only."""
    paths = set()
    for maps in Path("/proc").glob("[0-9]*/maps"):
        with contextlib.suppress(OSError):  # it has ended, or is another user's
            paths |= {Path(line.split()[-1]) for line in maps.read_text().splitlines()}
    return paths


def start(folder, code=START):
    """A Python process of its own that starts a run; returns when its workers are up.

    The second value is the run's folder.
    """
    owner = subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    greeted = "worker {} of 2"

    def up():
        for log in folder.glob("logs/*/log.txt"):
            text = log.read_text()
            if all(greeted.format(rank) in text for rank in (0, 1)):
                return log.parent
        return None

    return owner, wait_for(up, what="both workers to greet")


def test_a_run_shows_its_command_and_keeps_every_workers_output(folder, capsys):
    run = launch.run("program.py", workers=2)
    assert run.status == 0
    assert run.workers == 2
    assert {"[0] worker 0 of 2", "[1] worker 1 of 2"} == set(run.tail().splitlines())
    assert run.log.read_text().count("\n") == 2
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"$ {run.command}"
    assert run.command.startswith("mpirun -np 2 ")
    assert run.command.endswith(" python program.py")
    assert "2 workers" in lines[-1]


def test_horovod_s_sources_are_named_without_the_place_of_their_build(folder):
    built = "/home/me/.venv/.setup/scratch/horovod-0.28.1/"
    message = (
        f"[E {built}horovod/common/operations.cc:697] [0]: [{built}gloo/pair.cc:589]"
    )
    program(folder, f"print({message!r})", "error.py")
    run = launch.run("error.py", workers=1)
    short = "[E horovod/common/operations.cc:697] [0]: [gloo/pair.cc:589]"
    assert run.log.read_text() == f"[0] {short}\n"


def test_the_command_shown_does_the_same_from_a_plain_shell(folder):
    run = launch.run("program.py", workers=2)
    printed = in_a_plain_shell(run.command)
    # Two workers that share one output may mix their lines.
    assert "worker 0 of 2" in printed
    assert "worker 1 of 2" in printed


def test_options_become_the_programs_own_flags(folder):
    program(folder, "import sys; print(sys.argv[1:])", "options.py")
    run = launch.run("options.py", "-v", workers=1, train_images=640, data="sample")
    words = "['-v', '--train-images', '640', '--data', 'sample']"
    assert run.tail() == f"[0] {words}"
    assert "python options.py -v --train-images 640 --data sample" in run.command


KNOWS_EPOCHS = "import sys; '--epochs', '--train-images'; print(sys.argv[1:])"


@pytest.mark.parametrize(
    ("text", "word", "answer"),
    [
        (KNOWS_EPOCHS, "time_limt", "Did you mean `time_limit`"),
        (KNOWS_EPOCHS, "epoch", "Did you mean `epochs`"),
        (KNOWS_EPOCHS, "color", "nor program.py knows `color`"),
        ("", "compare_with", "Did you mean `compared_with`"),
    ],
)
def test_a_word_that_nobody_knows_is_refused(folder, text, word, answer):
    program(folder, text, "program.py")
    with pytest.raises(errors.UserError, match=answer):
        launch.run("program.py", workers=1, **{word: 3})
    assert not (folder / "logs").exists()


def test_at_most_ten_lines_are_shown_and_all_are_kept(folder, capsys):
    program(folder, "for i in range(500): print('line', i)", "long.py")
    run = launch.run("long.py", workers=1)
    lines = [s for s in capsys.readouterr().out.splitlines() if s.startswith("[0]")]
    assert lines == [f"[0] line {i}" for i in range(490, 500)]
    assert len(run.log.read_text().splitlines()) == 500


def test_notices_of_workers_are_repeated_once(folder, capsys):
    text = "from distcheck import errors; errors.notice('sampled')\n"
    program(folder, text + "def init(): 0\ninit()\n", "n.py")
    run = launch.run("n.py", workers=2)
    assert run.notices == ["sampled"]
    assert capsys.readouterr().out.count("\nNOTICE: sampled") == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("raise", "ValueError: no such garment, in line 10"),
        ("exit", r"sys.exit\(3\)"),
        ("leave", "it ended without finishing its work with the others"),
        ("die", "signal 9, Killed"),
    ],
)
def test_a_rank_that_fails_ends_the_run_and_is_named(folder, what, message):
    with pytest.raises(RunFailed, match=f"rank 1 of 2 failed: .*{message}") as e:
        launch.run("program.py", what, workers=2, time_limit=60)
    assert "[1] worker 1 of 2" in str(e.value)
    assert "[0]" not in str(e.value)
    assert e.value.run.status not in (0, supervise.TIMED_OUT)
    assert not descendants_of_runs_in(folder)


def failed_run(folder, status, log, launcher=""):
    run = Run("program.py", 2, "mpirun", folder, status=status)
    run.log.write_text(log)
    (folder / "launcher.txt").write_text(launcher)
    return follow._known(run)


def test_what_is_known_of_the_error_stands_below_it(folder):
    full = "[1] OSError: [Errno 28] No space left on device\n"
    known = failed_run(folder, 1, f"[0] hello\n{full}")
    assert known.startswith("\nRank 1, line 2 of the log: OSError")
    assert "The disk is full" in known
    slots = "There are not enough slots available in the system to satisfy the 4\n"
    assert "--oversubscribe" in failed_run(folder, 1, "", slots)
    # Whoever stopped it knows why; an unknown error is shown already.
    assert failed_run(folder, supervise.STOPPED, full) == ""
    assert failed_run(folder, 1, "[1] ValueError: no such garment\n") == ""


def test_a_rank_that_failed_because_another_left_says_so(folder):
    (left,) = (m.line for m in explain.messages() if m.id == "horovod.shut-down")
    known = failed_run(folder, 1, f"[0] {left}\n")
    assert known.startswith("\nThe log has only what follows from an error. Rank 0")
    end = "Primary job  terminated normally, but 1 process returned\n"
    assert failed_run(folder, 1, "[1] bye\n", end) == ""


def test_the_frames_of_a_graph_are_left_out_of_the_reason(folder):
    report = folder / "0.json"
    error = 'UnknownError: in a graph:\n\nDetected at\n  File "a.py", line 3\n\nIt is.'
    report.write_text(json.dumps({"error": error, "line": 7}))
    told = "UnknownError: in a graph:\nDetected at\nIt is, in line 7"
    assert follow._error_of(report) == told


def test_a_warning_is_explained_in_what_stood_still(folder):
    (stall,) = (m.line for m in explain.messages() if m.id == "horovod.stall")
    stall = f"[0] {stall}\n"
    assert "Rank 0, line 1" in failed_run(folder, supervise.TIMED_OUT, stall)
    assert failed_run(folder, 1, stall) == ""


@pytest.mark.slow
def test_a_run_that_fails_says_what_to_do(folder):
    program(folder, "raise OSError(28, 'No space left on device')", "full.py")
    with pytest.raises(RunFailed, match="The disk is full"):
        launch.run("full.py", workers=2)


@pytest.mark.slow
def test_the_time_limit_ends_the_run(folder):
    with pytest.raises(RunFailed, match="time limit of 3 s") as error:
        launch.run("program.py", "sleep", workers=2, time_limit=3)
    assert error.value.run.status == supervise.TIMED_OUT
    assert "worker 0 of 2" in str(error.value)
    assert not descendants_of_runs_in(folder)


def test_children_that_leave_their_session_are_ended_too(folder):
    with pytest.raises(RunFailed):
        launch.run("program.py", "escape", workers=2, time_limit=4)
    assert len(list(folder.glob("escaped.*"))) == 2
    assert not descendants_of_runs_in(folder)


@pytest.mark.slow
def test_children_left_behind_by_a_good_run_are_ended(folder):
    text = PROGRAM.replace('what != "end"', "False")
    program(folder, text, "good.py")
    run = launch.run("good.py", "escape", workers=2)
    assert run.status == 0
    assert len(list(folder.glob("escaped.*"))) == 2
    assert not descendants_of_runs_in(folder)


def test_an_interrupt_ends_every_process(folder):
    owner, _ = start(folder)
    owner.send_signal(signal.SIGINT)
    output, _ = owner.communicate(timeout=20)
    assert "was stopped, and all its workers were ended" in output
    assert "KeyboardInterrupt" not in output
    assert not descendants_of_runs_in(folder)


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["mpirun", "supervisor", "rank 0", "rank 1"])
def test_killing_a_part_ends_the_whole(folder, victim):
    owner, run = start(folder, START.replace("sleep", "escape"))
    wait_for(lambda: len(list(folder.glob("escaped.*"))) == 2, what="the escapes")
    if victim.startswith("rank"):
        target = watch.worker_processes(run)[int(victim[-1])]
    else:
        (supervisor,) = psutil.Process(owner.pid).children()
        (mpirun,) = supervisor.children()
        target = supervisor if victim == "supervisor" else mpirun
    target.kill()
    output, _ = owner.communicate(timeout=30)
    assert owner.returncode != 0
    assert "RunFailed" in output
    if victim.startswith("rank"):
        assert f"{victim} of 2 failed: it was ended by signal 9" in output
    wait_until_none_is_left(folder)


@pytest.mark.slow
def test_killing_the_owner_ends_the_run(folder):
    owner, _ = start(folder)
    owner.kill()
    owner.communicate()
    wait_until_none_is_left(folder)


@pytest.mark.slow
def test_a_kernel_interrupted_and_killed_leaves_nothing(folder):
    from jupyter_client.manager import start_new_kernel

    manager, client = start_new_kernel(cwd=str(folder), kernel_name="python3")
    try:
        request = client.execute(START)
        wait_for(lambda: "worker 1 of 2" in logs_of(folder), what="greetings")
        manager.interrupt_kernel()
        reply = client.get_shell_msg(timeout=30)
        while reply["parent_header"].get("msg_id") != request:
            reply = client.get_shell_msg(timeout=30)
        reply = reply["content"]
        assert reply["ename"] == "RunFailed"
        assert len(reply["traceback"]) == 1
        assert not descendants_of_runs_in(folder)
        outputs = displayed(client, request)
        assert any("$ mpirun -np 2" in text for text in outputs)

        client.execute(START)
        wait_for(lambda: logs_of(folder).count("worker 1 of 2") == 2, what="greetings")
        manager.shutdown_kernel(now=True)
        wait_until_none_is_left(folder)
    finally:
        client.stop_channels()
        if manager.is_alive():
            manager.shutdown_kernel(now=True)


def logs_of(folder):
    return "".join(log.read_text() for log in folder.glob("logs/*/log.txt"))


def displayed(client, request):
    """The plain text of everything that a request displayed."""
    texts = []
    while True:
        try:
            message = client.get_iopub_msg(timeout=1)
        except queue.Empty:
            return texts
        if message["parent_header"].get("msg_id") == request:
            data = message["content"].get("data", {})
            texts.append(data.get("text/plain", ""))


@pytest.mark.parametrize("workers", [0, -1, 1.5, "two"])
def test_a_number_of_workers_that_makes_no_sense_is_refused(folder, workers):
    with pytest.raises(errors.UserError, match="workers must be 1 or more"):
        launch.run("program.py", workers=workers)
    assert not (folder / "logs").exists()


def test_a_missing_or_unparsable_program_is_refused(folder):
    with pytest.raises(errors.UserError, match=r"there is no program missing\.py"):
        launch.run("missing.py")
    with pytest.raises(errors.UserError, match="leave out `python3`"):
        launch.run("python3", "program.py")
    with pytest.raises(errors.UserError, match="is a folder"):
        launch.run(folder)
    program(folder, "import a\nif True print()\n", "broken.py")
    with pytest.raises(errors.UserError, match=r"broken.py is not valid .* line 2"):
        launch.run("broken.py")
    assert not (folder / "logs").exists()


def test_a_program_that_never_starts_horovod_is_pointed_out(folder):
    program(folder, "print('alone')", "alone.py")
    run = launch.run("alone.py", workers=2)
    assert any("never calls hvd.init()" in text for text in run.notices)
    assert launch.run("alone.py", workers=1).notices == []
    assert launch.run("program.py", workers=2).notices == []


def test_more_workers_than_cores_run_and_are_pointed_out(folder, pretend):
    pretend(cores=2)
    run = launch.run("program.py", workers=3)
    assert "worker 2 of 3" in run.log.read_text()
    assert any("3 workers on 2 cores take turns" in text for text in run.notices)


def test_variables_reach_the_workers_and_are_shown(folder):
    program(folder, "import os; print(os.environ['HOROVOD_CYCLE_TIME'])", "asks.py")
    run = launch.run("asks.py", workers=1, environment={"HOROVOD_CYCLE_TIME": "7"})
    assert run.tail() == "[0] 7"
    assert "-x HOROVOD_CYCLE_TIME=7 " in run.command


@pytest.mark.parametrize("option", ["timeline", "elastic"])
def test_tasks_have_nothing_of_horovod_s(folder, option):
    with pytest.raises(errors.UserError, match="are Horovod's: not with tasks"):
        launch.run("program.py", tasks={"worker": 1}, **{option: True})


def test_elastic_training_begins_with_two(folder):
    with pytest.raises(errors.UserError, match="begins with 2 workers or more"):
        launch.run("program.py", workers=1, elastic=True)


def test_workers_that_memory_cannot_hold_are_refused(folder, pretend):
    pretend(cores=64, memory=16e9)
    with pytest.raises(errors.UserError, match="64 workers need about 45 GB of mem"):
        launch.run("program.py", workers=64)


def test_two_processes_never_write_the_same_file(folder):
    text = "from utils import logs; print(logs.claim(None, 'history.csv'))"
    program(folder, text, "claims.py")
    run = launch.run("claims.py", workers=2)
    names = sorted(path.name for path in run.folder.glob("history*"))
    assert names == ["history-1.csv", "history.csv"]


def test_a_recorded_worker_that_did_not_train_is_named(folder):
    run = launch.run("program.py", workers=1)
    with pytest.raises(errors.UserError, match="rank 0 recorded nothing"):
        run.recording(0)
    with pytest.raises(errors.UserError, match=r"wrote no history.csv"):
        _ = run.history


def test_bars_are_followed_and_kept_as_their_last_state(folder):
    run = Run("p.py", 1, "mpirun", folder)
    output = folder / "ranks" / "1" / "rank.0"
    output.mkdir(parents=True)
    stdout = output / "stdout"
    with Followed(run) as followed:
        stdout.write_bytes(b"Epoch 2/4\n\r 1/10 [>...]\x08\x08\x08\r 5/10 [==>")
        followed.read()
        assert followed.progress["epoch"] == 2
        assert followed.progress["done"] == pytest.approx(0.25 + 0.125)
        with stdout.open("ab") as more:
            more.write(b"\r10/10 [====] - loss: 1\r\nlast words")
        followed.read(last=True)
    lines = ["[0] Epoch 2/4", "[0] 10/10 [====] - loss: 1", "[0] last words"]
    assert run.log.read_text().splitlines() == lines


def test_the_live_line_says_epoch_speed_and_time_left():
    progress = {"epoch": 2, "epochs": 4, "done": 0.5}
    assert "starting" in follow.describe({}, 3)
    assert follow.describe(progress, 65).endswith("1:05 so far")
    progress.update(images_per_second=1640.2, seconds_left=59)
    line = follow.describe(progress, 65)
    assert line.startswith("epoch 2/4 [##########..........]")
    assert line.endswith("1,640 images/s, 0:59 left")


def test_the_supervisor_passes_the_commands_own_status_on():
    for code, status in [(0, 0), (7, 7)]:
        command = [sys.executable, "-c", f"raise SystemExit({code})"]
        done = subprocess.Popen(
            [sys.executable, "-m", "distcheck.supervise", "--", *command],
            stdin=subprocess.PIPE,
        )
        assert done.wait(20) == status
        done.stdin.close()


def test_what_can_not_be_killed_is_named_and_not_waited_for(monkeypatch, capsys):
    """As one that another user owns, or that the kernel never lets go."""
    stuck = mock.Mock(pid=4_000_000)
    stuck.name.return_value = "stuck"
    stuck.status.return_value = psutil.STATUS_DISK_SLEEP
    stuck.kill.side_effect = psutil.AccessDenied(stuck.pid)
    supervisor = supervise.Supervisor(["true"], None)
    monkeypatch.setattr(supervisor, "_left", lambda: [stuck])
    monkeypatch.setattr(supervise, "KILL_SECONDS", 0.2)
    with subprocess.Popen(["true"]) as child:
        child.wait()
        supervisor._end_all(child)
    assert "process 4000000 (stuck) could not be ended" in capsys.readouterr().err


def test_a_supervisor_that_does_not_end_hides_no_error(monkeypatch, capsys):
    monkeypatch.setattr(supervise, "END_SECONDS", 0.2)
    processes = []

    def fails_while_its_supervisor_is_stopped():
        with supervise.owned(["sleep", "60"], 60) as process:
            processes.append(process)
            process.send_signal(signal.SIGSTOP)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fails_while_its_supervisor_is_stopped()
    (process,) = processes
    error = capsys.readouterr().err
    assert f"process {process.pid} " in error
    assert "could not be ended" in error
    process.send_signal(signal.SIGCONT)
    assert process.wait(20) == supervise.STOPPED
