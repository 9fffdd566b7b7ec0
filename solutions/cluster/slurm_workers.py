"""The tasks of a Slurm job find each other, without a TF_CONFIG, and add up.

    sbatch --nodes 2 --ntasks-per-node 2 --wrap \
        "srun python solutions/cluster/slurm_workers.py"

Slurm tells each task by variables who it is and on which nodes all are: the resolver
makes addresses of that. The rest is as in any program for MultiWorkerMirroredStrategy.
"""

import os

import tensorflow as tf

tasks, on_a_node = (
    int(os.environ[name]) for name in ("SLURM_NTASKS", "SLURM_NTASKS_PER_NODE")
)
gpus = int(os.environ.get("SLURM_GPUS_ON_NODE", 0))
# The resolver counts the tasks of a node by GPUs. Without one, say that each task has
# one, or TensorFlow 2.21 divides by 0; auto_set_gpu=False keeps it from choosing them.
resolver = tf.distribute.cluster_resolver.SlurmClusterResolver(
    {"worker": tasks},
    gpus_per_node=gpus or on_a_node,
    gpus_per_task=max(1, gpus // on_a_node),
    auto_set_gpu=gpus > 0,
)
strategy = tf.distribute.MultiWorkerMirroredStrategy(resolver)


@tf.function
def total():
    """The sum of the numbers 1, 2, 3 ... that the replicas have."""
    own = tf.distribute.get_replica_context()
    number = 1.0 + tf.cast(own.replica_id_in_sync_group, tf.float32)
    return own.all_reduce(tf.distribute.ReduceOp.SUM, number)


result = strategy.experimental_local_results(strategy.run(total))[0]
addresses = resolver.cluster_spec().as_dict()["worker"]
print(f"task {resolver.task_id} of {addresses}: the sum is {result.numpy():.0f}")
