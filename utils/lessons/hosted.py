"""Copies of the notebooks for hosts of notebooks, such as Colab and Kaggle.

A hosted copy begins with two cells of its own: one says what to know, and the other one
gets the course and sets it up there (utils/setup/hosted.py). The rest is the lesson,
unchanged. The site's workflow publishes the copies to the branch `hosted`, and the
site's pages lead to them (site/conf.py).
"""

import copy
import os
import re
from pathlib import Path

import nbformat
from nbformat import NotebookNode

from distcheck import errors, files
from utils.lessons import notebook_rules, notebooks

WORDS = """\
**This copy is for Colab and Kaggle.** The next cell gets the course and sets it up on \
the machine that you were given there. Run it before all other cells, and run it again \
whenever the kernel has been restarted. The first time takes about ten minutes, \
because Horovod is built from its source. Later it takes a second.

- On Kaggle, switch on *Internet* in the notebook's settings first. If you choose \
*GPU T4 x2* there, you train on two GPUs. Colab gives one GPU.
- The programs that you write are in the folder `course/exercises` of the home folder. \
Download them before you leave, because the host deletes them with the machine.
- We have run such copies in the kernel of another environment, but never on Colab or \
Kaggle themselves. If something fails there, please \
[tell us](https://github.com/{repository}/issues).\
"""

SET_UP = """\
# About ten minutes the first time, a second later. Run it again after each restart.
%cd -q ~
![ -d course ] || git clone --quiet --depth 1 https://github.com/{repository} course
import runpy
runpy.run_path("course/utils/setup/hosted.py", run_name="__main__");\
"""


def write(folder: str | os.PathLike, repository: str) -> list[Path]:
    """Write a hosted copy of each notebook into a folder; return their paths.

    repository: OWNER/NAME on GitHub, from where the copies get the course.
    Raises UserError for what can't be such a name, and for the folder of the
    notebooks themselves.
    """
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", repository):
        raise errors.UserError(
            f"{repository!r} is no repository of GitHub: name it OWNER/NAME."
        )
    folder = Path(folder).resolve()
    sources = notebooks.discover()
    if folder == sources[0].parent.resolve():
        raise errors.UserError(
            f"{files.shown(folder)} has the notebooks themselves, which the copies "
            "would overwrite. Name another folder."
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise errors.UserError(
            f"the folder {files.shown(folder)} can't be made: {error.strerror}."
        ) from None
    for source in sources:
        hosted = hosted_copy(notebook_rules.read(source), repository)
        files.write_whole(folder / source.name, nbformat.writes(hosted) + "\n")
    return [folder / source.name for source in sources]


def hosted_copy(notebook: NotebookNode, repository: str) -> NotebookNode:
    """`notebook` with the two cells in front."""
    hosted = copy.deepcopy(notebook)
    words = WORDS.format(repository=repository)
    code = SET_UP.format(repository=repository)
    hosted.cells[:0] = [
        nbformat.v4.new_markdown_cell(words, id="hosted-words"),
        nbformat.v4.new_code_cell(code, id="hosted-set-up"),
    ]
    return hosted
