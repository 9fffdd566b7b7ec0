"""Do the workers form one team, and do they start and end with the same weights?"""

import math

from distcheck.judges.audit.recorded import UNKNOWN, Answer, RecordedRun
from distcheck.judges.audit.sketches import (
    RTOL_DIFFERENT,
    RTOL_EQUAL,
    groups_of,
    spread_of,
    spreads_of_weights,
)
from distcheck.judges.audit.words import count_of, listed, percent
from distcheck.verdict import RIGHT, WRONG

# Horovod's callback for Keras acts at the end of the first batch.
_CUT = "No later update was seen, and some programs broadcast after the first."


def together(parallel: RecordedRun, single: RecordedRun | None) -> Answer:
    """Are they one team?"""
    if parallel.kind != "Horovod":
        return _one_strategy(parallel)
    sizes = [end["size"] for end in parallel.ends()]
    if sizes and all(size is None for size in sizes):
        return WRONG, (
            f"Horovod is never started, so {parallel.workers} programs run "
            "independently."
        )
    if sizes and any(size != parallel.workers for size in sizes):
        return (
            WRONG,
            f"hvd.size() is {listed(map(str, sizes))}, not {parallel.workers}.",
        )
    if not sizes:
        return UNKNOWN, "No worker finished."
    return RIGHT, f"Horovod trains with {parallel.workers} workers."


def _one_strategy(parallel: RecordedRun) -> Answer:
    """Do all replicas of a strategy of tf.distribute train?"""
    made = parallel.strategies
    replicas = max([event["replicas"] for event in made], default=1)
    where = made[-1].get("where") if made else None
    if parallel.kind == "TF_CONFIG" and replicas < parallel.workers:
        text = (
            f"The strategy has only {count_of(replicas, 'replica')} for "
            f"{parallel.workers} workers."
        )
        changed = tf_config_fault(parallel)
        return (
            WRONG,
            f"{text} {changed[0]}" if changed else text,
            (changed[1] if changed else where),
        )
    if parallel.kind == "TF_CONFIG" and (late := _tf_config_too_late(parallel)):
        return (
            WRONG,
            "The program sets TF_CONFIG after it has made its strategy, which doesn't "
            f"read it any more. The {parallel.workers} workers of this run are a team "
            "by the launcher's TF_CONFIG alone.",
            late.get("where"),
        )
    if replicas < 2:
        there = _devices_of_its_kind(parallel)
        if there > 1:
            return (
                WRONG,
                f"{parallel.strategy} is given one of the {there} devices that the "
                "program has listed, so one replica trains alone.",
                where,
            )
        if not made or made[-1]["kind"] == "OneDeviceStrategy":
            return UNKNOWN, (
                f"{'OneDeviceStrategy' if made else 'No strategy'} is made, so one "
                "replica trains. A program that counts GPUs may do so because there "
                "are too few of them here."
            )
        text = f"{parallel.strategy} has one replica here."
        if made[-1]["kind"] == "CentralStorageStrategy":
            return UNKNOWN, f"{text} It computes on GPUs, of which there are too few."
        return UNKNOWN, (
            f"{text} To see more, give it no list of devices, or a list of all of them."
        )
    train = [e.get("replicas", replicas) for e in parallel.all("local")]
    if train and max(train) < 2:
        return (
            WRONG,
            f"{parallel.strategy} has {replicas} replicas, but the model is trained "
            "outside of it, by one replica alone. Build and compile it within "
            "`strategy.scope()`.",
            parallel.fit_line,
        )
    return RIGHT, f"{parallel.strategy} trains with {replicas} replicas."


def _devices_of_its_kind(parallel: RecordedRun) -> int:
    """How many devices the program has listed, of the kind that MirroredStrategy was
    given; 0 for another strategy, or where it has listed none."""
    made = parallel.strategies
    if not made or made[-1]["kind"] != "MirroredStrategy":
        return 0
    kind = made[-1].get("devices", [""])[0].partition(":")[0]
    return max([e["count"].get(kind, 0) for e in parallel.all("devices")], default=0)


def tf_config_fault(parallel: RecordedRun) -> tuple[str, str | None] | None:
    """Words for what the program did to TF_CONFIG before it made its strategy, and
    where; None if it left it as it was."""
    for events in parallel.processes:
        made = [e["time"] for e in events if e["what"] == "strategy"]
        changes = [
            event
            for event in events
            if event["what"] == "TF_CONFIG" and event["time"] <= min([*made, math.inf])
        ]
        if changes and not changes[-1]["same"]:
            what = "clears" if changes[-1]["cleared"] else "overwrites"
            return (
                f"The program {what} TF_CONFIG, by which the launcher tells each "
                "worker who it is, and where all of them are.",
                changes[-1].get("where"),
            )
    return None


def _tf_config_too_late(parallel: RecordedRun) -> dict | None:
    """Where the program sets TF_CONFIG to something else, between its strategy and its
    first gradient."""
    for events in parallel.processes:
        made = [e["time"] for e in events if e["what"] == "strategy"]
        trained = [e["time"] for e in events if e["what"] == "local"]
        for event in events if made and trained else ():
            if (
                event["what"] == "TF_CONFIG"
                and not (event["same"] or event["cleared"])
                and max(made) < event["time"] < min(trained)
            ):
                return event
    return None


def start(parallel: RecordedRun, single: RecordedRun | None) -> Answer:
    """Did all begin with the same weights?"""
    if len(parallel.each) < 2:
        return UNKNOWN, f"The gradients of only one {parallel.word} were seen."
    latest = 0
    for group in groups_of(parallel):
        by_update = spreads_of_weights(parallel, group)
        if not by_update:
            return UNKNOWN, "No update of all workers was seen."
        equal = [u for u, spread in by_update.items() if spread <= RTOL_EQUAL]
        if not equal:
            first = min(by_update)
            spread = by_update[first]
            if spread < RTOL_DIFFERENT:
                return UNKNOWN, (
                    "The weights differ, but not by more than rounding can explain."
                )
            if first == max(by_update) and not parallel.whole:
                return UNKNOWN, f"The weights differ before update {first}. {_CUT}"
            text = (
                f"The workers train from different weights: they differ by "
                f"{percent(spread)} before update {first}, and are never equal."
            )
            empty = parallel.all("empty broadcast")
            if empty:
                return (
                    WRONG,
                    f"{text} A broadcast comes before the model has variables, so it "
                    "sends nothing.",
                    empty[0].get("where") or parallel.fit_line,
                )
            return WRONG, text, parallel.fit_line
        latest = max(latest, min(equal))
    if latest <= 1:
        return RIGHT, "The weights are equal before the first update."
    return RIGHT, f"The weights are equal from before update {latest}."


def end(parallel: RecordedRun, single: RecordedRun | None) -> Answer:
    """Did all end with the same weights?"""
    if len(parallel.each) < 2:
        return UNKNOWN, f"The gradients of only one {parallel.word} were seen."
    ends = parallel.ends()
    if parallel.kind == "tf.distribute":
        if not ends:
            return UNKNOWN, "The program did not finish."
        apart = max(ends[0].get("copies") or [0.0])
        if apart > 0:
            return WRONG, f"Copies of a weight differ by up to {apart:.2g}."
        return RIGHT, "All copies of the weights are equal."
    if parallel.whole and all(e.get("weights") for e in ends):
        spread = max(
            spread_of([e["weights"][group] for e in ends])
            for group in range(min(len(e["weights"]) for e in ends))
        )
        when = "in the end"
    else:
        last: dict[int, float] = {}
        for group in groups_of(parallel):
            last |= spreads_of_weights(parallel, group)
        if not last:
            return UNKNOWN, "Not all workers finished."
        if len(last) == 1:
            return UNKNOWN, _CUT
        spread, when = last[max(last)], f"before update {max(last)}, the last one seen"
    frozen = [e["frozen"] for e in ends if e.get("frozen")]
    if (
        len(frozen) == len(parallel.processes)
        and (rest := spread_of(frozen)) > RTOL_DIFFERENT
    ):
        return (
            WRONG,
            f"In the end, the weights that are not trained differ by {percent(rest)}.",
            parallel.fit_line,
        )
    if spread <= RTOL_EQUAL:
        return RIGHT, f"The weights are equal {when}."
    if spread < RTOL_DIFFERENT:
        return UNKNOWN, (
            f"The weights differ {when}, but not by more than rounding can explain."
        )
    return (
        WRONG,
        f"The weights differ by {percent(spread)} {when}: there are "
        f"{parallel.workers} different models.",
        parallel.fit_line,
    )
