"""Tables and remarks in the terminal: nothing cut that is needed, nothing broken that belongs together."""

from __future__ import annotations

import io
import types

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console, Group
from rich.style import Style
from rich.table import Table
from rich.text import Text

from tracekit.report.names import short_kernel
from tracekit.report.terminal.schedule import render_what_if
from tracekit.report.terminal.screen import Screen
from tracekit.report.terminal.sections import by_rows
from tracekit.report.terminal.table import LEAST_NAME, WHOLE_NAME, Lines, command_line, fitted, note
from tracekit.report.view.breakdown import ByRow, ByView
from tracekit.report.view.pipeline import WhatIfRow

pytestmark = pytest.mark.slow


def printed(body, width):
    console = Console(file=io.StringIO(), width=width, highlight=False)
    console.print(body, crop=False)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


def test_a_remark_keeps_numbers_with_their_units():
    text = "host 15.6 %, takes 10.8 ms, rank 7 last"
    for width in range(14, 45):
        lines = printed(note(text), width)
        assert max(map(len, lines)) <= width
        assert not any(line.lstrip().startswith(("%", "ms", "7")) for line in lines)


def test_a_command_to_copy_is_whole_on_one_line():
    words = "tracekit analyze " + "x" * 100
    assert printed(Group(command_line(words)), 80) == [f"     {words}"]


def test_columns_go_in_order_until_a_table_fits():
    heads = ("name", "a", "b", "c")
    rows = [("long_name_of_a_row", "1", "2", "3")]
    shown = {
        width: [column.header for column in fitted(heads, rows, width, left=("name",), spare=("c", "a")).columns]
        for width in (27, 26, 24, 23)
    }
    assert shown[27] == ["name", "a", "b", "c"]  # 18 + three columns of 1 and a gap of 2
    assert shown[26] == ["name", "a", "b"]
    assert shown[24] == ["name", "a", "b"]
    assert shown[23] == ["name", "b"]


def test_names_are_shortened_apart_and_never_below_what_tells_them():
    names = ["kernel<" + "x" * 40 + f", {kind}>" for kind in ("add", "mul")]
    lines = printed(fitted(("ms", "what"), [("1.0", name) for name in names], 40, left=("what",), names="what"), 40)
    assert max(map(len, lines)) <= 40
    assert lines[1] != lines[2]
    narrow = printed(fitted(("ms", "what"), [("1.0", name) for name in names], 8, left=("what",), names="what"), 80)
    assert len(narrow[1].split(maxsplit=1)[1]) == LEAST_NAME


def test_columns_that_say_something_only_together_go_together():
    heads, rows = ("name", "a", "b", "c"), [("long_name_of_a_row", "1", "2", "3")]
    made = fitted(heads, rows, 26, left=("name",), spare=(("a", "b"), "c"))
    assert [column.header for column in made.columns] == ["name", "c"]


def test_names_stay_whole_as_long_as_there_are_columns_to_spare():
    rows = [("n" * WHOLE_NAME, "1.0", "2.0")]
    made = fitted(("name", "a", "b"), rows, WHOLE_NAME + 5, left=("name",), spare=("b", "a"), names="name")
    assert [column.header for column in made.columns] == ["name", "a"]
    rows = [("n" * (WHOLE_NAME + 9), "1.0", "2.0")]
    made = fitted(("name", "a", "b"), rows, WHOLE_NAME + 10, left=("name",), spare=("b", "a"), names="name")
    assert [column.header for column in made.columns] == ["name", "a", "b"]


def row(name, **more):
    known = {"change": "schedule", "predicted_ns": 1_000_000_000, "slower": False, "ran": False}
    unknown = dict.fromkeys(WhatIfRow.__struct_fields__) | {"rests_on": (), "unknown": ()}
    return WhatIfRow(**(unknown | known | {"name": name} | more))


def test_what_if_at_80_columns_names_every_schedule_and_its_prediction():
    rows = [
        row("interleaved-overlap", virtual=2, range_ns=(900_000_000, 1_100_000_000), ideal_ns=8, outside_cells=0.5),
        row("interleaved-zb", virtual=2, range_ns=(900_000_000, 1_100_000_000), saves_ns=-12_300_000, slower=True),
        row("interleaved", virtual=2, ran=True, saves_ns=0),
    ]
    text = printed(render_what_if(rows, 80), 80)
    assert [line.split("  ")[0] for line in text[1:4]] == [
        "interleaved-overlap × 2",
        "interleaved-zb × 2",
        "interleaved × 2 (this run)",
    ]
    assert all("1,000.0" in line for line in text[1:4])
    assert text[2].endswith("−12.3")  # the head names the unit, the sign says slower
    assert "peak:" not in " ".join(text)  # a column that is not there needs no explanation
    assert "peak: micro-batches held" in " ".join(printed(render_what_if([row("gpipe", peak_activations=8)], 80), 80))


def test_a_kernel_is_called_by_what_tells_it_apart():
    said = short_kernel(
        "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::native::(anonymous namespace)::"
        "TensorListMetadata<1>, float>(long, T1, T2...)"
    )
    assert said == "multi_tensor_apply_kernel<TensorListMetadata<1>, float>"
    assert short_kernel("operator()") == "operator"
    assert short_kernel("()") == "()"  # never nothing
    assert short_kernel("nvjet_sm90_tst_128x256_NNN") == "nvjet_sm90_tst_128x256_NNN"


def layer(name, **labels):
    return ByRow(
        name=name, evidence="annotation", ns=2e6, share=0.5, labels=tuple(labels.items()), communication_ns=0.0,
        inclusive_ns=None, calls=None, tflop_s=None, share_of_peak=None, below_peak_ns=None, place=True,
    )  # fmt: skip


@pytest.mark.parametrize(("width", "split"), [(50, False), (80, True)])
def test_layers_keep_their_names_and_are_split_by_label_whole_or_not_at_all(width, split):
    labels = ("forward", "dgrad", "wgrad")
    rows = (layer("layer 0", forward=1e6, dgrad=1e6), layer("layer 1", wgrad=2e6))
    view = types.SimpleNamespace(by=ByView("layer", "By layer", rows, labels, (), rated=False))
    text = "\n".join(printed(by_rows(view, width), width))
    assert "layer 0" in text
    assert "layer 1" in text
    assert text.count("annotation") == 1  # under the table, not in every row
    assert [label in text for label in labels] == [split] * 3


WORDS = st.text(st.sampled_from("ab 9.%■漢é\t\n\x1b"), max_size=8)
STYLES = st.sampled_from(["", "red", "bold blue"])
STYLED = st.builds(
    lambda text, style, at: Text.assemble((text[:at], style), text[at:], style="dim" if at else ""),
    WORDS,
    STYLES,
    st.integers(0, 4),
)


def signs(made, width):
    """Every sign that is printed, with its style."""
    console = Screen(width=width, force_terminal=True, color_system="truecolor")
    segments = console.render(made, console.options.update(width=width))
    return [(sign, str(style or Style.null())) for text, style, _ in segments for sign in text]


@settings(deadline=None, max_examples=150)
@given(
    st.integers(1, 4).flatmap(
        lambda n: st.tuples(
            st.lists(WORDS, min_size=n, max_size=n),
            st.lists(st.lists(WORDS | STYLED, min_size=n, max_size=n), max_size=4),
            st.lists(st.booleans(), min_size=n, max_size=n),
        )
    ),
    st.integers(3, 60),
    st.booleans(),
    st.sampled_from(["", "bold"]),
)
def test_lines_are_those_that_rich_would_write(cells, width, headed, style):
    heads, rows, sides = cells
    made = []
    for kind in (Lines, Table):
        one = kind(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_edge=False, header_style="dim")
        one.show_header = headed
        for head, left in zip(heads, sides, strict=True):
            one.add_column(head, justify="left" if left else "right", no_wrap=left)
        for row in rows:
            one.add_row(*row, style=style)
        made.append(signs(one, width))
    assert made[0] == made[1]
