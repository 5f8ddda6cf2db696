"""Files of an analysis, whose format the extension of their path says, and its tables of data.

The tables are all figures in one long table, and the rows of a query. Every text in them stays
text: a kernel whose name begins with an equals sign is no formula.
"""

import io
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from os import PathLike
from typing import TypeVar

import polars as pl
import polars.selectors as cs

from tracekit._util.arguments import checked_path
from tracekit._util.files import atomic_write, check_output_path
from tracekit._util.text import UNKNOWN, counted, json_text, terminal
from tracekit.analysis import Analysis
from tracekit.analysis.saved import build_document
from tracekit.documents.analysis import AnalysisDocument, Figures
from tracekit.documents.coding import encode
from tracekit.errors import OptionError
from tracekit.report.findings import findings_of
from tracekit.report.text import FORMULA_START, shorten_distinct, spreadsheet_cell

Subject = TypeVar("Subject")
FIGURE_ROWS = pl.Schema(
    {
        "rank": pl.Int32(),  # null: all ranks
        "step": pl.Int64(),  # null: the whole window
        "figure": pl.String(),
        "label": pl.String(),
        "by": pl.String(),  # for figure "hidden": the compute label that hides
        "value": pl.Float64(),
        "unit": pl.String(),  # ns, count or share
    }
)
ROW_FORMATS = (".csv", ".json", ".parquet")
"""Files that the rows of a query can be written to."""


def write_by_extension(
    subject: Subject,
    path: str | PathLike[str],
    renderers: Mapping[str, Callable[[Subject], str | bytes]],
) -> None:
    """Write *subject* to *path* with the one of the *renderers* that its extension names."""
    write_file(path, renderers[check_extension(path, renderers)](subject))


def write_file(path: str | PathLike[str], content: str | bytes) -> None:
    """Write a file completely or not at all; text as UTF-8."""
    with atomic_write(path) as part:
        part.write_bytes(content.encode() if isinstance(content, str) else content)


def check_extension(path: str | PathLike[str], extensions: Collection[str]) -> str:
    """Return the one of *extensions* that *path* ends in.

    Raise if it is none of them, or if the folder cannot be used.

    >>> check_extension("a.trace.json", (".svg", ".trace.json", ".json"))
    '.trace.json'
    >>> check_extension("gate.pdf", (".json", ".xml", ".md"))
    Traceback (most recent call last):
    tracekit.errors.OptionError: gate.pdf: cannot write .pdf (use .json, .xml or .md)
    """
    target = checked_path(path, "output")
    *first, last = extensions
    extension = next(
        (suffix for suffix in extensions if target.name.lower().endswith(suffix)), None
    )
    if extension is None:
        problem = f"cannot write {target.suffix}" if target.suffix else "has no extension"
        raise OptionError(problem, path=path, hint=f"use {', '.join(first)} or {last}")
    check_output_path(target)
    return extension


def render_json(analysis: Analysis, show: Collection[str] = ()) -> str:
    """Return the JSON document (``format: tracekit.analysis/2``), with one newline at its end."""
    return encode(document_of(analysis, show)) + "\n"


def document_of(analysis: Analysis, show: Collection[str] = ()) -> AnalysisDocument:
    """Return the JSON document of an analysis, with what *show* asks for (``critical-path``, ``changes``)."""
    if analysis.document is not None:
        return analysis.document
    return build_document(analysis, findings_of=findings_of, show=show)


def figures(analysis: Analysis) -> pl.DataFrame:
    """Return every figure of the analysis, one per row (``FIGURE_ROWS``).

    >>> from tracekit.run.analyze import analyze
    >>> table = figures(analyze("sample_traces/reload", schedule="none"))
    >>> table.filter(rank=0, figure="span")["value"].to_list()
    [104587652.0]
    """
    rows: list[tuple[object, ...]] = [(None, None, *row) for row in _figures_of(analysis.total)]
    for rank in analysis.ranks:
        rows += [(rank.rank, None, *row) for row in _figures_of(rank.whole)]
        if len(rank.per_step) > 1:
            for step in rank.per_step:
                rows += [(rank.rank, step.step, *row) for row in _figures_of(step)]
    return pl.DataFrame(rows, schema=FIGURE_ROWS, orient="row")


def _figures_of(
    measured: Figures,
) -> Iterator[tuple[str, str | None, str | None, float | None, str]]:
    """Yield figure, label, hiding label, value and unit."""
    budget = measured.budget
    yield "span", None, None, budget.span_ns, "ns"
    yield "budget", "compute", None, budget.compute_ns, "ns"
    for label, ns in budget.exposed_ns.items():
        yield "budget", label, None, ns, "ns"
    yield "budget", "idle", None, budget.idle_ns if measured.idle_known else None, "ns"
    if budget.unrecorded_ns:
        yield "budget", "not recorded", None, budget.unrecorded_ns, "ns"
    for label, ns in measured.label_ns.items():
        yield "time", label, None, ns, "ns"
    for label, count in measured.label_count.items():
        yield "count", label, None, count, "count"
    for label, share in measured.overlap.items():
        yield "overlap", label, None, share, "share"
    for label, hidden_ns in measured.hidden_by_ns.items():
        for by, ns in hidden_ns.items():
            yield "hidden", label, by, ns, "ns"
    for label, wait_ns in measured.wait_ns.items():
        yield "wait", label, None, wait_ns, "ns"
    yield "bubble", None, None, measured.bubble_fraction, "share"
    yield "exposed wait", "pp_comm", None, measured.bubble.wait_ns, "ns"


def rows_text(rows: pl.DataFrame, *, most: int, width: int | None = None) -> str:
    """Return the first *most* rows of a frame as text in columns.

    Args:
        rows: The frame.
        most: Rows to show.
        width: Columns of the terminal. What is wider goes on below, a block of columns after the
            other; a cell that is wider alone is continued in further lines, long names are cut
            and numbers rounded. None: lines of any length, for another program to read.

    >>> print(rows_text(pl.DataFrame({"rank": [0, 1], "label": ["forward", None]}), most=1))
    rank  label
       0  forward
    1 row more
    """
    shown_rows = rows.head(most)
    if width is not None:
        shown_rows = _for_people(shown_rows)
    cells = [[terminal(name) for name in rows.columns]]
    for row in shown_rows.iter_rows():
        cells.append([UNKNOWN if value is None else terminal(value) for value in row])
    widths = []
    for i in range(rows.width):
        widest = max(len(line[i]) for line in cells)
        widths.append(widest if width is None else min(widest, width))
    is_number = [dtype.is_numeric() for dtype in rows.dtypes]
    blocks = []
    for columns in _column_blocks(widths, width):
        lines = []
        for cells_of_row in cells:
            lines += _row_lines([(cells_of_row[i], widths[i], is_number[i]) for i in columns])
        blocks.append("\n".join(lines))
    text = "\n\n".join(blocks)
    return text if len(rows) <= most else f"{text}\n{counted(len(rows) - most, 'row')} more"


MAX_QUERIED_NAME_LENGTH = 48
"""Characters of a name in rows that people read."""
MAX_DIGITS_OF_FRACTIONS = 6
"""Digits of a number with a fraction in rows that people read."""


def _for_people(rows: pl.DataFrame) -> pl.DataFrame:
    """Return the rows with names cut to a length at which they still differ, and fractions rounded.

    >>> _for_people(pl.DataFrame({"ns": [12900336.78125]})).item()
    '12900337'
    """
    columns = []
    for column in rows.iter_columns():
        if column.dtype == pl.String:
            present = [value for value in column.to_list() if value is not None]
            names = iter(shorten_distinct(present, most=MAX_QUERIED_NAME_LENGTH))
            texts = [None if value is None else next(names) for value in column.to_list()]
            columns.append(pl.Series(column.name, texts, dtype=pl.String))
        elif column.dtype.is_float():
            texts = [None if value is None else _rounded(value) for value in column.to_list()]
            columns.append(pl.Series(column.name, texts, dtype=pl.String))
        else:
            columns.append(column)
    return pl.DataFrame(columns)


def _rounded(value: float) -> str:
    """Return a number with a fraction as text, rounded to an integer where it is large.

    >>> _rounded(0.8500000238418579), _rounded(12900336.78125)
    ('0.85', '12900337')
    """
    if math.isfinite(value) and abs(value) >= 10**MAX_DIGITS_OF_FRACTIONS:
        return f"{value:.0f}"
    return f"{value:.{MAX_DIGITS_OF_FRACTIONS}g}"


COLUMN_GAP = 2
"""Spaces between two columns of rows."""


def _column_blocks(widths: Sequence[int], width: int | None) -> list[list[int]]:
    """Return the indices of the columns that stand beside each other on *width* columns, block by block.

    >>> _column_blocks([4, 4, 4], 10), _column_blocks([4, 4, 4], None)
    ([[0, 1], [2]], [[0, 1, 2]])
    """
    blocks: list[list[int]] = [[]]
    used = 0
    for i, column_width in enumerate(widths):
        if width is not None and blocks[-1] and used + COLUMN_GAP + column_width > width:
            blocks.append([])
            used = 0
        used += column_width + (COLUMN_GAP if blocks[-1] else 0)
        blocks[-1].append(i)
    return blocks


def _row_lines(cells: Sequence[tuple[str, int, bool]]) -> list[str]:
    """Return a row as lines: one, unless a cell is wider than its column.

    A cell is its text, width and alignment.

    >>> _row_lines([("abcdef", 4, False), ("7", 2, True)])
    ['abcd   7', 'ef']
    """
    height = max(
        [1, *(-(-len(text) // column_width) for text, column_width, _ in cells if column_width)]
    )
    lines = []
    for row in range(height):
        padded = []
        for text, column_width, right in cells:
            piece = text[row * column_width : (row + 1) * column_width]
            padded.append(piece.rjust(column_width) if right else piece.ljust(column_width))
        lines.append((" " * COLUMN_GAP).join(padded).rstrip())
    return lines


def render_rows(rows: pl.DataFrame, extension: str) -> bytes:
    """Return rows as the content of a file: .csv, .json or .parquet."""
    if extension == ".json":
        return rows_json(rows).encode()
    # Written through memory: polars reports a full disk by an error of its own, Python by OSError.
    buffer = io.BytesIO()
    if extension == ".csv":
        _as_csv_cells(rows).write_csv(buffer, quote_style="non_numeric")
    else:
        rows.write_parquet(buffer)
    return buffer.getvalue()


def rows_json(rows: pl.DataFrame) -> str:
    """Return rows as a JSON list of objects.

    >>> rows_json(pl.DataFrame({"rank": [0], "name": ["a"]}))
    '[{"rank":0,"name":"a"}]'
    """
    return json_text(rows.write_json())


def _as_csv_cells(rows: pl.DataFrame) -> pl.DataFrame:
    """Return rows whose texts and headings no spreadsheet takes for formulas."""
    cells = rows.rename(spreadsheet_cell)
    nested = [
        name for name, dtype in cells.schema.items() if dtype.is_nested() or dtype == pl.Binary
    ]
    if nested:
        raise OptionError(
            f"a .csv file cannot hold the column {terminal(nested[0])}",
            hint="use .json or .parquet",
        )
    texts = cs.by_dtype(pl.String, pl.Categorical, pl.Enum).cast(pl.String)
    is_formula = texts.str.contains(f"^(?:{FORMULA_START.pattern})")
    return cells.with_columns(pl.when(is_formula).then("'" + texts).otherwise(texts).name.keep())
