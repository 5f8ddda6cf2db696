"""HTML page of a run's history: step time, exposed time, bubble and model FLOP utilisation over recordings or commits.

The page holds its own data: a new point is added to those that the file has, and the file is
written again.
"""

import os
import re
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

from tracekit._util.files import check_output_path
from tracekit.analysis import Analysis
from tracekit.documents.coding import decode
from tracekit.documents.history import HISTORY_FORMAT, HistoryDocument, HistoryPoint
from tracekit.errors import InputError, OptionError
from tracekit.report.html.page import render_html
from tracekit.report.html.templates import render_page
from tracekit.report.palette import LABEL_COLOURS
from tracekit.report.write import write_file

COMMIT_VARIABLES = ("GITHUB_SHA", "CI_COMMIT_SHA", "BUILDKITE_COMMIT", "GIT_COMMIT")
"""Environment variables in which build servers name the commit."""
_DATA = re.compile(r'<script type="application/json" id="data">(.*?)</script>', re.DOTALL)


def current_commit(environment: dict[str, str] | None = None) -> str | None:
    """Return the commit that a build server names; None elsewhere.

    >>> current_commit({"GITHUB_SHA": "4f2a"}), current_commit({})
    ('4f2a', None)
    """
    variables = os.environ if environment is None else environment
    return next((variables[name] for name in COMMIT_VARIABLES if variables.get(name)), None)


def write_report(analysis: Analysis, history: Path, name: str) -> str:
    """Write the page of one recording into the folder beside the history.

    Return its address from there.
    """
    folder = history.with_name(f"{history.stem}-reports")
    folder.mkdir(exist_ok=True)
    file = folder / f"{re.sub(r'[^A-Za-z0-9._-]+', '-', name).strip('-.') or 'run'}.html"
    write_file(file, render_html(analysis))
    return quote(f"{folder.name}/{file.name}")


def add_to_history(path: Path, points: Sequence[HistoryPoint]) -> None:
    """Add points to a history, which is made if it is not there.

    A point of the same name and time is replaced.
    """
    by_key = {(point.name, point.time): point for point in (*read_history(path), *points)}
    ordered = sorted(by_key.values(), key=lambda point: point.time)
    page = render_page(
        "history.html.j2",
        css=["page.css"],
        scripts=["chart.js", "tables.js", "history.js"],
        data=HistoryDocument(HISTORY_FORMAT, ordered, LABEL_COLOURS),
        points=ordered,
    )
    write_file(path, page)


def check_history(path: Path) -> None:
    """Raise if the history cannot be written: a wrong extension or folder, or a file that is none."""
    if path.suffix.lower() != ".html":
        raise OptionError("a history is a page", path=path, hint="end its name in .html")
    check_output_path(path)
    read_history(path)


def read_history(path: Path) -> list[HistoryPoint]:
    """Return the points of a history, oldest first; none if the file does not exist yet."""
    if not path.exists():
        return []
    match = _DATA.search(path.read_text(encoding="utf-8", errors="replace"))
    hint = "name another file, or remove this one"
    if match is None:
        raise InputError("is not a history that tracekit wrote", path=path, hint=hint)
    return decode(match[1].encode(), HistoryDocument, path, hint=hint).points
