"""Measure MPI's own all-reduce, in place, as bandwidth.py measures Horovod's.

    mpirun -np 2 python solutions/in_place.py --counts 16 1048576

No TensorFlow, no Horovod: what is left is the wire, and MPI.
"""

import argparse
import time

import numpy as np
from mpi4py import MPI

world = MPI.COMM_WORLD
rank, size = world.Get_rank(), world.Get_size()

parser = argparse.ArgumentParser(
    description="Measure MPI's all-reduce by the size of the message.",
    formatter_class=argparse.ArgumentDefaultsHelpFormatter,
)
option = parser.add_argument
option("--counts", type=int, nargs="+", default=[16, 16_384], help="of float32")
option("--warm-up", type=int, default=5, help="rounds of each size that don't count")
option("--rounds", type=int, default=20, help="rounds of each size that do")
args = parser.parse_args()

if rank == 0:
    print(f"# {size} workers, {args.rounds} rounds each, in place")
    print(f"#{'bytes':>11}{'count':>11}{'type':>9}{'us':>11}{'algbw':>10}{'busbw':>10}")
for count in args.counts:
    numbers = np.ones(count, np.float32)
    for turn in range(args.warm_up + args.rounds):
        if turn == args.warm_up:
            world.Barrier()
            started = time.perf_counter()
        # The sum replaces what was added up: no second buffer, nothing is copied.
        world.Allreduce(MPI.IN_PLACE, numbers, MPI.SUM)
    own = (time.perf_counter() - started) / args.rounds
    seconds = world.allreduce(own, MPI.MAX)
    algbw = numbers.nbytes / seconds
    busbw = algbw * 2 * (size - 1) / size
    if rank == 0:
        row = f"{numbers.nbytes:12}{count:11}{'float32':>9}{1e6 * seconds:11.1f}"
        print(f"{row}{algbw / 1e9:10.4g}{busbw / 1e9:10.4g}", flush=True)
