"""All that is used of private modules of TensorFlow, Keras and Horovod, and of private
attributes: most hooks of recorders are put there.

First comes what checks of Horovod programs need: all of them, then those that look at
devices, then those that look at callbacks and metrics. Below that is what audits need,
and what other exercises do.

Each function imports what it gives when it is called: that takes seconds, and an
audited program chooses for itself which Keras it gets. What breaks here with a release
of these packages is to be mended here.
"""

import functools
import importlib.abc
import importlib.machinery
import json
import os
import sys
from collections.abc import Callable
from typing import Any

# (owner, name) -> the function that has to be there still when a program has ended.
relied_on: dict[tuple[Any, str], Callable] = {
    (json, "dumps"): json.dumps,
    (os, "write"): os.write,
}

# What is called in the place of an update, and has to make it: see `hook_updates`.
Observe = Callable[[Callable[[], Any], Any, list], Any]

Method = tuple[Any, str]  # its owner and its name, as recorders replace it

OBSERVED = 1  # true like the True of a program that wants to run eagerly, but not it


def untranslated(hook: Any) -> Callable:
    """Keep AutoGraph from rewriting a hook, and all that it calls, where it is called
    in a graph."""
    hook.autograph_info__ = None
    return hook


def argument(name: str, position: int, args: tuple, kwargs: dict) -> Any:
    """What a call gives for a parameter; None for nothing."""
    return kwargs.get(name, args[position] if len(args) > position else None)


# ------------------------------------------------------------ Horovod programs


def hook_horovod(at_work: Callable[[], Any]) -> None:
    """Let the HorovodRecorder that is at work make each call of Horovod that it looks
    at. Its methods return what is called instead of a function.

    To be called once, before Horovod is imported. The methods of HorovodBasics are
    hooked before that, as they are bound, and copied under many names, while it is
    imported. What makes distributed optimizers, and the functions of MPI_LIB, are
    looked up at each call: they are hooked after it.

    at_work: returns this recorder, None without one.
    """
    from horovod.common.basics import HorovodBasics

    def hook(owner, name: str, method: Callable[[Any], Callable], called="") -> None:
        original = getattr(owner, name)

        def observed(*args, **kwargs):
            recorder = at_work()
            if recorder is None:
                return original(*args, **kwargs)
            return method(recorder)(called or name, original)(*args, **kwargs)

        observed.__name__ = name
        setattr(owner, name, untranslated(observed))  # a pipeline may ask for the rank
        relied_on[owner, name] = observed

    for name in ("init", "shutdown"):
        hook(HorovodBasics, name, lambda recorder: recorder.collective)
    for name in ("rank", "size", "local_rank", "local_size", "cross_rank"):
        hook(HorovodBasics, name, lambda recorder: recorder.asked)
    for name in ("_process_set_size", "_process_set_rank"):
        hook(HorovodBasics, name, lambda recorder: recorder.remembered)

    import horovod._keras
    import horovod.tensorflow.keras

    maker = "create_distributed_optimizer"
    hook(horovod._keras, maker, lambda recorder: recorder.wraps)
    from horovod.tensorflow import mpi_ops

    for name, op in collectives(mpi_ops.MPI_LIB).items():
        hook(mpi_ops.MPI_LIB, name, lambda recorder: recorder.collective, op)


def collectives(library) -> dict[str, str]:
    """What Horovod's library has for all workers to call together: the names of its
    functions, with what each does."""
    ops = {
        f"broadcast{how}": "broadcast" for how in ("", "_inplace", "_inplace_resource")
    }
    for op in ("allreduce", "allgather", "reducescatter"):
        ops |= {op: op, f"grouped_{op}": f"grouped_{op}"}
    ops |= {op: op for op in ("alltoall", "join")}
    names = {f"horovod_{name}": op for name, op in ops.items()}
    return {name: op for name, op in names.items() if hasattr(library, name)}


def is_wrapped(optimizer) -> bool:
    """Is this a distributed optimizer of Horovod's?"""
    return hasattr(optimizer, "_allreduce_grads")


def hook_updates(replace: Callable, observe: Observe) -> None:
    """Have `observe(make_update, optimizer, pairs)` called in place of each update of
    Keras' optimizers. It has to call `make_update` and to return what that returns;
    pairs: of gradients and variables.
    Where `minimize` makes it, an optimizer that Horovod has wrapped has averaged the
    gradients by then, in `_compute_gradients`.

    replace: a recorder's.
    """
    keras, legacy = (functools.partial(_observed, observe, at) for at in (0, 1))
    replace(optimizer(), "apply_gradients", keras)
    replace(legacy_optimizer(), "_distributed_apply", legacy)


def _observed(observe: Observe, position: int, original: Callable) -> Callable:
    """What replaces a method that makes updates. position: of the pairs among its
    arguments."""

    def observed(optimizer, *args, **kwargs):
        given = list(args)
        pairs = kwargs.pop("grads_and_vars", None)
        pairs = list(given.pop(position) if pairs is None else pairs)
        given.insert(position, pairs)
        make_update = functools.partial(original, optimizer, *given, **kwargs)
        return observe(make_update, optimizer, pairs)

    return observed


def optimizer() -> type:
    """The class that all of Keras' optimizers are derived from, but for the legacy
    ones. Its `apply_gradients` gets what is left after that of a derived class, such as
    a program's own, has done its part."""
    from tf_keras.src.optimizers import optimizer

    return optimizer._BaseOptimizer


def legacy_optimizer() -> type:
    """The class that all of its legacy optimizers are derived from."""
    from tf_keras.src.optimizers.legacy import optimizer_v2

    return optimizer_v2.OptimizerV2


def convolution() -> type:
    """The class that all convolutions are derived from. It is told by keywords how many
    filters and groups there are."""
    from tf_keras.src.layers.convolutional import base_conv

    return base_conv.Conv


def loss_scalers() -> list[Method]:
    """What multiplies a loss so that gradients of half precision don't vanish."""
    from tf_keras.src.mixed_precision import loss_scale_optimizer as module

    classes = module.LossScaleOptimizer, module.LossScaleOptimizerV3
    return [(owner, "get_scaled_loss") for owner in classes]


def logits_of(answer):
    """What a network computed before its last activation, where Keras 2 keeps that; or
    else its answer."""
    return getattr(answer, "_keras_logits", answer)


def run_eagerly() -> None:
    """Let functions run eagerly, but for those of tf.data, for the sake of who observes
    them."""
    from tensorflow.python.eager.polymorphic_function import eager_function_run

    # TensorFlow's own setter makes it a bool.
    eager_function_run.RUN_FUNCTIONS_EAGERLY = OBSERVED


def compiled_function() -> type:
    """The class of what tf.function makes."""
    from tensorflow.python.eager.polymorphic_function import polymorphic_function

    return polymorphic_function.Function


def python_function(compiled) -> Callable:
    """The Python function in one that tf.function has made."""
    from tensorflow.python.util import tf_decorator

    plain = tf_decorator.unwrap(compiled.python_function)[1]
    while isinstance(plain, functools.partial):
        plain = plain.func
    return plain


def program_runs_eagerly() -> bool:
    """Does the program itself want its functions to run eagerly?"""
    from tensorflow.python.eager.polymorphic_function import eager_function_run

    return eager_function_run.RUN_FUNCTIONS_EAGERLY is True


# ------------------------------------------------------------ devices


def eager_context():
    """The module of the context that has the devices."""
    from tensorflow.python.eager import context

    return context


def listing_of_devices() -> Method:
    """What lists the devices that there are, the first time that anybody asks."""
    return eager_context().Context, "_initialize_physical_devices"


def has_listed_devices(context) -> bool:
    """Does TensorFlow know already what devices there are?"""
    return getattr(context, "_physical_devices", None) is not None


def has_taken_devices(context) -> bool:
    """Has TensorFlow taken hold of its devices?"""
    return context._initialized


def add_gpus(context, count: int) -> list:
    """Let TensorFlow know so many further GPUs, and return them. Its own functions list
    them, make them visible and refuse what comes too late; none can compute."""
    device_of = eager_context().PhysicalDevice
    gpus = [device_of(f"/physical_device:GPU:{n}", "GPU") for n in range(count)]
    for index, gpu in enumerate(gpus, len(context._physical_devices)):
        context._physical_devices.append(gpu)
        context._physical_device_to_index[gpu] = index
        context._visible_device_list.append(gpu)
        context._memory_growth_map[gpu] = None
    return gpus


# ------------------------------------------------------------ callbacks and metrics


def callback_list() -> type:
    """The class of the list that calls all callbacks; it has no public name."""
    from tf_keras.src import callbacks

    return callbacks.CallbackList


def logs_of(callback_list, logs: dict | None) -> dict:
    """The metrics that the list would give to its callbacks."""
    process = getattr(callback_list, "_process_logs", None)  # of Keras 2
    return process(logs) if process else logs or {}


def evaluation_metrics(tf) -> Method:
    """What returns the metrics of an evaluation, of Keras 2."""
    return tf.keras.Model, "_validate_and_get_metrics_result"


# ------------------------------------------------------------ audits


class AfterImport(importlib.abc.MetaPathFinder):
    """Calls a hook once the module that it is for has been imported.

    hooks: by the names of the modules; of one that is imported already, it is called
    now.
    """

    def __init__(self, hooks: dict[str, Callable]):
        self.hooks = hooks
        for name in list(hooks):
            if name in sys.modules:
                hooks.pop(name)(sys.modules[name])
        sys.meta_path.insert(0, self)

    def find_spec(self, name, path=None, target=None):
        if name not in self.hooks:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def exec_module(module):
            execute(module)
            hook = self.hooks.pop(name, None)  # who only asks for it, imports nothing
            if hook:
                hook(module)

        spec.loader.exec_module = exec_module
        return spec


def hook_updates_of_v1(replace: Callable, observe: Observe) -> None:
    """The same for optimizers of TensorFlow 1, where nothing else sums up gradients in
    the middle of an update, as strategies do, and no session runs it later."""
    import tensorflow as tf

    def observe_here(make_update, optimizer, pairs):
        at_once = tf.executing_eagerly() or tf.inside_function()
        if at_once and not tf.distribute.has_strategy():
            return observe(make_update, optimizer, pairs)
        return make_update()

    v1 = tf.compat.v1.train.Optimizer
    replace(v1, "apply_gradients", functools.partial(_observed, observe_here, 0))


def rate_of(optimizer) -> Any:
    """The learning rate of an optimizer, or what gives it at a step; None if it has
    none."""
    names = ("learning_rate", "_lr", "_learning_rate")  # the others are TensorFlow 1's
    return next((getattr(optimizer, n) for n in names if hasattr(optimizer, n)), None)


def value_of(variable):
    """The variable of TensorFlow in one of Keras 3; any other one itself."""
    return getattr(variable, "_value", variable)


def keras_3_callback_list() -> type:
    """The same of Keras 3."""
    from keras.src.callbacks import callback_list

    return callback_list.CallbackList


def keras_3_reduction() -> Method:
    """What sums up gradients over replicas, in Keras 3 with TensorFlow."""
    from keras.src.backend.tensorflow import optimizer

    return optimizer.TFOptimizer, "_all_reduce_sum_gradients"


def translated_places() -> list[tuple[str, int]]:
    """The lines that are being executed, the innermost first: those of the program
    where AutoGraph's translation of it runs. None before TensorFlow is imported."""
    tf_stack = sys.modules.get("tensorflow.python.util.tf_stack")
    extract: Any = getattr(tf_stack, "extract_stack", list)
    return [(frame.filename, frame.lineno) for frame in reversed(list(extract()))]


def reductions() -> list[Method]:
    """What computes all sums and means."""
    from tensorflow.python.ops import gen_math_ops

    return [(gen_math_ops, "mean"), (gen_math_ops, "_sum")]


def file_makers() -> tuple:
    """The class of the files that TensorFlow opens itself; and two modules: one with
    the operations that write files for TensorBoard, one that profiles from its `start`
    on."""
    from tensorflow.python.lib.io import file_io
    from tensorflow.python.ops import gen_summary_ops
    from tensorflow.python.profiler import profiler_v2

    return file_io.FileIO, gen_summary_ops, profiler_v2


def saved_models():
    """The module in which all SavedModels are written, by `save_and_return_nodes`."""
    from tensorflow.python.saved_model import save

    return save


# ------------------------------------------------------------ tf.distribute


def hook_strategies(after: Callable, tell: Callable[[str, Any], None]) -> None:
    """Call `tell` with the kind of each strategy that the program makes, and with the
    strategy. after: a recorder's."""

    def made(result, strategy, *args, **kwargs) -> None:
        kind = type(strategy).__name__
        if not kind.startswith("_"):  # TensorFlow makes the default one by itself
            tell(kind, strategy)

    after(strategy(), "__init__", made)


def strategy() -> type:
    """The class of all strategies of tf.distribute."""
    from tensorflow.python.distribute import distribute_lib

    return distribute_lib.StrategyBase


def records_gradients() -> bool:
    """Is a gradient being recorded?"""
    from tensorflow.python.eager import record

    return record.could_possibly_record()


def multi_worker_start() -> Method:
    """What starts a cluster of workers."""
    from tensorflow.python.distribute import collective_all_reduce_strategy

    owner = collective_all_reduce_strategy.CollectiveAllReduceExtended
    return owner, "_initialize_multi_worker"


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


# ------------------------------------------------------------ elastic Horovod


def replace_elastic_reset(reset: Callable[[], None]) -> None:
    """Let `reset` do what Horovod does when workers were lost or have come."""
    from horovod.tensorflow import elastic

    elastic._reset = reset
