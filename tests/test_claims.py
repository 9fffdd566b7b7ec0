"""Claims: what they show, what they record, and how far a number is from its bound."""

import json
import math

import nbformat
import numpy as np
import pytest
from IPython.core.formatters import DisplayFormatter

from utils import claim
from utils.lessons import claims

NAN, INF = math.nan, math.inf


@pytest.mark.parametrize(
    ("value", "side", "bound", "margin"),
    [
        (2, "below", 6, 3),
        (6, "above", 2, 3),
        (6, "below", 2, 1 / 3),
        (2, "above", 6, 1 / 3),
        (2, "below", 2, 1),
        (2, "above", 2, 1),
        (0, "below", 2, INF),
        (0, "above", 2, 0),
        (-1, "below", 2, INF),
        (-1, "above", 2, 0),
        (2, "above", 0, INF),
        (2, "above", -1, INF),
        (2, "below", 0, 0),
        (-2, "below", -1, 0),
        (-1, "above", -2, 0),
        (0, "below", 0, 0),
        (0, "above", 0, 0),
        (NAN, "below", 2, 0),
        (NAN, "above", 2, 0),
        (2, "below", NAN, 0),
        (2, "above", NAN, 0),
        (2, "below", INF, INF),
        (INF, "below", INF, 0),
        (INF, "above", INF, 0),
    ],
)
def test_a_margin_is_a_ratio(value, side, bound, margin):
    assert claims.margin(value, side, bound) == pytest.approx(margin)


@pytest.fixture
def kernel(monkeypatch):
    """What a claim shows in Jupyter."""
    outputs = []

    def display(shown):
        data, metadata = DisplayFormatter().format(shown)
        output = nbformat.v4.new_output("display_data", data, metadata=metadata)
        # It is sent as JSON, which has no word for nan.
        plain = json.loads(json.dumps(output, allow_nan=False))
        outputs.append(nbformat.from_dict(plain))

    monkeypatch.setattr("IPython.display.display", display)
    return outputs


@pytest.mark.parametrize(
    ("value", "bound", "true", "numbers"),
    [
        (True, {}, True, ""),
        (np.bool_(False), {}, False, ""),
        (2e-4, {"below": 1e-3}, True, "value 0.0002, below the bound 0.001"),
        (2.5, {"above": 3}, False, "value 2.5, not above the bound 3"),
        (12_345, {"above": 2}, True, "value 12,345, above the bound 2"),
        (np.float32(NAN), {"below": 1}, False, "value nan, not below the bound 1"),
        (0, {"below": 1}, True, "value 0, below the bound 1"),
    ],
)
def test_it_is_shown_and_recorded(kernel, value, bound, true, numbers):
    claim("Both are the same", value, **bound)
    (text,) = (output.data["text/plain"] for output in kernel)
    (found,) = claims.shown(kernel)
    assert text == repr(found)
    assert text.startswith("✓ Both are" if true else "✗ Not true here: Both are")
    assert (claims.REPORT in text) != true
    assert (found.true, found.numbers) == (true, numbers)
    assert numbers in text
    assert (found.margin is None) == (not bound)
    if bound:
        ((side, limit),) = bound.items()
        assert found.margin == claims.margin(value, side, limit)


def test_other_outputs_are_no_claims():
    stream = nbformat.v4.new_output("stream", text="✓ It is true")
    picture = nbformat.v4.new_output("display_data", metadata={"image/png": {}})
    assert list(claims.shown([stream, picture])) == []


@pytest.mark.parametrize(
    ("value", "bounds"), [(0.3, {}), ([], {}), (0.3, {"below": 1, "above": 0.1})]
)
def test_a_number_needs_one_bound(value, bounds):
    with pytest.raises(TypeError, match="below= or above="):
        claim("Both are the same", value, **bounds)


def test_a_program_prints_it(capsys):
    claim("Both are the same", 1, below=4)
    assert "✓ Both are the same (value 1, below the bound 4)" in capsys.readouterr().out
