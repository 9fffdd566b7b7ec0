"""The finished program, for real: two workers, a few batches of the sample."""

import numpy as np
import pytest
from processes import empty_course

from utils.base import course
from utils.running import launch

pytestmark = pytest.mark.slow

PROGRAM = course.PACKAGE_ROOT / "solutions" / "fashion_mnist_solution.py"


@pytest.fixture(scope="module")
def twice(tmp_path_factory):
    """The same run twice, with the same seed and the sample, as a download has just
    failed; it stops at a target it can't miss."""
    folder = tmp_path_factory.mktemp("course")
    (folder / "cache" / "fashion-mnist").mkdir(parents=True)
    (folder / "cache" / "fashion-mnist" / "download-failed").write_text("no network")
    with empty_course(folder), pytest.MonkeyPatch.context() as patch:
        patch.delenv("COURSE_DATA", raising=False)
        patch.setenv("COURSE_CACHE", str(folder / "cache"))
        return [
            launch.run(
                PROGRAM,
                workers=2,
                record=3,
                time_limit=300,
                epochs=5,
                train_images=640,
                target_accuracy=-1,
                width=1,
                seed=7,
            )
            for _ in range(2)
        ]


def test_it_stops_by_itself_at_its_target(twice):
    first, _ = twice
    assert len(first.history) == 2
    assert "[0] Test loss" in first.tail(1)
    assert "[1]" not in first.log.read_text().replace("[1] NOTICE", "")


def test_its_history_has_what_the_notebooks_read(twice):
    history = twice[0].history
    wanted = {"epoch", "loss", "accuracy", "val_loss", "val_accuracy", "lr"}
    assert wanted | {"images_per_second", "seconds"} <= set(history.columns)
    assert (history["lr"] == 0.02).all()
    assert history["seconds"].is_monotonic_increasing
    # 640 images on two workers are 5 steps of 2 x 64.
    epochs = history["seconds"].diff().fillna(history["seconds"])
    assert np.allclose(history["images_per_second"] * epochs, 640)


def test_a_sample_is_announced_with_the_result(twice):
    assert any(
        "a sample of Fashion-MNIST, not the whole" in n for n in twice[0].notices
    )
    assert "(a sample of Fashion-MNIST)" in twice[0].tail(1)


def test_workers_start_apart_and_agree_to_the_bit_after_the_first_batch(twice):
    rank_0, rank_1 = (twice[0].recording(rank).weights for rank in (0, 1))
    assert rank_0.shape == rank_1.shape == (4, 174_778)
    assert not np.array_equal(rank_0[0], rank_1[0])
    assert np.array_equal(rank_0[1:], rank_1[1:])
    assert not np.array_equal(rank_0[1], rank_0[2])


def test_all_workers_see_the_mean_of_their_metrics(twice):
    workers = [twice[0].recording(rank) for rank in (0, 1)]
    for epoch in range(2):
        before = [w.metrics_before[epoch]["val_loss"] for w in workers]
        after = [w.metrics_after[epoch]["val_loss"] for w in workers]
        assert after == pytest.approx([np.mean(before)] * 2)
        assert before[0] != before[1]


def test_a_seed_repeats_the_run(twice):
    for rank in (0, 1):
        first, second = (run.recording(rank).weights for run in twice)
        assert np.array_equal(first[0], second[0])
        # Sums may be taken in another order, so not to the last bit.
        assert np.allclose(first[3], second[3], atol=1e-4)
