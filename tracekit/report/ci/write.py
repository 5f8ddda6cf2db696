"""Output of ``gate`` and ``diff``: files by extension, and the step summary of GitHub Actions."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from tracekit._util.files import atomic_write
from tracekit._util.text import json_text
from tracekit.diffs import Diff
from tracekit.errors import OptionError
from tracekit.report.ci.formats import github_annotations, render_junit
from tracekit.report.html import diff as diff_html
from tracekit.report.markdown.changes import render_diff, render_gate

Data = Mapping[str, Any]
Writers = Mapping[str, Callable[[Data], str]]
"""Functions that return the text of a file, by extension."""


def to_json(result: Data) -> str:
    """Return plain data as JSON text."""
    return json_text(json.dumps(result, indent=1, ensure_ascii=False, allow_nan=False)) + "\n"


GATE: Writers = {".json": to_json, ".xml": render_junit, ".md": render_gate}
DIFF: Writers = {".json": to_json, ".md": render_diff, ".html": diff_html.render}


def check_outputs(paths: Sequence[Path], writers: Writers) -> None:
    """Raise an error for a path whose extension has no writer.

    >>> check_outputs([Path("gate.pdf")], GATE)
    Traceback (most recent call last):
    tracekit.errors.OptionError: gate.pdf: cannot write .pdf (use .json, .xml or .md)
    """
    for path in paths:
        if path.suffix.lower() not in writers:
            *first, last = writers
            problem = f"cannot write {path.suffix}" if path.suffix else "has no extension"
            raise OptionError(f"{path}: {problem}", hint=f"use {', '.join(first)} or {last}")


def write_all(result: Data, paths: Sequence[Path], writers: Writers) -> None:
    """Write every output file completely or not at all."""
    for path in paths:
        text = writers[path.suffix.lower()](result)
        with atomic_write(path) as part:
            part.write_text(text, encoding="utf-8")


def write_diff(diff: Diff, *paths: str | os.PathLike[str]) -> None:
    """Write a diff to each path: .json, .md or .html, whose timeline needs the analyses of both runs."""
    targets = [Path(path) for path in paths]
    check_outputs(targets, DIFF)
    render_page = partial(diff_html.render, analyses=diff.analyses)
    write_all(diff.changes, targets, {**DIFF, ".html": render_page})


def write_gate(result: Data, path: str | os.PathLike[str]) -> None:
    """Write a verdict to *path*: .json, .xml or .md."""
    check_outputs([Path(path)], GATE)
    write_all(result, [Path(path)], GATE)


def github(result: Data, environment: Mapping[str, str] | None = None) -> list[str]:
    """Append to the step summary of GitHub Actions and return the annotations to print; empty elsewhere."""
    environment = os.environ if environment is None else environment
    if environment.get("GITHUB_ACTIONS", "").lower() in ("", "0", "false"):
        return []
    summary = environment.get("GITHUB_STEP_SUMMARY")
    if summary:
        with Path(summary).open("a", encoding="utf-8") as file:  # other steps write to it as well
            file.write(render_gate(result))
    return github_annotations(result)
