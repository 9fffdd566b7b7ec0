"""What the examination of one program gives."""

import math
from dataclasses import dataclass

from distcheck.verdict import MOST_SEEN, UNDECIDED, WRONG, Verdict, cut
from utils.grading.gradebook import CRASHED, GRADER_ERROR, HUNG, OK
from utils.grading.submissions import REFUSED

# What an examination may come to; without verdicts, only some.
STATUSES = (OK, WRONG, CRASHED, HUNG, REFUSED, GRADER_ERROR)
WITHOUT_VERDICTS = (CRASHED, HUNG, REFUSED, GRADER_ERROR)


@dataclass(frozen=True)
class Examined:
    """What examining one program gave.

    verdicts: one for each part, in order; none if it did not come to that.
    status: ok, wrong, crashed, hung, refused or grader error.
    isolation: sentences on what protection was in force.
    log: what it printed, however long.
    seconds: how long it took.
    reason: for crashed, hung, refused and grader error, one sentence.

    Raises ValueError for what can be neither kept nor shown.
    """

    verdicts: tuple[Verdict, ...]
    status: str
    isolation: tuple[str, ...]
    log: str
    seconds: float
    reason: str = ""

    def __post_init__(self):
        texts = (self.log, self.reason, *self.isolation)
        if not all(isinstance(text, str) for text in texts):
            raise ValueError("a text of an examination is none")
        if type(self.seconds) not in (int, float) or not 0 <= self.seconds < math.inf:
            raise ValueError(f"no examination takes {self.seconds!r:.100} seconds")
        object.__setattr__(self, "reason", cut(self.reason, MOST_SEEN))  # it is frozen

    @property
    def settled(self) -> bool:
        """Would another examination find the same? If not, it is not kept."""
        undecided = any(verdict.state == UNDECIDED for verdict in self.verdicts)
        decided = self.status != GRADER_ERROR and not undecided
        return decided or self.status == REFUSED
