"""The command `distcheck`; and how a command shows its result and leaves.

Exit status: 0 yes, 1 no; 2 where there is no answer: for a UserError, which is shown as
one message, for any other error, which is a fault of ours, and for wrong usage.
"""

import enum
import json
import os
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from rich.console import Console
from typer.core import TyperCommand

from distcheck.errors import UserError

if TYPE_CHECKING:
    from distcheck.audit import Report

Json = Annotated[
    bool, typer.Option("--json", help="Print the result as JSON, for programs.")
]


class Format(str, enum.Enum):
    """How a report is printed."""

    TEXT = "text"
    GITHUB = "github"


def leave(ok: bool) -> NoReturn:
    """End the command: with exit status 0, or 1."""
    raise typer.Exit(0 if ok else 1)


def show(result: object, data: object, as_json: bool) -> None:
    """Print `result` for people, or `data` for programs."""
    if as_json:
        print(json.dumps(data, indent=2))
    else:
        Console().print(result)


def complain(error: UserError) -> None:
    """Show an error as one message, without a traceback."""
    Console(stderr=True).print(
        f"{error}", style="red", markup=False, highlight=False, soft_wrap=True
    )


def run_app(app: typer.Typer) -> None:
    """Run a command to its end, and leave with its exit status."""
    try:
        app()
    except UserError as error:
        complain(error)
        sys.exit(2)
    except Exception:
        traceback.print_exc()
        sys.exit(2)


class RunsAProgram(TyperCommand):
    """A command that has a program, and then the program's own options."""

    def parse_args(self, ctx, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except Exception as raised:
            # Its class is click's, or Typer's own copy, which is private.
            error: Any = raised
            if type(error).__name__ == "NoSuchOption":
                error.message += ". The program's own options come after -- alone."
            raise


app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command(cls=RunsAProgram)
def audit(
    script: Annotated[Path, typer.Argument(help="The program.")],
    arguments: Annotated[
        list[str] | None, typer.Argument(help="After --: the program's own options.")
    ] = None,
    workers: Annotated[
        int, typer.Option("-np", "--workers", help="How many workers run it.")
    ] = 2,
    quick: Annotated[
        bool,
        typer.Option("--quick", help="Skip the comparison with a run on one worker."),
    ] = False,
    in_place: Annotated[
        bool,
        typer.Option("--in-place", help="Run in this folder, not in a copy of it."),
    ] = False,
    time_limit: Annotated[
        float,
        typer.Option(
            help="End a run after this many seconds, and judge what was seen."
        ),
    ] = 600.0,
    form: Annotated[
        Format,
        typer.Option(
            "--format", help="github: also mark the lines for GitHub's Actions."
        ),
    ] = Format.TEXT,
    as_json: Json = False,
) -> None:
    """Run a program of your own, and say whether it is distributed right.

    The program may use Horovod, MirroredStrategy or MultiWorkerMirroredStrategy, and is
    not changed. Exit status: 0 if nothing is wrong, 1 if something is, 2 if it could
    not be run.
    """
    options = {"workers": workers, "quick": quick, "in_place": in_place}
    options["time_limit"] = time_limit
    leave(audited(script, arguments, form, as_json, **options).ok)


def audited(
    script: Path,
    arguments: list[str] | None,
    form: Format,
    as_json: bool,
    **options,
) -> "Report":
    """Audit a program and show the report. Arguments: see `audit`."""
    from distcheck.audit import audit

    # A notebook's cell asks for colors, and would get a line for each turn of it.
    console = Console(stderr=True, force_terminal=sys.stderr.isatty())
    with console.status("Running your program, watched ..."):
        report = audit(script, *(arguments or ()), **options)
    show(report, report.as_json(), as_json)
    if form == Format.GITHUB:
        print("\n".join(annotations(report)), file=sys.stderr)
    return report


def annotations(report: "Report") -> list[str]:
    """What is wrong, as commands to GitHub's Actions, which show it beside the lines.

    Paths are relative to the working directory.
    """
    found = []
    for finding in report.wrong:
        name, _, line = (finding.where or "").rpartition(":")
        script = Path(report.script)
        facts = {"file": os.path.normpath(script.parent / name if name else script)}
        facts |= {"line": line} if line else {}
        facts["title"] = finding.question
        words = ",".join(f"{key}={_escaped(facts[key], ':,')}" for key in facts)
        found.append(f"::error {words}::{_escaped(finding.seen)}")
    return found


def _escaped(text: str, special: str = "") -> str:
    """As a command to GitHub's Actions has to have it."""
    return "".join(f"%{ord(c):02X}" if c in f"%\r\n{special}" else c for c in text)


def main() -> None:
    run_app(app)


if __name__ == "__main__":
    main()
