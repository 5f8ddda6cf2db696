"""Where reports are printed: a terminal, a pipe or a file."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleDimensions, ConsoleOptions, RenderableType
from rich.segment import Segment

from tracekit._util.text import terminal_lines

LEAST_WIDTH = 76
"""What the tables need: in a narrower terminal lines wrap, and no number or name is cut off."""

_COMMAND = re.compile(r"(?m)^(\s*)::")
"""What a runner of jobs takes for a command of ours: a name of a trace may wrap to such a line."""


class Screen(Console):
    r"""Standard output. A reader that leaves early is the caller's to judge, and is no error of ours.

    Text is text: no name of a trace is read as markup, and no control character in one reaches the terminal.

    >>> Screen(width=40).width, Screen(width=120).width
    (76, 120)
    >>> Screen(width=80).print("[red]a\x1b[2J")
    [red]a␛[2J
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"highlight": False, "markup": False, "emoji": False, **options})
        wide, high = self.size
        self.size = ConsoleDimensions(max(wide, LEAST_WIDTH), high)  # asked once, and not again for every table
        self._runs_commands = bool(os.environ.get("GITHUB_ACTIONS"))

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Return what to print, piece by piece."""
        fresh = True  # at the start of a line
        for segment in super().render(renderable, options):
            text, style, control = segment
            if control or (text.isprintable() and not self._runs_commands):
                yield segment
                continue
            shown = terminal_lines(text)
            if self._runs_commands:
                shown = _COMMAND.sub(r"\1: :", shown if fresh else f"x{shown}")[0 if fresh else 1 :]
                fresh = not text.rpartition("\n")[2].strip() and (fresh or "\n" in text)
            yield Segment(shown, style)

    def on_broken_pipe(self) -> None:
        """Pass it on: a gate whose output nobody read to the end has its verdict all the same."""
        raise BrokenPipeError
