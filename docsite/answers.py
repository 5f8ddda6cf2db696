"""Answers shown in the README and in documents, written again from what the command prints.

``python -m docsite.answers`` rewrites every block that begins with ``$ tracekit``; tests hold the
blocks against the same output. A block may show parts of an answer: a line ``…`` stands for what is
left out. It also fills the examples of findings, from the figures in ``finding_examples.toml``.
"""

from __future__ import annotations

import re
import shlex
import tomllib
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from docsite.finding_examples import example_of
from tracekit.cli import make_app
from tracekit.metrics.alternatives import ALTERNATIVES

ROOT = Path(__file__).resolve().parent.parent
WIDTHS = {"README.md": 90, "docs/gallery.md": 90, "docs/gate.md": 120}
"""Columns of the terminal that the answers of a page are printed in, where it is not the default."""
DEFAULT_WIDTH = 100
FINDINGS_PAGE = "docs/findings.md"
"""Page whose table has an example of each finding."""
EXAMPLES = Path(__file__).with_name("finding_examples.toml")
"""Figures of these examples."""
LEFT_OUT = "…"
"""Line that stands for lines of the answer that are not shown."""
BLOCK = re.compile(
    r"^```(?:console)?\n\$ tracekit (?P<words>[^\n]+)\n(?P<shown>[^$].*?)```",
    re.DOTALL | re.MULTILINE,
)
"""A block of code that begins with a command and shows what it prints."""


def pages_with_answers() -> dict[str, int]:
    """Return every page that shows an answer, and the columns it is printed in."""
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    names = [
        page.relative_to(ROOT).as_posix()
        for page in pages
        if BLOCK.search(page.read_text(encoding="utf-8"))
    ]
    return {name: WIDTHS.get(name, DEFAULT_WIDTH) for name in names}


def answer(words: str, width: int) -> list[str]:
    """Return the lines that ``tracekit`` prints for these words, without trailing spaces."""
    printed = CliRunner().invoke(make_app(), shlex.split(words), env={"COLUMNS": str(width)}).stdout
    return [line.rstrip() for line in printed.rstrip("\n").split("\n")]


def shown_lines(shown: str, printed: list[str]) -> list[str]:
    r"""Return the lines of a block as they are printed now: all, or the parts that the block shows.

    A part begins where the printed line has the same first word, and has as many lines as before.

    >>> shown_lines("…\nTime 1 s\n…", ["run", "Time 2 s", "Idle 0"])
    ['…', 'Time 2 s', '…']
    >>> shown_lines("run\nTime 1 s\n", ["run", "Time 2 s", "Idle 0"])
    ['run', 'Time 2 s', 'Idle 0']
    """
    old = shown.rstrip("\n").split("\n")
    if LEFT_OUT not in old:
        return printed
    lines: list[str] = []
    row = 0
    for i, line in enumerate(old):
        if line == LEFT_OUT:
            lines.append(line)
            continue
        begins_part = i == 0 or old[i - 1] == LEFT_OUT
        if begins_part:
            first_words = [_first_word(later) for later in printed[row:]]
            if _first_word(line) not in first_words:
                raise SystemExit(f"the answer has no line that begins as this one any more: {line}")
            row += first_words.index(_first_word(line))
        lines.append(printed[row])
        row += 1
    return lines


def _first_word(line: str) -> str:
    return line.strip().partition(" ")[0]


def write_again(text: str, width: int) -> str:
    """Return a page with every answer as it is printed now."""

    def block(match: re.Match[str]) -> str:
        lines = shown_lines(match["shown"], answer(match["words"], width))
        fence = match[0].partition("\n")[0]
        return "\n".join([fence, f"$ tracekit {match['words']}", *lines, "```"])

    return BLOCK.sub(block, text)


def fill_examples(text: str) -> str:
    """Return the page of findings with the example of each row of its table as it is worded now."""
    examples = tomllib.loads(EXAMPLES.read_text(encoding="utf-8"))
    lines: list[str] = []
    for line in text.split("\n"):
        cells = line.split(" | ")
        example = examples.get(cells[0].removeprefix("| ")) if len(cells) == 3 else None
        if example is None:
            lines.append(line)
            continue
        sentence = _sentence({"cost_ns": 1, "share": 1.0, **example}).replace("_", r"\_")
        lines.append(f"{cells[0]} | {cells[1]} | {sentence} |")
    return "\n".join(lines)


CATALOGUE_HEAD = (
    "| change | what it sees | when it is wrong, or what it costs |",
    "|---|---|---|",
)
"""First lines of the table of the catalogue's entries."""


def fill_catalogue(text: str) -> str:
    """Return the page of findings with the table of the catalogue's entries as they are now."""
    lines = text.split("\n")
    first = lines.index(CATALOGUE_HEAD[0])
    behind = next(row for row in range(first, len(lines)) if not lines[row].startswith("|"))
    rows = []
    for entry in ALTERNATIVES:
        seen = (type(entry).__doc__ or "").strip().partition("\n")[0].rstrip(".")
        rows.append(
            f"| `{entry.change}` | {seen} | {entry.caveat.rstrip('.')} |".replace("_", r"\_")
        )
    return "\n".join([*lines[:first], *CATALOGUE_HEAD, *rows, *lines[behind:]])


def _sentence(example: dict[str, Any]) -> str:
    figures = {**example, **example.get("evidence", {})}
    figures.pop("evidence", None)
    return example_of(**figures).text()


def main() -> None:
    """Rewrite the pages; commands name their samples as seen from the repository."""
    for name, width in pages_with_answers().items():
        page = ROOT / name
        page.write_text(write_again(page.read_text(encoding="utf-8"), width), encoding="utf-8")
    page = ROOT / FINDINGS_PAGE
    text = fill_examples(page.read_text(encoding="utf-8"))
    page.write_text(fill_catalogue(text), encoding="utf-8")


if __name__ == "__main__":
    main()
