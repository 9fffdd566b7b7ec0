"""The clinic: programs with one fault each. See the symptom, name it, cure it.

Each case is the healthy program solutions/patient.py with a fault (clinic.toml).
`admit` puts it where a learner can edit it and shows how it behaves, `diagnose` says
whether the learner has named it, and `cure` whether the program is healthy again. What
is known of each disease is exercises/clinic.md, the course's troubleshooting page.
"""

import contextlib
import functools
import http.server
import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import tomli

from distcheck import errors, files, programs
from distcheck.scenarios import SCENARIOS
from distcheck.show import Page, Table
from utils.base import course, logs
from utils.lessons import work
from utils.running import fingerprint, launch, stacks
from utils.running.result import Run, RunFailed

BASE_PROGRAM = course.PACKAGE_ROOT / "solutions" / "patient.py"
WORKERS, EPOCHS, BASE_LR, BATCH, IMAGES = 2, 3, 0.01, 40, 2_400
WARNED, ENDED = 3, 25  # seconds of standing still until Horovod warns, and gives up
LIMIT = 150.0  # seconds for a run
LOOK = 0.7  # seconds between two looks at the workers' stacks
AGAIN = 6.0  # seconds until the second look: a merely slow worker has moved by then
LEAST_TWICE = (
    1.4611  # log(e + 9) - 1: the least loss with ten classes and two softmaxes
)
LONGEST = 600  # characters of a line of the log that are shown: six tensors fit
# Where in its source Horovod warns, and when.
_STAMP = re.compile(r"\[[\d-]+ [\d:]+\. *\d+: [WE] \S+\] ?")
_NODE = re.compile(r"\{\{.*?\}\} ")  # TensorFlow's name for a place in a graph
# Lines of a stack, and what TensorFlow says about a graph that broke off.
_NOISE = re.compile(
    r"^\[\d\] *$|^\[\d\]  +|Traceback|During handling|Detected at node|\[\[\{\{node"
)
SECTIONS = ("Symptom", "Tell it apart", "Cure", "Prevention", "Upstream")


# ------------------------------------------------------------ what is known


def page() -> Path:
    return course.PACKAGE_ROOT / "exercises" / "clinic.md"


@functools.cache
def diseases() -> dict[str, dict[str, str]]:
    """Name -> section (of SECTIONS) -> text, as exercises/clinic.md has them.

    Raises UserError when a disease has other sections.
    """
    by_name = {}
    _, _, by_disease = page().read_text().partition("\n## By disease\n")
    for part in re.split(r"^### ", by_disease, flags=re.M)[1:]:
        name, _, rest = part.partition("\n")
        texts = dict(re.findall(r"^#### (.+)\n((?:(?!####).*\n?)*)", rest, re.M))
        texts = {title: " ".join(text.split()) for title, text in texts.items()}
        if tuple(texts) != SECTIONS:
            raise errors.UserError(
                f"{files.shown(page())}: {name} needs the sections "
                f"{', '.join(SECTIONS)}; it has {', '.join(texts)}."
            )
        by_name[name.strip()] = texts
    return by_name


@dataclass(frozen=True)
class Case:
    """A program with a fault. disease: its name; complaint: what its owner says.

    healthy, ill: its text. server: it downloads; gpus: it is run with four pretended
    GPUs.
    """

    number: int
    disease: str
    complaint: str
    healthy: str
    ill: str
    server: bool = False
    gpus: bool = False

    @property
    def program(self) -> Path:
        """The learner's own."""
        return course.root() / "exercises" / f"clinic_{self.number:02}.py"


def _table() -> dict:
    return tomli.loads(Path(__file__).with_suffix(".toml").read_text())


@functools.cache
def cases() -> tuple[Case, ...]:
    """All cases, in the order of their numbers, which begin at 1."""
    all_cases = []
    for number, row in enumerate(_table()["case"], 1):
        text = BASE_PROGRAM.read_text().partition('"""\n\n')[2]
        text = f'"""Case {number} of the clinic: a program with one fault."""\n\n{text}'
        text = _edited(text, row.get("given", []), number)
        healthy = _edited(text, row.get("healthy", []), number)
        ill = _edited(text, row["fault"], number)
        facts = {key: row[key] for key in ("disease", "complaint")}
        facts |= {key: row.get(key, False) for key in ("server", "gpus")}
        all_cases.append(Case(number, healthy=healthy, ill=ill, **facts))
    return tuple(all_cases)


def _edited(text: str, edits: list[list[str]], number: int) -> str:
    for old, new in edits:
        if text.count(old) != 1:
            raise ValueError(f"case {number}: {text.count(old)} places with {old!r}")
        text = text.replace(old, new)
    return text


def case(number: int) -> Case:
    """Raises UserError when there is no such case."""
    if number not in range(1, len(cases()) + 1):
        raise errors.UserError(
            f"there is no case {number!r}: they are 1 to {len(cases())}."
        )
    return cases()[number - 1]


# ------------------------------------------------------------ what is seen


@dataclass
class Observed:
    """How a program behaved.

    stood_still: the stacks when Horovod first warned of a stall; later: those AGAIN
    seconds after, if it still ran. glimpses: stacks while it trained. written: rank ->
    the files that it left. gpus: which of the pretended GPUs each worker used, see
    `_gpus`.
    """

    run: Run
    homes: Path
    error: str = ""
    stood_still: list[stacks.Stack] = field(default_factory=list)
    later: list[stacks.Stack] = field(default_factory=list)
    glimpses: list[list[stacks.Stack]] = field(default_factory=list)
    prints: list[fingerprint.Print] = field(default_factory=list)
    written: dict[int, list[str]] = field(default_factory=dict)
    gpus: dict[str, list[list[int]]] = field(default_factory=dict)

    @property
    def script(self) -> str:
        return self.run.script

    @property
    def trained(self) -> list[fingerprint.Print]:
        """The fingerprints after an epoch; before the first, there is one as well."""
        return [entry for entry in self.prints if entry.epoch]

    def lines(self, limit: int = 12) -> list[str]:
        """What a person would look at in the log: no stacks of libraries, no stall
        warning twice, and no end of a line with hundreds of names."""
        text = self.run.log.read_text()
        text = _STAMP.sub("", text)
        lines = []
        for line in text.splitlines():
            line = _short(_NODE.sub("", line))
            if not _NOISE.search(line) and line not in lines:
                lines.append(line)
        return lines[-limit:]


def _short(line: str) -> str:
    """A line of whole words, and of a list's names; of what is left out, how many."""
    if len(line) <= LONGEST:
        return line
    for between, what in ((", ", "more names"), (" ", "more words")):
        shown = line[:LONGEST].rpartition(between)[0]
        if shown:
            left = line[len(shown) :].count(between)
            return f"{shown} ... and {left} {what}"
    return f"{line[:LONGEST]} ..."


@contextlib.contextmanager
def _server() -> Iterator[str]:
    """A slow server on this machine: it sends half of a file, and then the rest."""
    content = json.dumps([f"class {n}" for n in range(2_000)]).encode()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            with contextlib.suppress(ConnectionError):
                self.wfile.write(content[: len(content) // 2])
                time.sleep(1.5)
                self.wfile.write(content[len(content) // 2 :])

        def log_message(self, *_):
            """Say nothing."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/names.json"
    finally:
        server.shutdown()
        server.server_close()


def observe(script: Path, patient: Case) -> Observed:
    """Run a program of a case on two workers, and look at it from all sides.

    Each worker has a folder of its own, but where they are to share a download.
    """
    folder = logs.new_folder(f"clinic_{patient.number:02}")
    glimpses: list[list[stacks.Stack]] = []
    still: list[stacks.Stack] = []
    later: list[stacks.Stack] = []
    looked = stopped = time.monotonic()

    def attend(running: Run) -> None:
        nonlocal looked, stopped
        if time.monotonic() - looked < LOOK:
            return
        looked = time.monotonic()
        with contextlib.suppress(errors.UserError):
            warned = "waiting for remainder of ranks" in running.log.read_text()
            if warned and not still:
                still.extend(stacks.of_run(running.folder))
                stopped = looked
            elif still and not later and looked - stopped > AGAIN:
                later.extend(stacks.of_run(running.folder))
            elif _all_train(running.folder):
                glimpses.append(stacks.of_run(running.folder))

    environment = {
        "HOROVOD_STALL_CHECK_TIME_SECONDS": str(WARNED),
        "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": str(ENDED),
    }
    with contextlib.ExitStack() as stack:
        if patient.server:
            environment["NAMES"] = stack.enter_context(_server())
        else:
            environment["COURSE_HOMES"] = str(folder)
        error = ""
        try:
            run = launch.run(
                script,
                workers=WORKERS,
                quiet=True,
                time_limit=LIMIT,
                fingerprint=True,
                attend=attend,
                environment=environment,
                epochs=EPOCHS,
                log_dir=str(folder / "out") if patient.server else "out",
            )
        except RunFailed as failed:
            error = _short(_NODE.sub("", str(failed).partition("\n")[0]))
            run = failed.run
    prints = []
    with contextlib.suppress(errors.UserError):
        prints = fingerprint.of_run(run.folder)
    written = {
        int(home.name): sorted(p.name for p in home.rglob("*") if p.is_file())
        for home in sorted(folder.glob("[0-9]*"))
    }
    gpus = _gpus(script) if patient.gpus else {}
    return Observed(run, folder, error, still, later, glimpses, prints, written, gpus)


def _all_train(folder: Path) -> bool:
    return len(list(folder.glob("workers/*.prints"))) == WORKERS


# The scenarios that show which GPUs a program chooses, in words.
MACHINES = {"two": "all four to be seen", "given": "one given to each worker"}


def _gpus(script: Path) -> dict[str, list[list[int]]]:
    """Which of four pretended GPUs each worker can see in the end, by
    scenario."""
    from distcheck import lab
    from distcheck.judges import runs
    from utils.checking import images

    with files.scratch() as place:
        folder = place.resolve()
        job = lab.Job(str(script.resolve()), tuple(MACHINES), images.__name__)
        lab.perform(folder, [job])
        chosen = {}
        for name, run in runs.read(folder / "0").items():
            events = [rank.all("devices") for rank in run.ranks]
            chosen[name] = [
                of_rank[-1]["visible"] if of_rank else [] for of_rank in events
            ]
    return chosen


# ------------------------------------------------------------ healthy?


def _ended(observed: Observed) -> str:
    return observed.error


def _of_training(sign: Callable[[Observed], str]) -> Callable[[Observed], str]:
    """A sign that a program can't give that trains nothing."""

    @functools.wraps(sign)
    def checked(observed: Observed) -> str:
        return sign(observed) if observed.trained else "it trained no epoch"

    return checked


@_of_training
def _same_weights(observed: Observed) -> str:
    epoch = fingerprint.drifted(observed.prints)
    return f"after epoch {epoch} the workers had different weights" if epoch else ""


@_of_training
def _rate(observed: Observed) -> str:
    rates = {round(entry.rate, 6) for entry in observed.trained}
    right = BASE_LR * WORKERS
    if rates == {right}:
        return ""
    listing = " and ".join(f"{rate:g}" for rate in sorted(rates))
    return f"the learning rate was {listing}, not {right:g}"


@_of_training
def _all_images(observed: Observed) -> str:
    needed = IMAGES // BATCH // WORKERS
    steps = {entry.steps for entry in observed.trained}
    if any(count < needed for count in steps):
        return f"an epoch had {min(steps)} steps; {needed} are needed for all images"
    return "" if len(steps) == 1 else "the workers made different numbers of steps"


@_of_training
def _own_images(observed: Observed) -> str:
    for epoch in range(1, EPOCHS + 1):
        pixels = [entry.pixels for entry in observed.prints if entry.epoch == epoch]
        if len(pixels) == WORKERS and len(set(pixels)) == 1:
            return f"in epoch {epoch} all workers had the same images"
    return ""


def _one_writer(observed: Observed) -> str:
    written = observed.written.items()
    others = [str(rank) for rank, names in written if rank and names]
    return f"rank {' and '.join(others)} wrote files, too" if others else ""


def _history(observed: Observed):
    """What the program's history.csv holds, a row for each epoch; none without one."""
    import pandas

    paths = list(observed.homes.rglob("history.csv"))
    if paths and paths[0].stat().st_size:
        return pandas.read_csv(paths[0])
    return pandas.DataFrame()


def _learns(observed: Observed) -> str:
    rows = _history(observed)
    if len(rows) < EPOCHS or "val_accuracy" not in rows:
        return f"its history has {len(rows)} of {EPOCHS} validated epochs"
    loss = rows["loss"].min()
    return "" if loss < LEAST_TWICE else f"the loss got down to {loss:.2f} only"


def _in_step(observed: Observed) -> str:
    """Was a worker ever seen in a function of the program's own, called by `fit`?"""
    for glimpse in observed.glimpses:
        for stack in glimpse:
            frame = stack.of_program(observed.script)
            if frame and frame.function != "<module>" and stack.inside("fit", frame):
                return (
                    f"rank {stack.rank} was in {observed.script}, line {frame.line}, "
                    "while others waited"
                )
    return ""


def _own_gpu(observed: Observed) -> str:
    visible = observed.gpus["two"]
    if len({tuple(gpus) for gpus in visible}) < len(visible):
        shared = " and ".join(map(str, visible[0]))
        return f"all workers see GPU {shared}" if shared else "no worker sees a GPU"
    if observed.gpus["given"] != [[0]]:
        return "a worker that was given a single GPU did not find it"
    return ""


SIGNS: dict[str, Callable[[Observed], str]] = {
    "It ends, and ends well": _ended,
    "All workers have the same weights": _same_weights,
    "The learning rate fits the number of workers": _rate,
    "Every worker has images of its own": _own_images,
    "An epoch has all images, in as many steps on each": _all_images,
    "Rank 0 alone writes files": _one_writer,
    "It validates, and learns": _learns,
    "Nobody keeps the others waiting": _in_step,
    "Every worker has a GPU of its own": _own_gpu,
}


# ------------------------------------------------------------ for learners


class Admission(Page):
    """How the program of a case behaves: all that is seen of it, or one kind at a time.

    log: what its owner says, how it ended, and the end of its log. stacks: where its
    workers were. fingerprints: those of each epoch. results: its history, its files and
    the GPUs that it used.
    """

    def __init__(self, patient: Case, observed: Observed):
        self.patient, self.observed = patient, observed
        self.log = Page(*_log(patient, observed))
        self.stacks = Page(*_stacks(observed))
        self.fingerprints = Page(*_fingerprints(observed))
        self.results = Page(*_results(observed))
        kinds = self.log, self.stacks, self.fingerprints, self.results
        super().__init__(*(part for kind in kinds for part in kind.parts))


def admit(number: int) -> Admission:
    """Put the program of a case into exercises/, if it isn't there yet, and show how it
    behaves. Raises UserError when there is no such case."""
    patient = case(number)
    if not patient.program.exists():
        patient.program.write_text(patient.ill)
    with _copy(patient.ill, patient) as script:
        return Admission(patient, observe(script, patient))


def _log(patient: Case, observed: Observed) -> Iterator[str | Table]:
    yield (
        f"Case {patient.number}, `{files.shown(patient.program)}`. {patient.complaint}"
    )
    yield (
        f"It ran for {observed.run.seconds:.0f} s. "
        f"{observed.error or 'It ended by itself.'}"
    )
    yield (
        f"Here Horovod warns after {WARNED} s of waiting, and ends the program after "
        f"{ENDED} s; the clinic ends it after {LIMIT:.0f} s."
    )
    lines = [(line,) for line in observed.lines()]
    yield Table(("the last lines of its log",), lines)


def _stacks(observed: Observed) -> Iterator[str | Table]:
    if observed.stood_still:
        yield "Where its workers were when Horovod warned of a stall:"
        yield Table(LOOKS, _looks(observed))
        if not observed.later:
            yield f"It had ended before a second look, {AGAIN:.0f} s later."
    elif observed.glimpses:
        yield "Where its workers were at a moment of the training:"
        yield stacks.table(_telling(observed), observed.script)


LOOKS = ("rank", "when Horovod warned", f"{AGAIN:.0f} s later")


def _looks(observed: Observed) -> list[tuple[str, str, str]]:
    """For each rank, where it was at the first look and where at the second."""

    def seen(stack: stacks.Stack) -> str:
        frame = stack.of_program(observed.script)
        place = f"line {frame.line}" if frame else "not in the program"
        return f"{place}: {stack.doing(observed.script)}, {stack.busy:.0%} of a core"

    later = {stack.rank: seen(stack) for stack in observed.later}
    return [
        (str(stack.rank), seen(stack), later.get(stack.rank, "it had ended"))
        for stack in observed.stood_still
    ]


def looks(*admissions: Admission) -> Table:
    """Both looks at the workers of cases in which Horovod warned of a stall, in one
    table."""
    rows = [
        (str(admission.patient.number), *row)
        for admission in admissions
        for row in _looks(admission.observed)
    ]
    return Table(("case", *LOOKS), rows)


def _fingerprints(observed: Observed) -> Iterator[str | Table]:
    if observed.trained:
        yield (
            "The workers' fingerprints. `weights` are equal where all weights are; "
            "`pixels` is the sum of an epoch's last batch; `rate` is the learning "
            "rate; `seconds` are those of an epoch's training:"
        )
        yield _prints_table(observed.trained)


def _results(observed: Observed) -> Iterator[str | Table]:
    history = _history(observed)
    if len(history):
        history = history.assign(epoch=history["epoch"] + 1)  # Keras counts from 0
        rounded = history.round(3).astype(str)
        rows = [tuple(row) for row in rounded.itertuples(index=False)]
        yield "Its history:"
        yield Table(tuple(history.columns), rows)
    if any(observed.written.values()):
        rows = [
            (str(rank), ", ".join(names) or "none")
            for rank, names in observed.written.items()
        ]
        yield "Here each worker has a folder of its own to write to:"
        yield Table(("rank", "the files that it wrote"), rows)
    if observed.gpus:
        yield _gpus_table(observed.gpus)


def _gpus_table(gpus: dict[str, list[list[int]]]) -> Table:

    rows = []
    for name, machine in MACHINES.items():
        ranks = zip(SCENARIOS[name].local_ranks, gpus[name], strict=True)
        for local_rank, seen in ranks:
            rows.append((machine, str(local_rank), str(seen)))
    return Table(("four GPUs", "local rank", "the GPUs that it uses"), rows)


def _telling(observed: Observed) -> list[stacks.Stack]:
    """The glimpse in which most workers are in functions of the program, or any."""

    def inside(glimpse):
        frames = [stack.of_program(observed.script) for stack in glimpse]
        return sum(bool(f and f.function != "<module>") for f in frames)

    return max(observed.glimpses, key=inside)


def _prints_table(prints: list[fingerprint.Print]) -> Table:
    rows = [
        (
            str(entry.epoch),
            str(entry.rank),
            entry.weights,
            f"{entry.pixels:g}",
            f"{entry.rate:g}",
            str(entry.steps),
            f"{entry.seconds:.1f}",
        )
        for entry in prints
    ]
    header = ("epoch", "rank", "weights", "pixels", "rate", "steps", "seconds")
    return Table(header, rows)


@contextlib.contextmanager
def _copy(text: str, patient: Case) -> Iterator[Path]:
    with files.scratch() as place:
        script = place.resolve() / patient.program.name
        script.write_text(text)
        yield script


def diagnose(number: int, disease: str = "") -> Page:
    """Is it this? Without a name, show all names, in the order of the alphabet.

    Of a wrong one, its own symptom is shown, and what tells it apart; of the right one,
    all that is known.
    Raises UserError for a case or a disease that there isn't.
    """
    patient = case(number)
    if not disease:
        symptoms = [(name, texts["Symptom"]) for name, texts in diseases().items()]
        symptoms.sort()  # on the page they stand in another order, which tells
        return Page(Table(("disease", "symptom"), symptoms))
    if disease not in diseases():
        raise errors.UserError(
            f"there is no disease {disease!r}: `clinic.diagnose({number})` lists them."
        )
    sections = diseases()[disease]
    if disease != patient.disease:
        rows = [(title, sections[title]) for title in SECTIONS[:2]]
        asked = (
            f"It is not that. Compare what you saw with what {disease!r} looks like:"
        )
        return Page(asked, Table((disease, ""), rows))
    rows = [(title, sections[title]) for title in SECTIONS]
    return Page(f"Yes: {disease}.", Table((disease, ""), rows))


def cure(number: int, ours: bool = False) -> Page:
    """Is the learner's program of this case healthy? As long as it is unchanged, it is
    not examined, and nothing is said to be cured.

    ours: examine the course's cured program instead. Raises StepMissing, below the
    table, if the learner's is still ill, and UserError if it is no Python.
    """
    patient = case(number)
    text = patient.program.read_text() if patient.program.exists() else patient.ill
    if not ours and text == patient.ill:
        return Page(
            f"`{files.shown(patient.program)}` is unchanged, so it still has its "
            f"fault. Edit it, save it, and run this again. `clinic.cure({number}, "
            "ours=True)` examines the course's cured program."
        )
    if not ours:
        programs.parse_program(patient.program)  # its name in an error, not a copy's
    with _copy(patient.healthy if ours else text, patient) as script:
        signs = examine(script, patient)
    subject = "The course's cured program" if ours else "Your program"
    rows = [(name, finding or "yes") for name, finding in signs.items()]
    result = Page(f"{subject}:", Table(("sign of health", "seen"), rows))
    if not any(signs.values()):
        return result
    from IPython.display import display

    display(result)
    first = next(filter(None, signs.values())).removesuffix(".")
    raise work.StepMissing(f"case {number} is not cured yet: {first}.")


def examine(script: Path, patient: Case) -> dict[str, str]:
    """Sign of health -> what is wrong with it, "" if nothing is."""
    return signs_of(observe(script, patient), patient)


def signs_of(observed: Observed, patient: Case) -> dict[str, str]:
    """The same, of a program that was observed."""
    return {
        name: sign(observed)
        for name, sign in SIGNS.items()
        if patient.gpus or name != "Every worker has a GPU of its own"
    }
