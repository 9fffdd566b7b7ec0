"""Counts its steps, and keeps the count when it is told to end.

    python solutions/preempted.py --kept FOLDER --steps 100

Ended by SIGTERM, it finishes the step that is on, saves, and exits with the status 42;
started again, it goes on from there.
"""

import argparse
import os
import time

import tensorflow as tf

# On Google Cloud the handler asks the host for notices of maintenance and listens for
# no signal; without a GPU it never saves. So TensorFlow is not to find out.
# (Google's own libraries look here as well, and would find no credentials.)
os.environ["GCE_METADATA_IP"] = "127.0.0.1:9"  # nobody answers there

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--kept", required=True, help="folder of the checkpoints")
parser.add_argument("--steps", type=int, default=100, help="number of the last step")
args = parser.parse_args()

tf.config.set_visible_devices([], "GPU")
tf.get_logger().setLevel("ERROR")  # else it warns of a property of its own
done = tf.Variable(0, name="done")
handler = tf.distribute.experimental.PreemptionCheckpointHandler(
    tf.distribute.cluster_resolver.TFConfigClusterResolver(),  # none: one process
    tf.train.Checkpoint(done=done),
    args.kept,  # what is there already is restored here
)
print("Begins after step", done.numpy(), flush=True)


def train_step():
    """Stands for a step: takes a twentieth of a second, and is counted."""
    time.sleep(0.05)
    done.assign_add(1)


while done.numpy() < args.steps:
    handler.run(train_step)  # it saves between two steps, never within one
print("Ended after step", done.numpy(), flush=True)
