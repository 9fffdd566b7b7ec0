"""The tasks of a Slurm job find each other, without a TF_CONFIG, and add up.

    sbatch --nodes 2 --ntasks-per-node 2 --wrap \
        "srun python solutions/cluster/slurm_workers.py"

Slurm tells each task by variables who it is and on which nodes all are: TensorFlow's
resolver makes addresses of that. The rest is as in any program for
MultiWorkerMirroredStrategy. TensorFlow sorts nodes as words, and Slurm by number: on
nodes called n2 and n10 (not n02), tasks would look for each other in the wrong places.
"""

import os

import tensorflow as tf

gpus = tf.config.list_physical_devices("GPU")
if gpus:  # the one that Slurm lets this task see, or one of the node's
    gpu = gpus[int(os.environ["SLURM_LOCALID"]) % len(gpus)]
    tf.config.set_visible_devices(gpu, "GPU")
    tf.config.experimental.set_memory_growth(gpu, True)
    gpus = [gpu]

# Ports of the job's own: another job may be on the node, and by default the first one
# would be 8888, which JupyterLab takes, too.
port = 10_000 + int(os.environ["SLURM_JOB_ID"]) % 1_000 * 16
# The resolver counts a node's tasks by GPUs: with none of them TensorFlow 2.21's fails,
# with too few it refuses. So it is told of one for each task, and to choose none.
slurm = tf.distribute.cluster_resolver.SlurmClusterResolver(
    port_base=port,
    gpus_per_node=int(os.environ["SLURM_STEP_NUM_TASKS"]),
    gpus_per_task=1,
    auto_set_gpu=False,
)
addresses = slurm.cluster_spec()
# What the strategy asks for: who is where, who this task is, and its GPUs.
resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
    addresses,
    task_type=slurm.task_type,
    task_id=slurm.task_id,
    num_accelerators={"GPU": len(gpus)},
    rpc_layer="grpc",
)
strategy = tf.distribute.MultiWorkerMirroredStrategy(resolver)


@tf.function
def total():
    """The sum of the numbers 1, 2, 3 ... that the replicas have."""
    own = tf.distribute.get_replica_context()
    number = 1.0 + tf.cast(own.replica_id_in_sync_group, tf.float32)
    return own.all_reduce(tf.distribute.ReduceOp.SUM, number)


result = strategy.experimental_local_results(strategy.run(total))[0]
workers = addresses.as_dict()["worker"]
print(f"task {resolver.task_id} of {workers}: the sum is {result.numpy():.0f}")
