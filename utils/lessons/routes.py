"""Ways through the course, shown to learners who don't want all of it."""

from utils.base.show import Page, Table
from utils.lessons import outline


class Routes(Page):
    """The routes of outline.toml with their lessons and hours, as a table."""

    def __init__(self):
        pass

    @property
    def parts(self) -> tuple[Table, ...]:
        rows = [
            (route.title, route.about, " to ".join(route.lessons), route.hours)
            for route in outline.read().routes
            if route.minutes
        ]
        return (Table(("Route", "What you learn", "Lessons", "It takes"), rows),)
