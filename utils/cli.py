"""The command `course`.

A command is a function below: its parameters are the command's options, its docstring
is the help. It imports what it needs itself, so that `course --help` is instant; it
shows its result and leaves with `_leave`: 0 yes, 1 no. A CourseError is shown as one
message with exit status 2, as wrong usage is.
"""

import json
import sys
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from rich.console import Console

from utils.course import TIME_LIMIT, CourseError

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


@app.command()
def run(
    script: Annotated[Path, typer.Argument(help="The program.")],
    arguments: Annotated[
        list[str] | None, typer.Argument(help="After --: the program's own options.")
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option("-np", "--workers", help="How many; default: this machine's."),
    ] = None,
    time_limit: Annotated[
        float, typer.Option(help="Seconds, after which every process is ended.")
    ] = TIME_LIMIT,
    as_json: Json = False,
) -> None:
    """Run a program on several workers: course run -np 2 PROGRAM -- --epochs 3"""
    from utils import launch, settings

    try:
        result = launch.run(
            script,
            *(arguments or ()),
            workers=settings().workers if workers is None else workers,
            time_limit=time_limit,
            quiet=as_json,
        )
    except launch.RunFailed as failed:
        if as_json:
            print(json.dumps(failed.run.as_json() | {"error": str(failed)}, indent=2))
        else:
            _complain(failed)
        _leave(False)
    if as_json:
        print(json.dumps(result.as_json(), indent=2))


@app.command()
def watch() -> None:
    """Show which worker of the run that is on now keeps which core or GPU busy."""
    from utils.watch import watch_newest

    watch_newest()


@app.command()
def steps(
    check: Annotated[
        bool, typer.Option("--check", help="Only say what is out of date.")
    ] = False,
    start_over: Annotated[
        bool,
        typer.Option("--start-over", help="Move your exercise aside, begin afresh."),
    ] = False,
) -> None:
    """Write the exercise and the solutions after each step from their source."""
    from utils.course import shown
    from utils.steps import generate

    stale = generate(check, start_over)
    for path in stale:
        print(f"{'out of date' if check else 'written'}: {shown(path)}")
    if check and stale:
        print("`course steps` repairs that.")
    _leave(not (check and stale))


@app.command()
def diff(
    step: Annotated[int, typer.Argument(help="Compare with the course's step N.")],
    script: Annotated[
        Path | None, typer.Option(help="Your program; default: the exercise.")
    ] = None,
) -> None:
    """Show how your program differs from the course's after step N."""
    from rich.syntax import Syntax

    from utils.steps import yours_and_ours

    Console().print(Syntax(yours_and_ours(step, script), "diff"))


@app.command()
def hint(
    step: Annotated[int, typer.Argument(help="The number of the step.")],
    level: Annotated[int, typer.Argument(help="1: nudge, 2: place, 3: code.")] = 1,
) -> None:
    """Show a hint for step N, from a nudge to nearly the code."""
    from rich.markdown import Markdown

    from utils.steps import hint

    Console().print(Markdown(hint(step, level).data))


def _complain(error: CourseError) -> None:
    Console(stderr=True).print(f"{error}", style="red", markup=False, highlight=False)


def main() -> None:
    try:
        app()
    except CourseError as error:
        _complain(error)
        sys.exit(2)


if __name__ == "__main__":
    main()
