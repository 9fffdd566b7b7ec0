"""What the checks of programs with replicas say: lines, and TensorFlow's words."""

import pytest

from distcheck.verdict import RIGHT, Verdict
from utils.checking import checks, exercises
from utils.checking.recorders import replicas

# As TensorFlow 2.21 says it, with fewer numbers.
REFUSAL = """\
ValueError: Variable (<tf.Variable 'conv2d/kernel:0' shape=(1, 2) dtype=float32, numpy=
array([[-0.03, 0.06]], dtype=float32)>) was not created in the distribution strategy \
scope of (<tensorflow.python.distribute.mirrored_strategy.MirroredStrategy object at \
0x7f12>). It is most likely because some layers, model, or optimizer was being created \
outside the distribution strategy scope."""


def test_tensorflow_finishes_its_sentence_without_numbers_and_addresses():
    assert replicas.essence(REFUSAL) == (
        "ValueError: Variable (conv2d/kernel:0) was not created in the distribution "
        "strategy scope of (MirroredStrategy). It is most likely because some layers, "
        "model, or optimizer was being created outside the distribution strategy scope."
    )


@pytest.mark.parametrize("text", ["", "ValueError: a < b > c", "no variable at all"])
def test_other_errors_stay_as_they_are(text):
    assert replicas.essence(text) == text


PROGRAM = """\
batch = args.batch_size * 2
again = args.batch_size
def validate():
    if batch:
        return None
    loss, accuracy = 1, 2
    return loss
with scope:
    model = build()
"""


def test_places_are_the_first_reading_and_the_last_assignment_and_return(tmp_path):
    script = tmp_path / "program.py"
    script.write_text(PROGRAM)
    assert replicas.places(str(script)) == {
        "batch_size": 1,
        "batch =": 1,
        "again =": 2,
        "validate: loss =": 6,
        "validate: accuracy =": 6,
        "validate": 7,
        "model =": 9,
    }


@pytest.mark.parametrize("name", ["mirrored", "custom_loop"])
def test_the_finished_programs_have_the_places_that_findings_name(name):
    places = replicas.places(str(exercises.find(name).annotated))
    wanted = {
        "mirrored": {"strategy =", "batch_size", "base_lr"},
        "custom_loop": {"step_loss", "train_all", "validation_set =", "batches =",
                        "validate: loss ="},
    }  # fmt: skip
    assert wanted[name] <= set(places)


@pytest.mark.parametrize(
    ("diff", "says"),
    [(None, "Checked in 1.0 s. "), ("", "no difference"), ("-a\n+b\n", "Below is")],
)
def test_a_difference_is_shown_where_no_later_step_would_fill_it(diff, says):
    verdict = Verdict(2, "step-2.right", RIGHT, "It shares.", "It shares.")
    report = checks.Report("mine.py", "custom_loop", [verdict], 1.0, diff=diff)
    text = repr(report)
    assert says in text
    assert ("+b" in text) == bool(diff)
    assert "word for word" not in text
