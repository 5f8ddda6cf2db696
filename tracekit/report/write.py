"""Files of an analysis; the extension of the path says which format."""

from collections.abc import Callable, Sequence
from os import PathLike
from pathlib import Path

from tracekit._util.files import atomic_write, check_output_path
from tracekit.analysis import Analysis
from tracekit.errors import OptionError
from tracekit.report.data_tables import check_spreadsheet, figures, render_rows, render_spreadsheet

Renderer = Callable[[Analysis], str | bytes]
"""Function that returns the content of a file."""


def write(analysis: Analysis, path: str | PathLike[str], *, plot: str | None = None) -> None:
    """Write *analysis* to *path*: .html .json .md .parquet .csv .xlsx, or the picture *plot* as .png, .svg or .pdf.

    >>> check_output("report.docx")
    Traceback (most recent call last):
    tracekit.errors.OptionError: report.docx: cannot write .docx (use .html, .json, ...)
    """
    render = check_output(path, plot=plot)
    write_file(path, render(analysis))


def write_file(path: str | PathLike[str], content: str | bytes) -> None:
    """Write a file completely or not at all; text as UTF-8."""
    with atomic_write(path) as part:
        part.write_bytes(content.encode() if isinstance(content, str) else content)


def check_output(path: str | PathLike[str], *, plot: str | None = None) -> Renderer:
    """Return the renderer for a path; raise an error if its extension, the plot or the folder cannot be used."""
    suffix = check_extension(path, (*WRITERS, *PICTURES))
    if suffix == ".xlsx":
        check_spreadsheet(path)
    return WRITERS[suffix] if suffix in WRITERS else _picture_renderer(suffix, plot)


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


def _render_html(analysis: Analysis) -> str:
    from tracekit.report.html.page import render_html

    return render_html(analysis)


def _render_markdown(analysis: Analysis) -> str:
    from tracekit.report.markdown.analysis import render_markdown

    return render_markdown(analysis)


def _picture_renderer(extension: str, plot: str | None) -> Renderer:
    from tracekit.report.figures import render_figure
    from tracekit.report.plot import check_plot, draw

    if plot is not None:
        check_plot(plot)
    return lambda analysis: render_figure(draw(analysis, plot), extension)


WRITERS: dict[str, Renderer] = {
    ".html": _render_html,
    ".json": render_json,
    ".md": _render_markdown,
    ".parquet": lambda analysis: render_rows(figures(analysis), ".parquet"),
    ".csv": lambda analysis: render_rows(figures(analysis), ".csv"),
    ".xlsx": render_spreadsheet,
}
PICTURES = (".png", ".svg", ".pdf")
