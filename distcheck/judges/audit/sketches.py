"""How far the sketches of gradients and weights are apart."""

import math

import numpy as np

from distcheck.judges.audit.recorded import RecordedRun

# Relative differences: what is less apart is equal, and what is more apart isn't.
RTOL_EQUAL, RTOL_DIFFERENT = 1e-6, 1e-4
RTOL_FP16 = 0.02  # of gradients that were summed in another order, or in float16


def distance(a, b) -> float:
    """Relative; 0 for equal ones."""
    a, b = np.asarray(a), np.asarray(b)
    scale = max(float(np.linalg.norm(a)), float(np.linalg.norm(b)))
    return float(np.linalg.norm(a - b)) / scale if scale else 0.0


def unit(sketch) -> np.ndarray:
    """Of length 1, in the same direction."""
    length = float(np.linalg.norm(sketch))
    return np.asarray(sketch) / length if length else np.asarray(sketch)


def spread_of(sketches) -> float:
    """The largest relative distance to the first of them."""
    if any(len(s) != len(sketches[0]) for s in sketches):
        return math.inf
    distances = [distance(s, sketches[0]) for s in sketches[1:]]
    if any(math.isnan(d) for d in distances):
        return 0.0 if all(np.isnan(s).any() for s in sketches) else math.inf
    return max(distances, default=0.0)


def groups_of(parallel: RecordedRun) -> list[int]:
    """The groups of variables that all workers train, the first first."""
    found = [
        {e["group"] for e in w.events if e["what"] in ("local", "applied")}
        for w in parallel.each
    ]
    return sorted(set.intersection(*found)) if found else []


def spreads_of_weights(parallel: RecordedRun, group: int) -> dict[int, float]:
    """How far the weights are apart before each update that was looked at."""
    found = [worker.updates("local", group) for worker in parallel.each]
    if not any(w.all("applied") for w in parallel.each):
        # Its own updates: by the number of times that gradients were computed.
        found = [
            {i: [e] for i, e in enumerate(in_order(f), 1) if "weights" in e}
            for f in found
        ]
    common = sorted(set.intersection(*(set(f) for f in found)))
    return {u: spread_of([f[u][0]["weights"] for f in found]) for u in common}


def in_order(found: dict[int, list[dict]]) -> list[dict]:
    """The events of `Worker.updates`, one after the other."""
    return [event for update in sorted(found) for event in found[update]]
