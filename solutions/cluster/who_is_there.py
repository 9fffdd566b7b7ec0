"""Which workers are there, on which hosts, and can they talk? Ask before you train.

    mpirun -np 2 -H host-1,host-2 python solutions/cluster/who_is_there.py

Rank 0 prints a line for each worker, and then what came of an all-reduce. It trains
nothing and needs no GPU, so it says in seconds what a training would say in minutes.
"""

import os
import socket

os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

import horovod.tensorflow as hvd
import tensorflow as tf

hvd.init()
# Slurm's nodes have names of their own; one machine can be several of them.
host = os.environ.get("SLURMD_NODENAME", socket.gethostname())
hosts = hvd.allgather_object(host)
mean = hvd.allreduce(tf.constant(float(hvd.rank())), op=hvd.Average)
if hvd.rank() == 0:
    for rank, name in enumerate(hosts):
        print(f"rank {rank} is on {name}")
    print(f"{hvd.size()} workers have averaged their ranks: {mean.numpy():g}")
