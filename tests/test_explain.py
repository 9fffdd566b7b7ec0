"""The table of messages, and what `course explain` makes of a log."""

import dataclasses
import itertools
import re
import tracemalloc

import failures
import pytest

from distcheck import errors
from utils.base import course
from utils.lessons import outline
from utils.running import explain

MESSAGES = explain.messages()

# ------------------------------------------------------------ the table

REPORT = re.compile(r"[\w.-]+/[\w.-]+#\d+")
OF_AN_INDEX = re.compile(r"(index-url|find-links|-f)[ =]\"?https?:|download\.pytorch")


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: message.id)
def test_an_entry_explains_its_line_and_no_other(message):
    found = explain.find(message.line.splitlines())
    assert found.id == message.id, f"an earlier entry, {found.id}, explains it"
    assert message.unlike, "it needs a line of a neighbor that it must not match"
    for line in message.unlike:
        assert not message.found_in(line.splitlines()), line


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: message.id)
def test_an_entry_refers_to_what_there_is(message):
    if message.lesson:
        numbers = {lesson.number for lesson in outline.read().notebooks.values()}
        page = course.PACKAGE_ROOT / message.lesson
        assert message.lesson in numbers or page.is_file()
    for report in message.reports:
        assert REPORT.fullmatch(report)
    for text in (message.meaning, message.cause, message.apart):
        assert not text or text.endswith("."), text
    # Whose index it is changes, and a reader may have a mirror.
    assert not [text for text in message.texts if OF_AN_INDEX.search(text)]


# What names somebody's machine, account or server: addresses, folders, hosts.
PLACE = re.compile(
    r"(?<![\d.])\d{1,3}(?:\.\d{1,3}){3}(?![\d.])|\b[A-Za-z]:\\+\w+|https?://[\w.-]+"
    r"|(?:/home|/Users|/work)/[\w.-]+|^\[?[\w.-]+(?=:\d+(?::\d+)? ?[\] ]\[?)"
)
NOBODYS = re.compile(
    r"(?:127|10\.0|0\.0)\.|1\.2\.3\.4|10\.240\.1\.2|[CD]:\\+(?:env|tf|Users\\)"
    r"|https?://(?:[A-Z]+$|localhost|127\.|10\.0\.|example\.org)"
    r"|https://(?:aka\.ms|[\w-]+\.kubeflow\.svc|registry-1\.docker\.io)"
    r"|https://(?:www\.tensorflow\.org|github\.com|storage\.googleapis\.com)"
    r"|/home/(?:ada|me|mpiuser|ray|ubuntu)$|\[?(?:node|worker|host|n)-?\d*$"
)


def test_lines_name_no_real_place():
    for message in MESSAGES:
        for text in (message.line, *message.unlike):
            for place in PLACE.findall(text):
                assert NOBODYS.match(place), (message.id, place)
    for line in (
        "at 8.7.6.5",
        r"E:\\Jo\\venv",
        "/work/jo-s/tmp",
        "[zeus4:22] ",
        "g1:1:2 [0] ",
    ):
        assert not NOBODYS.match(PLACE.findall(line)[0])


ENTRY = """\
[[message]]
id = "mpi.some-thing"
pattern = 'some (thing|body)'
meaning = "It is."
cause = "It was."
cure = ["Let it be."]
line = "something"
seen = "here"
"""


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ('meaning = "It is."\n', "", "meaning is missing"),
        ('["Let it be."]', "[]", "cure is missing"),
        ('["Let it be."]', '"Let it be."', "is of another kind"),
        ('["Let it be."]', '["a", "b", "c"]', "at most 2 lines"),
        ("|body)", "|body", "pattern: missing )"),
        ("|body)", "|body)(?P<HOST>x)?", "its group HOST is a word of no text"),
        ("mpi.some-thing", "Something", "an id is layer.what"),
        ('"here"', '"there"', "seen is one of"),
        ('seen = "here"', 'seen = "here"\nhope = "yes"', "there is no key 'hope'"),
        ('seen = "here"', 'seen = "here"\nconsequence = 1', "is of another kind"),
        (
            'seen = "here"',
            'seen = "here"\nconsequence = true\nwarning = true',
            "a consequence or a warning",
        ),
        (ENTRY, ENTRY + ENTRY, "is there already"),
    ],
)
def test_an_entry_that_is_wrong_is_named(tmp_path, old, new, told):
    assert old in ENTRY
    for name in explain.FILES:
        (tmp_path / name).write_text("")
    (tmp_path / "setup.toml").write_text(ENTRY)
    assert [one.id for one in explain.messages(tmp_path)] == ["mpi.some-thing"]
    (tmp_path / "setup.toml").write_text(ENTRY.replace(old, new))
    explain.messages.cache_clear()
    explain.by_file.cache_clear()
    with pytest.raises(errors.UserError, match=re.escape(told)) as raised:
        explain.messages(tmp_path)
    assert str(raised.value).startswith("setup.toml: ")
    assert "ome" in str(raised.value)


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("no answer from node-2", "Look at node-2: ssh node-2 uptime; HOSTS"),
        ("10.0.0.8 doesn't answer", "Look at 10.0.0.8: ssh 10.0.0.8 uptime; HOSTS"),
        ("no answer from $(reboot)", "Look at HOST: ssh HOST uptime; HOSTS"),
        ("no answer from", "Look at HOST: ssh HOST uptime; HOSTS"),
    ],
)
def test_what_a_log_names_is_told(monkeypatch, line, told):
    """But nothing that would be a command of its own."""
    entry = explain.Message(
        id="mpi.some-host",
        pattern=r"no answer from(?: (?P<HOST>\S+))?$|(?P<HOST2>\S+) doesn't answer",
        meaning="There is no answer.",
        cause="It is off.",
        cure=("Look at HOST: ssh HOST uptime; HOSTS",),
        line="no answer from a",
        seen="here",
    )
    monkeypatch.setattr(explain, "messages", lambda: (entry,))
    found = explain.explain([line]).first
    assert found.as_json()["cure"] == (told,)
    assert f"-> {told}\n" in f"{found.explained()}\n"


def test_a_pattern_of_several_lines_ends_in_the_last_one():
    message = explain.Message(
        "python.index", r"local_rank\(\)\][^$]*\nIndexError", *("",) * 2, (), "", "here"
    )
    lines = ["gpus[hvd.local_rank()]", "~~~~^^^^", "IndexError: list index"]
    assert message.found_in(lines)
    assert not message.found_in(lines[:2])
    assert not message.found_in([*lines, "That was it."])
    assert not message.found_in(lines[1:])
    message = dataclasses.replace(message, pattern=r"IndexError.*\n *")
    assert message.found_in([*lines, "  That was it."])
    assert not message.found_in([*lines, "That was it."])


def test_no_pattern_is_left_out_where_it_matches():
    """A chunk of lines is searched for literals first."""
    for message in MESSAGES:
        assert message in explain.candidates(message.line), message.id
    quick = [message for message in MESSAGES if all(message.literals)]
    assert len(quick) > 0.99 * len(MESSAGES)

    def literals(pattern):
        return explain.Message("a.b", pattern, *("",) * 2, (), "", "here").literals

    assert literals(r"(Memory|count( per node)?) can\.not") == [" can.not"]
    assert literals(r"size \d+ of\.?x* (once)? more of[ab]") == [" more of"]
    assert literals(r"abc?d{2,33}efg+?h") == ["efg"]
    assert literals(r"this|th[a|b]ats|(who|what) is") == ["this", "ats", "who", "what"]
    assert literals(r"(?:one|(?P<A>three) \w+) (?!four).x") == ["one", "three"]
    assert literals(r"(?<!six)a([\]a-z]+five)+?.*(seven)?(?i:eight)*?") == ["five"]
    assert literals(r"first (line|day)\nlast (line|day)s") == ["last "]
    assert literals(r"no|first( line)?\nlast") == ["no", "last"]
    assert literals(r"(no|first\nsecond) e") == ["no", "second"]
    for pattern in (r"(?i)abc", r"(one|\w)", r"one(?:\ntwo)?", r"\d+|one", r"(?=one)"):
        assert "" in literals(pattern)
    assert literals(r"(?P<a>one)?two(?(a)three|four)") == [""]


# ------------------------------------------------------------ what a log has

TRACEBACK = """\
Traceback (most recent call last):
  File "/home/me/train.py", line 12, in <module>
    model.fit(data)
  File "/usr/lib/python3.11/site-packages/keras/fit.py", line 3, in fit
    raise ValueError("no such garment")
"""
UNKNOWN = TRACEBACK + "ValueError: no such garment\n"
SHUT_DOWN = "Horovod has been shut down. This was caused by an exception on one"
ENDED_BY_OTHERS = TRACEBACK + f"HorovodInternalError: {SHUT_DOWN}\n"
FULL = "OSError: [Errno 28] No space left on device"
SLOTS = "There are not enough slots available in the system to satisfy the 4\n"
GRAPH = f"""\
{TRACEBACK}UnknownError: Graph execution error:

Detected at node 'HorovodAllreduce' defined at (most recent call last):
<stack traces unavailable>
{SHUT_DOWN}
\t [[{{{{node HorovodAllreduce}}}}]] [Op:__inference_train_function]
"""


def first(log):
    return explain.explain(log.splitlines(keepends=True)).first


def of_rank(rank, text, prefix="[{}] "):
    return "".join(f"{prefix.format(rank)}{line}\n" for line in text.splitlines())


PREFIXES = {
    "course run": "[{}] ",
    "mpirun --tag-output": "[1,{}]<stderr>:",
    "mpirun with times": "Thu Nov 26 09:28:20 2026[1,{}]<stderr>:",
    "after the time of a cluster": "2026-11-26 09:28:20 [1,{}]<stderr>:",
    "Open MPI 5": "[prterun-host-7@1,{}]<stderr>: ",
    "SageMaker": "[1,mpirank:{},algo-1]<stderr>:",
    "horovodrun": "[{}]<stderr>:",
    "srun --label": "{}: ",
    "srun --label, of ten": " {}: ",
}


@pytest.mark.parametrize("prefix", PREFIXES.values(), ids=PREFIXES)
def test_an_error_is_found_on_its_rank(prefix):
    log = of_rank(0, "Epoch 1/3", prefix) + of_rank(2, UNKNOWN, prefix)
    found = first(log)
    assert (found.ranks, found.place, found.number) == ([2], "train.py:12", 7)
    assert found.text == "ValueError: no such garment"
    assert first(log.replace("ValueError: no such garment", FULL)).message
    in_parts = log.replace("no such", f"{prefix.format(2)}no such")
    assert first(in_parts).text == "ValueError: no such garment"


@pytest.mark.parametrize("prefix", ["#6 18.20 ", "2026-11-26T09:28:20.1234567Z "])
def test_what_builds_and_clusters_put_before_a_line_is_cut_off(prefix):
    log = of_rank(0, f"Step 3/9\n{UNKNOWN}", prefix)
    found = first(log)
    assert (found.place, found.said) == ("train.py:12", "ValueError: no such garment")
    within = of_rank(2, f"{UNKNOWN}", f"{prefix}[1,{{}}]<stderr>:")
    assert first(within).ranks == [2]


def test_a_message_goes_on_below_the_name_of_its_function():
    log = f"{TRACEBACK}ShoeError: {{{{function_node __wrapped__Shoe}}}} \n{FULL}\n"
    assert first(log).message.id == first(FULL).message.id


def test_an_error_of_cmake_is_an_error():
    """Its message is on the next line, which the table may not know."""
    found = explain.explain(
        ["  CMake Error at third_party/a.cmake:56 (message):"]
    ).first
    assert found.kind == "unknown"


@pytest.mark.parametrize(
    "consequence",
    [SHUT_DOWN, ENDED_BY_OTHERS, GRAPH],
    ids=["line", "exception", "graph"],
)
@pytest.mark.parametrize("cause", [UNKNOWN, TRACEBACK + FULL], ids=["unknown", "known"])
def test_a_consequence_is_not_the_cause_wherever_it_stands(cause, consequence):
    log = of_rank(0, consequence) + of_rank(1, cause) + of_rank(2, consequence)
    explanation = explain.explain(log.splitlines())
    assert explanation.first.ranks == [1]
    assert explanation.first.place == "train.py:12"
    assert explanation.first.kind == ("error" if FULL in cause else "unknown")
    assert "This follows from it: Ranks 0, 2, line " in str(explanation)


def test_a_message_without_an_end_hides_no_later_error():
    log = f"{TRACEBACK}UnknownError: Graph execution error:".splitlines()
    explanation = explain.explain([*log, *["and so on"] * 300, FULL])
    found = [(one.kind, one.number) for one in explanation.found]
    assert found == [("unknown", len(log)), ("error", explanation.lines)]


def test_a_consequence_alone_is_said_to_be_one():
    for text in (SHUT_DOWN, ENDED_BY_OTHERS, GRAPH):
        explanation = explain.explain(of_rank(0, text).splitlines())
        assert explanation.first.message.id == "horovod.shut-down"
        assert str(explanation).startswith("The log has only what follows from an")


def test_what_python_cannot_read_is_named_with_its_place():
    log = """\
  File "/home/ada/train.py", line 25
    hvd.init(
            ^
SyntaxError: '(' was never closed
"""
    found = first(of_rank(1, log))
    assert found.where == "Rank 1, line 4 of the log, train.py:25"
    assert not first(of_rank(1, log.replace("\n    hvd", "\nready\n    hvd"))).place


def test_what_course_run_says_of_a_failure_is_read_as_well():
    log = """\
rank 3 of 4 failed: UnknownError: Graph execution error:
Detected at node Allreduce/HorovodAllreduce_grads_41_0 defined at:
Horovod has been shut down. This was caused by an exception on one of the ranks
\t [[{{node Allreduce/HorovodAllreduce_grads_41_0}}]] [Op:__inference_4944]
"""
    found = first(log)
    assert (found.message.id, found.ranks) == ("horovod.shut-down", [3])
    assert first("rank 1 of 2 failed: it was ended") is None


def test_of_an_error_in_a_graph_the_inner_one_is_shown():
    log = (
        TRACEBACK + "ValueError: in user code:\n\n"
        '    File "/home/ada/train.py", line 9, in step  *\n        f(x)\n\n'
        "    ShoeError: 'images'\n"
    )
    found = first(log)
    assert (found.kind, found.said) == ("unknown", "ShoeError: 'images'")
    assert found.place == "train.py:9"


def test_what_the_course_refuses_is_in_the_line_of_the_program():
    log = (
        "Traceback (most recent call last):\n"
        '  File "/home/ada/course/train.py", line 54, in <module>\n    tasks.enter()\n'
        '  File "/home/ada/course/distcheck/tasks.py", line 181, in enter\n    f()\n'
        "distcheck.errors.UserError: TF_CONFIG can't be used: it has no cluster.\n"
    )
    found = first(log)
    assert (found.message.id, found.place) == ("python.refused", "train.py:54")
    assert first(log.replace("has no cluster", "is not JSON")).message.id == (
        "python.not-json"
    )


def test_a_traceback_within_a_line_leaves_the_line_whole():
    head = "Termination reason: Error. Traceback (most recent call last): File ..."
    assert first(head) is None
    assert first(f"{head} {FULL}").message.id == "setup.disk-full"
    assert first(f"{head}\n{FULL}").message.id == "setup.disk-full"


def test_cmake_names_its_error_and_a_corrected_one_is_none():
    assert first("CMake Error at CMakeLists.txt:7 (find_package):").kind == "unknown"
    bus = "PCIe Bus Error: severity={}, type=Data Link Layer, (Transmitter ID)"
    assert first(bus.format("Corrected")) is None
    assert first(bus.format("Uncorrected (Fatal)")).kind == "unknown"


def test_the_first_of_two_errors_is_explained_and_the_same_one_on_all_ranks():
    two = of_rank(0, FULL) + of_rank(1, SLOTS)
    assert first(two).message.id == "setup.disk-full"
    assert first(of_rank(0, SLOTS) + two).message.id == "mpi.not-enough-slots"
    assert first(of_rank(1, TRACEBACK + FULL) + two).ranks == [0, 1]


def test_a_quoted_line_of_a_program_is_no_message():
    """Traces of several ranks get mixed, and reports begin in the middle of one."""
    (cause,) = (one.line for one in MESSAGES if one.id == "nccl.cuda-error")
    frames = TRACEBACK.split("\n", 1)[1].replace(
        'ValueError("no such garment")', "HorovodInternalError(e)"
    )
    found = first(frames + cause + "\n    raise HorovodInternalError(e)\n")
    assert found.message.id == "nccl.cuda-error"
    assert first(frames) is None
    assert first("    raise HorovodInternalError(e)") is None
    frame = '  File "a.py", line 3\n    Horovod has been shut down'
    assert first(frame) is None
    assert first(frame.replace(".py", ".c")).message.id == "horovod.shut-down"


def test_a_traceback_that_is_cut_off_is_an_error():
    found = first(of_rank(1, TRACEBACK))
    assert (found.kind, found.place) == ("unknown", "train.py:12")
    assert (found.ranks, found.number) == ([1], 5)
    assert first(of_rank(1, TRACEBACK) + of_rank(0, FULL)).kind == "error"
    assert first(of_rank(1, TRACEBACK) + of_rank(0, SHUT_DOWN)).kind == "consequence"
    waiting = TRACEBACK.replace("raise", "timeout.check_time_out_for(what) or")
    assert first(waiting + '  File "/usr/l').message.id == "horovodrun.start-timeout"
    assert first(f"Exception ignored in: <function f>\n{TRACEBACK}") is None
    assert first(TRACEBACK + "it went on\nEpoch 1/3\n") is None


NOTEBOOK = """\
ValueError                                Traceback (most recent call last)
File ~/site-packages/fit.py:3, in fit(*args)
      2     Horovod has been shut down
----> 3 Horovod has been shut down

File ~/site-packages/fit.py:9, in guess(*args)
----> 9     raise ValueError(
     10         "There are not enough slots available in the system to satisfy"
"""


def test_what_a_notebook_quotes_is_no_message():
    assert first(NOTEBOOK + "ValueError: no shoe").text == "ValueError: no shoe"
    assert first(NOTEBOOK + FULL).message.id == "setup.disk-full"
    assert first("---> 12 Horovod has been shut down") is None


@pytest.mark.parametrize("part", ["it_all", "...", "of_all: 3"])
def test_a_part_of_a_frame_is_no_exception(part):
    found = first(f"{TRACEBACK}{part}\nsocket.timeout: no shoe")
    assert (found.text, found.kind) == ("socket.timeout: no shoe", "unknown")


@pytest.mark.parametrize(
    "frame",
    [
        "/usr/lib/python3/dist-packages/keras/saving.py in load(name, module)",
        "[/usr/lib/keras/saving.py](https://localhost:8080/#) in load(name, module)",
        "File ~/lib/keras/saving.py:787, in load(name, module)",
        "Cell In[12], line 787",
        "<ipython-input-12-2f> in <module>()",
    ],
)
def test_what_a_notebook_quotes_is_no_message_without_its_head_either(frame):
    quoted = "    785 raise_error('MPI_Init failed: ORTE_ERROR_LOG: Out of memory')"
    log = f"{frame}\n{quoted}\n--> 787     raise TypeError(\n{quoted}\n"
    assert first(log) is None
    last = "TypeError: cannot unpack non-iterable NoneType object"
    assert first(f"{log}\n{last}").text == last
    # Numbers elsewhere are no numbers of lines.
    assert first(quoted) is not None


def test_what_stands_before_an_unknown_error_does_not_follow_from_it():
    crash = "terminate called after throwing an instance of 'shoe'\n"
    follows = "This follows from it"
    assert follows in str(explain.explain((crash + SHUT_DOWN).splitlines()))
    assert follows not in str(explain.explain([SHUT_DOWN, crash]))
    assert follows in str(explain.explain([SHUT_DOWN, SLOTS]))


def test_a_system_on_which_horovod_does_not_run_matters_before_any_error():
    missing = "CMake Error: CMAKE_CXX_COMPILER not set, after EnableLanguage"
    folder = "{}/pip-install-447/horovod_6042/build/{}/CMakeFiles/CMakeOutput.log"
    windows = folder.format("C:/Users/ada/Temp", "temp.win-amd64-3.9/Release")
    linux = folder.format("/tmp", "temp.linux-x86_64-3.9/Release")
    for log, expected in (
        (f"{missing}\nSee also {windows}", "wsl.windows-python"),
        (f"See also {windows}\n{missing}\n{UNKNOWN}", "wsl.windows-python"),
        (f"-- Building for: NMake Makefiles\n{missing}", "wsl.windows-python"),
        (f"{missing}\nSee also {linux}", "build.no-compiler"),
    ):
        assert first(log).message.id == expected
        assert str(explain.explain(log.splitlines())).count("Line ") == 1


def test_what_was_interrupted_is_not_unknown():
    (stall,) = (one.line for one in MESSAGES if one.id == "horovod.stall")
    interrupted = f"{TRACEBACK}KeyboardInterrupt\n"
    assert first(of_rank(0, interrupted)).kind == "consequence"
    assert first(of_rank(0, stall) + of_rank(1, interrupted)).kind == "warning"
    assert first(of_rank(1, interrupted) + of_rank(0, UNKNOWN)).kind == "unknown"


def test_of_chained_exceptions_the_known_one_or_the_last_one_counts():
    chain = "\n{}\n\n".format(
        "During handling of the above exception, another exception occurred:"
    )
    other = UNKNOWN.replace("line 12", "line 14").replace("garment", "shoe")
    found = first(of_rank(1, UNKNOWN + chain + other))
    assert (found.text, found.place) == ("ValueError: no such shoe", "train.py:14")
    for text in (UNKNOWN + chain + TRACEBACK + FULL, TRACEBACK + FULL + chain + other):
        assert first(of_rank(1, text)).message.id == "setup.disk-full"
    assert first(ENDED_BY_OTHERS + chain + other).kind == "consequence"
    assert first(ENDED_BY_OTHERS + chain + TRACEBACK + FULL).kind == "error"


def test_of_a_general_fault_what_says_more_is_explained():
    chain = "\n{}\n\n".format(
        "During handling of the above exception, another exception occurred:"
    )
    general = TRACEBACK + "KeyError: 'shoe'\n"
    assert first(general).message.id == "python.key"
    for text in (
        general + chain + TRACEBACK + FULL,
        TRACEBACK + FULL + chain + general,
    ):
        assert first(text).message.id == "setup.disk-full"
    assert first(ENDED_BY_OTHERS + chain + general).kind == "consequence"
    both = explain.explain((general + SLOTS).splitlines())
    shown = ["python.key", "mpi.not-enough-slots"]
    assert [one.message.id for one in both.shown] == shown
    assert both.ok
    noise, matters = (
        next(m.line for m in MESSAGES if m.id == id_)
        for id_ in ("keras.slow-callback", "data.ran-out")
    )
    assert first(f"{matters}\n{noise}\n").message.id == "data.ran-out"
    assert explain.known(general) == ""
    assert explain.known(TRACEBACK + FULL)


def test_general_entries_are_in_a_file_of_their_own():
    for name, entries in explain.by_file().items():
        assert {entry.general for entry in entries} == {name == "general.toml"}


ROOTS = f"""\
UnknownError: 2 root error(s) found.
  (0) Cancelled: Operation was cancelled
\t [[{{{{node cond}}}}]]
  (1) {FULL}
0 successful operations.
"""


@pytest.mark.parametrize("before", ["", TRACEBACK, "Its function says: "])
def test_one_of_several_root_errors_is_the_cause(before):
    explanation = explain.explain((before + ROOTS).splitlines())
    assert [one.message.id for one in explanation.found] == ["setup.disk-full"]
    unknown = explain.explain((before + ROOTS.replace(FULL, "Shoe")).splitlines())
    assert [(one.kind, one.text) for one in unknown.found] == [
        ("unknown", "  (1) Shoe")
    ]


def test_a_warning_matters_if_nothing_failed(monkeypatch):
    stall = explain.Message(
        "a.stall", "ranks are late", "Late.", "Slow.", ("Wait.",), "", "here"
    )
    stall = dataclasses.replace(stall, warning=True)
    monkeypatch.setattr(explain, "messages", lambda: (stall, *MESSAGES))
    log = of_rank(0, "ranks are late")
    assert "No error is seen in the log, but a warning" in str(explain.explain([log]))
    assert first(log + of_rank(1, SHUT_DOWN)).message is stall
    assert first(log + of_rank(1, TRACEBACK + FULL)).kind == "error"
    kinds = {UNKNOWN: ["unknown"], "ERROR 7": ["unknown", "warning"]}
    for text, shown in kinds.items():
        explanation = explain.explain((log + of_rank(1, text)).splitlines())
        assert [one.kind for one in explanation.shown] == shown
    both = str(explain.explain((UNKNOWN + SLOTS).splitlines()))
    assert "\nThe log also has this. Line 7 of the log: There are not" in both


def test_a_warning_may_be_the_cause_of_what_failed():
    warning = "n1:7:9 [0] init.cc:5 NCCL WARN 'CUDA driver is a stub library'"
    failed = "UnknownError: ncclCommInitRank failed: unhandled cuda error"
    alone = explain.explain([warning])
    assert str(alone).startswith("No error is seen in the log, but a warning. Line 1")
    both = explain.explain([warning, failed])
    assert both.first.message.id == "cuda.stub"
    assert "No error" not in str(both)
    assert str(both).startswith("This warning may be the cause of what failed. Line 1")
    assert "\nThis follows from an error: Line 2 of the log: UnknownError" in str(both)


def test_a_reason_below_what_follows_from_it_is_explained():
    head = "slurmstepd: error: pyxis: {}\n"
    reason = head.format("    mkdir: cannot create directory '/run/enroot': no")
    log = head.format("child 7 failed with error code: 1") + reason
    log += head.format("couldn't start container")
    assert first(log).message.id == "pyxis.folder"
    assert first(log.replace(reason, "")).kind == "consequence"
    left_out = "srun: error: spank: x11.so: Plugin file not found\n"
    assert first(left_out + log).message.id == "pyxis.folder"


def test_what_ended_a_program_is_no_warning():
    compiler = (
        "Compiler g++-5 (version 5.4) is not usable for this PyTorch installation."
    )
    assert first(compiler).kind == "warning"
    found = first(f"{TRACEBACK}DistutilsPlatformError: {compiler}")
    assert (found.kind, found.message.id) == ("error", "build.compiler-abi")


@pytest.mark.parametrize("before", ["", TRACEBACK])
def test_a_sentence_may_be_broken_over_lines(before):
    """As the window of a terminal does, or who copies a report."""
    log = before + (
        "ValueError: File format not supported:\n"
        "filepath=models/thai. Keras 3\n"
        "only supports V3 .keras files."
    )
    found = first(log)
    assert found.message.id == "keras.saved-model-in-keras-3"
    assert found.number == before.count("\n") + 1


def test_a_message_may_stand_as_far_to_the_right_as_its_frames():
    log = (
        "Traceback (most recent call last):\n"
        '    File "train.py", line 21, in <module>\n'
        "        raise ValueError: \n"
        "    ValueError: no such shoe\n"
        "    2019-08-27 07:32:15.191776: I tensorflow/core/a.cc:42] Opened a library"
    )
    found = first(log)
    assert (found.text, found.place) == ("ValueError: no such shoe", "train.py:21")


def test_a_library_is_no_place_of_the_program_on_windows_either():
    python = "C:\\Users\\ada\\Python36\\lib\\site-packages\\keras\\engine\\training.py"
    log = (
        f'{TRACEBACK}  File "C:\\Users\\ada\\train.py", line 7, in <module>\n'
        f'  File "{python}", line 80, in fit\nValueError: no such shoe'
    )
    assert first(log).place == "train.py:7"


@pytest.mark.parametrize("before", ["", TRACEBACK])
def test_a_message_may_be_in_the_line_below_the_name_of_the_error(before):
    head = "InternalError: From /job:worker/replica:0/task:0:"
    text = before + f"{head}\n\n  no such shoe\nnor sock"
    (found,) = explain.explain(text.splitlines()).found
    assert (found.kind, found.text) == ("unknown", f"{head} no such shoe")
    known = explain.explain(f"{before}{head}\n{SLOTS}Epoch 1/3".splitlines())
    assert known.first.message.id == "mpi.not-enough-slots"
    assert all("Epoch" not in one.text for one in known.found)
    for other in ("INFO: fine", '  File "a.py", line 3', TRACEBACK + "it went on"):
        assert first(f"{before}{head}\n{other}").text == head


def test_an_editor_names_an_error_above_its_message():
    head = "Exception has occurred: ShoeError  (note: full exception trace is shown)"
    frame = '  File "train.py", line 3, in <module>'
    assert first(f"{head}\nno such shoe\n{frame}").text == f"{head} no such shoe"
    (known,) = explain.explain([head, "", SLOTS.strip(), frame]).found[:1]
    assert known.message.id == "mpi.not-enough-slots"


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("train.cc:3:5: error: expected ';'", ""),
        ("fatal: not a git repository", ""),
        ("3 fatal errors", ""),
        ("Error: 404", ""),
        ("error: 3 packages conflict", ""),
        ("error: 2.21.0 is not installed", ""),
        ("Fatal Python error: Shoe", ""),
        ("ShoeError(LaceError): no knot", ""),
        ("shop.api.exceptions.NoShoe: 5 left", ""),
        ("An error occurred (NoShoe) when calling the shop", ""),
        ("bash: line 1: 17 Aborted (core dumped) python train.py", ""),
        (
            '  File "train.py", line 3\n    x = (\n        ^\nCompileError: bad',
            "train.py:3",
        ),
        ("Exception: no such shoe", ""),
        ("F0000 00:00:17.1 5 tensor.cc:9] Check failed: is aligned", ""),
        ("2024-01-05 00:17: F tensor.cc:9] Attempting to fetch value", ""),
        ("F ./core/tensor.h:9] Check failed: is aligned", ""),
        ("python: lock.c:349: lock: Assertion `mutex->owner == 0' failed.", ""),
        ("run.sh: 1: ./shoe: not found", ""),
        ("  (6) INVALID_ARGUMENT:  no such shoe", ""),
        ('Error from server (Conflict): pods "shoe" has been modified', ""),
        ("n1:7:9 [0] init.cc:5 NCCL WARN Never heard of", ""),
        ("terminate called after throwing an instance of 'shoe'", ""),
        (
            '  File "train.py", line 3, in f\n    assert shoe\nShoeError',
            "train.py:3",
        ),
    ],
)
def test_an_unknown_error_is_shown_with_its_place_and_not_guessed(text, place):
    explanation = explain.explain(of_rank(3, text).splitlines())
    found = explanation.first
    assert (found.kind, found.ranks, found.place) == ("unknown", [3], place)
    assert found.text == text.splitlines()[-1]
    assert not explanation.ok
    assert "unknown to the course" in str(explanation)


def test_what_complains_is_shown_where_there_is_no_error():
    text = "Could not find the shoe\nThe sock cannot be put on\nEpoch 3/3\n"
    (found,) = explain.explain(of_rank(2, text).splitlines()).found
    assert (found.kind, found.number, found.ranks) == ("unknown", 2, [2])
    both = explain.explain(of_rank(2, text + SLOTS).splitlines()).found
    assert [one.kind for one in both] == ["error"]
    assert first(f"WARNING: {text.splitlines()[0]}") is None
    failed = "2024-01-05 00:17: W op_kernel.cc:9] OP_REQUIRES failed: no such shoe"
    assert first(failed).kind == "unknown"
    assert first(failed.replace("OP_REQUIRES", "Layer")) is None


@pytest.mark.parametrize(
    "text",
    [
        "Epoch 3/3",
        "60/60 - loss: 0.3 - mean_squared_error: 0.1",
        "WARNING:tensorflow:Error: none of these",
        'Setting Spark log level to "ERROR".',
        "I0000 00:00:17.1 5 cuda.cc:9] ERROR of no importance",
        "NOTICE: the cache could not be written.",
        "train.py:5: UserWarning: cannot import shoes; going barefoot",
        "n1:7:9 [0] net_ib.cc:5 NCCL WARN NET/IB : No device found.",
        "n1:7:9 [0] NCCL INFO Failed to open libibverbs.so[.1]",
        "n1:7:9 [0] NCCL INFO Could not enable P2P between dev 0 and dev 1",
        "n1:7:9 [0] NCCL INFO NET/Plugin: Could not find: libnccl-net.so",
        "n1:7:9 [0] NCCL INFO NET/Plugin: Plugin load (libnccl-net.so) returned 2 : "
        "libnccl-net.so: cannot open shared object file: No such file or directory",
        "n1:7:9 [0] NCCL INFO Bootstrap : no plugin",
        "loss: 0.31 error: 0.01",
        "Test error: 0.12",
        "Top-1 error: 24.3%",
        "Validation error: 0.5, loss: 3",
        "error: 1e-3",
        "Training error: 7%",
        "0 fatal accidents",
        "The file contains Information about 3 classes",
        "column age contains NaN: False",
        "WARN Utils: Service 'SparkUI' could not bind on port 4040. "
        "Attempting port 4041.",
        "INFO ResourceUtils: the resource gpu has the discoveryScript gpus.sh",
        "  --batch-size N  the batch size must be positive",
        "nothing provides better results than a warm-up",
        "the node has crashed 0 times",
        "Killed by time limit? no",
        "Killed 0 processes",
        "only PNG images are available and will be read",
        "Segmentation fault handler installed",
        "Heartbeat timeout 120s",
        f"Exception ignored in: <function f>\n{UNKNOWN}",
    ],
)
def test_what_is_no_error_is_not_called_one(text):
    explanation = explain.explain(of_rank(0, text).splitlines())
    assert str(explanation).startswith("No line of the log looks like an error.")
    assert explanation.ok


def test_what_stands_still_or_has_one_worker_shows_no_error():
    log = ["$ python train.py", "size 1, rank 0"]
    told = str(explain.explain(log))
    assert "course stacks" in told
    assert "horovodrun" in told


@pytest.mark.parametrize(
    "text",
    [
        "WARNING:tensorflow:AutoGraph could not transform <function f at 0x7f> and "
        "will run it as-is.\nCause: could not get source code",
        "WARNING:tensorflow:Unresolved object in checkpoint: (root).optimizer.iter",
        "[node1:24221] PMIX ERROR: ERROR in file gds_ds12_lock_pthread.c at line 168",
        "train.py:9: UserWarning: Attempting to use a closed FileWriter. The operation "
        "will be a noop unless the FileWriter is explicitly reopened.",
        "train.py:2: UserWarning: Framework tensorflow installed with version 2.21.1 "
        "but found version 2.21.0.",
    ],
)
def test_what_a_run_goes_on_after_is_a_warning(text):
    (found,) = explain.explain(f"{text}\nEpoch 1/3\n".splitlines()).found
    assert (found.kind, found.number) == ("warning", 1)


def test_a_download_that_was_tried_again_with_success_is_no_error():
    retry = "WARNING: Retrying (Retry(total={})) after connection broken by "
    silent = retry + "'NewConnectionError'\n"
    slow = retry + "\"HTTPSConnectionPool(host='HOST', port=443): Read timed out.\"\n"
    tried = silent.format(4) + silent.format(3) + slow.format(4)
    done = "Successfully installed shoes-1.0\n"
    found = explain.explain(tried.splitlines()).found
    assert [(one.message.id, one.kind) for one in found] == [
        ("setup.no-network", "error"),
        ("setup.slow-download", "error"),
    ]
    assert first(tried + done) is None
    assert first(tried + done + silent.format(4)).number == 5
    assert first(tried + SLOTS + done).message.id == "mpi.not-enough-slots"


def test_no_more_than_five_lines_for_each():
    for message in MESSAGES:
        explanation = explain.explain(of_rank(1, message.line).splitlines())
        assert len(explanation.first.explained().splitlines()) <= 5


def test_of_a_long_line_the_part_that_matters_is_shown():
    before, after = "{{function_node __wrapped__}} " * 9, " and more" * 30
    said = first(f"{before}{FULL}{after}").said
    assert said.startswith("... ")
    assert FULL.partition("] ")[2] in said
    assert said.endswith(" ...")
    assert len(said) < 180


def test_bars_and_colors_are_no_part_of_a_line():
    bar = "1/9 [..]\r9/9 [==]\x08\x08\x08"
    found = first(f"{bar}{UNKNOWN}".replace("Value", "\x1b[31mValue"))
    assert found.text == "ValueError: no such garment"
    assert found.place == "train.py:12"


@pytest.mark.parametrize("prefix", ["worker-1  | ", "    ", "> ", "(train pid=7) "])
def test_a_traceback_may_be_quoted_or_indented(prefix):
    found = first("".join(f"{prefix}{line}\n" for line in UNKNOWN.splitlines()))
    assert (found.text, found.place) == ("ValueError: no such garment", "train.py:12")
    assert found.raised


@pytest.mark.parametrize("between", ["", "\n", "\n\n"])
def test_what_a_warning_has_in_its_next_line_is_no_error(between):
    (error,) = (m.line for m in MESSAGES if m.id == "keras.no-weights-in-file")
    told = error.partition("Error: ")[2]
    warning = f"UserWarning: Some layers were left out. Example:\n{between}"
    assert first(f"{warning}{told}") is None
    assert first(f"{warning}{error}").message.id == "keras.no-weights-in-file"
    assert first(f"{warning}{told}\n{FULL}").message.id == "setup.disk-full"
    assert first(f"{warning}{TRACEBACK}{FULL}").message.id == "setup.disk-full"


def folded(text):
    """As programs print a traceback without breaking its lines."""
    lines = text.splitlines(keepends=True)
    return (repr(lines), repr(text), repr(text.encode()), f"{{'error': {text!r}}}")


@pytest.mark.parametrize("before", ["", "Step 23 failed: ", "[1] "])
@pytest.mark.parametrize("text", folded(UNKNOWN))
def test_a_traceback_may_be_folded_into_one_line(before, text):
    found = first(f"ready\n{before}{text}\n")
    assert (found.text, found.place) == ("ValueError: no such garment", "train.py:12")
    assert (found.number, found.raised) == (2, True)
    assert found.ranks == ([1] if before == "[1] " else [])


@pytest.mark.parametrize("text", folded(f"{TRACEBACK}{FULL}\n"))
def test_what_is_folded_into_one_line_is_explained(text):
    assert first(text).message.id == "setup.disk-full"
    cut = text.partition(" in fit")[0]
    assert first(cut).text.endswith('fit.py", line 3,')  # the last that is left


def test_escapes_within_a_folded_line_are_no_ends_of_lines():
    path = r"C:\env\new\it's.py"
    log = f'{TRACEBACK}ValueError: no "{path}"\n'
    for text in folded(log):
        assert first(text).text == f'ValueError: no "{path}"'
    quoted = '{"log": "Traceback (most recent call last):\\n", "stream": "stderr"}'
    assert first(quoted) is None


CHAINED = "During handling of the above exception, another exception occurred:"


@pytest.mark.parametrize("last", [UNKNOWN.splitlines()[-1], FULL])
@pytest.mark.parametrize("after", [[], ["    "], ["    ", f"    {CHAINED}", "    "]])
def test_the_head_of_a_traceback_may_have_lost_its_indentation(last, after):
    """A report is often pasted without the first line's blanks."""
    head, *frames = TRACEBACK.splitlines()
    log = [head, *(f"    {line}" for line in [*frames, last]), *after]
    found = explain.explain(log).first
    assert (found.text, found.place) == (last, "train.py:12")
    assert found.number == len(log) - len(after)
    again = explain.explain([*log, "    Traceback (most recent call last):"]).first
    assert again.text == last
    assert explain.explain([head, *(f"    {f}" for f in frames), "    done"]).ok


def test_a_blank_line_is_no_error():
    cut = [*TRACEBACK.splitlines(), "    ", ""]
    found = explain.explain(cut).first
    assert (found.text, found.number) == (cut[4], 5)
    assert explain.explain([*cut, f"  {CHAINED}", "  "]).first is None
    assert explain.explain(["Traceback (most recent call last):", "   "]).first is None


def test_what_ranks_lack_matters_more_than_a_lost_connection():
    (lost,) = (one.line for one in MESSAGES if one.id == "gloo.connection-closed")
    lists = "0: [HorovodBroadcast]\n1: [HorovodBroadcast_Adam_conv_m_0, ..."
    for log in (f"{lost}\n{lists}", f"{lists}\n{lost}"):
        explanation = explain.explain(of_rank(0, log, "[{}]<stderr>:").splitlines())
        assert explanation.first.message.id == "horovod.stall-crossed"
        assert "This follows from an error: Rank 0, line" in str(explanation)


def test_a_log_is_read_as_a_stream():
    """A hundred megabytes take some ten seconds, and no memory."""
    lines = 20_000
    log = (
        f"[{n % 4}] {n}/{lines} - loss: 0.{n} - accuracy: 0.5\n" for n in range(lines)
    )
    first(FULL)  # compiles all patterns
    tracemalloc.start()
    explanation = explain.explain(itertools.chain(log, [f"[1] {FULL}\n"]))
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert explanation.lines == lines + 1
    assert explanation.first.message.id == "setup.disk-full"
    assert most < 1.5e6


# ------------------------------------------------------------ what really failed


@pytest.mark.parametrize("failure", failures.failures(), ids=lambda one: one.name)
def test_a_failure_is_explained_from_its_whole_log(failure):
    assert failure.log.exists(), f"python tests/failures.py {failure.name}"
    with failure.log.open() as log:
        found = explain.explain(log)
    assert failures.is_explained(failure, found), str(found)


@pytest.mark.slow
@pytest.mark.parametrize(
    "failure",
    failures.of_this_commit(),
    ids=lambda failure: failure.name,
)
def test_a_failure_caused_now_is_explained_as_well(failure):
    found = explain.explain(failures.cause(failure).splitlines())
    assert failures.is_explained(failure, found), str(found)
