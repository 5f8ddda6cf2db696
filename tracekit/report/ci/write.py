"""Where the gate's and the diff's answers go: files by extension, and what GitHub Actions reads."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tracekit._util.files import atomic_write
from tracekit._util.text import json_text
from tracekit.errors import OptionError
from tracekit.report.ci import github as gate_github
from tracekit.report.ci import junit as gate_junit
from tracekit.report.html import diff as diff_html
from tracekit.report.markdown import diff as diff_markdown
from tracekit.report.markdown import gate as gate_markdown

Data = Mapping[str, Any]


def to_json(result: Data) -> str:
    """Return plain data as JSON text."""
    return json_text(json.dumps(result, indent=1, ensure_ascii=False, allow_nan=False)) + "\n"


GATE: dict[str, Callable[[Data], str]] = {
    ".json": to_json,
    ".xml": gate_junit.render,
    ".md": gate_markdown.render,
}
DIFF: dict[str, Callable[[Data], str]] = {
    ".json": to_json,
    ".md": diff_markdown.render,
    ".html": diff_html.render,
}


def check_outputs(paths: Sequence[Path], writers: Mapping[str, Callable[[Data], str]]) -> None:
    """Refuse what cannot be written before any work is done.

    >>> check_outputs([Path("gate.pdf")], GATE)
    Traceback (most recent call last):
    tracekit.errors.OptionError: gate.pdf: cannot write .pdf (use .json, .xml or .md)
    """
    for path in paths:
        if path.suffix.lower() not in writers:
            known = list(writers)
            what = f"cannot write {path.suffix}" if path.suffix else "has no extension"
            raise OptionError(f"{path}: {what}", hint=f"use {', '.join(known[:-1])} or {known[-1]}")


def write_all(result: Data, paths: Sequence[Path], writers: Mapping[str, Callable[[Data], str]]) -> None:
    """Write every output, each whole or not at all."""
    for path in paths:
        text = writers[path.suffix.lower()](result)
        with atomic_write(path) as part:
            part.write_text(text, encoding="utf-8")


def write_diff(result: Data, path: str | os.PathLike[str]) -> None:
    """Write a diff to *path*: .json, .md or .html."""
    _write_one(result, Path(path), DIFF)


def write_gate(result: Data, path: str | os.PathLike[str]) -> None:
    """Write a verdict to *path*: .json, .xml or .md."""
    _write_one(result, Path(path), GATE)


def _write_one(result: Data, path: Path, writers: Mapping[str, Callable[[Data], str]]) -> None:
    check_outputs([path], writers)
    write_all(result, [path], writers)


def github(result: Data, environment: Mapping[str, str] | None = None) -> list[str]:
    """Append the step summary and return the annotations to print; nothing outside GitHub Actions."""
    environment = os.environ if environment is None else environment
    if environment.get("GITHUB_ACTIONS", "").lower() in ("", "0", "false"):
        return []
    summary = environment.get("GITHUB_STEP_SUMMARY")
    if summary:
        with Path(summary).open("a", encoding="utf-8") as file:  # other steps write there too
            file.write(gate_markdown.render(result))
    return gate_github.commands(result)
