"""How long a step takes on N workers: a model, fitted to measured steps.

A step computes, and then sends what is not hidden behind the computing:

    compute(b)       = step + b * (element * elements + mac * macs)
    communicate(N)   = message * messages(N) + byte * 2 (N - 1) / N * bytes

Five numbers of seconds, none negative: of a step whatever its batch, of an activation,
of a multiplication and addition, of a message, of a byte. Time that is linear in the
number of messages and of bytes is the alpha-beta model (R. Hockney, The communication
challenge for MPP, Parallel Computing 20, 1994). A worker must send 2 (N - 1) / N of the
bytes that it contributes, and a ring of workers sends no more (P. Patarasuk, X. Yuan,
Bandwidth optimal all-reduce algorithms for clusters of workstations, J. Parallel and
Distributed Computing 69, 2009), in 2 (N - 1) messages; halving and doubling sends the
same bytes in 2 log2(N) (R. Thakur, R. Rabenseifner, W. Gropp, Optimization of
collective communication operations in MPICH, Int. J. High Performance Computing
Applications 19, 2005). Which of the two it was, measurements on two workers can't tell.
"""

from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass, replace

import numpy as np
import pandas
from scipy.optimize import lsq_linear

from distcheck.errors import UserError

BYTES = 4  # of a float32, in which gradients travel
TRUSTED = 0.2  # typical relative error, above which a fit says nothing of more workers
# By what each of the five numbers is multiplied, in their order.
TERMS = ("steps", "activations", "multiplications", "messages", "bytes")
BACKWARD = 2 / 3  # of computing: gradients of inputs and weights; a third is forward

# messages(N), one after the other, of an all-reduce
LAWS = {
    "ring": lambda workers: 2 * (workers - 1),
    "halving and doubling": lambda workers: 2 * np.log2(workers),
}


@dataclass(frozen=True)
class Network:
    """What the model needs to know. parameters: trained ones; of one image: macs, the
    multiplications with additions in a forward pass, and elements, the activations."""

    name: str
    parameters: int
    macs: float = 0
    elements: float = 0

    @property
    def bytes(self) -> int:
        """Of the gradients, one for each parameter."""
        return BYTES * self.parameters


def wide_resnet(width: int) -> Network:
    """WRN-16-`width` of utils.training.networks, counted layer by layer."""
    parameters = macs = elements = 0
    channels = 1

    def conv(filters: int, size: int, kernel: int, normalized: bool = True) -> None:
        nonlocal parameters, macs, elements
        weights = kernel**2 * channels * filters
        parameters += weights + 2 * filters * normalized
        macs += weights * size**2
        elements += filters * size**2 * (3 if normalized else 1)  # conv, norm, ReLU

    conv(16, 28, 3)
    channels = 16
    for group, size in enumerate((28, 14, 7)):
        filters = 16 * 2**group * width
        for _block in range(2):
            if channels != filters:
                conv(filters, size, 1, normalized=False)
            conv(filters, size, 3)
            channels = filters
            conv(filters, size, 3)
    parameters += 10 * channels + 10
    return Network(f"WRN-16-{width}", parameters, macs, elements)


@dataclass(frozen=True)
class Point:
    """A measured step: seconds, on so many workers with so many images each; talks is
    False where they trained side by side without sharing gradients."""

    workers: int
    batch: int
    network: Network
    seconds: float
    talks: bool = True


@dataclass(frozen=True)
class CostModel:
    """Seconds for each of the five terms, and the law of the number of messages."""

    step: float
    element: float
    mac: float
    message: float
    byte: float
    law: str = "ring"

    def compute(self, batch: int, network: Network) -> float:
        """Seconds that a worker computes in a step on `batch` images."""
        return float(np.dot(self._terms[:3], _terms(1, batch, network, self.law)[:3]))

    def communicate(self, workers: int, network: Network) -> float:
        """Seconds that an all-reduce of the gradients takes, hidden or not."""
        return float(np.dot(self._terms[3:], _terms(workers, 0, network, self.law)[3:]))

    def seconds(
        self, workers: int, batch: int, network: Network, hidden: bool = False
    ) -> float:
        """Seconds of a step. hidden: gradients travel while others are computed, as far
        as the backward pass lasts; else all of it comes on top, as in a fit."""
        computing = self.compute(batch, network)
        sending = self.communicate(workers, network)
        return computing + max(0.0, sending - BACKWARD * computing * hidden)

    def efficiency(
        self, workers: int, batch: int, network: Network, hidden: bool = False
    ) -> float:
        """What a worker gets done, against a worker alone; speed-up over workers."""
        alone = self.compute(batch, network)
        return alone / self.seconds(workers, batch, network, hidden)

    def connected(self, gigabits: float, microseconds: float) -> "CostModel":
        """The same workers on another network: gigabits per second, and microseconds
        for a message."""
        return replace(self, byte=8e-9 / gigabits, message=1e-6 * microseconds)

    @property
    def _terms(self) -> tuple:
        return astuple(self)[:5]


def _terms(
    workers: int, batch: int, network: Network, law: str, talks: bool = True
) -> list[float]:
    """By what the five seconds are multiplied in a step."""
    if talks and workers > 1:
        sent = [LAWS[law](workers), 2 * (workers - 1) / workers * network.bytes]
    else:
        sent = [0, 0]
    return [1, batch * network.elements, batch * network.macs, *sent]


@dataclass(frozen=True)
class Fit:
    """A fitted model; draws, the models fitted to as many resampled measurements; and
    spread, the typical relative error of the model at the points."""

    model: CostModel
    draws: tuple[CostModel, ...]
    spread: float
    points: tuple[Point, ...]

    @property
    def trusted(self) -> bool:
        """Does the model fit well enough to ask it about what was not measured?"""
        return self.spread <= TRUSTED

    @property
    def verdict(self) -> str:
        """A sentence on how well it fits, and what follows."""
        error = f"typical error at {len(self.points)} measured steps: {self.spread:.0%}"
        if self.trusted:
            return f"{error}."
        return (
            f"{error}, more than {TRUSTED:.0%}: don't believe what this fit predicts. "
            "Let nothing else run here, and measure again with more steps."
        )

    def efficiency(self, workers: int, batch: int, network: Network) -> np.ndarray:
        """(low, middle, high): 90 % of new measurements should lie between."""
        models = np.array([model._terms for model in self.draws])
        terms = np.array(_terms(workers, batch, network, self.model.law))
        drawn = models[:, :3] @ terms[:3] / (models @ terms)
        middle = self.model.efficiency(workers, batch, network)
        noise = np.random.default_rng(1).normal(0, self.spread, len(drawn))
        low, high = np.quantile(drawn * np.exp(noise), [0.05, 0.95])
        return np.array([min(low, middle), middle, max(high, middle)])


def table(points: Iterable[Point], law: str = "ring") -> pandas.DataFrame:
    """A row for each measured step: by what each of the five numbers is multiplied (a
    column for each of TERMS), and the seconds that were measured."""
    points = tuple(points)
    rows = [_terms(p.workers, p.batch, p.network, law, p.talks) for p in points]
    frame = pandas.DataFrame(rows, columns=TERMS, dtype=float)
    return frame.assign(seconds=[point.seconds for point in points])


def fit(points: Iterable[Point], law: str = "ring", draws: int = 200) -> Fit:
    """Fit the five numbers to measured steps by least squares of the relative errors.

    The uncertainty is a bootstrap: the model is fitted again to its own values, each
    wrong by the relative error of some point drawn at random. Raises UserError where
    the points can't tell the five numbers apart.
    """
    points = tuple(points)
    for point in points:
        if not point.seconds > 0:
            raise UserError(f"a step of {point.seconds} s can't be: {point}.")
    rows = table(points, law)[[*TERMS]].to_numpy()
    size = rows.max(axis=0, initial=0)
    if not size.all() or np.linalg.matrix_rank(rows / size) < 5:
        raise UserError(
            f"{len(points)} points don't tell the model's five numbers apart: measure "
            "two batch sizes, two widths, and both widths on two workers that talk."
        )
    measured = np.array([point.seconds for point in points])
    numbers = _least_squares(rows, size, measured)
    expected = rows @ numbers
    errors = measured / expected - 1
    # Five numbers bend towards as many points: the errors look smaller than they are.
    errors *= np.sqrt(len(points) / max(1, len(points) - 5))
    random = np.random.default_rng(0)
    refits = []
    for _ in range(draws):
        wrong = expected * np.maximum(0.05, 1 + random.choice(errors, len(points)))
        refits.append(CostModel(*_least_squares(rows, size, wrong), law))
    spread = float(np.sqrt(np.mean(errors**2)))
    return Fit(CostModel(*numbers, law), tuple(refits), spread, points)


def _least_squares(
    rows: np.ndarray, size: np.ndarray, measured: np.ndarray
) -> np.ndarray:
    relative = rows / measured[:, None]
    solution = lsq_linear(relative / size, np.ones(len(rows)), (0, np.inf), tol=1e-12)
    return solution.x / size


def amdahl(workers: int | np.ndarray, serial: float) -> float | np.ndarray:
    """The speed-up on N workers if the share `serial` of the work can't be shared out:
    1 / (serial + (1 - serial) / N) (G. Amdahl, AFIPS Spring Joint Computer Conference,
    1967). It never exceeds 1 / serial."""
    return 1 / (serial + (1 - serial) / np.asarray(workers))


def gustafson(workers: int | np.ndarray, serial: float) -> float | np.ndarray:
    """The same where the work grows with the workers: N - serial (N - 1) (J. Gustafson,
    Reevaluating Amdahl's law, Communications of the ACM 31, 1988)."""
    return workers - serial * (np.asarray(workers) - 1)


def serial_share(workers: int, speed_up: float) -> float:
    """The share that can't be shared out, by Amdahl's law, from one speed-up: (N / S -
    1) / (N - 1) (A. Karp, H. Flatt, Measuring parallel processor performance,
    Communications of the ACM 33, 1990). Noise takes it below 0 or above 1."""
    return (workers / speed_up - 1) / (workers - 1)


def fit_amdahl(workers: Sequence[int], speed_ups: Sequence[float]) -> float:
    """The serial share, between 0 and 1, that explains measured speed-ups best.

    Of 1 / speed-up = serial + (1 - serial) / N, which is linear in the share; a worker
    alone says nothing. Raises UserError if nobody else was measured.
    """
    share = 1 / np.asarray(workers, float)
    if not (share < 1).any():
        raise UserError("Amdahl's law needs a speed-up on two workers or more.")
    inverse = 1 / np.asarray(speed_ups, float)
    best = np.sum((inverse - share) * (1 - share)) / np.sum((1 - share) ** 2)
    return float(np.clip(best, 0, 1))


@dataclass(frozen=True)
class Reported:
    """An efficiency from the literature, and what the model needs to try and explain
    it: images a second of one GPU at this batch, servers, gigabits per second."""

    network: Network
    batch: int
    images_per_second: float
    workers: int
    gigabits: float
    efficiency: float

    def explained(self) -> tuple[float, float]:
        """What the model says: with nothing hidden, and with all hidden that can be.

        The ring visits one server after the other, so every byte crosses each server's
        one connection to the network once in each round. Messages cost nothing here.
        """
        step = self.batch / self.images_per_second
        model = CostModel(step, 0, 0, 0, 0).connected(self.gigabits, 0)
        return tuple(
            model.efficiency(self.workers, self.batch, self.network, hidden)
            for hidden in (False, True)
        )


# Efficiencies and machines: A. Sergeev, M. Del Balso, Horovod: fast and easy
# distributed deep learning in TensorFlow, 2018, arXiv:1802.05799, and Horovod's
# docs/benchmarks.rst: 128 servers with 4 Pascal GPUs each on a 25 Gbit/s network, batch
# 64. Images a second of one GPU (a Tesla P100): TensorFlow's docs,
# r1/guide/performance/benchmarks.md, May 2017; of ResNet-101: a 16th of the 1,656.82 of
# 16 GPUs in Horovod's docs, so with some communication in it. Parameters: the trained
# ones of tf.keras.applications.
HOROVOD_2018 = (
    Reported(Network("Inception V3", 23_817_352), 64, 142, 512, 25, 0.90),
    Reported(Network("ResNet-101", 44_601_832), 64, 1656.82 / 16, 512, 25, 0.90),
    Reported(Network("VGG-16", 138_357_544), 64, 154, 512, 25, 0.68),
)
