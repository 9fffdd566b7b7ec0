"""What is said to the user: what they can mend, and what they should know."""

import sys


def notice(text: str) -> None:
    """Tell the user that something is synthetic, skipped or slower than expected.

    A launcher may collect these lines, and repeat them with every result.
    """
    print(f"NOTICE: {text}", file=sys.stderr, flush=True)


class UserError(Exception):
    """Something that the user can mend. The message says what, where and how.

    Notebooks and the command line show the message alone, without a traceback.
    """

    def _render_traceback_(self) -> list[str]:
        return [f"{type(self).__name__}: {self}"]
