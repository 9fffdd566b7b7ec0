"""Add up one array per worker with a ring of messages, and count what it costs.

    mpirun -np 4 --oversubscribe python exercises/ring_allreduce.py --elements 1000003
    mpirun -np 2 python exercises/ring_allreduce.py --horovod

Every worker sends only to the next one and hears only from the one before it. Read
`ring_all_reduce`, change it, run it again: the table tells whether every worker still
has the right sum, and so does the exit status (0 yes, 1 no).
"""

import argparse
import sys

import numpy as np
from mpi4py import MPI

world = MPI.COMM_WORLD
rank, workers = world.Get_rank(), world.Get_size()
right, left = (rank + 1) % workers, (rank - 1) % workers


class Traffic:
    """Counts the steps of this worker, and the bytes it sent and received."""

    def __init__(self):
        self.steps = self.sent = self.received = 0

    def exchange(self, outgoing, incoming):
        """Send `outgoing` to the right while `incoming` is filled from the left."""
        status = MPI.Status()
        world.Sendrecv(outgoing, right, recvbuf=incoming, source=left, status=status)
        self.steps += 1
        self.sent += outgoing.nbytes
        self.received += status.Get_count(MPI.BYTE)


def ring_all_reduce(values):
    """Put the sum over all workers into `values`, and return the Traffic it took.

    `values` is one-dimensional, of the same size and dtype on every worker.
    Source: Patarasuk and Yuan, J. Parallel Distrib. Comput. 69 (2009), 117-124.
    """
    traffic = Traffic()
    chunks = np.array_split(values, workers)  # views: filling them fills `values`
    inbox = np.empty_like(chunks[0])  # the first chunk is never smaller than others

    for step in range(workers - 1):  # scatter-reduce: the receiver adds
        outgoing = chunks[(rank - step) % workers]
        incoming = chunks[(rank - step - 1) % workers]
        arrived = inbox[: incoming.size]
        traffic.exchange(outgoing, arrived)
        incoming += arrived

    for step in range(workers - 1):  # all-gather: the receiver overwrites
        outgoing = chunks[(rank - step + 1) % workers]
        incoming = chunks[(rank - step) % workers]
        traffic.exchange(outgoing, incoming)

    return traffic


def gradient_of(worker, elements):
    """Stands in for a gradient: float32 in [0, 1), which any worker can draw again."""
    return np.random.default_rng(worker).random(elements, dtype=np.float32)


def wrong_elements(values):
    """The positions in `values` that are not the sum over all workers.

    Adding n non-negative float32 numbers in any order is off by at most
    (n - 1) * 2**-24 times their sum (Higham, Accuracy and Stability of Numerical
    Algorithms, section 4.2); anything more is a mistake, not rounding.
    """
    total = np.zeros(values.size)  # float64: no rounding that would show here
    for worker in range(workers):
        total += gradient_of(worker, values.size)
    rounding = (workers - 1) * 2**-24 * total
    return np.flatnonzero(~(np.abs(values - total) <= rounding))  # NaN is wrong too


def horovod_sum(values):
    """The same sum by Horovod's one call."""
    import horovod.tensorflow as hvd
    import tensorflow as tf

    tf.config.set_visible_devices([], "GPU")  # one small sum: leave the GPUs alone
    hvd.init()
    return hvd.allreduce(tf.constant(values), op=hvd.Sum).numpy()


def print_table(rows, size):
    """What every worker counted and found; `size` is that of one array in bytes."""
    print("worker  steps  bytes sent  bytes received  sum")
    for worker, (traffic, verdict) in enumerate(rows):
        sent, received = f"{traffic.sent:,}", f"{traffic.received:,}"
        print(f"{worker:6}{traffic.steps:7}{sent:>12}{received:>16}  {verdict}")
    print(f"2(N - 1) = {2 * (workers - 1)} steps")
    each_way = 2 * (workers - 1) / workers * size
    print(f"2(N - 1)/N x {size:,} = {each_way:,.0f} bytes each way, on average")


def main():
    """Run the ring, check it, print what it took. Returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--elements", type=int, default=1_000_003, help="per worker")
    parser.add_argument(
        "--horovod", action="store_true", help="compare with Horovod's sum"
    )
    options = parser.parse_args()
    if options.elements < 1:
        parser.error(f"--elements must be 1 or more, not {options.elements}")

    values = gradient_of(rank, options.elements)
    traffic = ring_all_reduce(values)

    wrong = wrong_elements(values)
    verdict = f"wrong, first at element {wrong[0]:,}" if wrong.size else "right"
    rows = world.gather((traffic, verdict))
    same = world.allreduce(np.array_equal(values, world.bcast(values)), MPI.LAND)
    if rank == 0:
        print(f"{workers} workers, {values.size:,} float32 each")
        print_table(rows, values.nbytes)
        print(f"same bits at every worker: {'yes' if same else 'no'}", flush=True)

    if options.horovod:
        difference = np.abs(horovod_sum(gradient_of(rank, values.size)) - values)
        if rank == 0:
            other, most = np.count_nonzero(difference), difference.max()
            print(f"hvd.allreduce: {other:,} elements with other bits, {most:.1e} off")

    return int(world.allreduce(wrong.size > 0, MPI.LOR))


def end_all_workers(*error):
    """Show an error that nobody caught, and end the workers that would wait for us."""
    sys.__excepthook__(*error)
    world.Abort(1)


if __name__ == "__main__":
    sys.excepthook = end_all_workers
    sys.exit(main())
