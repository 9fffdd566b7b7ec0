"""One big node or many small ones: what the wire between GPUs leaves of their speed.

    python solutions/cluster/one_node_or_many.py
    python solutions/cluster/one_node_or_many.py --faster 10
    python solutions/cluster/one_node_or_many.py --workers 32 --batch 256

Calculated by the cost model of lesson 15, not measured: how much of the speed of 8 GPUs
that don't talk is left to 8 that do. The first number hides nothing, the second all
sending that fits behind the backward pass. A GPU is as fast as a Tesla P100 of 2016
(`HOROVOD_2018` in utils/measure/cost_model.py has the sources); newer ones are
several times as fast.
"""

import argparse

from utils.measure.cost_model import HOROVOD_2018, CostModel

# Gigabits a second that a worker sends, by the standard's name; microseconds for a
# message, assumed: what such links take, roughly. Put in your cluster's.
LINKS = {
    "one node, NVLink (V100)": (1200, 5),
    "one node, PCIe 3.0 x16": (128, 5),
    "nodes, InfiniBand 100 Gbit/s": (100, 5),
    "nodes, Ethernet 25 Gbit/s": (25, 50),
    "nodes, Ethernet 10 Gbit/s": (10, 50),
    "nodes, Ethernet 1 Gbit/s": (1, 50),
}


def options(words=None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    option = parser.add_argument
    option("--workers", type=int, default=8, help="GPUs; each with its own link")
    option("--batch", type=int, default=64, help="images of a step on each of them")
    option("--faster", type=float, default=1, help="how many times as fast as a P100")
    args = parser.parse_args(words)
    if args.workers < 2 or args.batch < 1 or not args.faster > 0:
        parser.error("there must be 2 workers or more, 1 image, and some speed")
    return args


def efficiencies(
    workers: int, batch: int, faster: float
) -> dict[str, dict[str, tuple[float, float]]]:
    """link -> network -> (least, most) of the efficiency, between 0 and 1."""
    found = {}
    for link, (gigabits, microseconds) in LINKS.items():
        found[link] = {}
        for row in HOROVOD_2018:
            step = batch / (row.images_per_second * faster)
            model = CostModel(step, 0, 0, 0, 0).connected(gigabits, microseconds)
            found[link][row.network.name] = tuple(
                model.efficiency(workers, batch, row.network, hidden)
                for hidden in (False, True)
            )
    return found


def table(workers: int, batch: int, faster: float) -> str:
    """The same in Markdown: a row for each link, a column for each network."""
    names = [row.network.name for row in HOROVOD_2018]
    lines = [f"| {workers} workers, each at {faster:g} x P100 | {' | '.join(names)} |"]
    lines += ["| --- |" + " --- |" * len(names)]
    for link, found in efficiencies(workers, batch, faster).items():
        cells = [f"{least:.0%} to {most:.0%}" for least, most in found.values()]
        lines.append(f"| {link} | {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table(**vars(options())))
