"""The README says what is there."""

import re

from utils.base import course

README = (course.PACKAGE_ROOT / "README.md").read_text()


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
