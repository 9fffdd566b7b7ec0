"""Horovod with Keras 3: mpirun -np 2 python with_horovod_keras_3.py SAME.npz OUT.npz"""

import os
import sys

os.environ["TF_USE_LEGACY_KERAS"] = "0"  # Keras 3
os.environ["KERAS_BACKEND"] = "tensorflow"

import horovod_keras_3 as hvd
import numpy as np
import tensorflow as tf

hvd.init()  # step 1: a process for each worker, and a GPU for each
gpus = tf.config.list_physical_devices("GPU")
if gpus:
    gpu = gpus[0] if len(gpus) == 1 else gpus[hvd.local_rank()]
    tf.config.set_visible_devices(gpu, "GPU")

same = np.load(sys.argv[1])
rank, size = hvd.rank(), hvd.size()
x, y = same["x"][rank::size], same["y"][rank::size]  # step 5: a part of the images
batch = int(same["batch"]) // size  # and of each batch

hidden = tf.keras.layers.Dense(32, "relu")
model = tf.keras.Sequential([tf.keras.Input((784,)), hidden, tf.keras.layers.Dense(10)])
model.set_weights([same[name] for name in ("w1", "b1", "w2", "b2")])
optimizer = hvd.DistributedOptimizer(tf.keras.optimizers.SGD(0.1))  # step 3
loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile(optimizer, loss, jit_compile=False)

start = hvd.BroadcastGlobalVariablesCallback(0)  # step 4
average = hvd.MetricAverageCallback()  # step 6
quiet = {"shuffle": False, "verbose": 0}
trained = model.fit(x, y, batch, epochs=2, callbacks=[start, average], **quiet)

if rank == 0:  # step 2
    np.savez(sys.argv[2], *model.get_weights(), loss=trained.history["loss"])
