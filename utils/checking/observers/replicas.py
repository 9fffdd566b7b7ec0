"""Report what the replicas of a program with tf.distribute do while they train.

As in observe.py, nothing is decided here, and nothing of the program is changed;
only that the course's large network gives way to its small one, as no check depends
on the network. Functions stay graphs: what runs in them is seen by an operation that
is put before each training step of a model.
"""

import contextlib
import hashlib
import threading

from utils.checking.observers.observe import Reporter


class ReplicaObserver(Reporter):
    """Reports strategies, the images that each replica trains on, and the weights."""

    def __init__(self, folder, rank: int, script: str):
        super().__init__(folder, rank, script)
        self._lock = threading.Lock()  # replicas report from several threads
        self._steps: dict[int, int] = {}  # replica -> steps so far
        self._model = self._optimizer = None
        self._inside = False

    @contextlib.contextmanager
    def at_work(self):
        """Observe the program that runs in this block."""
        import tensorflow as tf
        from tensorflow.python.distribute import distribute_lib
        from tf_keras.src.optimizers import optimizer as optimizers

        from utils.training import networks

        networks.use_instead(lambda: networks.small_cnn((28, 28, 1)))
        self.replace(distribute_lib.StrategyBase, "__init__", self._strategy)
        self.replace(tf.keras.Model, "__call__", self._forward)
        self.replace(tf.keras.Model, "fit", self._fit)
        self.replace(optimizers._BaseOptimizer, "apply_gradients", self._update)
        self.remember(
            *(distribute_lib.StrategyBase, tf.keras.Model, tf.GradientTape),
            optimizers._BaseOptimizer,
        )
        # As they are before the program can replace them.
        report_replaced, report_end = self.report_replaced, self._report_end
        try:
            yield
        finally:
            report_replaced()
            report_end()

    def _strategy(self, original):
        def made(strategy, *args, **kwargs):
            original(strategy, *args, **kwargs)
            kind = type(strategy).__name__
            # TensorFlow makes the default one by itself.
            if not kind.startswith("_"):
                count = strategy.num_replicas_in_sync
                self.event("strategy", kind=kind, replicas=count)

        return made

    def _forward(self, original):
        import tensorflow as tf
        from tensorflow.python.eager import record

        def observed(model, *args, **kwargs):
            inputs = kwargs.get("inputs", args[0] if args else None)
            real = tf.is_tensor(inputs) and not tf.keras.backend.is_keras_tensor(inputs)
            # Whoever trains records gradients, whatever he says of `training`.
            if self._inside or not real or not record.could_possibly_record():
                return original(model, *args, **kwargs)
            self._model = model
            context = tf.distribute.get_replica_context()
            replica = context.replica_id_in_sync_group if context else -1
            weights = [tf.convert_to_tensor(v) for v in model.trainable_variables]
            tf.numpy_function(self._trains, [replica, inputs, *weights], [])
            self._inside = True
            try:
                return original(model, *args, **kwargs)
            finally:
                self._inside = False

        return observed

    def _trains(self, replica, images, *weights) -> None:
        """A replica begins a step: called from the graph."""
        with self._lock:
            replica = int(replica)
            step = self._steps.get(replica, 0)
            self._steps[replica] = step + 1
            digests = [hashlib.md5(i.tobytes()).hexdigest()[:12] for i in images]
            self.event("trains", replica=replica, step=step, images=digests)
            if step < 2 and replica <= 0:
                self.keep(f"weights.{step}", weights)

    def _fit(self, original):
        def observed(model, *args, **kwargs):
            self._optimizer = getattr(model, "optimizer", None)
            strategy = model.distribute_strategy
            self.event(
                "fit",
                kind=type(strategy).__name__,
                replicas=strategy.num_replicas_in_sync,
                learning_rate=_rate(self._optimizer),
            )
            return original(model, *args, **kwargs)

        return observed

    def _update(self, original):
        def observed(optimizer, *args, **kwargs):
            self._optimizer = optimizer
            return original(optimizer, *args, **kwargs)

        return observed

    def _report_end(self) -> None:
        if self._model is None:
            return
        state = self._optimizer.variables if self._optimizer is not None else []
        state = state() if callable(state) else state
        self.event(
            "model",
            weights=_copies(self._model.trainable_variables),
            state=_copies([v for v in state if len(v.shape)]),
            apart=_apart(self._model.trainable_variables),
            learning_rate=_rate(self._optimizer),
        )
        self.event("truth", **self._truth())

    def _truth(self) -> dict:
        """The loss and the accuracy on all test images, counted once each."""
        import numpy as np
        import tensorflow as tf

        from utils.training import data

        dataset = data.load("auto")
        images = data.standardise(tf.constant(dataset.x_test), dataset)
        guess = self._model(images, training=False).numpy()
        if abs(guess.sum(axis=-1) - 1).max() > 1e-3:  # logits
            guess = tf.nn.softmax(guess).numpy()
        probabilities = guess[np.arange(len(guess)), dataset.y_test]
        losses = -np.log(np.maximum(probabilities, 1e-7))
        right = guess.argmax(axis=-1) == dataset.y_test
        return {"loss": float(losses.mean()), "accuracy": float(right.mean())}


def _values(variable) -> list:
    """The copies of a variable, one for each replica."""
    return list(getattr(variable, "values", [variable]))


def _copies(variables) -> int:
    """On how many devices each of these variables has a copy; the fewest counts."""
    return min(
        (len({value.device for value in _values(v)}) for v in variables), default=0
    )


def _apart(variables) -> float:
    """The largest difference between copies of the same variable."""
    import numpy as np

    return max(
        float(np.abs(value.numpy() - _values(v)[0].numpy()).max())
        for v in variables
        for value in _values(v)
    )


def _rate(optimizer) -> float | None:
    rate = getattr(optimizer, "learning_rate", None)
    return None if rate is None else float(getattr(rate, "numpy", lambda: rate)())
