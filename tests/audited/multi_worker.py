"""MultiWorkerMirroredStrategy with model.fit; the chief saves."""

import os

os.environ["TF_USE_LEGACY_KERAS"] = "1"

import json

import numpy as np
import tensorflow as tf

strategy = tf.distribute.MultiWorkerMirroredStrategy()
index = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
rng = np.random.default_rng(15)
x = rng.normal(size=(64, 6)).astype("float32")
y = x[:, :1] * 3
batch = 8 * strategy.num_replicas_in_sync
data = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(64, seed=1).batch(batch)
options = tf.data.Options()
options.experimental_distribute.auto_shard_policy = (
    tf.data.experimental.AutoShardPolicy.DATA
)
with strategy.scope():
    model = tf.keras.Sequential([tf.keras.layers.Dense(1, input_shape=(6,))])
    model.compile(tf.keras.optimizers.SGD(0.02), "mse")
model.fit(data.with_options(options), epochs=2, verbose=0)
model.save_weights(f"weights-of-{index}/model" if index else "weights/model")
