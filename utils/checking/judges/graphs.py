"""Judge whether what a program did while functions ran eagerly can be compiled, too.

Keras compiles training, so what only runs eagerly fails as soon as the learner trains,
however right it is here (see distcheck.recorder.graphs).
"""

import functools
from collections.abc import Callable

from distcheck import lab
from distcheck.scenarios import SCENARIOS
from utils.checking.judges.judge import Observed, Problem, Unreadable, in_line, short

Judge = Callable[[dict[str, Observed]], None]

CURE = (
    "In compiled code, tensors have no values yet: call the functions of "
    "horovod.tensorflow there, not those of horovod.tensorflow.keras, which need "
    "values at once."
)


def trains(judge: Judge) -> Judge:
    """The same, for a step that nothing does whose training can't be compiled."""
    return _compiled(judge, validates=False)


def validates(judge: Judge) -> Judge:
    """The same, for a step that needs validation to be compiled as well."""
    return _compiled(judge, validates=True)


def _compiled(judge: Judge, validates: bool) -> Judge:
    @functools.wraps(judge)
    def judged(runs: dict[str, Observed]) -> None:
        judge(runs)
        for run in runs.values():
            if SCENARIOS[run.name].build_graphs:
                _raise_what_fails(run, validates)

    return judged


def _raise_what_fails(run: Observed, validates: bool) -> None:
    first, graphs = run.ranks[0], run.ranks[0].all("graph")
    if run.outcome == lab.ENDED:
        counts = [event["count"] for event in first.all("graphs")]
        if counts != [len(graphs)]:
            raise Unreadable("the graphs of rank 0")
    for graph in graphs:
        if graph["error"] is None or not (graph["training"] or validates):
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
    kind = "training" if graph["training"] else "validation"
    return f"Keras compiles the {kind} step"
