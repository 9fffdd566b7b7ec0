"""What TensorFlow's profiler saw of some steps: who computed, who waited, and for what.

A profile is what `tf.profiler.experimental.Profile`, or Keras' `TensorBoard(
profile_batch=...)`, leaves in a folder: a file `*.xplane.pb`, in it "planes" (devices),
"lines" (threads), and events with a name, a begin and a length. Read from files that
TensorFlow 2.21 wrote on processors; on GPUs, kernels are in planes of their own.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pandas

from distcheck.errors import UserError
from distcheck.files import shown

STEP = "step"  # the name to give steps: tf.profiler.experimental.Trace("step", ...)
COMPUTES, WAITS, MAKES = "the step computes", "it waits for a batch", "batches are made"
LANES = (COMPUTES, WAITS, MAKES)


@dataclass(frozen=True)
class Event:
    """start, end: in seconds of the profiler's clock."""

    name: str
    start: float
    end: float

    @property
    def lane(self) -> str | None:
        """Which of LANES it belongs to, or STEP; None for everything else.

        A function that TensorFlow has compiled is executed as `__inference_NAME`; what
        `map` does is named by its place in the pipeline, `Iterator::...::Map`.
        """
        if self.name == STEP:
            return STEP
        if self.name == "IteratorGetNextOp::DoCompute":
            return WAITS
        if self.name.startswith("EagerLocalExecute: __inference"):
            return COMPUTES
        of_iterator = self.name.startswith("Iterator::")
        return MAKES if of_iterator and self.name.endswith("::Map") else None


def events(folder: str | Path) -> Iterator[Event]:
    """All events on the threads of the processor, of the only profile in a folder.

    Raises UserError where there is none, or several.
    """
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    paths = list(Path(folder).glob("**/*.xplane.pb"))
    if len(paths) != 1:
        raise UserError(
            f"{shown(Path(folder))} holds {len(paths)} profiles, not one: profile into "
            "a new folder."
        )
    space = xplane_pb2.XSpace.FromString(paths[0].read_bytes())
    for plane in space.planes:
        if plane.name != "/host:CPU":
            continue
        for line in plane.lines:
            for event in line.events:
                name = plane.event_metadata[event.metadata_id].name
                start = line.timestamp_ns / 1e9 + event.offset_ps / 1e12
                yield Event(name, start, start + event.duration_ps / 1e12)


def read(folder: str | Path) -> pandas.DataFrame:
    """A row for each event that has a lane: lane, name, start and end, in seconds since
    the first step began.

    Raises UserError as `events` does, and for a profile without steps.
    """
    rows = [(e.lane, e.name, e.start, e.end) for e in events(folder) if e.lane]
    table = pandas.DataFrame(rows, columns=["lane", "name", "start", "end"])
    steps = table[table["lane"] == STEP]
    if steps.empty:
        raise UserError(
            f"the profile in {shown(Path(folder))} has no event `{STEP}`: put each "
            f'step into tf.profiler.experimental.Trace("{STEP}", step_num=...).'
        )
    table[["start", "end"]] -= steps["start"].min()
    return table.sort_values("start", ignore_index=True)


def busy(table: pandas.DataFrame, *lanes: str) -> float:
    """Which share of the time from the first step's begin to the last one's end
    something of the lanes was on; what overlaps counts once."""
    steps = table[table["lane"] == STEP]
    begin, end = steps["start"].min(), steps["end"].max()
    total, reached = 0.0, begin
    rows = table[table["lane"].isin(lanes)].sort_values("start")
    for start, stop in zip(rows["start"], rows["end"], strict=True):
        start, stop = max(start, reached), min(stop, end)
        total += max(0.0, stop - start)
        reached = max(reached, stop)
    return total / (end - begin)
