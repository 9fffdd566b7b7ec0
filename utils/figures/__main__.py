"""The figure on the README: what the steps do to the weights of two workers.

    python -m utils.figures

It trains for real, after steps 1, 3 and 4, and draws what was recorded.
"""

from pathlib import Path

from distcheck import files
from utils.base import course
from utils.figures import training as plots
from utils.running.launch import run

STORY = {
    1: "Step 1: two workers, two networks",
    3: "Step 3: the same steps, two starts",
    4: "Step 4: one network",
}


def draw() -> Path:
    """Run the three programs on two workers, write `notebooks/cover.png`."""
    solutions = course.root() / "solutions"
    recorded = {
        title: run(
            solutions / f"fashion_mnist_after_step_{step:02}.py",
            workers=2,
            epochs=1,
            train_images=3200,
            width=1,
            record=20,
        )
        for step, title in STORY.items()
    }
    path = course.root() / "notebooks" / "cover.png"
    with files.whole(path) as file:
        plots.paths(recorded).savefig(file, format="png", dpi=110)
    return path


if __name__ == "__main__":
    print(files.shown(draw()))
