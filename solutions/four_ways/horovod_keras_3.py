"""Horovod for Keras 3, as far as the six steps need it: copy it beside your program.

    import horovod_keras_3 as hvd

Horovod's own interface, `horovod.tensorflow.keras`, is for Keras 2. Keras' backend has
to be TensorFlow, and XLA off (`compile(..., jit_compile=False)`): it knows none of
Horovod's operations. Horovod matches tensors by their names, as ever: let all workers
make the same models in the same order.
"""

import horovod.tensorflow
import keras
import tensorflow as tf
from horovod.tensorflow import init, local_rank, rank, size

__all__ = [
    "BroadcastGlobalVariablesCallback",
    "DistributedOptimizer",
    "MetricAverageCallback",
    "init",
    "local_rank",
    "rank",
    "size",
]


def DistributedOptimizer(optimizer):
    """An optimizer like this one, not built yet, that averages the gradients of all
    workers before each update. It clips, scales and adds up the means, if it does."""
    kind = type(optimizer)

    def apply(self, grads, trainable_variables=None):
        means = [
            gradient if gradient is None else horovod.tensorflow.allreduce(gradient)
            for gradient in grads
        ]
        return kind.apply(self, means, trainable_variables)

    # By its names, a saved model asks for Keras' own class when it is loaded.
    names = {"__module__": kind.__module__, "__qualname__": kind.__qualname__}
    distributed = type(kind.__name__, (kind,), {"apply": apply, **names})
    return distributed.from_config(optimizer.get_config())


class BroadcastGlobalVariablesCallback(keras.callbacks.Callback):
    """Before their first batch, all workers take over the weights, and the optimizer's
    variables, of one. Each keeps its own random numbers, for dropout and the like."""

    def __init__(self, root_rank):
        super().__init__()
        self.root_rank = root_rank

    def on_train_begin(self, logs=None):
        if self.model.jit_compile:
            raise ValueError("XLA can't compile it: compile(..., jit_compile=False)")
        if type(self.model.optimizer) is keras.optimizers.LossScaleOptimizer:
            raise ValueError(
                "A worker would skip an update for which the others wait: "
                "compile(DistributedOptimizer(LossScaleOptimizer(...)), ...)"
            )
        self.model.optimizer.build(self.model.trainable_variables)
        variables = self.model.weights + self.model.optimizer.variables
        values = [variable.value for variable in variables]
        horovod.tensorflow.broadcast_variables(values, self.root_rank)


class MetricAverageCallback(keras.callbacks.Callback):
    """All workers get the mean of their metrics: those callbacks that come behind."""

    def on_epoch_end(self, epoch, logs=None):
        for name in sorted(logs):
            value = tf.constant(logs[name], tf.float64)
            logs[name] = float(horovod.tensorflow.allreduce(value))
