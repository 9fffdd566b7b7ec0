"""The ways through the course that lesson 00 shows."""

from utils import Routes
from utils.lessons import outline, routes


def test_each_lesson_is_on_one_route():
    for lesson in outline.read().notebooks.values():
        number = int(lesson.number)
        on = [route for route in routes.ROUTES if route.first <= number <= route.last]
        assert len(on) == 1, lesson.name


def test_minutes_are_those_of_the_lessons():
    lessons = outline.read().notebooks.values()
    route = routes.Route("all of it", "see it", 0, 99)
    assert route.minutes == sum(lesson.minutes for lesson in lessons)
    first, second = sorted(lesson.minutes for lesson in list(lessons)[:2])
    numbers = tuple(int(lesson.number) for lesson in list(lessons)[:2])
    assert routes.Route("one", "see one", *numbers, numbers).minutes == second >= first


def test_a_table_has_a_row_for_each():
    text = repr(Routes())
    assert all(route.title in text for route in routes.ROUTES)
    assert "00 to 10" in text
