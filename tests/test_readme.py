"""The pages for people say what is there: README and those that it sends to."""

import re
import sys
from pathlib import Path

import pytest
import yaml
from processes import captured

from utils.base import course
from utils.lessons import outline

ROOT = course.PACKAGE_ROOT
PAGES = sorted(ROOT.glob("*.md"))
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_its_commands_and_files_exist(page):
    text = page.read_text()
    makefile = (ROOT / "Makefile").read_text()
    for target in set(re.findall(r"^make (\w+)", text, re.MULTILINE)):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), f"make {target}"
    for link in re.findall(r"\]\(([^)#]+)\)", text):
        if not link.startswith("http"):
            assert (ROOT / link).exists(), link
    for path in re.findall(r"`((?:utils|tests|exercises)/[\w/.]+)`", text):
        assert (ROOT / path).exists(), path
    for module in re.findall(r"python -m (utils[\w.]+)", text):
        assert (ROOT / module.replace(".", "/")).with_suffix(".py").exists() or (
            ROOT / module.replace(".", "/") / "__main__.py"
        ).exists(), module


def test_readme_is_short():
    assert {"INSTALL", "CONTRIBUTING", "BENCHMARKS"} <= {page.stem for page in PAGES}
    text = (ROOT / "README.md").read_text()
    generated = outline.overview()
    assert len(text.replace(generated, "").split()) < 1_300


def test_the_map_names_every_room():
    rooms = {path.parent.name for path in course.PACKAGE.glob("*/__init__.py")}
    named = re.findall(r"^\| \d? ?\| `(\w+)/` \|", CONTRIBUTING, re.MULTILINE)
    assert sorted(named) == sorted(rooms)


def test_the_version_has_one_place():
    said = captured([Path(sys.executable).with_name("course"), "--version"], check=True)
    assert said.stdout.strip() == course.version()
    assert re.fullmatch(r"\d+\.\d+(\.\d+)?", course.version())
    newest = re.search(r"^## (.+)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert newest[1] in (course.version(), "Not released yet")
    assert "version" not in yaml.safe_load((ROOT / "CITATION.cff").read_text())


def test_issues_ask_for_the_doctor():
    templates = sorted((ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml"))
    assert len(templates) == 2
    for template in templates:
        fields = yaml.safe_load(template.read_text())["body"]
        (doctor,) = (field for field in fields if field["id"] == "doctor")
        assert "`course doctor --json`" in doctor["attributes"]["label"]
        assert doctor["validations"]["required"]
