"""Evidence of every type and size, as an enemy would leave it: all of it unreadable."""

import json
import os
import re
import socket
from typing import Any, get_args, get_origin, get_type_hints

import numpy as np
import pytest

from distcheck import events, evidence
from distcheck.evidence import Unreadable
from distcheck.judges.steps import step_2
from distcheck.recorder.recorder import schema_of
from distcheck.scenarios import SCENARIOS
from utils.checking import recorders  # noqa: F401 (it registers their scenarios)

HOROVOD = {
    "started": {"pid": 7},
    "keras 3": {"module": "tensorflow"},
    "tampered": {"replaced": "json.dumps"},
    "failed": {"error": "ValueError: no", "status": 1},
    "ended": {"cpu": [1.5, 0.25]},
    "asked": {"name": "rank", "too_early": False, "answer": 1},
    "collective_start": {
        "op": "allreduce",
        "name": None,
        "root": 0,
        "elements": 3,
        "given": [1.0, 2, float("nan")],
    },
    "collective_end": {"op": "allreduce", "got": None},
    "wrapped": {},
    "devices": {"visible": [3], "growth": []},
    "pinned": {},
    "fit": {
        "verbose": "auto",
        "steps_per_epoch": 3.5,
        "validation_steps": None,
        "epochs": 1,
        "modules": ["horovod.tensorflow.keras"],
    },
    "fitted": {},
    "output": {"sizes": [120, 0]},
    "forward": {
        "training": True,
        "fit": True,
        "aside": False,
        "step": 2,
        "images": [3, 17],
        "rate": 0.1,
    },
    "loss": {"value": 2.5, "cross_entropy": 2.0, "penalty": 0.5},
    "update": {"wrapped": True, "optimizer": "SGD"},
    "callback": {
        "name": "CSVLogger",
        "made": 12,
        "before": {"val_loss": 1.5},
        "after": {"val_loss": float("inf")},
        "read": ["val_loss"],
        "stops": False,
    },
    "evaluated": {"fit": True, "own": False, "metrics": {"val_loss": 1.5}},
    "files_written": {"files": ["best.h5"]},
    "graphs": {"count": 1},
    "graph": {"error": "TypeError: no", "function": None, "training": True},
}


def example(kind: Any) -> object:
    """A value of a kind that a field is declared with."""
    parts = get_args(kind)
    if get_origin(kind) is list:
        return [example(parts[0])]
    if get_origin(kind) is dict:
        return {example(parts[0]): example(parts[1])}
    if parts:  # the first that it may be
        return example(parts[0])
    return {str: "a", bool: True, int: 3, float: 1.5}[kind]


# One of each that a recorder reports, by a scenario in which it does.
RECORDERS = {s.recorder: name for name, s in SCENARIOS.items() if s.recorder}
EVENTS = [
    pytest.param(
        schema_of(SCENARIOS[name]),
        {field: example(hint) for field, hint in get_type_hints(kind).items()}
        | {"what": what},
        id=f"{name} {what}",
    )
    for name in RECORDERS.values()
    for what, kind in schema_of(SCENARIOS[name]).items()
]
# Nothing that is reported may be any of these.
NEVER = [
    {"a": {"b": 1}},
    [[1]],
    [None],
    "x" * (events.MOST_TEXT + 1),
    ["x" * (events.MOST_TEXT + 1)],
    [1] * (events.MOST_ITEMS + 1),
    {str(n): 1 for n in range(events.MOST_ITEMS + 1)},
    2**70,
    -(2**70),
    [2**70],
]


def line(event: object) -> bytes:
    return json.dumps(event).encode()


def test_there_is_an_event_of_each_kind():
    assert set(HOROVOD) == set(events.HOROVOD)


@pytest.mark.parametrize("what", HOROVOD)
def test_an_event_that_a_worker_reports_is_read(what):
    event = {"what": what, "time": 1.5, "line": 3, **HOROVOD[what]}
    # Not a number is not equal to itself.
    assert repr(evidence.event(line(event), events.HOROVOD)) == repr(event)


@pytest.mark.parametrize(("schema", "event"), EVENTS)
def test_an_event_of_any_recorder_is_read(schema, event):
    assert evidence.event(line(event), schema) == event


@pytest.mark.parametrize(("schema", "event"), EVENTS)
def test_an_event_with_a_field_of_another_kind_is_unreadable(schema, event):
    for field in event:
        for value in NEVER:
            with pytest.raises(Unreadable):
                evidence.event(line(event | {field: value}), schema)


@pytest.mark.parametrize(("schema", "event"), EVENTS)
def test_an_event_with_other_fields_is_unreadable(schema, event):
    with pytest.raises(Unreadable):
        evidence.event(line(event | {"more": 1}), schema)
    for field in event:
        rest = {name: value for name, value in event.items() if name != field}
        with pytest.raises(Unreadable):
            evidence.event(line(rest), schema)


@pytest.mark.parametrize("value", ["x", [1], 1.5, True, float("inf"), {}])
def test_a_line_is_a_whole_number_or_none(value):
    event = {"what": "pinned", "time": 1.0, "line": value}
    with pytest.raises(Unreadable, match="line of an event"):
        evidence.event(line(event), events.HOROVOD)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 10**400, "1", None])
def test_a_time_is_a_finite_number(value):
    event = {"what": "pinned", "time": value, "line": None}
    with pytest.raises(Unreadable):
        evidence.event(line(event), events.HOROVOD)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"null",
        b"[1]",
        b'"pinned"',
        b"\xff\xfe",
        b"[" * 40_000,
        b'{"a":' * 9_000,
        b'{"what": "pinned", "time": ' + b"9" * 40_000 + b', "line": 1}',
        b'{"what": ["pinned"], "time": 1, "line": 1}',
        b'{"what": "strategy", "time": 1, "line": 1, "kind": "a", "replicas": 2}',
        b'{"what": "pinned", "time": 1, "line": 1, "x": "' + b"x" * 60_000 + b'"}',
    ],
)
def test_a_line_that_is_no_event_of_a_worker_is_unreadable(content):
    with pytest.raises(Unreadable):
        evidence.event(content, events.HOROVOD)


# -------------------------------------------------------------- files


def _link(path):
    (path.parent / "secret").write_text("secret\n")
    path.symlink_to(path.parent / "secret")


def _socket(path):
    before = os.getcwd()
    os.chdir(path.parent)  # the path of a socket has to be short
    try:
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(path.name)
    finally:
        os.chdir(before)


def _sparse(path):
    path.touch()
    os.truncate(path, 10**12)


SPOILT = {
    "a link": _link,
    "a link to nothing": lambda path: path.symlink_to("nowhere"),
    "a link to itself": lambda path: path.symlink_to(path.name),
    "a device": lambda path: path.symlink_to("/dev/zero"),
    "a pipe": os.mkfifo,
    "a socket": _socket,
    "a folder": os.mkdir,
    "a sparse file": _sparse,
    "too much": lambda path: path.write_bytes(bytes(evidence.MOST_ARRAY + 1)),
}
TOO_MUCH = {"a sparse file", "too much"}
READERS = {
    "text": evidence.text,
    "events": lambda path: evidence.read_all(path, events.HOROVOD),
    "array": evidence.array,
    "outcome": evidence.outcome,
    "last_row": evidence.last_row,
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("kind", SPOILT)
def test_what_is_no_file_of_a_worker_is_unreadable(tmp_path, reader, kind):
    path = tmp_path / "file"
    SPOILT[kind](path)
    if reader == "text" and kind in TOO_MUCH:
        assert len(evidence.text(path)) == evidence.MOST_OUTPUT  # both its ends
        return
    with pytest.raises(Unreadable):
        READERS[reader](path)


def test_of_a_long_output_both_ends_are_read(tmp_path):
    path = tmp_path / "rank.0.err"
    half = evidence.MOST_OUTPUT // 2
    for length in (0, 1, half, half + 1, 2 * half - 1, 2 * half):
        path.write_text("a" + "x" * length + "z")
        assert evidence.text(path)[:1] + evidence.text(path)[-1:] == "az"
        assert len(evidence.text(path)) == min(length + 2, 2 * half)


@pytest.mark.parametrize("reader", READERS.values(), ids=READERS)
def test_a_file_behind_a_link_is_unreadable(tmp_path, reader):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "file").write_text("{}\n")
    (tmp_path / "world").symlink_to("elsewhere")
    with pytest.raises(Unreadable, match="behind a link"):
        reader(tmp_path / "world" / "file")


def test_events_without_end_are_unreadable(tmp_path):
    event = line({"what": "pinned", "time": 1, "line": 1})
    path = tmp_path / "rank.0.jsonl"
    path.write_bytes(b"\n".join([event] * evidence.MOST_EVENTS) + b"\n")
    assert len(evidence.read_all(path, events.HOROVOD)) == evidence.MOST_EVENTS
    with path.open("ab") as file:
        file.write(event + b"\n")
    with pytest.raises(Unreadable, match="more than"):
        evidence.read_all(path, events.HOROVOD)


def test_half_an_event_at_the_end_is_not_looked_at(tmp_path):
    path = tmp_path / "rank.0.jsonl"
    path.write_bytes(line({"what": "pinned", "time": 1, "line": 1}) + b'\n{"what"')
    (event,) = evidence.read_all(path, events.HOROVOD)
    assert event["what"] == "pinned"
    assert evidence.read_all(tmp_path / "rank.1.jsonl", events.HOROVOD) == []


# -------------------------------------------------------------- arrays


def header(shape: str, dtype: str = "'<f4'", version: bytes = b"\x01\x00") -> bytes:
    text = f"{{'descr': {dtype}, 'fortran_order': False, 'shape': {shape}, }}"
    text = text.ljust(117) + "\n"
    return b"\x93NUMPY" + version + len(text).to_bytes(2, "little") + text.encode()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"PK\x03\x04",
        b"\x80\x04N.",
        header("(10000000000000,)"),
        header("(10000000000000,)") + bytes(4),
        header("(-1,)") + bytes(4),
        header("(99999999999,)"),
        header("(1, 1)") + bytes(4),
        header("()") + bytes(4),
        header("(True,)") + bytes(4),
        header("(2,)") + bytes(4),
        header("(1,)", "'<f8'") + bytes(8),
        header("(1,)", "'|O'") + b"\x80\x04N.",
        header("(1,)", "[('a', '<f4')]") + bytes(4),
        header("(1,)", version=b"\x02\x00") + bytes(4),
        header("(1,)", version=b"\x09\x00") + bytes(4),
        header("__import__('os').abort()") + bytes(4),
        header("(" * 5000),
        header("-" * 9000 + "1"),
    ],
)
def test_an_array_that_no_worker_keeps_is_unreadable(tmp_path, content):
    path = tmp_path / "rank.0.local.0.npy"
    path.write_bytes(content)
    with pytest.raises(Unreadable):
        evidence.array(path)


def test_an_array_that_a_worker_keeps_is_read(tmp_path):
    path = tmp_path / "rank.0.local.0.npy"
    for array in (np.arange(5, dtype=np.float32), np.zeros(0, np.float32)):
        np.save(path, array)
        assert np.array_equal(evidence.array(path), array)
    path.unlink()
    with pytest.raises(FileNotFoundError):
        evidence.array(path)


# -------------------------------------------------------------- the rest

OUTCOME = {
    "outcome": "ended",
    "script": "x.py",
    "seconds": 1.5,
    "mpirun": -9,
    "statuses": {"0": 0, "1": None},
}


def test_the_outcome_that_the_lab_writes_is_read(tmp_path):
    (tmp_path / "outcome.json").write_text(json.dumps(OUTCOME))
    assert evidence.outcome(tmp_path / "outcome.json") == OUTCOME


@pytest.mark.parametrize("field", OUTCOME)
@pytest.mark.parametrize("value", [*NEVER, [], True, "x" * 90_000])
def test_an_outcome_that_no_lab_writes_is_unreadable(tmp_path, field, value):
    if field == "statuses" and value == []:
        value = [0, 1]
    path = tmp_path / "outcome.json"
    path.write_text(json.dumps(OUTCOME | {field: value}))
    with pytest.raises(Unreadable):
        evidence.outcome(path)


@pytest.mark.parametrize("content", ["a,b\n1\n", "a\n1,2\n", "a\n" + "x" * 200_000])
def test_a_table_that_no_program_of_the_course_writes_is_unreadable(tmp_path, content):
    path = tmp_path / "history.csv"
    path.write_text(content)
    with pytest.raises(Unreadable):
        evidence.last_row(path)


def test_a_long_row_of_digits_is_looked_through_in_no_time():
    assert step_2._PROGRESS.search("1" * 1_000_000 + "/") is None  # not in hours
    assert re.search(step_2._PROGRESS, "12/345 [==")
