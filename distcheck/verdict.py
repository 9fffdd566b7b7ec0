"""What a check says about one step, or one task, of one program."""

from dataclasses import asdict, dataclass
from string import ascii_uppercase

from distcheck.parts import Part

RIGHT, WRONG = "right", "wrong"
NOT_CHECKED = "not checked yet"  # an earlier part is wrong
UNDECIDED = "could not be checked"  # so nothing is known of it
STATES = (RIGHT, WRONG, NOT_CHECKED, UNDECIDED)

# What any part may be found to be, besides what its own judge finds: the end of the id,
# the state, and what finds it (`Exercise` and `checks` are in utils.checking). Where a
# program was ended for what it did, `exercises.Stopped`, its status is the id's end.
OF_ANY_PART = {
    "right": RIGHT,  # no judge found anything wrong
    "syntax": WRONG,  # Exercise._static_verdicts: the file is no Python
    "todo": WRONG,  # the same: the course's own code, with this to do
    "keras-3": WRONG,  # Check.verdict: an import that leads to Keras 3
    "never-trained": WRONG,  # the same: evidence is missing, without a reason
    "tampered": UNDECIDED,  # the same: hooks are replaced, or reports unreadable
    "options": UNDECIDED,  # the same: the program refuses the check's options
    "crashed": WRONG,  # Run.raise_if_in_trouble: a worker failed, or just vanished
    "deadlock": WRONG,  # the same: workers wait for each other, or one for those gone
    "hung": WRONG,  # the same: the program doesn't end, for another reason
    "flood": WRONG,  # the same: it prints too much
    "compiled-only": UNDECIDED,  # Check.verdict: it fails because functions run eagerly
    "killed": UNDECIDED,  # Run.raise_if_interrupted: somebody else killed a worker
    "time-up": UNDECIDED,  # the same: the time is up, but nothing was seen to hang
    "no-mpirun": UNDECIDED,  # the same: mpirun failed
    "too-large": WRONG,  # Rank.array: more weights than are compared
    "not-finite": WRONG,  # the same: infinite, or not a number
    "eager-only": WRONG,  # compiled.must_compile: it can't be compiled
    "not-checked": NOT_CHECKED,  # checks.stop_at_the_first: an earlier part is wrong
}

# Characters and lines that anybody shows of a verdict; programs have a say in it.
MOST_SEEN, MOST_EVIDENCE, MOST_EVIDENCE_LINE = 2_000, 20, 300


def cut(text: str, limit: int) -> str:
    """`text`, with its end left out where it has more than so many characters."""
    return text if len(text) <= limit else f"{text[: limit - 6]} [...]"


@dataclass(frozen=True)
class Verdict:
    """What was found out about one part of an exercise.

    id: stable name of the finding, such as "step-3.not-averaged" or "task-A.sum";
        "step-3.right" when all is well. OF_ANY_PART has those of any part.
    state: one of RIGHT, WRONG, NOT_CHECKED, UNDECIDED.
    expected, seen: a sentence or a few; `seen` names the ranks that it is about.
    line: of the learner's program, from 1, if the finding has one.
    evidence: further lines that show it (the end of an error, what each rank did).

    Raises ValueError for what is no verdict. Texts are cut to a bound.
    """

    part: Part
    id: str
    state: str
    expected: str
    seen: str
    line: int | None = None
    evidence: tuple[str, ...] = ()

    def __post_init__(self):
        texts = (self.id, self.expected, self.seen, *self.evidence)
        if type(self.part) is int:
            part_fits = self.part > 0
        else:
            part_fits = self.part in tuple(ascii_uppercase)
        line_fits = self.line is None or (type(self.line) is int and self.line >= 0)
        if (
            not part_fits
            or not line_fits
            or not all(isinstance(text, str) for text in texts)
        ):
            raise ValueError(f"no verdict: {self!r:.500}")
        if self.state not in STATES:
            raise ValueError(f"no verdict has the state {self.state!r:.100}")
        lines = [cut(text, MOST_EVIDENCE_LINE) for text in self.evidence]
        for name, value in (
            ("id", cut(self.id, MOST_EVIDENCE_LINE)),
            ("expected", cut(self.expected, MOST_SEEN)),
            ("seen", cut(self.seen, MOST_SEEN)),
            ("evidence", tuple(lines[:MOST_EVIDENCE])),
        ):
            object.__setattr__(self, name, value)  # it is frozen

    @property
    def ok(self) -> bool:
        return self.state == RIGHT

    def as_json(self) -> dict:
        """The same as plain values."""
        return asdict(self)
