"""What the examination of one program gives."""

from dataclasses import dataclass

from distcheck.verdict import MOST_SEEN, UNDECIDED, Verdict, cut
from utils.grading.gradebook import GRADER_ERROR
from utils.grading.submissions import REFUSED


@dataclass(frozen=True)
class Examined:
    """What examining one program gave.

    verdicts: one for each part, in order; none if it did not come to that.
    status: ok, wrong, crashed, hung, refused or grader error.
    isolation: sentences on what protection was in force.
    log: what it printed, however long.
    seconds: how long it took.
    reason: for crashed, hung, refused and grader error, one sentence.
    """

    verdicts: tuple[Verdict, ...]
    status: str
    isolation: tuple[str, ...]
    log: str
    seconds: float
    reason: str = ""

    def __post_init__(self):
        object.__setattr__(self, "reason", cut(self.reason, MOST_SEEN))  # it is frozen

    @property
    def settled(self) -> bool:
        """Would another examination find the same? If not, it is not kept."""
        undecided = any(verdict.state == UNDECIDED for verdict in self.verdicts)
        decided = self.status != GRADER_ERROR and not undecided
        return decided or self.status == REFUSED
