"""All that reaches into private parts of TensorFlow, Keras and Horovod.

Each function imports what it gives when it is called, as that takes seconds. What
breaks here with a release of these packages is to be mended here.
"""

import functools
import json
import os
from collections.abc import Callable
from typing import Any

# (owner, name) -> the function that has to be there still when a program has ended.
relied_on: dict[tuple[Any, str], Callable] = {
    (json, "dumps"): json.dumps,
    (os, "write"): os.write,
}

OBSERVED = 1  # true like the True of a program that wants to run eagerly, but not it


# ------------------------------------------------------------ Horovod


def hook_horovod(
    handle: Callable[[str, str, Callable], Callable],
) -> None:
    """Let `handle` make each call of Horovod that recorders look at.

    To be called once, before Horovod is imported: its functions are methods that are
    bound, and copied under many names, while it is.

    handle: is called with the kind of call ("collective", "asked", "remembered",
    "wraps"), the function's name and the function, and returns what is called instead.
    """
    from horovod.common.basics import HorovodBasics

    def hook(owner, kind: str, name: str, called: str = "") -> None:
        original = getattr(owner, name)

        def observed(*args, **kwargs):
            return handle(kind, called or name, original)(*args, **kwargs)

        observed.__name__ = name
        # Where a pipeline asks for the rank, AutoGraph would translate it.
        observed.autograph_info__ = None
        setattr(owner, name, observed)
        relied_on[owner, name] = observed

    for name in ("init", "shutdown"):
        hook(HorovodBasics, "collective", name)
    for name in ("rank", "size", "local_rank", "local_size", "cross_rank"):
        hook(HorovodBasics, "asked", name)
    for name in ("_process_set_size", "_process_set_rank"):
        hook(HorovodBasics, "remembered", name)

    import horovod._keras
    import horovod.tensorflow.keras

    hook(horovod._keras, "wraps", "create_distributed_optimizer")
    from horovod.tensorflow import mpi_ops

    library = mpi_ops.MPI_LIB
    for name in ("allreduce", "grouped_allreduce", "allgather", "grouped_allgather"):
        hook(library, "collective", f"horovod_{name}", name)
    for name in ("broadcast", "broadcast_inplace", "broadcast_inplace_resource"):
        hook(library, "collective", f"horovod_{name}", "broadcast")
    for name in ("alltoall", "reducescatter", "grouped_reducescatter", "join"):
        hook(library, "collective", f"horovod_{name}", name)


def replace_elastic_reset(reset: Callable[[], None]) -> None:
    """Let `reset` do what Horovod does when workers were lost or have come."""
    from horovod.tensorflow import elastic

    elastic._reset = reset


# ------------------------------------------------------------ Keras


def optimizer() -> type:
    """The class of Keras' optimizers."""
    from tf_keras.src.optimizers import optimizer

    return optimizer._BaseOptimizer


def legacy_optimizer() -> type:
    """The class of its legacy optimizers."""
    from tf_keras.src.optimizers.legacy import optimizer_v2

    return optimizer_v2.OptimizerV2


def callback_list() -> type:
    """The class of the list that calls all callbacks; it has no public name."""
    from tf_keras.src import callbacks

    return callbacks.CallbackList


def logs_of(callback_list, logs: dict | None) -> dict:
    """The metrics that the list would give to its callbacks."""
    return callback_list._process_logs(logs)


# ------------------------------------------------------------ TensorFlow


def eager_context():
    """The module of the context that has the devices."""
    from tensorflow.python.eager import context

    return context


def compiled_function() -> type:
    """The class of what tf.function makes."""
    from tensorflow.python.eager.polymorphic_function import polymorphic_function

    return polymorphic_function.Function


def run_eagerly() -> None:
    """Let functions run eagerly, for the sake of who observes them."""
    from tensorflow.python.eager.polymorphic_function import eager_function_run

    # TensorFlow's own setter makes it a bool.
    eager_function_run.RUN_FUNCTIONS_EAGERLY = OBSERVED


def program_runs_eagerly() -> bool:
    """Does the program itself want its functions to run eagerly?"""
    from tensorflow.python.eager.polymorphic_function import eager_function_run

    return eager_function_run.RUN_FUNCTIONS_EAGERLY is True


def python_function(compiled) -> Callable:
    """The Python function in one that tf.function has made."""
    from tensorflow.python.util import tf_decorator

    plain = tf_decorator.unwrap(compiled.python_function)[1]
    while isinstance(plain, functools.partial):
        plain = plain.func
    return plain


def records_gradients() -> bool:
    """Is a gradient being recorded?"""
    from tensorflow.python.eager import record

    return record.could_possibly_record()


def strategy() -> type:
    """The class of all strategies of tf.distribute."""
    from tensorflow.python.distribute import distribute_lib

    return distribute_lib.StrategyBase


def multi_worker_start() -> type:
    """The class whose `_initialize_multi_worker` starts a cluster of workers."""
    from tensorflow.python.distribute import collective_all_reduce_strategy

    return collective_all_reduce_strategy.CollectiveAllReduceExtended


def collective_launcher() -> type:
    """The class that runs the collectives of a replica."""
    from tensorflow.python.distribute import cross_device_utils

    return cross_device_utils.CollectiveReplicaLauncher


def server() -> type:
    """The class of a task's server."""
    from tensorflow.python.training import server_lib

    return server_lib.Server


def parameter_server_strategy() -> type:
    """The class of the strategy whose weights are on servers."""
    from tensorflow.python.distribute import parameter_server_strategy_v2

    return parameter_server_strategy_v2.ParameterServerStrategyV2


def coordinator_and_remote_value() -> tuple[type, type]:
    """The classes of what hands out steps to workers, and of what it gets back."""
    from tensorflow.python.distribute.coordinator import cluster_coordinator

    return cluster_coordinator.ClusterCoordinator, cluster_coordinator.RemoteValueImpl
