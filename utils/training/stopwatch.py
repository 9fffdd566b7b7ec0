"""How fast a training is, in its history."""

import time

import tensorflow as tf


class Stopwatch(tf.keras.callbacks.Callback):
    """Log images per second, and the seconds spent on training so far.

    images_per_epoch: of all workers or replicas together. The time that validation
    takes does not count.
    """

    def __init__(self, images_per_epoch: int):
        super().__init__()
        self.images_per_epoch = images_per_epoch
        self.seconds = 0.0

    def on_epoch_begin(self, epoch, logs=None):
        self.started = time.perf_counter()
        self.ended = None

    def on_test_begin(self, logs=None):
        self.ended = time.perf_counter()

    def on_epoch_end(self, epoch, logs=None):
        epoch_seconds = (self.ended or time.perf_counter()) - self.started
        self.seconds += epoch_seconds
        logs["images_per_second"] = self.images_per_epoch / epoch_seconds
        logs["seconds"] = self.seconds
