"""How fast hosts train by the network between them: measured, and as predicted."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass

from utils.cluster.namespaces import Lan, check_positive, hosts, title
from utils.measure import cost_model, scaling
from utils.measure import table as tables
from utils.measure.table import IMAGES, Row, Section
from utils.running import launch


@dataclass(frozen=True)
class Speed:
    """Training on `hosts` hosts, one worker each, with `batch` images a step.

    throughput: what a program gets of the network, megabits a second, measured; None
    for one host. shaped: was it held down? images_per_second: of all together; silent:
    the same when they don't talk. predicted: images a second by the cost model, with
    no byte hidden behind computing, and with all that can be. sent: bytes that host 1
    sent in all; gradients: how many of them must have been gradients. The rest are
    headers, and Horovod's workers asking each other every millisecond what is ready.
    """

    hosts: int
    batch: int
    images_per_second: float
    silent: float
    throughput: float | None = None
    shaped: bool = False
    predicted: tuple[float, float] | None = None
    sent: int = 0
    gradients: int = 0


def predicted(
    silent: float,
    hosts: int,
    batch: int,
    network: cost_model.Network,
    mbit: float,
    hidden: bool,
) -> float:
    """Images a second of so many hosts by cost_model.py, at a throughput in Mbit/s.

    Computing takes what it takes where they don't talk (silent, images a second), and
    2 (N - 1) / N of the gradients' bytes go through the network. Messages cost nothing.
    """
    images = hosts * batch
    model = cost_model.CostModel(images / silent, 0, 0, 0, 0).connected(mbit / 1000, 0)
    return images / model.seconds(hosts, batch, network, hidden)


def speed(
    lan: Lan,
    workers: int,
    mbit: float | None = None,
    batch: int = 64,
    steps: int = 6,
    rounds: int = 1,
    **options: object,
) -> Speed:
    """Train the course's network (width 1) for some steps, at this bandwidth.

    steps: timed ones, with talking and without, after two that warm up; in each of
    several rounds, whose median counts. options: of the program, such as data="sample".
    """
    lan.shape(mbit)
    ways = ("alone", "together") if workers > 1 else ("alone",)
    before, warm_up = lan.bytes_sent(1), 2
    result = lan.run(
        scaling.STOPWATCH,
        *("--with", "horovod", "--cases", *(f"{way}:{batch}x1" for way in ways)),
        *("--steps", steps, "--warm-up", warm_up, "--rounds", rounds),
        *launch.words((), options),
        workers=workers,
        time_limit=600,
        quiet=True,
    )
    sent = lan.bytes_sent(1) - before
    points, images = scaling.points(result), workers * batch

    def speed_of(talks: bool) -> float:
        times = [point.seconds for point in points if point.talks == talks]
        return images / statistics.median(times)

    silent = speed_of(talks=False)
    if workers == 1:
        return Speed(1, batch, silent, silent)
    throughput, network = lan.throughput(), points[0].network
    both = (
        predicted(silent, workers, batch, network, throughput, hidden)
        for hidden in (False, True)
    )
    shaped = mbit is not None
    fast = speed_of(talks=True)
    share = 2 * (workers - 1) / workers
    gradients = round(rounds * (warm_up + steps) * share * network.bytes)
    return Speed(
        workers, batch, fast, silent, throughput, shaped, tuple(both), sent, gradients
    )


BANDWIDTHS = (10, 30, 100, 1000, None)  # megabits a second; None: unshaped


def speeds(
    bandwidths: Sequence[float | None] = BANDWIDTHS,
    tell: Callable[[str], None] = lambda text: None,
    **options: object,
) -> dict[str, Speed]:
    """One host alone, then two at each bandwidth: name -> Speed. options: of `speed`.

    Raises UserError where hosts of their own are not permitted, and for what is no
    bandwidth.
    """
    for mbit in bandwidths:
        check_positive(mbit)
    with hosts(2) as lan:
        tell(ONE_HOST)
        measured = {ONE_HOST: speed(lan, 1, **options)}
        for mbit in bandwidths:
            two = f"2 hosts, {title(mbit)}"
            tell(two)
            measured[two] = speed(lan, 2, mbit, **options)
    return measured


ONE_HOST = "1 host"


def table(measured: Mapping[str, Speed]):
    """pandas DataFrame, a row a measurement: images/s, speed-up against one host as
    measured and as predicted, throughput, and megabytes that host 1 sent."""
    import pandas

    one_host = measured[ONE_HOST].images_per_second
    rows = {
        key: {
            "images/s": f"{row.images_per_second:,.0f}",
            "speed-up": f"{row.images_per_second / one_host:.2f}",
            "predicted": " to ".join(
                f"{p / one_host:.2f}" for p in row.predicted or ()
            ),
            "Mbit/s": f"{row.throughput:,.0f}" if row.throughput else "",
            "MB sent": f"{row.sent / 1e6:.1f}" if row.hosts > 1 else "",
            "gradients": f"{row.gradients / 1e6:.1f}" if row.hosts > 1 else "",
        }
        for key, row in measured.items()
    }
    return pandas.DataFrame(rows).T


def of_bench(plan, tell: Callable[[str], None]):
    """The section of `course bench` on hosts that talk over networks of any speed.

    plan: of utils.measure.bench, as for the other sections. Each
    row's facts are the fields of Speed, of its rounds.
    """
    rounds = []
    for turn in range(plan.rounds):
        rounds.append(
            speeds(
                BANDWIDTHS,
                tell=lambda text, turn=turn: tell(f"round {turn + 1}: {text}"),
                batch=plan.batch,
                steps=max(4, plan.steps // 5),
                **plan.options,
            )
        )
    rows = []
    for key in rounds[0]:
        repeats = [measured[key] for measured in rounds]
        values = [repeat.images_per_second for repeat in repeats]
        facts = {"rounds": [asdict(repeat) for repeat in repeats]}
        rows.append(Row(key, values, IMAGES, facts=facts))
    section = Section("network", rows)
    section.compare(ONE_HOST)
    return section


def recorded() -> tuple[dict[str, Speed], str]:
    """The course's own record of `speeds`, and where it comes from.

    Raises UserError if there is none.
    """

    section, record = tables.recorded("network")
    return from_bench(section), record.origin


def from_bench(section) -> dict[str, Speed]:
    """The Speeds of the middle round of a section of `course bench`, or of a record."""
    measured = {}
    for row in section.rows:
        repeats = sorted(
            row.facts["rounds"], key=lambda repeat: repeat["images_per_second"]
        )
        measured[row.name] = Speed(**repeats[len(repeats) // 2])
    return measured
