"""Where reports are printed: a terminal, a pipe or a file."""

from __future__ import annotations

from typing import Any

from rich.console import Console

LEAST_WIDTH = 76
"""What the tables need: in a narrower terminal lines wrap, and no number or name is cut off."""


class Screen(Console):
    """Standard output. A reader that leaves early is the caller's to judge, and is not an error of ours.

    >>> Screen(width=40).width, Screen(width=120).width
    (76, 120)
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"highlight": False, **options})
        self.width = max(self.width, LEAST_WIDTH)

    def on_broken_pipe(self) -> None:
        """Pass it on: a gate whose output nobody read to the end has its verdict all the same."""
        raise BrokenPipeError
