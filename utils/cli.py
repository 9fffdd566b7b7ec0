"""The command `course`.

A command is a function below: its parameters are the command's options, its docstring
is the help. It imports what it needs itself, so that `course --help` is instant; it
shows its result and leaves with `_leave`: 0 yes, 1 no. A CourseError is shown as one
message with exit status 2, as wrong usage is.
"""

import json
import sys
from typing import Annotated, NoReturn

import typer
from rich.console import Console

from utils.course import CourseError

app = typer.Typer(
    help="A hands-on course on distributed training.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

Json = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]


@app.callback()
def _commands() -> None:
    """Without this, an app with a single command would have no command names."""


def _leave(ok: bool) -> NoReturn:
    raise typer.Exit(0 if ok else 1)


def _show(result: object, data: object, as_json: bool) -> None:
    """Print `result` for people, or `data` for programs."""
    if as_json:
        print(json.dumps(data, indent=2))
    else:
        Console().print(result)


@app.command()
def doctor(as_json: Json = False) -> None:
    """Say what this machine can run, and the fix for what it can't."""
    from utils.doctor import doctor

    report = doctor()
    _show(report, report.as_json(), as_json)
    _leave(report.ok)


@app.command()
def notebooks(
    numbers: Annotated[
        list[str] | None, typer.Argument(help="Their numbers; default: all of them.")
    ] = None,
    profile: Annotated[
        str | None, typer.Option(help="ci, cpu or gpu; default: this machine's.")
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Execute even what has not changed.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Execute the notebooks, check the results, keep them as ipynb and HTML."""
    from utils.notebooks import prove_all, table

    results = prove_all(numbers or (), profile, force)
    _show(table(results), [result.as_json() for result in results], as_json)
    _leave(all(result.ok for result in results))


def main() -> None:
    try:
        app()
    except CourseError as error:
        Console(stderr=True).print(f"{error}", style="red", markup=False)
        sys.exit(2)


if __name__ == "__main__":
    main()
