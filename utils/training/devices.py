"""The devices that replicas compute on, and how workers' gradients travel."""

from distcheck.errors import UserError, notice


def grow_memory() -> None:
    """Let this process take memory of GPUs as it needs it, for programs beside it.

    With its first tensor, TensorFlow would take nearly all memory of each GPU that it
    sees, and a program that is started afterwards would find none. To be called before
    that tensor; raises TensorFlow's RuntimeError if that is too late.
    """
    import tensorflow as tf

    for gpu in tf.config.list_physical_devices("GPU"):
        tf.config.experimental.set_memory_growth(gpu, True)


def pin(local_rank: int) -> None:
    """Let a worker see one GPU, by its local rank or the only one there is; without
    GPUs, do nothing. To be called when `grow_memory` is."""
    import tensorflow as tf

    grow_memory()
    if gpus := tf.config.list_physical_devices("GPU"):
        tf.config.set_visible_devices(gpus[local_rank % len(gpus)], "GPU")


def replica_devices(replicas: int | None = None) -> list[str]:
    """Names of the devices for so many replicas, such as ["GPU:0", "GPU:1"].

    Where there are GPUs, the first so many of them; default: all. Without GPUs, or
    with fewer than replicas, the processor is split into so many logical devices,
    default two: each is a device of its own for TensorFlow, with variables of its own,
    and they share the cores.

    Call it before TensorFlow has started its devices, that is, before the first
    tensor. Raises UserError if that is too late, or for no replica at all.
    """
    import tensorflow as tf

    from distcheck.machine import cores

    gpus = tf.config.list_physical_devices("GPU")
    if replicas is None:
        replicas = len(gpus) or 2
    if replicas < 1:
        raise UserError(f"replicas is {replicas}: choose 1 or more.")
    if replicas <= len(gpus):
        grow_memory()
        return [f"GPU:{n}" for n in range(replicas)]
    if gpus:
        have = "is 1 GPU" if len(gpus) == 1 else f"are {len(gpus)} GPUs"
        notice(
            f"There {have}, and {replicas} replicas need one each: they compute on "
            "cores."
        )
    if replicas > cores():
        notice(
            f"{replicas} replicas on {cores()} cores take turns: expect no speed-up "
            f"beyond {cores()} replicas."
        )
    (cpu,) = tf.config.list_physical_devices("CPU")
    parts = tf.config.get_logical_device_configuration(cpu) or [cpu]
    if replicas != len(parts) or tf.config.get_visible_devices("GPU"):
        try:
            tf.config.set_visible_devices([], "GPU")
            tf.config.set_logical_device_configuration(
                cpu, [tf.config.LogicalDeviceConfiguration()] * replicas
            )
        except RuntimeError:
            raise UserError(
                f"it is too late to split the processor into {replicas} devices: "
                "TensorFlow has started already. Ask for them before the first tensor "
                "(in a notebook: restart the kernel)."
            ) from None
    return [f"CPU:{n}" for n in range(replicas)]


def communication(way: str | None = None):
    """The CommunicationOptions for a MultiWorkerMirroredStrategy: `way` is "NCCL" or
    "RING"; by default NCCL where this worker sees GPUs, else the ring.

    TensorFlow's own default, AUTO, is the ring on GPUs, too (TensorFlow 2.21). All
    workers have to choose the same. Can be called before the strategy is made.
    """
    import tensorflow as tf

    experimental = tf.distribute.experimental
    way = way or ("NCCL" if tf.config.get_visible_devices("GPU") else "RING")
    return experimental.CommunicationOptions(
        implementation=experimental.CommunicationImplementation[way]
    )
