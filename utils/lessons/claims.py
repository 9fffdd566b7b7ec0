"""What a lesson's text says of a run, tried on the reader's own: `claim`.

Each claim that compares a measured number keeps its value and its bound in the
metadata of its output, so that a margin can be read from an executed copy.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass

REPORT = (
    "The text may say what to do about it, or a cell that was changed be the cause. If "
    "neither is so, the lesson is wrong about your machine: please open an issue with "
    "this output, and with what `course doctor` prints."
)


@dataclass(frozen=True)
class Claim:
    """A sentence, and whether it was true.

    value, side, bound: what was measured, and the bound that it has to be `below` or
        `above`; None, "" and None for a statement without a number.
    margin: how far the value is from its bound, see `margin`; None without a number.
    """

    sentence: str
    true: bool
    value: float | None = None
    side: str = ""
    bound: float | None = None
    margin: float | None = None

    @property
    def numbers(self) -> str:
        """Value and bound, in words; nothing for a statement without a number."""
        if self.value is None:
            return ""
        side = self.side if self.true else f"not {self.side}"
        return f"value {short(self.value)}, {side} the bound {short(self.bound)}"

    @property
    def said(self) -> str:
        """The sentence, with its numbers if it has some."""
        return f"{self.sentence} ({self.numbers})" if self.numbers else self.sentence

    def __repr__(self) -> str:
        if self.true:
            return f"✓ {self.said}"
        return f"✗ Not true here: {self.said}\n{REPORT}"

    def _repr_mimebundle_(self, **_) -> tuple[dict, dict]:
        """For Jupyter: the text, and in its metadata what `shown` reads."""
        return {"text/plain": repr(self)}, {"claim": self.as_json()}

    def as_json(self) -> dict:
        """The same as plain values; JSON has no infinity and no nan: they are texts."""
        return {
            name: str(fact)
            if isinstance(fact, float) and not math.isfinite(fact)
            else fact
            for name, fact in asdict(self).items()
        }


def claim(
    sentence: str,
    value: object,
    *,
    below: float | None = None,
    above: float | None = None,
) -> None:
    """Show `sentence` with a check mark if it is true here, else say what is wrong.

    claim("Both workers hold the same weights", first == second)
    claim("Their weights differ by rounding alone", furthest, below=1e-5)
    claim("Two workers are faster than one", two, above=one)

    sentence: a full sentence without its full stop, understood without the code.
    value: True or False for a statement without a number; else a measured number, with
        the bound that it has to be `below` or `above`, which may be measured, too.

    Nothing is raised where it is not true: a lesson goes on, and whoever executes it
    for the course (`course notebooks`) is told. Raises TypeError for a number without a
    bound, or with two.
    """
    import numpy as np
    from IPython.display import display

    if below is None and above is None:
        if not isinstance(value, bool | np.bool_):
            raise TypeError(f"is {value!r} true? Give a number below= or above=")
        display(Claim(sentence, bool(value)))
        return
    if below is not None and above is not None:
        raise TypeError("give below= or above=: two bounds are two claims")
    side, bound = ("below", below) if above is None else ("above", above)
    by = margin(value, side, bound)
    display(Claim(sentence, by > 1, float(value), side, float(bound), by))


def margin(value: float, side: str, bound: float) -> float:
    """How far `value` is on the right side of `bound`, as a ratio: a claim is true
    where it is more than 1.

    Below a bound it is bound / value, above a bound value / bound. With a margin of 3,
    the value could be nearly three times as large (or a third), and the claim would
    still be true. At 1 both are equal, which is neither below nor above.

    Value and bound are meant to be amounts, such as times, counts, distances. Where one
    of them is not positive and finite, the first line below that fits says the margin:

    - the one that has to be the larger is 0, negative or nan: 0, untrue;
    - the other one is infinite or nan: 0, untrue;
    - the other one is 0 or negative: infinite.

    So 0 is infinitely far below each positive bound, and so is a negative value: claim
    the abs() of a difference whose size is meant. More than nothing is infinitely far
    above a bound of 0: rather state `value > 0`, which needs no number.
    """
    larger, smaller = (bound, value) if side == "below" else (value, bound)
    larger, smaller = float(larger), float(smaller)
    if not larger > 0 or not smaller < math.inf:
        return 0.0
    if smaller <= 0:
        return math.inf
    return larger / smaller


def shown(outputs: Iterable[dict]) -> Iterator[Claim]:
    """The claims among a cell's outputs, in order."""
    for output in outputs:
        facts = output.get("metadata", {}).get("claim")
        if facts:
            numbers = {
                name: None if facts[name] is None else float(facts[name])
                for name in ("value", "bound", "margin")
            }
            yield Claim(facts["sentence"], facts["true"], side=facts["side"], **numbers)


def short(number: float) -> str:
    """A number as people write it: 12,345 or 0.00123."""
    large = 1000 <= abs(number) < math.inf
    return f"{number:,.0f}" if large else f"{number:.3g}"
