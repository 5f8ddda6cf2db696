"""Tables and remarks in the terminal: nothing cut that is needed, nothing broken that belongs together."""

from __future__ import annotations

import io
import re
import types

import polars as pl
import pytest
from rich.console import Console

from tests.kept import analysis_of
from tracekit.report.sections.places import by_table
from tracekit.report.sections.schedule import WhatIfRow, what_if_table
from tracekit.report.table import Column, Table
from tracekit.report.terminal.schedule import gantt
from tracekit.report.terminal.table import (
    MIN_NAME_LENGTH,
    MIN_NAME_LENGTH_WITH_ALL_COLUMNS,
    Note,
    render_table,
)
from tracekit.report.words import short_kernel

pytestmark = pytest.mark.slow


def printed(body, width):
    console = Console(file=io.StringIO(), width=width, highlight=False)
    console.print(body, crop=False)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


def test_a_remark_keeps_numbers_with_their_units():
    text = "host 15.6 %, takes 10.8 ms, rank 7 last"
    for width in range(14, 45):
        lines = printed(Note(text), width)
        assert max(map(len, lines)) <= width
        assert not any(line.lstrip().startswith(("%", "ms", "7")) for line in lines)


def table_of(*cells, **expendable):
    """A table of one row: a name, and columns a, b and c that may be left out."""
    columns = (Column(name, "figure", expendable.get(name, 0)) for name in "abc")
    return Table((Column("name", "name"), *columns), (cells,))


def shown_headings(table, width):
    """The headings that are printed; none of them has a space."""
    return printed(render_table(table, width), width)[0].split()


def test_columns_go_in_order_until_a_table_fits():
    table = table_of("long_name_of_a_row", "1", "2", "3", c=2, a=1)
    shown = {width: shown_headings(table, width) for width in (27, 26, 24, 23)}
    assert shown[27] == ["name", "a", "b", "c"]  # 18 + three columns of 1 and a gap of 2
    assert shown[26] == ["name", "a", "b"]
    assert shown[24] == ["name", "a", "b"]
    assert shown[23] == ["name", "b"]


def test_a_column_that_is_empty_in_every_row_is_left_out():
    assert shown_headings(table_of("a", "1", "", "3"), 80) == ["name", "a", "c"]


def test_a_note_goes_with_its_column():
    table = Table(
        (Column("name", "name"), Column("peak", "figure", 1, note="chunks held")),
        (("n" * 20, "8"),),
    )
    assert any("peak: chunks held" in line for line in printed(render_table(table, 80), 80))
    assert not any("chunks held" in line for line in printed(render_table(table, 24), 80))


def test_names_are_shortened_apart_and_never_below_what_tells_them():
    names = ["kernel<" + "x" * 40 + f", {kind}>" for kind in ("add", "mul")]
    table = Table(
        (Column("ms", "figure"), Column("what", "name")), tuple(("1.0", name) for name in names)
    )
    lines = printed(render_table(table, 40), 40)
    assert max(map(len, lines)) <= 40
    assert lines[1] != lines[2]
    narrow = printed(render_table(table, 8), 80)
    assert len(narrow[1].split(maxsplit=1)[1]) == MIN_NAME_LENGTH


def test_columns_that_say_something_only_together_go_together():
    assert shown_headings(table_of("long_name_of_a_row", "1", "2", "3", a=2, b=2, c=1), 26) == [
        "name",
        "c",
    ]


def test_names_stay_whole_as_long_as_there_are_columns_to_spare():
    length = MIN_NAME_LENGTH_WITH_ALL_COLUMNS
    table = table_of("n" * length, "1.0", "2.0", "", b=2, a=1)
    assert shown_headings(table, length + 5) == ["name", "a"]
    table = table_of("n" * (length + 9), "1.0", "2.0", "", b=2, a=1)
    assert shown_headings(table, length + 10) == ["name", "a", "b"]


def row(name, **more):
    return WhatIfRow(**({"change": "schedule", "name": name, "predicted_ns": 1_000_000_000} | more))


def test_what_if_at_80_columns_names_every_schedule_and_its_prediction():
    rows = [
        row(
            "interleaved-overlap",
            virtual=2,
            predicted_range_ns=(900_000_000, 1_100_000_000),
            ideal_ns=8,
            outside_cells=0.5,
        ),
        row(
            "interleaved-zb",
            virtual=2,
            predicted_range_ns=(900_000_000, 1_100_000_000),
            saves_ns=-12_300_000,
        ),
        row("interleaved", virtual=2, ran=True, saves_ns=0),
    ]
    text = printed(render_table(what_if_table(rows), 80), 80)
    assert [line.split("  ")[0] for line in text[1:4]] == [
        "interleaved-overlap × 2",
        "interleaved-zb × 2",
        "interleaved × 2 (this run)",
    ]
    assert all("1,000.0" in line for line in text[1:4])
    assert text[2].endswith("−12.3")  # the head names the unit, the sign says slower
    assert "peak:" not in " ".join(text)  # a column that is not there needs no explanation
    assert "peak: micro-batches held" in " ".join(
        printed(render_table(what_if_table([row("gpipe", peak_activations=8)]), 80), 80)
    )


def test_a_kernel_is_called_by_what_tells_it_apart():
    name = short_kernel(
        "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::native::(anonymous namespace)::"
        "TensorListMetadata<1>, float>(long, T1, T2...)"
    )
    assert name == "multi_tensor_apply_kernel<TensorListMetadata<1>, float>"
    assert short_kernel("operator()") == "operator"
    assert short_kernel("()") == "()"  # never nothing
    assert short_kernel("nvjet_sm90_tst_128x256_NNN") == "nvjet_sm90_tst_128x256_NNN"


LAYER = {"evidence": "annotation", "ns": 2_000_000, "share": 0.5, "count": 1, "compute_ns": 2_000_000,
         "communication_ns": 0, "copy_ns": 0, "stage": None, "layer": None, "path": None, "calls": None, "flop": None,
         "tflop_s": None, "share_of_peak": None, "below_peak_ns": None, "apart": False, "ranks": [0]}  # fmt: skip


@pytest.mark.parametrize(("width", "split"), [(50, False), (80, True)])
def test_layers_keep_their_names_and_are_split_by_label_whole_or_not_at_all(width, split):
    labels = ("forward", "dgrad", "wgrad")
    rows = [
        {"name": "layer 0", **LAYER, "forward_ns": 1e6, "dgrad_ns": 1e6, "wgrad_ns": 0.0},
        {"name": "layer 1", **LAYER, "forward_ns": 0.0, "dgrad_ns": 0.0, "wgrad_ns": 2e6},
    ]
    by = types.SimpleNamespace(
        kind="layer",
        rows=pl.DataFrame(rows),
        placed=True,
        notes=(),
        steps=1,
        is_place=lambda name: True,
    )
    table = by_table(types.SimpleNamespace(places=by, ranks=[None]))
    text = "\n".join(printed(render_table(table, width), width))
    assert "layer 0" in text
    assert "layer 1" in text
    assert text.count("annotation") == 1  # under the table, not in every row
    assert [label in text for label in labels] == [split] * 3


def test_a_short_ideal_keeps_its_cells():
    """Megatron's ideal takes a twelfth of the run: on the run's axis its 32 cells per rank would have 7 columns."""
    compared = analysis_of("sample_traces/megatron-moe").comparison.head
    lines = printed(gantt(compared, 160), 160)
    title = next(i for i, line in enumerate(lines) if line.strip().startswith("ideal"))
    stretch = round(compared.measured_ns / compared.ideal_ns)
    assert lines[title].strip() == f"ideal: 210 ms, drawn {stretch} times as wide"
    for line in lines[title + 1 : title + 5]:
        assert len(re.findall("[FB]", line)) >= 30
