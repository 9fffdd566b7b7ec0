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
    """A decorator for a judge: where that finds nothing wrong, steps of these kinds,
    "training" or "validation", have to be compiled, too. Else it is a Problem."""

    def decorate(judge: Judge) -> Judge:
        @functools.wraps(judge)
        def judged(runs: dict[str, Run]) -> None:
            judge(runs)
            for run in runs.values():
                if SCENARIOS[run.name].build_graphs:
                    _raise_what_fails(run, kinds)

        return judged

    return decorate


def _raise_what_fails(run: Run, kinds: tuple[str, ...]) -> None:
    first, graphs = run.ranks[0], run.ranks[0].all("graph")
    if run.outcome == lab.ENDED:
        counts = [event["count"] for event in first.all("graphs")]
        if counts != [len(graphs)]:
            raise Unreadable("the graphs of rank 0")
    for graph in graphs:
        if graph["error"] is None or _kind(graph) not in kinds:
            continue
        raise Problem(
            "eager-only",
            f"{_compiler(graph)}, and the compiled code failed on rank 0"
            f"{in_line(graph['line'])}: {short(graph['error'])} {CURE}",
            graph["line"],
        )


def _compiler(graph: dict) -> str:
    if graph["function"] is not None:
        return f"tf.function compiles {short(graph['function'], 60)}"
    return f"Keras compiles the {_kind(graph)} step"


def _kind(graph: dict) -> str:
    return "training" if graph["training"] else "validation"
