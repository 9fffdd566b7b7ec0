"""The figure on the README: what the steps do to two workers' weights.

    python -m utils.cover

It trains for real, after steps 1, 3 and 4, and draws what was recorded.
"""

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.ticker import PercentFormatter

from utils import course, plots, run

STORY = {
    1: "after step 1: two workers, two networks",
    3: "after step 3: equal updates, unequal starts",
    4: "after step 4: one network, equal to the bit",
}


def draw() -> Path:
    """Run the three programs on two workers, write `notebooks/cover.png`."""
    figure, axis = plt.subplots(figsize=(8, 3.6), layout="constrained")
    for number, (step, label) in enumerate(STORY.items()):
        program = course.root() / "solutions" / f"fashion_mnist_after_step_{step:02}.py"
        recorded = run(
            program, workers=2, epochs=1, train_images=3200, width=1, record=20
        )
        distance = np.max(list(plots.distances(recorded).values()), axis=0)
        axis.plot(
            distance,
            color=plots.COLOURS[number],
            marker=plots.MARKS[number],
            label=label,
        )
    axis.set(xlabel="batch", ylabel="difference of two workers' weights")
    axis.set_ylim(-0.05, None)
    axis.yaxis.set_major_formatter(PercentFormatter(1))
    axis.set_xticks(range(0, 21, 5))
    axis.grid(alpha=0.3)
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend()
    path = course.root() / "notebooks" / "cover.png"
    half = path.with_suffix(".half.png")
    figure.savefig(half, dpi=150)
    half.replace(path)
    plt.close(figure)
    return path


if __name__ == "__main__":
    print(course.shown(draw()))
