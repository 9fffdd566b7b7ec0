"""What a check says about one step of one program."""

from dataclasses import asdict, dataclass

RIGHT, WRONG = "right", "wrong"
NOT_CHECKED = "not checked yet"  # an earlier step is wrong
UNDECIDED = "could not be checked"  # the checker's fault or the machine's


@dataclass(frozen=True)
class Verdict:
    """What was found out about step `step`.

    id: stable name of the finding, such as "step-3.not-averaged"; "step-3.right" when
        all is well. Ids end in ".crashed" when the program raised an error, in
        ".deadlock" when workers wait for each other for ever, in ".hung" when it did
        not end in time for another reason.
    state: one of RIGHT, WRONG, NOT_CHECKED, UNDECIDED.
    expected, seen: one sentence each; `seen` names the ranks that it is about.
    line: of the learner's program, from 1, if the finding has one.
    evidence: further lines that show it (the end of an error, what each rank did).
    """

    step: int
    id: str
    state: str
    expected: str
    seen: str
    line: int | None = None
    evidence: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        return self.state == RIGHT

    def as_json(self) -> dict:
        """The same as plain values."""
        return asdict(self)
