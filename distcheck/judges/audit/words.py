"""Numbers and lists in words, for what an answer says."""

from distcheck.judges.audit.recorded import RecordedRun


def percent(part: float) -> str:
    """Of a part of 1, with two digits."""
    return f"{100 * part:.2g} %" if part < 0.995 else f"{100 * part:.0f} %"


def count_of(number: int, word: str) -> str:
    """One update, two updates."""
    return f"{number} {word}{'s' * (number != 1)}"


def in_epochs(run: RecordedRun) -> str:
    """Words for the epochs of `fit`, if there were any."""
    count = max([worker.epochs for worker in run.each], default=0)
    return f" in {count_of(count, 'epoch')}" if count else ""


def listed(names) -> str:
    """With commas, and an "and" before the last."""
    *most, last = list(names)
    return f"{', '.join(most)} and {last}" if most else last


def shortened(text: str, limit: int = 300) -> str:
    """On one line, of at most so many characters."""
    text = " ".join(text.split())
    return text if len(text) <= limit else f"{text[: limit - 3]}..."
