"""How a part of an exercise is checked: what a judge finds becomes a verdict.

A part is judged by its own evidence as far as that goes: a program that hangs at its
broadcast may well have a right step 1. But three things are looked for in all runs,
also those for other parts: what leaves a part undecided; a program that uses Keras 3;
and, where evidence is missing, the reason for that.

`Check.verdict` decides in this order; the first that is found is the verdict:

    tampered*, keras-3, options*, compiled-only*, killed*, time-up*, no-mpirun*
                                                     in any run, one run after the other
    what the judge raises as a Problem               in the runs of this part
    deadlock, crashed, flood, hung                   if the judge raised Missing: in any
                                                     run but those with `devices_only`;
                                                     some judges look for them as well
    never-trained                                    if it did, without those
    tampered*                                        if it raised Unreadable
    right

    * leaves the part undecided: the command's exit status is 2, and what is known
      of the part from an earlier check stays as it was.

Of what any part may be found to be, `distcheck.verdict` lists what is wrong, and what
leaves a part undecided.
"""

import re
from dataclasses import dataclass

from distcheck import keras_2, lab
from distcheck.judges.runs import (
    Judge,
    Missing,
    Problem,
    Run,
    Unreadable,
    in_line,
    short,
)
from distcheck.parts import Part, finding
from distcheck.scenarios import SCENARIOS
from distcheck.verdict import Verdict


@dataclass(frozen=True)
class Check:
    """How a step or a task is checked.

    expected: what a right program does, in a sentence. scenarios: those whose runs
    `judge` looks at.
    """

    part: Part
    expected: str
    scenarios: tuple[str, ...]
    judge: Judge

    def verdict(self, runs: dict[str, Run]) -> Verdict:
        """The verdict on these runs, by scenario: all that were made, not only those
        that `judge` looks at."""
        try:
            for run in runs.values():
                _raise_if_tampered(run)
                _raise_if_keras_3(run)
                _raise_if_options_refused(run)
                _raise_if_only_compiled(run)
                run.raise_if_interrupted()
            try:
                self.judge(runs)
            except Missing:
                for run in runs.values():
                    if not SCENARIOS[run.name].devices_only:
                        run.raise_if_in_trouble()
                raise Problem(
                    "never-trained", "The program ended without having trained."
                ) from None
        except Problem as problem:
            return self._verdict(problem)
        except Unreadable as error:
            seen = f"What the program reported can't be read: {error}."
            return self._verdict(Problem("tampered", seen))
        return self._verdict(Problem("right", self.expected))

    def _verdict(self, p: Problem) -> Verdict:
        found = finding(self.part, p.name)
        return Verdict(
            self.part, found, p.state, self.expected, p.seen, p.line, p.evidence
        )


def comes_to_its_end(runs: dict[str, Run]) -> None:
    """For a program whose parts are all right, as far as they were looked at."""
    for run in runs.values():
        if run.outcome != lab.ENDED and not SCENARIOS[run.name].devices_only:
            run.raise_if_in_trouble()


def _raise_if_tampered(run: Run) -> None:
    for rank in run.ranks:
        for event in rank.all("tampered"):
            raise Problem(
                "tampered",
                f"Rank {rank.number} replaced {event['replaced']}, so what the check "
                "sees may be wrong. Programs may use and subclass libraries, but not "
                "replace their functions.",
            )


def _raise_if_keras_3(run: Run) -> None:
    for rank in run.ranks:
        for event in rank.all("keras 3"):
            where, line = in_line(event["line"]), event["line"]
            if event["module"] == "tensorflow":
                seen = (
                    f"The program imports TensorFlow{where} before it has chosen "
                    "Keras 2, so it would get Keras 3, which this Horovod doesn't "
                    f"support. Above that line, write `{keras_2.CHOICE}`."
                )
            else:
                seen = (
                    f"The program imports {event['module']}{where}, which uses the "
                    "package keras, that is, Keras 3. For Keras 2, import "
                    "horovod.tensorflow.keras."
                )
            raise Problem("keras-3", seen, line)


def _raise_if_options_refused(run: Run) -> None:
    """Raise the Problem of a program that refuses the options a check gives it: what
    it would do with options of its own, nobody has seen."""
    for rank in run.ranks:
        for failure in rank.all("failed"):
            refused = _REFUSED_OPTIONS.search(rank.text("err"))
            if refused and failure["status"]:
                raise Problem(
                    "options",
                    "The program does not take the options that a check runs it with: "
                    f"{short(refused[1])}",
                )


def _raise_if_only_compiled(run: Run) -> None:
    """Raise the Problem of a program with what TensorFlow can do in compiled functions
    alone, such as `tf.gradients`: a check runs functions eagerly."""
    for rank, failure in run.failures():
        if _NOT_EAGERLY.search(str(failure["error"])):
            raise Problem(
                "compiled-only",
                f"Rank {rank.number} failed{in_line(failure['line'])}, perhaps only "
                "because a check runs functions eagerly, where this can't be done: "
                f"{short(failure['error']).rstrip('.')}. If the program fails without "
                "a check, too, mend that first.",
                failure["line"],
            )


_NOT_EAGERLY = re.compile(r"(when|with) eager execution (is )?enabled")

# As argparse says it, click and typer, and absl.
_REFUSED_OPTIONS = re.compile(
    r"(error: (?:unrecognized arguments|argument |the following arguments are required)"
    r".*|Error: No such option.*|Unknown command line flag.*)"
)
