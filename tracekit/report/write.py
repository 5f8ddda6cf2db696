"""Where results are written: the format follows from the file's extension."""

from __future__ import annotations

import importlib
import io
from collections.abc import Callable
from os import PathLike
from pathlib import Path

from tracekit._util.files import atomic_write, check_output_path
from tracekit.analysis import Analysis
from tracekit.errors import OptionError
from tracekit.report.json import render_json
from tracekit.report.tables import figures


def write(analysis: Analysis, path: str | PathLike[str], *, plot: str | None = None) -> None:
    """Write *analysis* to *path*: .html .json .md .parquet .csv .xlsx, or the picture *plot* as .png, .svg or .pdf.

    >>> check_output("report.docx")
    Traceback (most recent call last):
    tracekit.errors.OptionError: report.docx: cannot write .docx (use .html, .json, ...)
    """
    writer = check_output(path, plot=plot)
    with atomic_write(path) as part:
        writer(analysis, part)


def check_output(path: str | PathLike[str], *, plot: str | None = None) -> Callable[[Analysis, Path], None]:
    """Return the writer for a path's extension, before any work is done: the extension, the plot and the folder."""
    suffix = Path(path).suffix.lower()
    if suffix not in WRITERS and suffix not in PICTURES:
        known = [*WRITERS, *PICTURES]
        what = f"cannot write {suffix}" if suffix else "has no extension"
        raise OptionError(f"{path}: {what}", hint=f"use {', '.join(known[:-1])} or {known[-1]}")
    check_output_path(path)
    if suffix == ".xlsx":
        from tracekit.report.spreadsheet import check_spreadsheet

        check_spreadsheet(path)
    return WRITERS[suffix] if suffix in WRITERS else _picture(plot)


def _text(module: str, name: str) -> Callable[[Analysis, Path], None]:
    def writer(analysis: Analysis, path: Path) -> None:
        render: Callable[[Analysis], str] = getattr(importlib.import_module(module), name)
        path.write_text(render(analysis), encoding="utf-8")

    return writer


def _picture(plot: str | None) -> Callable[[Analysis, Path], None]:
    if plot is not None:
        from tracekit.report.plot import check_plot

        check_plot(plot)

    def writer(analysis: Analysis, path: Path) -> None:
        from tracekit.report.plot import draw, save

        save(draw(analysis, plot), path)

    return writer


def _json(analysis: Analysis, path: Path) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.writelines(render_json(analysis))


def _parquet(analysis: Analysis, path: Path) -> None:
    buffer = io.BytesIO()  # polars tells a full disk by an error of its own: let Python write
    figures(analysis).write_parquet(buffer)
    path.write_bytes(buffer.getvalue())


def _csv(analysis: Analysis, path: Path) -> None:
    path.write_text(figures(analysis).write_csv(), encoding="utf-8")


def _xlsx(analysis: Analysis, path: Path) -> None:
    from tracekit.report.spreadsheet import write_spreadsheet

    write_spreadsheet(analysis, path)


WRITERS: dict[str, Callable[[Analysis, Path], None]] = {
    ".html": _text("tracekit.report.html.page", "render_html"),
    ".json": _json,
    ".md": _text("tracekit.report.markdown.analysis", "render_markdown"),
    ".parquet": _parquet,
    ".csv": _csv,
    ".xlsx": _xlsx,
}
PICTURES = (".png", ".svg", ".pdf")
