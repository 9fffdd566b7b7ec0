"""The README says what is there."""

import re

from utils.base import course
from utils.lessons import notebook_rules

README = (course.PACKAGE_ROOT / "README.md").read_text()


def test_its_table_is_that_of_the_notebooks():
    rows = re.findall(
        r"^\| (\d\d) \| \[(.*?)\]\(notebooks/(.*?)\) \| .* \| (\d+) \| .*\|$",
        README,
        re.MULTILINE,
    )
    there = sorted((course.PACKAGE_ROOT / "notebooks").glob("[0-9][0-9]_*.ipynb"))
    assert [row[2] for row in rows] == [path.name for path in there]
    for number, title, name, minutes in rows:
        notebook = notebook_rules.read(course.PACKAGE_ROOT / "notebooks" / name)
        assert name.startswith(number)
        heading = notebook.cells[0].source.splitlines()[0]
        assert heading.startswith(f"# {title}"), f"{name}: {heading}"
        assert int(minutes) == notebook.metadata.course.minutes, name


def test_its_commands_and_files_exist():
    makefile = (course.PACKAGE_ROOT / "Makefile").read_text()
    for target in set(re.findall(r"^make (\w+)", README, re.MULTILINE)):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), f"make {target}"
    for link in re.findall(r"\]\(([^)#]+)\)", README):
        if not link.startswith("http"):
            assert (course.PACKAGE_ROOT / link).exists(), link


def test_its_map_names_every_room_and_what_it_names_is_there():
    rooms = {path.parent.name for path in course.PACKAGE.glob("*/__init__.py")}
    named = re.findall(r"^\| \d? ?\| `(\w+)/` \|", README, re.MULTILINE)
    assert sorted(named) == sorted(rooms)
    for path in re.findall(r"`(utils/[\w/.]+)`", README):
        assert (course.PACKAGE_ROOT / path).exists(), path
