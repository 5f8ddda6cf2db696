"""Memory snapshots in files: a page, JSON, and a flame graph of the peak."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from tracekit._util.files import atomic_write
from tracekit.errors import OptionError
from tracekit.memory.snapshots import SnapshotDiff, SnapshotReport
from tracekit.report import figures

PICTURES = (".svg", ".png", ".pdf")
MEMORY_EXTENSIONS = (".html", ".json", *PICTURES)
"""Files that a result can be written to."""


def check_memory_output(path: Path, extensions: Collection[str] = MEMORY_EXTENSIONS) -> None:
    """Raise if a result cannot be written to a file of this name."""
    if path.suffix not in extensions:
        kind = path.suffix or "a file without extension"
        raise OptionError(f"cannot write {kind}", path=path, hint=f"use {', '.join(extensions)}")


def write_memory(result: SnapshotReport | SnapshotDiff, path: Path) -> None:
    """Write a result.

    The extension decides what: the page, the document, or the flame graph of the fullest snapshot.
    """
    if path.suffix == ".html":
        from tracekit.memory.page import render_memory, render_memory_diff

        is_diff = isinstance(result, SnapshotDiff)
        page = render_memory_diff(result) if is_diff else render_memory(result)  # type: ignore[arg-type]
        with atomic_write(path) as temporary:
            temporary.write_text(page, encoding="utf-8")
        return
    if path.suffix == ".json" or isinstance(result, SnapshotDiff):
        with atomic_write(path) as temporary:
            temporary.write_text(result.to_json(), encoding="utf-8")
        return
    from tracekit.memory.plot import draw_flame_graph

    fullest = max(result.snapshots, key=lambda snapshot: snapshot.contents.figures.peak.bytes)
    figure = draw_flame_graph(fullest.contents, rank=fullest.rank)
    picture = figures.render_figure(figure, path.suffix)
    with atomic_write(path) as temporary:
        temporary.write_bytes(picture)
