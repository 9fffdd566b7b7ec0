"""Judge the tasks of exercises/servers.py, by what a chief, two workers and two servers
did."""

from distcheck import tasks
from distcheck.judges.registry import exercise
from distcheck.judges.runs import Problem, Rank, Run
from distcheck.lab import ENDED
from distcheck.scenarios import SCENARIOS

CLUSTER = dict(SCENARIOS["servers"].cluster)
TASKS = tasks.tasks_of({kind: [""] * count for kind, count in CLUSTER.items()})
WORKERS, SERVERS = CLUSTER["worker"], CLUSTER["ps"]
TRAIN_IMAGES, BATCH, EPOCHS, STEPS = 60, 4, 2, 6
UPDATES = EPOCHS * STEPS
STRATEGY = "ParameterServerStrategyV2"

task = exercise(
    "servers",
    options=(
        f"--epochs {EPOCHS} --steps {STEPS} --train-images {TRAIN_IMAGES} --batch-size"
        f" {BATCH}"
    ),
).part


def _chief(run: Run) -> Rank:
    return run.ranks[0]


@task(
    "A",
    scenarios=("servers",),
    expected=(
        "Each worker and each parameter server (ps) starts a server, as what TF_CONFIG"
        " calls it, and stays there. The chief goes on."
    ),
)
def takes_its_role(runs: dict[str, Run]) -> None:
    """Workers and servers serve, the chief goes on."""
    run = runs["servers"]
    for task, rank in zip(TASKS, run.ranks, strict=True):
        serves = rank.all("serves")
        if task.is_chief:
            if serves:
                raise Problem(
                    "chief-serves",
                    "The chief starts a server. It should go on instead, and tell the "
                    "others what to do.",
                    serves[0]["line"],
                )
            continue
        if not serves:
            # Several chiefs are in each other's way: that comes of it.
            chiefs = [rank for rank in run.ranks[1:] if rank.all("collective_start")]
            if _chief(run).all("failed") and not chiefs:
                run.raise_if_in_trouble()
            raise Problem(
                "no-server",
                f"The task {task} starts no server, but every worker and every ps has "
                "to serve the others.",
            )
        if (serves[0]["job"], serves[0]["index"]) != (task.type, task.index):
            raise Problem(
                "another-role",
                f"The task {task} starts a server under another role, "
                f"{serves[0]['job']} {serves[0]['index']}.",
                serves[0]["line"],
            )
        if rank.all("ended"):
            raise Problem(
                "left",
                f"The task {task} starts a server, but then runs to its end, and the "
                "server ends with it. The server's join() would wait.",
                serves[0]["line"],
            )


@task(
    "B",
    scenarios=("servers",),
    expected=(
        f"The parameter servers hold all weights, and each of the {SERVERS} servers "
        "has a part of the largest one."
    ),
)
def holds_weights_on_servers(runs: dict[str, Run]) -> None:
    """All weights are on servers, the largest one cut."""
    run = runs["servers"]
    made = _chief(run).all("strategy")
    if not made:
        run.raise_if_in_trouble()
        raise Problem("no-strategy", "The chief makes no strategy.")
    if made[-1]["kind"] != STRATEGY:
        kind, line = made[-1]["kind"], made[-1]["line"]
        raise Problem("another-strategy", f"The chief makes a {kind}.", line)
    placed = _chief(run).first("placed")
    elsewhere = [
        name
        for name, server in zip(placed["names"], placed["servers"], strict=True)
        if server < 0
    ]
    if elsewhere:
        raise Problem(
            "not-on-servers",
            f"These variables are not on a server: {', '.join(elsewhere[:3])}. They "
            "were not made in the strategy's scope.",
        )
    if not any("/part_" in name for name in placed["names"]):
        raise Problem(
            "uncut",
            f"No variable is cut into parts: {', '.join(placed['names'])}. So one "
            "server has nearly all of the weights. Give the strategy a "
            "variable_partitioner.",
            made[-1]["line"],
        )
    held = {
        server
        for name, server in zip(placed["names"], placed["servers"], strict=True)
        if "/part_" in name
    }
    if len(held) < SERVERS:
        raise Problem(
            "in-one-place",
            f"All parts are on {len(held)} server, but there are {SERVERS}.",
        )


@task(
    "C",
    scenarios=("servers",),
    expected=("Each worker makes its own batches, as the chief has told it to."),
)
def feeds_workers(runs: dict[str, Run]) -> None:
    """The workers make their own batches."""
    run = runs["servers"]
    if "create_per_worker_dataset" not in _orders(run):
        run.raise_if_in_trouble()
        raise Problem(
            "no-batches",
            "The workers don't make their own batches, so every batch would have to "
            "come from the chief.",
        )


def _orders(run: Run) -> list[str]:
    """What the chief told the workers, in order. Raises Missing without a strategy."""
    _chief(run).first("strategy")
    return [event["name"] for event in _chief(run).all("orders")]


@task(
    "D",
    scenarios=("servers",),
    expected=(
        f"The chief hands out {STEPS} training steps in each epoch and waits until "
        "they are done. Each step makes one update of the weights."
    ),
)
def hands_out_steps(runs: dict[str, Run]) -> None:
    """As many steps as asked for, done by workers, and awaited."""
    run = runs["servers"]
    orders = _orders(run)
    scheduled = orders.count("schedule")
    if not scheduled:
        run.raise_if_in_trouble()
        raise Problem("not-scheduled", "The chief hands out no steps.")
    if run.outcome != ENDED:
        run.raise_if_in_trouble()
    last = len(orders) - 1 - orders[::-1].index("schedule")
    if not {"join", "fetch"} & set(orders[last:]):
        raise Problem(
            "not-awaited",
            f"The chief hands out {scheduled} steps, but doesn't wait for the last "
            "ones: it calls neither join() nor fetch() after them.",
        )
    updates = _chief(run).first("placed")["updates"]
    if scheduled != UPDATES or updates != UPDATES:
        raise Problem(
            "other-steps",
            f"The chief hands out {scheduled} steps, and the weights get {updates} "
            f"updates. {EPOCHS} epochs of {STEPS} steps are {UPDATES}, however many "
            "workers there are.",
        )
