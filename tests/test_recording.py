"""What is kept of a network's weights: all of a small one, a sample of a large one."""

import numpy as np
import pytest

from utils.running import recording

WRN_16_10 = [(16,), (16,), (3, 3, 16, 160), (160,), (3, 3, 160, 160), (160,)]
WRN_16_10 += [(160, 320), (3, 3, 320, 320), (320,), (640,), (640, 10), (10,)]


def weights(seed):
    """Kernels of small numbers, and scales of about 1, as networks have them."""
    random = np.random.default_rng(seed)
    return [
        random.normal(0, np.sqrt(2 / np.prod(shape[:-1])), shape).astype(np.float32)
        if len(shape) > 1
        else random.normal(1, 0.1, shape).astype(np.float32)
        for shape in WRN_16_10
    ]


def whole(arrays):
    return np.concatenate([array.ravel() for array in arrays])


def test_of_a_small_network_all_is_kept():
    arrays = weights(1)[:3]
    assert whole(arrays).size <= recording.ALL
    assert np.array_equal(recording.sample(arrays), whole(arrays))


@pytest.mark.parametrize("measure", [lambda a, b: a - b, lambda a, b: a])
def test_a_sample_has_the_lengths_and_distances_of_the_whole(measure):
    one, other = weights(1), weights(2)
    kept = [recording.sample(arrays) for arrays in (one, other)]
    assert kept[0].size <= recording.ALL < whole(one).size
    assert kept[0].dtype == np.float32
    sizes = [np.linalg.norm(measure(whole(one), whole(other)))]
    sizes.append(np.linalg.norm(measure(*kept)))
    assert sizes[1] == pytest.approx(sizes[0], rel=0.03)


def test_a_sample_is_the_same_numbers_each_time_and_of_every_array():
    one = weights(1)
    kept = recording.sample(one)
    assert np.array_equal(kept, recording.sample([array.copy() for array in one]))
    for number in range(len(one)):
        changed = [a + 1 if i == number else a for i, a in enumerate(one)]
        assert not np.array_equal(kept, recording.sample(changed))


def test_two_who_look_at_one_training_both_see_it(monkeypatch):
    import tensorflow as tf

    monkeypatch.setattr(tf.keras.Model, "fit", tf.keras.Model.fit)
    seen = []

    def saying(name):
        begins = tf.keras.callbacks.LambdaCallback(
            on_train_begin=lambda logs: seen.append(name)
        )
        return lambda own: [*own, begins]

    recording.change_callbacks(saying("first"))
    recording.change_callbacks(saying("second"))
    model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    model.fit(np.ones((4, 2)), np.ones((4, 1)), verbose=0)
    assert sorted(seen) == ["first", "second"]
