"""Judge whether what a program did while functions ran eagerly can be compiled, too.

Keras compiles training, so what only runs eagerly fails as soon as the learner trains,
however right it is here (see distcheck.recorder.graphs).
"""

import functools
from collections.abc import Callable

from distcheck import lab
from distcheck.judges.runs import Judge, Problem, Run, Unreadable, in_line, short
from distcheck.scenarios import SCENARIOS

CURE = (
    "In compiled code, tensors have no values yet: call the functions of "
    "horovod.tensorflow there, not those of horovod.tensorflow.keras, which need "
    "values at once."
)


def must_compile(*kinds: str) -> Callable[[Judge], Judge]:
    """A decorator for a judge. Once that has found nothing wrong, steps of these kinds,
    "training" or "validation", have to be compiled, too: else it is a Problem. Where
    the program ended before that was tried, the verdict says so."""

    def decorate(judge: Judge) -> Judge:
        @functools.wraps(judge)
        def judged(runs: dict[str, Run]) -> None:
            judge(runs)
            compiled = [r for r in runs.values() if SCENARIOS[r.name].build_graphs]
            for run in compiled:
                _raise_if_eager_only(run, kinds)
            if not all(map(_all_tried, compiled)):
                # It is no fault: a verdict "right" with a sentence of its own.
                raise Problem(
                    "right",
                    "As far as the program came, this is right. Whether it can be "
                    "compiled was not tried, because it did not come to its end.",
                )

        return judged

    return decorate


def _all_tried(run: Run) -> bool:
    """Has rank 0 reported on each graph that it was about to build?"""
    first = run.ranks[0]
    return [e["count"] for e in first.all("graphs")] == [len(first.all("graph"))]


def _raise_if_eager_only(run: Run, kinds: tuple[str, ...]) -> None:
    """Raise the Problem of a function that can't be compiled, or that hangs while it
    is; Unreadable where reports of some are missing."""
    if run.outcome == lab.ENDED and not _all_tried(run):
        raise Unreadable("the graphs of rank 0")
    for graph in run.ranks[0].all("graph"):
        if graph["error"] is not None and _kind(graph) in kinds:
            raise Problem(
                "eager-only",
                f"{_compiler(graph)}, and the compiled code failed on rank 0"
                f"{in_line(graph['line'])}: {short(graph['error'])} {CURE}",
                graph["line"],
            )
    begun = run.ranks[0].all("graphs")
    if run.outcome == lab.HUNG and begun and not _all_tried(run):
        run.raise_if_in_trouble()  # "hung", by what is compiled


def _compiler(graph: dict) -> str:
    if graph["function"] is not None:
        return f"tf.function compiles {short(graph['function'], 60)}"
    return f"Keras compiles the {_kind(graph)} step"


def _kind(graph: dict) -> str:
    return "training" if graph["training"] else "validation"
