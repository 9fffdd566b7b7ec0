"""Judge step 2: does rank 0 alone show progress and write files?"""

import itertools
import re
from collections.abc import Iterable

from distcheck import lab
from distcheck.judges.runs import Missing, Problem, Rank, Run, in_line, short
from distcheck.judges.steps.common import step, whatever_the_options

# So many digits at most: a long row of them would be read again from each of them.
_PROGRESS = re.compile(
    r"Epoch \d+/\d+|\d{1,9}/\d{1,9} \[[=>.]|\d(ms|s|us)/step"
    r"|\b(val_)?(loss|accuracy)\b\W{0,3}\d",
    re.IGNORECASE,
)


@step(
    2,
    scenarios=("two", "other options"),
    expected=(
        "Rank 0 shows progress and scores, and no other rank does. No file is written "
        "by several ranks."
    ),
)
@whatever_the_options
def speaks_with_one_voice(run: Run) -> None:
    fits = [rank.all("fit") for rank in run.ranks]
    if run.outcome != lab.ENDED and not all(fits):
        raise Missing
    line = fits[0][0]["line"] if fits[0] else None
    _raise_if_idle(run)
    said = [_said(rank) for rank in run.ranks]
    # What didn't come so far as to say anything may have been asked to.
    asked = [
        bool(fit and fit[0]["verbose"])
        and (not rank.all("fitted") or bool(rank.all("failed")))
        for fit, rank in zip(fits, run.ranks, strict=True)
    ]
    rank_0 = asked[0] or _tells(said[0], [line for o in said[1:] for line in o])
    scores = [
        _scores(lines, said[0]) or _progress(rank) if rank.number else []
        for lines, rank in zip(said, run.ranks, strict=True)
    ]
    others = [n for n in range(1, run.size) if asked[n] or scores[n]]
    if not rank_0:
        raise _silence(run.ranks[0], others, line)
    if others:
        score = next(iter(scores[others[0]]), None)
        if score is None:
            words = f"called fit with verbose={fits[others[0]][0]['verbose']!r}"
        else:
            words = f'printed "{short(score, 60)}"'
            line = _line_that_printed(run.ranks[others[0]], score, line)
        raise Problem("others-speak", f"Rank {others[0]} {words}.", line)
    _raise_if_written_twice(run)
    _raise_if_waits_alone(run)


def _silence(rank_0: Rank, others: list[int], line: int | None) -> Problem:
    """The Problem of a rank 0 that shows nothing, while these others do."""
    local = _local_rank_for_rank(rank_0)
    if local:
        return Problem(
            "local-rank-for-rank",
            f"Rank 0 was silent, because line {local} asks for the local rank, which "
            "was 3 and 1 here. The local rank counts the workers of each machine, so "
            "several workers may have local rank 0, or none. Only one worker has rank "
            "0.",
            local,
        )
    if others:
        seen = f"Rank 0 was silent, but rank {others[0]} printed."
        return Problem("inverted", seen, line)
    return Problem("silent", "No worker showed progress, not even rank 0.", line)


def _raise_if_waits_alone(run: Run) -> None:
    """Raise the Problem of a rank that, after its training, waits for ranks that have
    come to their end."""
    for rank in run.ranks:
        others = [r for r in run.ranks if r is not rank]
        after = list(itertools.dropwhile(_not_fitted, rank.events))
        ends = ("collective_start", "collective_end")
        last = next((e for e in reversed(after) if e["what"] in ends), None)
        if last is None or last["what"] == "collective_end":
            continue
        if all(other.all("ended") for other in others):
            raise Problem(
                "waits-alone",
                f"After the training, rank {rank.number} called "
                f"{last['op']}{in_line(last['line'])}, and waits forever, because the "
                "others have ended without making this call.",
                last["line"],
            )


def _not_fitted(event: dict) -> bool:
    return event["what"] != "fitted"


def _raise_if_written_twice(run: Run) -> None:
    """Raise the Problem of a file that several ranks write. TensorBoard takes all its
    files of a folder for those of one run, whatever they are called."""
    written = [
        {
            _OF_TENSORBOARD.sub(r"\1", name)
            for e in r.all("files_written")
            for name in e["files"]
        }
        for r in run.ranks
    ]
    for number, names in enumerate(written[1:], 1):
        for name in sorted(names & written[0]):
            raise Problem(
                "others-write",
                f"Rank {number} wrote a file {name}, and so did rank 0. In this check "
                "each rank has its own folder; in a common folder, they would "
                "overwrite each other's file.",
            )


def _raise_if_idle(run: Run) -> None:
    """Raise the Problem of ranks that are silent, as they have nothing to tell."""
    trained = [any(e["training"] for e in r.all("forward")) for r in run.ranks]
    if run.outcome == lab.ENDED and any(trained) and not all(trained):
        working = run.ranks[trained.index(True)]
        idle = ", ".join(str(n) for n, did in enumerate(trained) if not did)
        line = next((fit["line"] for fit in working.all("fit")), None)
        raise Problem(
            "does-not-train",
            f"Rank {working.number} trained, but rank {idle} did not. Only what is "
            "printed may depend on the rank, because all ranks have to train.",
            line,
        )


def _said(rank: Rank) -> list[str]:
    """What the rank has said since it began to train, and all progress before that, by
    whichever way to the terminal; without what libraries say by themselves."""
    lines = []
    for before, training, after in _printed(rank):
        lines += [line for line in _lines(before) if _PROGRESS.search(line)]
        lines += _lines(training + after)
    return [line for line in lines if re.search(r"\w", line)]


def _printed(rank: Rank) -> Iterable[tuple[str, str, str]]:
    """What the rank has printed before, in and after its training with fit, by each way
    to the terminal; without fit, all from its first batch on is after it."""
    sizes = [event["sizes"] for event in rank.all("output")]
    begins = sizes[0] if sizes else [0, 0]
    ends = sizes[1] if len(sizes) > 1 else begins
    for name, begin, end in zip(("out", "err"), begins, ends, strict=False):
        text = rank.text(name)
        if rank.all("failed"):  # what Python says of the end is not the program's word
            text = text.partition("Traceback (most recent call last):\n")[0]
        data = text.encode()
        before, training, after = (
            part.decode(errors="replace")
            for part in (data[:begin], data[begin:end], data[end:])
        )
        yield before, training, after


def _line_that_printed(rank: Rank, words: str, fit: int | None) -> int | None:
    """The line that calls fit, where it printed this; after it, an evaluation's line
    if there was one, else None."""
    while_training = [t for _, training, _ in _printed(rank) for t in _lines(training)]
    if words in while_training:
        return fit
    evaluated = [event["line"] for event in rank.all("evaluated") if not event["fit"]]
    return evaluated[-1] if evaluated else None


def _progress(rank: Rank) -> list[str]:
    """The lines of those printed while training that tell how it gets on, in whichever
    words or signs: with a number, without a letter, or more than once."""
    lines = [line for _, training, _ in _printed(rank) for line in _lines(training)]
    return [
        line
        for line in lines
        if re.search(r"\d", line) or not re.search(r"\w", line) or lines.count(line) > 1
    ]


def _lines(text: str) -> list[str]:
    """Lines as a terminal shows them, without empty ones and those of libraries."""
    lines = [line.strip() for line in re.split(r"[\n\r\b]+", text)]
    lines = [re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", line) for line in lines]
    kept, of_warning = [], False
    for line in lines:
        if of_warning:  # the line of code that Python shows below a warning
            of_warning = False
            continue
        of_warning = bool(_WARNING.match(line))
        if line and not of_warning and not _OF_LIBRARIES.match(line):
            kept.append(line)
    return kept


_OF_TENSORBOARD = re.compile(r"(events\.out\.tfevents)\.[^/]*$")
_WARNING = re.compile(r"\S+\.py:\d+: \w*Warning: ")
_OF_LIBRARIES = re.compile(
    r"WARNING:tensorflow:|WARNING: All log messages|NOTICE: "
    r"|\d{4}-\d\d-\d\d .{0,40}: [IWEF] "
    r"|[IWEF]\d{4} \d\d:\d\d:\d\d\.\d+ +\d+ \S+\.cc:\d+\]"
)


def _scores(lines: list[str], of_rank_0: Iterable[str]) -> list[str]:
    """The lines in which progress or scores are told, if any are: in Keras' words, or,
    in whichever words, again and again, or as rank 0 tells them.

    That a worker once says who it is, or that it has ended, is none of it.
    """
    spoken = [line for line in lines if _PROGRESS.search(line)]
    numbers = [line for line in lines if re.search(r"\d[.,]\d", line)]
    forms = {_form(line) for line in of_rank_0}
    repeated = [line for line in numbers if _form(line) in forms]
    return spoken or repeated or (numbers if len(numbers) > 1 else [])


def _tells(lines: list[str], of_others: list[str]) -> bool:
    """Is there any number among the lines that is more than who says it, or when?"""
    forms = {_form(line) for line in of_others}
    return bool(_scores(lines, lines)) or any(
        re.search(r"\d", line) and _form(line) not in forms for line in lines
    )


def _form(line: str) -> str:
    """The line without its numbers."""
    return re.sub(r"[-+]?\d+(?:[.,]\d+)*(?:e[-+]?\d+)?", "#", line)


def _local_rank_for_rank(rank: Rank) -> int | None:
    """The last line that asked for the local rank after the GPU was chosen with it."""
    kinds = [event["what"] for event in rank.events]
    pinned = len(kinds) - kinds[::-1].index("pinned") if "pinned" in kinds else 0
    asked = [
        event["line"]
        for event in rank.events[pinned:]
        if event["what"] == "asked" and event["name"] == "local_rank"
    ]
    return asked[-1] if asked and (pinned or len(asked) > 1) else None
