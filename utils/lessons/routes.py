"""Ways through the course, for learners who don't want all of it.

The minutes are those of outline.toml.
"""

from dataclasses import dataclass

from utils.base.show import Page, Table
from utils.lessons import outline


@dataclass(frozen=True)
class Route:
    """first, last: numbers of lessons. one_of: of these a learner chooses one."""

    title: str
    aim: str
    first: int
    last: int
    one_of: tuple[int, ...] = ()

    @property
    def minutes(self) -> int:
        """What a learner should set aside, with the longest of those to choose from."""
        of_lesson = {
            int(lesson.number): lesson.minutes
            for lesson in outline.read().notebooks.values()
            if self.first <= int(lesson.number) <= self.last
        }
        choices = [of_lesson.pop(number, 0) for number in self.one_of]
        return sum(of_lesson.values()) + max(choices, default=0)


ROUTES = (
    Route("The core", "make a program train on several devices", 0, 10),
    Route("Accuracy and failure", "be fast, stay accurate, survive a crash", 15, 22),
    Route(
        "Choose: a strategy", "use all of `tf.distribute`, and your own loop", 11, 14
    ),
    Route("Choose: a cluster", "run on several hosts", 23, 27, (24, 25, 26)),
    Route("Choose: large models", "fit more into one device, or split it", 28, 29),
    Route("The end", "use other frameworks, and do a project", 30, 32),
)


class Routes(Page):
    """The routes with their lessons and hours; shows itself as a table."""

    def __init__(self):
        pass

    @property
    def parts(self) -> tuple[Table, ...]:
        rows = [
            (
                route.title,
                route.aim,
                f"{route.first:02} to {route.last:02}",
                f"{route.minutes / 60:.1f}",
            )
            for route in ROUTES
        ]
        return (Table(("Route", "You learn to", "Lessons", "Hours"), rows),)
