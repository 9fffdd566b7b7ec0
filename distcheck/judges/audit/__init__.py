"""What the reports of a watched program say about how it is distributed.

Workers are compared with each other, and with the same program on one worker. Each
judgement is a function from two runs, `parallel` on all workers and `single` on one, to
an Answer. Where the reports don't decide, it "can't tell": a false alarm costs more
than a miss.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass

from distcheck.judges.audit.averaging import gradients
from distcheck.judges.audit.data import (
    different,
    everything,
    one_pass,
    order,
    validation,
)
from distcheck.judges.audit.decisions import metrics, rate, written
from distcheck.judges.audit.recorded import Answer, RecordedRun
from distcheck.judges.audit.running import (
    devices,
    randomness,
    speed,
    statistics,
    waiting,
)
from distcheck.judges.audit.team import end, start, together


@dataclass(frozen=True)
class Finding:
    """The answer to one question. where: FILE:LINE of the program, if known."""

    id: str
    question: str
    verdict: str
    seen: str
    where: str | None = None

    def as_json(self) -> dict:
        return asdict(self)

    @property
    def sentence(self) -> str:
        return f"{self.seen} ({self.where})" if self.where else self.seen


QUESTIONS: dict[
    str, tuple[str, Callable[[RecordedRun, RecordedRun | None], Answer]]
] = {
    "together": ("Do the workers form one team?", together),
    "start": ("Do all workers start with the same weights?", start),
    "gradients": ("Are the gradients averaged?", gradients),
    "end": ("Do all workers end with the same weights?", end),
    "different": ("Does each worker train on data of its own?", different),
    "everything": ("Is all of the data seen?", everything),
    "order": ("Is the data in a new order in each epoch?", order),
    "pass": ("Is one epoch one pass over the data?", one_pass),
    "validation": ("Are all validation samples looked at?", validation),
    "metrics": ("Are decisions based on equal metrics?", metrics),
    "rate": ("Is the learning rate scaled with the number of workers?", rate),
    "files": ("Is each file written by one worker?", written),
    "devices": ("Does each worker have a device of its own?", devices),
    "waiting": ("Did every worker finish?", waiting),
    "speed": ("Is it faster than one worker?", speed),
    "statistics": ("Are the statistics of batch normalization equal?", statistics),
    "random": ("Do workers draw different random numbers?", randomness),
}


def findings(
    parallel: RecordedRun, single: RecordedRun | None, quick: bool = False
) -> list[Finding]:
    """The answers to all questions. single: the run on one worker, if there was one.

    quick: it was left out on purpose.
    """
    if single is not None and not single.trained:
        single = None
    found = []
    for name, (question, judgement) in QUESTIONS.items():
        if not (quick and name == "speed"):
            verdict, seen, *where = judgement(parallel, single)
            found.append(Finding(name, question, verdict, seen, *where))
    return found
