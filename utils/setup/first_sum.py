"""All processes add up a number through Horovod: `mpirun -np 2 python first_sum.py`."""

import horovod.tensorflow as hvd
import tensorflow as tf

hvd.init()
assert hvd.mpi_built(), "Horovod was built without MPI"
assert hvd.gloo_built(), "Horovod was built without Gloo"
total = hvd.allreduce(tf.constant(hvd.rank() + 1.0), op=hvd.Sum)
assert total == hvd.size() * (hvd.size() + 1) / 2, total
print(f"rank {hvd.rank()} of {hvd.size()} has the sum {float(total)}", flush=True)
