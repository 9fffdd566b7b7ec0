"""solutions/survive_solution.py: ten crashes, damaged checkpoints, a full disk, and
hosts that die, leave and come. The workers, the deaths and the disk are real; only the
network is a small one, so that a death costs the tests seconds.
"""

import itertools
import random
import resource
import shutil
import time
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf
from processes import assert_none_is_left, empty_course, wait_until_none_is_left

from distcheck import errors
from utils.base import course
from utils.cluster import elastic
from utils.running import launch, launchers
from utils.running.result import RunFailed
from utils.running.watch import worker_processes
from utils.training import survival

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

# The course's program, with a small network, and slow enough to be killed in time.
PROGRAM = f"""\
import os, runpy, time
os.environ["TF_USE_LEGACY_KERAS"] = "1"  # before `survival` imports TensorFlow
from utils.training import networks, survival
networks.use_instead(networks.tiny)
seconds = float(os.environ["SECONDS_PER_BATCH"])
write = survival.Journal.on_train_batch_end
def slowly(self, batch, logs=None):
    time.sleep(seconds)
    write(self, batch, logs)
survival.Journal.on_train_batch_end = slowly
runpy.run_path({str(course.PACKAGE_ROOT / "solutions" / "survive_solution.py")!r})
"""
IMAGES, BATCH, COMMIT_EVERY = 130, 8, 3
STEPS = IMAGES // (2 * BATCH)
OPTIONS = {
    "train_images": IMAGES,
    "batch_size": BATCH,
    "commit_every": COMMIT_EVERY,
    "data": "sample",
    "quiet": True,
    "time_limit": 300,
}
CRASHES, EPOCHS = 10, 16


@pytest.fixture(scope="module", autouse=True)
def folder(tmp_path_factory):
    """An empty course with the program in it, and no process left after."""
    place = tmp_path_factory.mktemp("course")
    (place / "tiny.py").write_text(PROGRAM)
    with empty_course(place), pytest.MonkeyPatch.context() as patch:
        patch.setenv("SECONDS_PER_BATCH", "0.01")
        yield place
    assert_none_is_left(place)


def train(checkpoint, epochs=EPOCHS, **more):
    return launch.run(
        "tiny.py", workers=2, checkpoint=checkpoint, epochs=epochs, **OPTIONS, **more
    )


def arrays(checkpoint):
    """All numbers of a checkpoint; not its description of itself, a string."""
    reader = tf.train.load_checkpoint(str(checkpoint))
    kinds = reader.get_variable_to_dtype_map()
    numbers = {
        name: reader.get_tensor(name)
        for name, kind in kinds.items()
        if kind != tf.string
    }
    assert len(numbers) > 10
    return numbers


def newest(folder):
    return tf.train.latest_checkpoint(str(folder))


# ------------------------------------------------------------ crashes


@pytest.fixture(scope="module")
def uninterrupted(folder):
    """What a training keeps that nothing has interrupted."""
    train("whole")
    return arrays(newest("whole"))


def killer(rng):
    """Lets a run do some batches, goes on for a moment, then kills a worker."""
    batches, victim = rng.randint(1, 2 * STEPS), rng.randrange(2)

    def attend(run):
        if elastic.batches_done(run.folder) >= batches:
            time.sleep(rng.uniform(0, 0.1))
            for rank, process in worker_processes(run.folder).items():
                if rank == victim:
                    process.kill()

    return attend


def test_ten_crashes_at_random_moments_change_nothing(
    folder, uninterrupted, monkeypatch
):
    # On a busy machine, the killer comes late: a run must not be over by then.
    monkeypatch.setenv("SECONDS_PER_BATCH", "0.05")
    rng = random.Random(1)
    done = 0
    for _ in range(CRASHES):
        with pytest.raises(RunFailed) as crash:
            train("crashed", attend=killer(rng))
        wait_until_none_is_left(folder)
        journal = elastic.journal(crash.value.run.folder)
        assert journal["epoch"].iloc[0] == done
        checkpoint = newest("crashed")
        done = int(checkpoint.rpartition("-")[2]) if checkpoint else 0
        assert done in (journal["epoch"].max(), journal["epoch"].max() + 1)
    assert 0 < done < EPOCHS
    train("crashed")
    survived = arrays(newest("crashed"))
    assert survived.keys() == uninterrupted.keys()
    for name, array in uninterrupted.items():
        np.testing.assert_allclose(survived[name], array, rtol=0, atol=1e-6)


# ------------------------------------------------------------ damaged checkpoints


def as_the_exercise(checkpoint, folder):
    """What the solution's own function makes of a checkpoint and a folder."""
    source = (course.PACKAGE_ROOT / "solutions" / "survive_solution.py").read_text()
    begin, end = "def restore_newest", "# Task B: Go on from the newest"
    args = SimpleNamespace(checkpoint=str(folder))
    names = {"tf": tf, "args": args, "checkpoint": checkpoint, "survival": survival}
    exec(source[source.index(begin) : source.index(end)], names)
    try:
        return bool(names["restore_newest"]())
    except SystemExit as error:
        raise errors.UserError(str(error)) from None


@pytest.fixture(params=[survival.restore_newest, as_the_exercise])
def restores(request, monkeypatch):
    """The library's function and the exercise's: both take the newest whole one."""
    monkeypatch.setattr(Trained, "restore", staticmethod(request.param))


def said(capsys):
    return "".join(capsys.readouterr())


class Trained:
    """A little training: what it holds, and a checkpoint of it for each epoch."""

    restore = staticmethod(survival.restore_newest)

    def __init__(self, folder, units=3):
        self.folder = folder
        self.weights = tf.Variable(tf.zeros([units]))
        self.epoch = tf.Variable(0)
        self.checkpoint = tf.train.Checkpoint(weights=self.weights, epoch=self.epoch)

    def keep(self, epoch):
        self.weights.assign(tf.fill(self.weights.shape, float(epoch)))
        self.epoch.assign(epoch)
        manager = tf.train.CheckpointManager(self.checkpoint, self.folder, 3)
        manager.save(checkpoint_number=epoch)

    def taken_up(self):
        """The epoch that a new process goes on from; None for from the start."""
        new = Trained(self.folder, self.weights.shape[0])
        if not self.restore(new.checkpoint, self.folder):
            return None
        assert set(new.weights.numpy()) == {float(new.epoch)}
        return int(new.epoch)


@pytest.fixture
def trained(tmp_path, restores):
    checkpoints = Trained(tmp_path)
    for epoch in (8, 9, 10):
        checkpoints.keep(epoch)
    return checkpoints


def test_the_newest_is_taken_up_also_from_a_copy(trained, tmp_path):
    assert trained.taken_up() == 10
    trained.folder = shutil.copytree(tmp_path, tmp_path / "copy")
    assert trained.taken_up() == 10


def test_without_a_checkpoint_training_begins_anew(tmp_path, restores):
    assert Trained(tmp_path).taken_up() is None
    assert Trained(tmp_path / "no folder").taken_up() is None


def cut(path, share):
    with path.open("r+b") as file:
        file.truncate(int(path.stat().st_size * share))


@pytest.mark.parametrize("part", ["index", "data-00000-of-00001"])
@pytest.mark.parametrize("share", [0.0, 0.5, 0.9])
def test_one_that_is_cut_off_is_named_and_the_one_before_is_taken(
    trained, part, share, capsys
):
    cut(trained.folder / f"ckpt-10.{part}", share)
    assert trained.taken_up() == 9
    assert "ckpt-10 is refused" in said(capsys)


def test_a_changed_number_is_noticed(trained, capsys):
    path = trained.folder / "ckpt-10.data-00000-of-00001"
    content = bytearray(path.read_bytes())
    content[content.index(np.float32(10).tobytes())] ^= 1
    path.write_bytes(content)
    assert trained.taken_up() == 9
    assert "ckpt-10 is refused" in said(capsys)


def test_another_network_s_is_refused(trained, tmp_path, capsys):
    for units, number in ((4, 11), (2, 12)):
        other = Trained(tmp_path / "other", units)
        other.keep(number)
    for path in (tmp_path / "other").glob("ckpt-*"):
        shutil.copy(path, tmp_path)
    assert trained.taken_up() == 10
    notices = said(capsys)
    assert "ckpt-11 is refused" in notices
    assert "ckpt-12 is refused" in notices


def test_one_that_lacks_something_is_refused(trained, tmp_path, capsys):
    """TensorFlow by itself would restore what there is, and leave the rest as it is."""
    part = tf.train.Checkpoint(epoch=tf.Variable(11))
    part.write(str(tmp_path / "ckpt-11"))
    assert trained.taken_up() == 10
    assert "ckpt-11 is refused" in said(capsys)


def test_where_none_is_whole_nothing_is_begun_on_top_of_them(trained):
    for path in trained.folder.glob("*.index"):
        cut(path, 0.5)
    with pytest.raises(errors.UserError, match=r"[Nn]one of (the )?3 checkpoints"):
        trained.taken_up()


def test_the_list_of_checkpoints_may_be_damaged(trained):
    cut(trained.folder / "checkpoint", 0.5)
    assert trained.taken_up() == 10


def test_a_full_disk_costs_no_checkpoint(trained):
    """A limit to the size of files fails where a full disk does: in a write."""
    large = Trained(trained.folder, units=3)
    large.checkpoint.ballast = tf.Variable(tf.zeros([100_000]))
    before = {p.name: p.read_bytes() for p in trained.folder.glob("ckpt-*.*")}
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, limits[1]))
    try:
        with pytest.raises(tf.errors.OpError):
            large.keep(11)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    after = {p.name: p.read_bytes() for p in trained.folder.glob("ckpt-*.*")}
    assert before.items() <= after.items()
    assert trained.taken_up() == 10


# ------------------------------------------------------------ elastic training


def tell(*incidents, epochs=6, **more):
    return elastic.run(
        "tiny.py", incidents, epochs=epochs, **OPTIONS | {"workers": 2} | more
    )


def covered(journal, epochs, workers_at_the_end=2):
    """Is every image of each epoch trained on in the end, in its order, once?

    What was lost with a worker is left out; the last images may not fill a step.
    """
    for epoch in range(epochs):
        rows = journal[journal["epoch"] == epoch]
        spans = []
        for row in rows.itertuples():
            spans = [span for span in spans if span[1] <= row.begin]
            spans.append((row.begin, row.images))
        ends = [0, *(end for _, end in spans)]
        if [begin for begin, _ in spans] != ends[:-1]:
            return False
        if IMAGES - ends[-1] >= workers_at_the_end * BATCH:
            return False
    return True


@pytest.fixture(scope="module")
def story(folder):
    """The second host dies and comes back."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SECONDS_PER_BATCH", "0.2")
        return tell(elastic.dies(after=20), elastic.comes(after=30), epochs=16)


def test_the_others_go_on_with_fewer_and_then_with_more(story):
    workers = list(story.journal["workers"])
    assert [count for count, _ in itertools.groupby(workers)] == [2, 1, 2]
    assert story.run.status == 0
    assert [event.incident.what for event in story.happened] == ["dies", "comes"]


def test_every_image_is_seen_and_none_twice_but_for_what_was_lost(story):
    assert covered(story.journal, epochs=16)
    assert 0 <= story.lost <= COMMIT_EVERY * 2 * BATCH


def test_all_epochs_are_in_the_history_and_validated(story):
    assert list(story.history["epoch"]) == list(range(16))
    assert story.history["val_accuracy"].between(0, 1).all()


def test_a_host_that_leaves_in_time_costs_nothing(folder, monkeypatch):
    monkeypatch.setenv("SECONDS_PER_BATCH", "0.1")
    story = tell(elastic.leaves(after=10))
    assert set(story.journal["workers"]) == {1, 2}
    assert story.lost == 0
    assert covered(story.journal, epochs=6, workers_at_the_end=1)


def test_too_many_changes_end_the_run(folder, monkeypatch):
    monkeypatch.setenv("SECONDS_PER_BATCH", "0.1")
    with pytest.raises(RunFailed, match="reset"):
        tell(elastic.dies(after=10), reset_limit=0)


def test_the_host_of_rank_0_may_die_as_well(folder, monkeypatch):
    # Who writes the journal must not die in a batch that ends in a commit: the other
    # would commit it, and its line would never be written. After 9 batches, that is one
    # into the second epoch, the next commit is two batches away, half a second.
    monkeypatch.setenv("SECONDS_PER_BATCH", "0.25")
    story = tell(
        elastic.dies(after=STEPS + 1, host=elastic.RANK_0), checkpoint="elastic"
    )
    assert covered(story.journal, epochs=6, workers_at_the_end=1)
    assert set(story.journal["workers"]) == {1, 2}
    places = list(story.journal["host"].unique())
    assert sorted(places) == sorted(launchers.HOST_NAMES)
    assert story.happened[0].incident.host == places[0]
    # Who is rank 0 now goes on keeping checkpoints.
    assert newest("elastic").endswith("ckpt-6")


def test_the_host_of_rank_0_goes_and_the_one_that_is_gone_comes(tmp_path):
    """Whichever host it is; here, nothing runs on either."""
    launchers.write_hosts(tmp_path, launchers.share_hosts(3))
    last = launchers.HOST_NAMES[1]
    (tmp_path / "journal.csv").write_text(f"time,host\n1,localhost\n2,{last}\n")
    incidents = [elastic.leaves(after=2, host=elastic.RANK_0), elastic.comes(after=3)]
    director = elastic.Director(incidents, workers=3)
    director.attend(SimpleNamespace(folder=tmp_path))
    assert launchers.read_hosts(tmp_path) == {"localhost": 2}
    (tmp_path / "journal-1.csv").write_text("time,host\n3,localhost\n")
    director.attend(SimpleNamespace(folder=tmp_path))
    assert launchers.read_hosts(tmp_path) == {"localhost": 2, last: 1}
    assert [event.incident.host for event in director.happened] == [last, last]


def test_an_incident_that_comes_too_late_is_told(folder):
    with pytest.raises(errors.UserError, match="was over before"):
        tell(elastic.leaves(after=10_000), epochs=1)


def test_an_incident_that_can_t_be_is_refused():
    with pytest.raises(errors.UserError, match="there is no host 'moon'"):
        elastic.dies(after=1, host="moon")
    with pytest.raises(errors.UserError, match="after is 'later'"):
        elastic.comes(after="later")


# ------------------------------------------------------------ which hosts there are

GOOD_SCRIPTS = {
    "the course's": launchers.DISCOVER,
    "Python": """#!/usr/bin/env python3
from pathlib import Path
for line in Path(__file__).with_name("hosts").read_text().splitlines():
    name, slots = line.split(" slots=")
    print(f"{name}:{slots}")
""",
    "awk": """#!/bin/sh
awk '{ sub("slots=", ""); print $1 ":" $2 }' "${0%/*}/hosts"
""",
}


@pytest.mark.parametrize("text", GOOD_SCRIPTS.values(), ids=GOOD_SCRIPTS)
def test_a_script_that_lists_hosts_is_found_right(tmp_path, text):
    script = tmp_path / "discover"
    script.write_text(text)
    assert elastic.discovery_problem(script) == ""


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('#!/bin/sh\ncat "$(dirname $0)/hosts"\n', "node-7 slots=4"),
        ("#!/bin/sh\necho node-7:4; echo node-8:4\n", "With 1 hosts"),
        ("#!/bin/sh\necho localhost:1\n", "`localhost:1`"),
        ("#!/bin/sh\nsed 's/ slots=/:/' hosts\n", "status 2"),
        ("#!/bin/sh\nsleep 60\n", "did not end"),
        ("#!/no/such/program\n", "can't be run"),
        ("print('localhost:1')\n", "does not begin with #!"),
    ],
)
def test_what_is_wrong_with_one_is_said(tmp_path, monkeypatch, text, says):
    monkeypatch.setattr(elastic, "DISCOVERY_SECONDS", 2)
    script = tmp_path / "discover"
    script.write_text(text)
    assert says in elastic.discovery_problem(script)


def test_a_script_of_one_s_own_lists_the_hosts_of_a_run(folder):
    with pytest.raises(errors.UserError, match="no file"):
        launch.run("tiny.py", elastic=True, discovery="missing", **OPTIONS)
