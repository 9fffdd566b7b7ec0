"""Texts: the difference of two, and what stands between two marks of one."""

import difflib

from distcheck import errors


def difference(old: str, new: str, old_name: str, new_name: str) -> str:
    """The unified diff of two texts."""
    return "\n".join(
        difflib.unified_diff(
            old.splitlines(), new.splitlines(), old_name, new_name, n=2, lineterm=""
        )
    )


def between(name: str, page: str, begin: str, end: str, content: str) -> str:
    """The text of a page, a file `name`, with `content` between two of its marks.

    Raises UserError if one is missing.
    """
    before, mark, rest = page.partition(begin)
    if not mark or end not in rest:
        raise errors.UserError(f"{name} lacks the line {begin} or {end}.")
    return f"{before}{begin}\n\n{content}\n\n{end}{rest.partition(end)[2]}"
