"""The console that reports are printed on: a terminal, a pipe or a file."""

from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleDimensions, ConsoleOptions, RenderableType
from rich.segment import Segment

from tracekit._util.text import terminal_lines
from tracekit.report.text import in_ci_job, without_ci_commands

MIN_WIDTH = 76
"""Columns that the tables need: in a narrower terminal lines wrap, and no number or name is cut
off."""
DEFAULT_WIDTH = 80
"""Columns of a terminal that says it has none (``COLUMNS=0``)."""


class Screen(Console):
    r"""Standard output.

    Text is printed as it is: nothing in a name of a trace is read as markup, and control characters
    become visible.

    >>> Screen(width=40).width, Screen(width=120).width
    (76, 120)
    >>> Screen(width=80).print("[red]a\x1b[2J")
    [red]a␛[2J
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"highlight": False, "markup": False, "emoji": False, **options})
        width, height = self.size
        width = width or DEFAULT_WIDTH
        self.columns = width
        """Columns that there really are; tables take ``MIN_WIDTH`` at least."""
        # Asked once instead of for every table.
        self.size = ConsoleDimensions(max(width, MIN_WIDTH), height)
        self._in_ci_job = in_ci_job()

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Return what to print, piece by piece."""
        at_line_start = True
        for segment in super().render(renderable, options):
            text, style, control = segment
            if control or (text.isprintable() and not self._in_ci_job):
                yield segment
                continue
            shown = terminal_lines(text)
            if self._in_ci_job:
                # A piece that continues a line gets a character before it, so that ^ matches only
                # at real line starts.
                before = "" if at_line_start else "x"
                shown = without_ci_commands(before + shown).removeprefix(before)
                at_line_start = not text.rpartition("\n")[2].strip() and (
                    at_line_start or "\n" in text
                )
            yield Segment(shown, style)

    def on_broken_pipe(self) -> None:
        """Raise the error again: the caller decides what a reader that leaves early means."""
        raise BrokenPipeError
