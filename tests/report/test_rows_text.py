"""Rows of a query as text: columns side by side, and below each other where a terminal is narrow."""

from __future__ import annotations

import polars as pl

from tracekit.report.write import rows_text

ROWS = pl.DataFrame({"rank": [0, 1], "label": ["forward", None], "ns": [12, 3]})


def test_rows_that_fit_are_printed_side_by_side():
    assert (
        rows_text(ROWS, most=2, width=17)
        == "rank  label    ns\n   0  forward  12\n   1  –         3"
    )


def test_what_does_not_fit_goes_on_below():
    assert rows_text(ROWS, most=2, width=16) == "rank  label\n   0  forward\n   1  –\n\nns\n12\n 3"


def test_a_cell_wider_than_the_terminal_goes_on_in_the_next_line():
    assert rows_text(pl.DataFrame({"name": ["abcdefgh"]}), most=1, width=6) == "name\nabcdef\ngh"


def test_rows_for_another_program_keep_their_lines():
    wide = pl.DataFrame({f"column{i}": [i] for i in range(40)})
    assert rows_text(wide, most=1).count("\n") == 1


def test_no_line_is_wider_than_the_terminal():
    wide = pl.DataFrame({f"column{i}": ["x" * i] for i in range(90)})
    assert max(map(len, rows_text(wide, most=1, width=60).splitlines())) <= 60


def test_people_read_names_that_are_cut_and_numbers_that_are_rounded():
    names = [f"kernel_{'x' * 80}_{i}" for i in range(2)]
    rows = pl.DataFrame({"name": names, "share": [0.8500000238418579, None]})
    first, second = rows_text(rows, most=2, width=80).splitlines()[1:]
    assert len(first.split()[0]) == 48
    assert first.split()[0] != second.split()[0]
    assert first.split()[1:] == ["0.85"]
    assert "0.8500000238418579" in rows_text(rows, most=2)  # for another program
