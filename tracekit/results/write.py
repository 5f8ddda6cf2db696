"""Files of an analysis: each extension has what renders it."""

from __future__ import annotations

from collections.abc import Callable, Collection
from os import PathLike

from tracekit.analysis import Analysis
from tracekit.report.write import check_extension, figures, render_json, render_rows, write_file

Renderer = Callable[[Analysis, Collection[str]], str | bytes]
"""Function that returns the content of a file, with the sections that were asked for."""


def write(
    analysis: Analysis,
    path: str | PathLike[str],
    *,
    plot: str | None = None,
    show: Collection[str] = (),
) -> None:
    """Write *analysis* to *path*: .html .json .md .parquet .csv, or the picture *plot* as .png, .svg or .pdf.

    *show* are the sections that were asked for.

    >>> check_output("report.docx")
    Traceback (most recent call last):
    tracekit.errors.OptionError: report.docx: cannot write .docx (use .html, .json, ...)
    """
    write_file(path, check_output(path, plot=plot)(analysis, show))


def check_output(path: str | PathLike[str], *, plot: str | None = None) -> Renderer:
    """Return the renderer for a path.

    Raise an error if its extension, the plot or the folder cannot be used.
    """
    suffix = check_extension(path, (*WRITERS, *PICTURES))
    return WRITERS[suffix] if suffix in WRITERS else _picture_renderer(suffix, plot)


def _render_html(analysis: Analysis, show: Collection[str]) -> str:
    from tracekit.report.html.page import render_html

    return render_html(analysis, show)


def _render_markdown(analysis: Analysis, show: Collection[str]) -> str:
    from tracekit.report.markdown import render_markdown

    return render_markdown(analysis, show)


def _picture_renderer(extension: str, plot: str | None) -> Renderer:
    from tracekit.report.figures import render_figure
    from tracekit.results.plots import check_plot, draw

    if plot is not None:
        check_plot(plot)
    return lambda analysis, _show: render_figure(draw(analysis, plot), extension)


WRITERS: dict[str, Renderer] = {
    ".html": _render_html,
    ".json": render_json,
    ".md": _render_markdown,
    ".parquet": lambda analysis, _show: render_rows(figures(analysis), ".parquet"),
    ".csv": lambda analysis, _show: render_rows(figures(analysis), ".csv"),
}
PICTURES = (".png", ".svg", ".pdf")
