"""Files of an analysis; the extension of the path says which format."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from os import PathLike
from pathlib import Path

from tracekit._util.files import atomic_write, check_output_path
from tracekit.analysis import Analysis
from tracekit.errors import OptionError
from tracekit.report.data_tables import check_spreadsheet, figures, write_spreadsheet

Writer = Callable[[Analysis, Path], None]


def write(analysis: Analysis, path: str | PathLike[str], *, plot: str | None = None) -> None:
    """Write *analysis* to *path*: .html .json .md .parquet .csv .xlsx, or the picture *plot* as .png, .svg or .pdf.

    >>> check_output("report.docx")
    Traceback (most recent call last):
    tracekit.errors.OptionError: report.docx: cannot write .docx (use .html, .json, ...)
    """
    writer = check_output(path, plot=plot)
    with atomic_write(path) as part:
        writer(analysis, part)


def check_output(path: str | PathLike[str], *, plot: str | None = None) -> Writer:
    """Return the writer for a path; raise an error if its extension, the plot or the folder cannot be used."""
    suffix = check_extension(path, (*WRITERS, *PICTURES))
    if suffix == ".xlsx":
        check_spreadsheet(path)
    return WRITERS[suffix] if suffix in WRITERS else _picture_writer(plot)


def check_extension(path: str | PathLike[str], extensions: Sequence[str]) -> str:
    """Return the one of *extensions* that *path* ends in; raise if it is none of them, or if the folder cannot be used.

    >>> check_extension("a.trace.json", (".svg", ".trace.json", ".json"))
    '.trace.json'
    >>> check_extension("gate.pdf", (".json", ".xml", ".md"))
    Traceback (most recent call last):
    tracekit.errors.OptionError: gate.pdf: cannot write .pdf (use .json, .xml or .md)
    """
    target, (*first, last) = Path(path), extensions
    extension = next((suffix for suffix in extensions if target.name.lower().endswith(suffix)), None)
    if extension is None:
        problem = f"cannot write {target.suffix}" if target.suffix else "has no extension"
        raise OptionError(f"{path}: {problem}", hint=f"use {', '.join(first)} or {last}")
    check_output_path(target)
    return extension


def render_json(analysis: Analysis) -> str:
    """Return the JSON document (``format: tracekit.analysis/1``), with one newline at its end."""
    return analysis.to_json() + "\n"


def _write_json(analysis: Analysis, path: Path) -> None:
    path.write_text(render_json(analysis), encoding="utf-8")


def _write_html(analysis: Analysis, path: Path) -> None:
    from tracekit.report.html.page import render_html

    path.write_text(render_html(analysis), encoding="utf-8")


def _write_markdown(analysis: Analysis, path: Path) -> None:
    from tracekit.report.markdown.analysis import render_markdown

    path.write_text(render_markdown(analysis), encoding="utf-8")


def _picture_writer(plot: str | None) -> Writer:
    if plot is not None:
        from tracekit.report.plot import check_plot

        check_plot(plot)

    def write_picture(analysis: Analysis, path: Path) -> None:
        from tracekit.report.plot import draw, save

        save(draw(analysis, plot), path)

    return write_picture


def _write_parquet(analysis: Analysis, path: Path) -> None:
    buffer = io.BytesIO()  # polars reports a full disk by an error of its own, Python by OSError
    figures(analysis).write_parquet(buffer)
    path.write_bytes(buffer.getvalue())


def _write_csv(analysis: Analysis, path: Path) -> None:
    path.write_text(figures(analysis).write_csv(), encoding="utf-8")


WRITERS: dict[str, Writer] = {
    ".html": _write_html,
    ".json": _write_json,
    ".md": _write_markdown,
    ".parquet": _write_parquet,
    ".csv": _write_csv,
    ".xlsx": write_spreadsheet,
}
PICTURES = (".png", ".svg", ".pdf")
