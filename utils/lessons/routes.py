"""Ways through the course, shown to learners who don't want all of it."""

from distcheck.show import Page, Table
from utils.lessons import outline


class Routes(Page):
    """The routes of outline.toml with their lessons and hours, as a table."""

    def __init__(self):
        rows = [
            (route.title, route.about, " to ".join(route.lessons), route.hours)
            for route in outline.routes_here()
        ]
        super().__init__(
            Table(("Route", "What you learn", "Lessons", "It takes"), rows)
        )
