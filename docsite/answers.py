"""Answers shown in the README and in the gallery, written again from what the command prints.

``python -m docsite.answers`` rewrites every block that begins with ``$ tracekit analyze PATH``; tests hold the blocks
against the same output.
"""

from __future__ import annotations

import io
import re
from pathlib import Path

from tracekit import analyze
from tracekit.report.terminal.analysis import render
from tracekit.report.terminal.screen import Screen

ROOT = Path(__file__).resolve().parent.parent
PAGES = ("README.md", "docs/gallery.md")
WIDTH = 90
"""Columns of the terminal that the answers are printed in."""
_BLOCK = re.compile(r"\$ tracekit analyze ([\w/-]+)\n(.*?)```", re.DOTALL)


def answer(path: str) -> str:
    """Return what ``tracekit analyze PATH`` prints, without trailing spaces."""
    out = io.StringIO()
    render(analyze(ROOT / path), Screen(file=out, width=WIDTH), full=False)
    lines = [line.rstrip() for line in out.getvalue().rstrip("\n").split("\n")]
    return "\n".join(lines)


def write_again(text: str) -> str:
    """Return a page with every answer as it is printed now."""
    return _BLOCK.sub(lambda match: f"$ tracekit analyze {match[1]}\n{answer(match[1])}\n```", text)


def main() -> None:
    """Rewrite the pages."""
    for name in PAGES:
        page = ROOT / name
        page.write_text(write_again(page.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
