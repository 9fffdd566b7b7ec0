"""What starts the workers on a cluster, and where their files are: a drawing for each
platform."""

import runpy

from matplotlib.axes import Axes

from utils.base import course
from utils.figures.diagrams import Diagram, draw_arrow, draw_box, draw_text, paper
from utils.figures.style import BLUE, GREEN, GREY, ORANGE, PALE, Figure, subplots


def slurm_job() -> Diagram:
    """A batch script on its way from the login node to two nodes."""
    diagram, ax = paper(
        8,
        3.5,
        "On the login node you submit a batch script with sbatch. It waits in Slurm's "
        "queue until two nodes are free. Then Slurm runs the script once, on the first "
        "node. Its mpirun starts worker 0 there and worker 1 on the second node. Both "
        "nodes see the same storage, with the program, the data and the checkpoints.",
    )
    draw_box(ax, 0.15, 1.75, 1.6, 1.0, "login node\nsbatch job.sh", edge=BLUE)
    draw_box(ax, 2.25, 1.75, 1.5, 1.0, "queue\njobs wait\nfor free nodes", PALE)
    draw_arrow(ax, (1.75, 2.25), (2.25, 2.25))
    draw_arrow(ax, (3.75, 2.25), (4.25, 2.25))
    _node(ax, 4.25, 1.25, "first node", ["the script", "mpirun", "worker 0"])
    _node(ax, 6.25, 1.25, "second node", ["", "", "worker 1"])
    draw_arrow(ax, (5.7, 2.18), (6.4, 1.7))
    _storage(ax, "storage that all nodes see: program, data, checkpoints")
    return diagram


def one_node_or_many(model: str) -> Figure:
    """How much of the speed of eight fast GPUs is left to them when they talk, by what
    connects them: solutions/cluster/one_node_or_many.py, calculated."""
    program = course.PACKAGE_ROOT / "solutions" / "cluster" / "one_node_or_many.py"
    efficiencies = runpy.run_path(str(program))["efficiencies"]
    found = efficiencies(workers=8, batch=64, faster=10)
    figure, axis = subplots(figsize=(8, 2.8))
    for link, row in reversed(found.items()):
        least, most = (100 * value for value in row[model])
        axis.plot([least, most], [link, link], "o-", color=BLUE)
        axis.annotate(
            f"{least:.0f} to {most:.0f} %",
            (most, link),
            (8, 0),
            va="center",
            textcoords="offset points",
        )
    axis.set(xlim=(0, 125), xlabel="speed left, in %: nothing hidden to all hidden")
    axis.set_xticks(range(0, 101, 20))
    axis.set_title(f"{model} on 8 GPUs, each 10 times as fast as a P100; calculated")
    return figure


def mpi_job(pods: int = 2, slots: int = 2) -> Diagram:
    """Kubernetes' MPI operator: a launcher, and pods with slots for workers. For 2 or
    3 pods with 1 to 3 slots."""
    if not (2 <= pods <= 3 and 1 <= slots <= 3):
        raise ValueError("this drawing is for 2 or 3 pods with 1 to 3 slots")
    width = 2.3 + 2.0 * pods
    diagram, ax = paper(
        width,
        3.5,
        f"A launcher pod runs mpirun. The MPI operator gives it a file with {pods} "
        f"hosts, the worker pods, and {slots} slots for each. So mpirun starts {slots} "
        f"workers in each of {pods} worker pods, {pods * slots} in all. All worker "
        "pods mount one volume, with the checkpoints.",
    )
    _node(ax, 0.15, 1.25, "launcher pod", ["list of hosts", "mpirun"])
    for pod in range(pods):
        left = 2.2 + 2.0 * pod
        ranks = [f"worker {pod * slots + slot}" for slot in range(slots)]
        _node(ax, left, 1.25, f"worker pod {pod}", ["sshd"] * (slots < 3) + ranks)
    draw_arrow(ax, (1.75, 2.18), (2.2, 2.18))
    draw_text(ax, 1.97, 2.33, "ssh")
    _storage(ax, "volume that all worker pods mount: checkpoints, logs")
    return diagram


def spark_job() -> Diagram:
    """horovod.spark.run: the driver sends a function to two tasks."""
    diagram, ax = paper(
        6.9,
        3.5,
        "The driver calls horovod.spark.run with the function train. Spark starts 2 "
        "tasks and sends the function to each. In each task it runs as one "
        "worker, and the workers talk to each other with Horovod. What each call "
        "returns comes back to the driver. All nodes see one folder, with the "
        "environment, the data and the checkpoints.",
    )
    draw_box(
        ax, 0.15, 1.55, 1.7, 1.4, "driver\nhorovod.spark.run(\ntrain, ...)", edge=BLUE
    )
    for worker, left in enumerate((2.8, 4.8)):
        rows = ["train(args)", f"worker {worker}"]
        _node(ax, left, 1.25, f"Spark task {worker}", rows)
    draw_arrow(ax, (1.85, 2.6), (2.8, 2.6))
    draw_text(ax, 2.32, 2.75, "function")
    draw_arrow(ax, (2.8, 1.9), (1.85, 1.9))
    draw_text(ax, 2.32, 1.75, "results")
    draw_arrow(ax, (4.4, 1.6), (4.8, 1.6), both=True)
    _storage(ax, "folder that all nodes see: environment, data, checkpoints")
    return diagram


# What SageMaker does with `fit`, in its order.
STEPS = (
    "takes your script\nand its source_dir",
    "starts hosts\nof the kind you chose",
    "pulls the container\nfrom a registry",
    "runs the container\non each host",
    "downloads\nyour code",
    "copies each channel\nfrom S3",
    "calls mpirun,\nwhich trains",
)


def sagemaker_job() -> Diagram:
    """SageMaker's way of a job: what happens after `fit`, step by step."""
    said = "; ".join(" ".join(step.split()) for step in STEPS)
    diagram, ax = paper(
        8.4,
        4.3,
        f"SageMaker's way of a job. After you call fit, SageMaker {said}. While it "
        "trains, the output goes to CloudWatch. At its end the model goes to your "
        "bucket in S3, and the hosts are given back.",
    )
    draw_text(ax, 4.2, 4.1, "SageMaker's way of a job", size=12, weight="bold")
    draw_box(ax, 0.15, 3.05, 1.5, 0.7, "your machine:\nestimator.fit(...)", edge=BLUE)
    width, gap = 1.75, 0.4
    places = [(2.05 + (width + gap) * column, 3.05) for column in range(3)]
    places += [(2.05 + (width + gap) * column, 1.85) for column in (2, 1, 0)]
    places += [(0.15, 1.85)]
    previous = (1.65, 3.4)
    for number, ((x, y), words) in enumerate(zip(places, STEPS, strict=True), 1):
        wide = width if x > 1 else 1.5
        draw_box(ax, x, y, wide, 0.7, words, PALE)
        draw_text(ax, x + wide / 2, y + 0.83, f"{number}", weight="bold")
        if number <= 3:
            draw_arrow(ax, previous, (x, y + 0.35))
            previous = (x + wide, y + 0.35)
        elif number == 4:
            draw_arrow(ax, (x + 0.3, 3.05), (x + 0.3, y + 0.7))
            previous = (x, y + 0.35)
        else:
            draw_arrow(ax, previous, (x + wide, y + 0.35))
            previous = (x, y + 0.35)
    draw_box(
        ax,
        0.15,
        0.4,
        3.6,
        0.8,
        "CloudWatch: what each host prints,\nand its load",
        edge=ORANGE,
    )
    draw_box(
        ax,
        4.2,
        0.4,
        4.0,
        0.8,
        "your bucket in S3: model, checkpoints, logs\n(the hosts are given back)",
        edge=GREEN,
    )
    draw_arrow(ax, (0.9, 1.85), (0.9, 1.2), color=GREY)
    draw_arrow(ax, (1.4, 1.85), (4.5, 1.2), color=GREY)
    return diagram


def _node(ax: Axes, left: float, bottom: float, title: str, rows: list[str]) -> None:
    """A frame with a title and a box for each row that isn't empty, from the top."""
    draw_box(ax, left, bottom, 1.6, 2.05, "", edge=ORANGE)
    draw_text(ax, left + 0.8, bottom + 1.88, title, weight="bold")
    for number, words in enumerate(rows):
        if words:
            draw_box(
                ax, left + 0.15, bottom + 1.28 - 0.58 * number, 1.3, 0.45, words, PALE
            )


def _storage(ax: Axes, words: str) -> None:
    right = ax.get_xlim()[1]
    draw_box(ax, 0.15, 0.2, right - 0.3, 0.45, words, edge=GREEN)
    for x in (right * 0.6, right - 1.0):
        draw_arrow(ax, (x, 0.65), (x, 1.25), color=GREY, both=True)
