"""The drawing of notebook 17: which strategy to choose when."""

from utils.diagrams import BLUE, GREEN, GREY, Diagram, _arrow, _box, _paper, _text

# Asked from the top; a yes leads to what stands beside it, a no to the next question.
QUESTIONS = {
    "Only one device?": "the default strategy,\nor OneDeviceStrategy to name it",
    "TPU cores?": "TPUStrategy",
    "All in one machine?": "MirroredStrategy or Horovod",
    "Different speeds,\nor some may leave?": "ParameterServerStrategy",
}
LAST = "MultiWorkerMirroredStrategy\nor Horovod"


def decision_chart() -> Diagram:
    """Four questions, from the top to the bottom; the first yes decides."""
    asked = [f"{question} Yes: {where}." for question, where in QUESTIONS.items()]
    words = ["Questions in order; the first yes decides.", *asked, f"All no: {LAST}."]
    row, box = 0.95, 0.6  # inches
    height = row * (len(QUESTIONS) + 1) + 0.1
    diagram, ax = _paper(7.5, height, " ".join(" ".join(words).split()))
    y = height - row + 0.15
    for question, where in QUESTIONS.items():
        _box(ax, 0.3, y, 2.3, box, question, edge=BLUE)
        _arrow(ax, (2.6, y + box / 2), (4.0, y + box / 2))
        _text(ax, 3.2, y + box / 2 + 0.14, "yes")
        _box(ax, 4.0, y, 3.2, box, where, edge=GREEN)
        _arrow(ax, (1.45, y), (1.45, y - row + box), colour=GREY)
        _text(ax, 1.72, y - (row - box) / 2, "no")
        y -= row
    _box(ax, 0.3, y, 2.3, box, LAST, edge=GREEN)
    return diagram
