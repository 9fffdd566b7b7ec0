"""The command `course`.

A command is a function below: its parameters are the command's options, its docstring
is the help. It imports what it needs itself, so that `course --help` is instant; it
shows its result, and where that is a yes or no leaves with `leave`: 0 yes, 1 no. Exit
status 2 is for what could not be decided, for wrong usage, and for a UserError, which
is shown as one message.
"""

import functools
import json
import os
import stat
import sys
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from rich.console import Console

from distcheck import cli as distcheck_cli
from distcheck.cli import Json, complain, leave, run_app, show
from distcheck.errors import UserError
from utils.base.course import TIME_LIMIT, version
from utils.lessons import outline
from utils.measure.table import TITLES
from utils.running.result import RunFailed

app = typer.Typer(
    help="A hands-on course on distributed training.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

NAMES = ", ".join(outline.read().exercises)
Which = Annotated[
    str | None,
    typer.Option(
        "--exercise",
        help=f"Which exercise: {NAMES}; default: by the program's name, or "
        f"{outline.FIRST}.",
    ),
]
Script = Annotated[
    Path | None, typer.Option(help="Your program; default: the exercise's own file.")
]
Numbers = Annotated[
    list[str] | None,
    typer.Argument(help="Numbers of notebooks; default: all of them."),
]


def _version(wanted: bool) -> None:
    if wanted:
        print(version())
        raise typer.Exit


@app.callback()
def _commands(
    _: Annotated[
        bool,
        typer.Option(
            "--version",
            callback=_version,
            is_eager=True,
            help="Print the version and exit.",
        ),
    ] = False,
) -> None:
    """Options of `course` itself."""


@app.command()
def doctor(as_json: Json = False) -> None:
    """Say what this machine can run, and how to fix what it can't."""
    from utils.checking.doctor import doctor

    report = doctor()
    show(report, report.as_json(), as_json)
    leave(report.ok)


@app.command()
def notebooks(
    numbers: Numbers = None,
    profile: Annotated[
        str | None,
        typer.Option(
            help="ci, cpu or gpu: how much is trained; default: this machine's."
        ),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Execute unchanged notebooks, too.")
    ] = False,
    jobs: Annotated[
        int, typer.Option(help="How many notebooks run at the same time.")
    ] = 1,
    as_json: Json = False,
) -> None:
    """Execute the notebooks, check the results, and keep them as ipynb and HTML."""
    from utils.lessons.notebooks import prove_all, table

    results = prove_all(numbers or (), profile, force, jobs)
    show(table(results), [result.as_json() for result in results], as_json)
    leave(all(result.ok for result in results))


@app.command()
def margins(
    numbers: Numbers = None,
    profile: Annotated[
        list[str] | None,
        typer.Option(
            help="ci, cpu or gpu; repeat the option for several; default: ci and cpu."
        ),
    ] = None,
    runs: Annotated[
        int,
        typer.Option(
            help="Execute each notebook until this many runs are kept; takes hours."
        ),
    ] = 0,
    as_json: Json = False,
) -> None:
    """List how close each claim of the notebooks is to failing, closest first.

    Exit status: 0 if all claims are a factor of 3 or more from failing, 1 if some
    aren't. After an interruption, the same command continues where it stopped.
    """
    from utils.lessons.margins import margins, table

    report = margins(numbers or (), profile or (), runs)
    show(table(report), report.as_json(), as_json)
    leave(report.ok)


@app.command(cls=distcheck_cli.RunsAProgram)
def run(
    script: Annotated[Path, typer.Argument(help="The program.")],
    arguments: Annotated[
        list[str] | None, typer.Argument(help="After --: the program's own options.")
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(
            "-np",
            "--workers",
            help="How many workers; default: what suits this machine.",
        ),
    ] = None,
    tasks: Annotated[
        str | None,
        typer.Option(
            help="Run a TF_CONFIG cluster instead, such as chief=1,worker=2,ps=1."
        ),
    ] = None,
    restarts: Annotated[
        int,
        typer.Option(help="With --tasks: restart failed tasks up to this many times."),
    ] = 0,
    tolerate: Annotated[
        str | None,
        typer.Option(
            help="With --tasks: a type of task that may fail, such as worker."
        ),
    ] = None,
    timeline: Annotated[
        bool, typer.Option("--timeline", help="Let Horovod record a timeline.")
    ] = False,
    elastic: Annotated[
        bool,
        typer.Option(
            "--elastic", help="Continue when a host dies, leaves or joins the run."
        ),
    ] = False,
    fingerprint: Annotated[
        bool,
        typer.Option(
            "--fingerprint", help="Record a fingerprint of each worker's weights."
        ),
    ] = False,
    time_limit: Annotated[
        float, typer.Option(help="End every process after this many seconds.")
    ] = TIME_LIMIT,
    as_json: Json = False,
) -> None:
    """Run a program on several workers: course run -np 2 PROGRAM -- --epochs 3"""
    from distcheck.tasks import counts
    from utils.base.profiles import in_force
    from utils.running import launch

    try:
        result = launch.run(
            script,
            *(arguments or ()),
            workers=in_force().workers if workers is None else workers,
            tasks=counts(tasks) if tasks else None,
            restarts=restarts,
            tolerate=tolerate,
            timeline=timeline,
            elastic=elastic,
            fingerprint=fingerprint,
            time_limit=time_limit,
            quiet=as_json,
        )
    except RunFailed as failed:
        if as_json:
            print(json.dumps(failed.run.as_json() | {"error": str(failed)}, indent=2))
        else:
            complain(failed)
        leave(False)
    if as_json:
        print(json.dumps(result.as_json(), indent=2))


@app.command()
def explain(
    log: Annotated[
        Path | None,
        typer.Argument(help="The log; default: what is piped, or the newest run's."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Say what went wrong in a log: python train.py 2>&1 | course explain

    It names the first error that matters, the rank that it is on, its cause and its
    cure. Exit status: 0 if it is known or if there is none, 1 if it is unknown.
    """
    from utils.running import explain

    if log is None and _is_piped(sys.stdin):
        sys.stdin.reconfigure(errors="replace", newline="\n")
        name, lines = "standard input", explain.lines_of(sys.stdin)
    else:
        name, lines = explain.open_log(log)
    explanation = explain.explain(lines)
    if as_json:
        print(json.dumps({"log": name} | explanation.as_json(), indent=2))
    else:
        print(f"{name}, {explanation.lines:,} lines:\n{explanation}")
    leave(explanation.ok)


def _is_piped(stream) -> bool:
    """Whether somebody gives a text, `... | course` or `course < FILE`."""
    mode = os.fstat(stream.fileno()).st_mode
    return stat.S_ISFIFO(mode) or stat.S_ISREG(mode)


@app.command()
def watch() -> None:
    """Show how busy each worker of the current run keeps its core or GPU."""
    from utils.running.watch import watch_newest

    watch_newest()


@app.command()
def stacks() -> None:
    """Show which line each worker of the current run is at, and what it waits for."""
    from utils.running.stacks import newest

    Console().print(newest())


@app.command("fingerprint")
def show_fingerprints() -> None:
    """Show whether the workers of the last run with --fingerprint had equal weights."""
    from utils.running.fingerprint import newest

    Console().print(newest())


@app.command()
def steps(
    check: Annotated[
        bool, typer.Option("--check", help="Only list the files that are out of date.")
    ] = False,
    start_over: Annotated[
        bool,
        typer.Option(
            "--start-over", help="Move your exercise aside and get a fresh one."
        ),
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Write the program after each step or task to this folder instead."
        ),
    ] = None,
    exercise: Annotated[
        str | None,
        typer.Option(help="With --out: only this exercise; default: all of them."),
    ] = None,
) -> None:
    """Write the exercises, and the solutions after each step, from their sources."""
    from distcheck.files import shown
    from utils.lessons.work import generate, write_steps

    if (exercise and not out) or (out and (check or start_over)):
        raise UserError(
            "--exercise goes with --out, and neither --check nor --start-over does."
        )
    if out:
        for path in write_steps(out, exercise):
            print(f"written: {shown(path)}")
        return
    stale = generate(check, start_over)
    for path in stale:
        print(f"{'out of date' if check else 'written'}: {shown(path)}")
    if check and stale:
        print("`course steps` repairs that.")
    leave(not (check and stale))


@app.command()
def check(
    part: Annotated[
        str | None,
        typer.Argument(help="3 for step 3, A for task A; default: all, in order."),
    ] = None,
    exercise: Which = None,
    script: Script = None,
    watch: Annotated[
        bool,
        typer.Option(
            "--watch",
            help="Check the next open step or task each time you save the program, "
            "until Ctrl-C.",
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """Run your program and say whether a step or task is right.

    Steps have numbers, and tasks have letters: course check A --exercise scaled

    Exit status: 0 if it is right, 1 if it is not, 2 if it could not be checked.
    """
    # What happens then is told, in order, by the map in distcheck/__init__.py.
    if watch:
        _check_on_save(part, exercise, script, as_json)
    from utils.checking.checks import report_on

    with Console(stderr=True).status("Running your program ..."):
        report = report_on(part, exercise, script)
    show(report, report.as_json(), as_json)
    if report.undecided:
        raise typer.Exit(2)
    leave(report.ok)


def _check_on_save(
    part: str | None, exercise: str | None, script: Path | None, as_json: bool
) -> NoReturn:
    """`course check --watch`."""
    from utils.checking import on_save

    if as_json:
        raise UserError("--watch shows its results as they come: leave out --json.")
    leave(on_save.watch(Console().print, part, exercise, script))


@app.command(cls=distcheck_cli.RunsAProgram)
@functools.wraps(distcheck_cli.audit)
def audit(**options) -> None:
    """As distcheck has it; below, what the course knows of an error."""
    from utils.running.explain import known

    try:
        report = distcheck_cli.audited(**options)
    except UserError as error:
        raise UserError(
            "\n".join(filter(None, (f"{error}", known(f"{error}"))))
        ) from None
    if not report.ok and not options["as_json"] and (text := known(repr(report))):
        print(text)
    leave(report.ok)


@app.command()
def progress(as_json: Json = False) -> None:
    """Show how far you are: the result of the last check of each step and task."""
    from utils.lessons.progress import Progress

    report = Progress()
    show(report, report.as_json(), as_json)


@app.command()
def diff(
    part: Annotated[
        str,
        typer.Argument(
            help="3 for the course's program after step 3, A for that after task A."
        ),
    ],
    exercise: Which = None,
    script: Script = None,
) -> None:
    """Show how your program differs from the course's after a step or task."""
    from rich.syntax import Syntax

    from utils.lessons.work import yours_and_ours

    text, console = yours_and_ours(part, script, exercise), Console()
    # In a pipe, rich would cut every line at 80 columns: code has to arrive whole.
    if console.is_terminal:
        console.print(Syntax(text, "diff", word_wrap=True))
    else:
        print(text)


@app.command()
def hint(
    part: Annotated[str, typer.Argument(help="3 for step 3, A for task A.")],
    level: Annotated[
        int | None,
        typer.Argument(help="1: nudge, 2: place, 3: code; default: the next one."),
    ] = None,
    exercise: Which = None,
) -> None:
    """Show the next hint for a step or task: nudge, place, nearly the code."""
    from rich.markdown import Markdown

    from utils.checking import exercises
    from utils.lessons.progress import hint

    Console().print(Markdown(hint(part, exercises.find(exercise).name, level).data))


@app.command()
def grade(
    submissions: Annotated[
        Path,
        typer.Argument(
            help="A folder with NAME.py, NAME/ or NAME.zip for each learner."
        ),
    ],
    out: Annotated[Path, typer.Option(help="The folder for the results.")],
    exercise: Annotated[str, typer.Option(help=f"Which exercise: {NAMES}.")] = (
        outline.FIRST
    ),
    jobs: Annotated[
        int, typer.Option(help="How many programs run at the same time.")
    ] = 1,
    anonymous: Annotated[
        bool, typer.Option("--anonymous", help="Show ids instead of names.")
    ] = False,
    without_solution: Annotated[
        bool,
        typer.Option(
            "--without-solution", help="Don't show the course's program in the pages."
        ),
    ] = False,
    until: Annotated[
        str | None,
        typer.Option(
            help="Grade up to the step or task the class has reached, such as 3 or B."
        ),
    ] = None,
    unprotected: Annotated[
        bool,
        typer.Option(
            "--unprotected",
            help="Run programs without a sandbox, with all your rights.",
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """Grade a folder of submissions. Each program runs in a sandbox (bubblewrap).

    If you stop the grading, the same command continues it, and runs only what is new.
    All results are written again, so keep your corrections in another folder. Exit
    status: 1 if the grader itself failed with a submission.
    """
    from distcheck.files import shown
    from distcheck.show import Table
    from utils.grading import sandbox
    from utils.grading.examine import examine
    from utils.grading.grade import grade
    from utils.grading.gradebook import GRADER_ERROR

    if not unprotected:
        sandbox.check()
    grades = grade(
        submissions,
        out,
        exercise,
        jobs,
        anonymous,
        compared=not without_solution,
        examine=functools.partial(examine, protected=not unprotected),
        until=until,
    )
    header = ("Learner", "Points", "Status", "Findings")
    rows = [
        (g.learner, f"{g.total} of {g.max}", g.status, "\n".join(g.findings))
        for g in grades
    ]
    show(Table(header, rows), [g.as_json() for g in grades], as_json)
    if not as_json:
        where = "points are in gradebook.csv, learners' pages in reports/"
        print(f"Open {shown(out / 'index.html')}; {where}.")
    leave(all(g.status != GRADER_ERROR for g in grades))


@app.command("class")
def hand_out(
    out: Annotated[Path, typer.Argument(help="A new folder for the learners.")],
    until: Annotated[
        str, typer.Option(help="The number of the last lesson in the folder.")
    ] = "09",
    wheels: Annotated[
        bool,
        typer.Option(
            "--wheels",
            help="Add the Horovod that `make wheel` built: learners build none.",
        ),
    ] = False,
) -> None:
    """Make a folder for a class: without the answers, but with checks and hints."""
    from utils.grading.hand_out import hand_out

    print(hand_out(out, until, wheels))


@app.command()
def hosted(
    out: Annotated[Path, typer.Option(help="The folder for the copies.")],
    repository: Annotated[
        str,
        typer.Option(help="OWNER/NAME of the GitHub repository with the course."),
    ],
) -> None:
    """Write copies of the notebooks that install the course on Colab and Kaggle."""
    from distcheck.files import shown
    from utils.lessons import hosted

    paths = hosted.write(out, repository)
    print(f"{len(paths)} notebooks are in {shown(out)}.")


@app.command()
def bench(
    sections: Annotated[
        list[str] | None,
        typer.Argument(help=f"What to measure: {', '.join(TITLES)}; default: all."),
    ] = None,
    rounds: Annotated[int, typer.Option(help="How often each row is measured.")] = 5,
    out: Annotated[
        Path | None, typer.Option(help="The folder for the tables and figures.")
    ] = None,
    record: Annotated[
        bool,
        typer.Option("--record", help="Store the results as the course's own, too."),
    ] = False,
    as_json: Json = False,
) -> None:
    """Measure how fast training is here, and how close to the machine's limit.

    Close all other programs first. All sections together take hours, because some of
    them train until an accuracy is reached.
    """
    from dataclasses import asdict

    from rich.console import Group

    from distcheck import machine
    from utils.figures import speed as scaling_plots
    from utils.measure.bench import bench

    console = Console(stderr=True)
    console.print(f"On {machine.summary()}", highlight=False)
    done = bench(
        sections or (),
        rounds,
        out,
        record,
        lambda text: console.print(text, highlight=False),
        draw=scaling_plots.of_section,
    )
    texts = [text for section in done for text in (*section.notes, *section.warnings())]
    if any(section.warnings() for section in done):
        texts.append("Close other programs and measure again.")
    show(
        Group(*(section.shown() for section in done), *texts),
        [asdict(section) for section in done],
        as_json,
    )


@app.command()
def speedrun(
    script: Annotated[
        Path, typer.Argument(help="The program; must take --checkpoint.")
    ],
    as_json: Json = False,
) -> None:
    """Time a program that trains to 0.90 test accuracy on Fashion-MNIST.

    The program runs on two workers with a core each, and is timed from its start to its
    end. It gets --checkpoint FOLDER and saves its model as FOLDER/model.keras, which
    is then tested. Exit status: 0 if the model reaches 0.90, 1 if it doesn't, 2 if the
    program could not be run or the model not be tested.
    """
    from distcheck.show import Table
    from utils.measure import speedrun
    from utils.measure.global_batch import GOAL

    attempt = speedrun.attempt(script, quiet=as_json)
    facts = {
        "accuracy": attempt.accuracy,
        "seconds": round(attempt.seconds, 1),
        "goal": GOAL,
        "met": attempt.meets_goal,
    }
    header = ("Program", "Test accuracy", f"Goal: {GOAL:.2f}", "Seconds")
    goal = "met" if attempt.meets_goal else "not yet"
    cells = (attempt.name, f"{attempt.accuracy:.4f}", goal, f"{attempt.seconds:.1f}")
    show(Table(header, [cells]), facts, as_json)
    if not as_json:
        print(f"The course's record: {speedrun.sentence()}")
        print("On your machine: course speedrun solutions/speedrun.py")
    leave(attempt.meets_goal)


def main() -> None:
    run_app(app)


if __name__ == "__main__":
    main()
