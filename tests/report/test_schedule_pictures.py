"""Tests of the contents of schedules' layouts, pictures, pages and traces."""

from __future__ import annotations

import io
import itertools
import json
import re
import xml.etree.ElementTree as ET

import pytest
from matplotlib.collections import PolyCollection

from tests.kept import analysis_of
from tracekit.pipeline.schedules import Times, generate, names, simulate
from tracekit.pipeline.schedules.two_buffers import weight_reload
from tracekit.report.palette import CELL_COLOURS
from tracekit.report.schedule.layout import (
    LOWER,
    UPPER,
    layout_pipeline,
    layout_simulation,
    stage_chunks,
)
from tracekit.report.schedule.plot import draw_phases, draw_schedule
from tracekit.report.schedule.write import (
    SCHEDULE_EXTENSIONS,
    gantt,
    schedule_page,
    schedule_text,
    schedule_trace,
    write_schedule,
)

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def dualpipe():
    return simulate(generate("dualpipe", pp=8, microbatches=20))


def numbers(axes):
    return [t.get_text() for t in axes.texts if re.fullmatch(r"\d+[a-z]?′?", t.get_text())]


def test_dualpipe_picture_has_every_cell_and_number(dualpipe):
    axes = draw_schedule(dualpipe).axes[0]
    plain = sum(op.kind != "FB" for rank in dualpipe.schedule.ranks for op in rank)
    pairs = len(dualpipe.start) - plain
    assert len(numbers(axes)) == plain + 2 * pairs
    cells = [c for c in axes.collections if isinstance(c, PolyCollection)]
    assert [len(c.get_paths()) for c in cells] == [8, plain + 2 * pairs, pairs]
    assert [t.get_text() for t in axes.get_yticklabels()] == [f"rank {r}" for r in range(8)]
    assert axes.get_xlabel().startswith("time")
    assert axes.get_xlim() == (0, 66)


def test_halves_of_a_pair_share_the_row(dualpipe):
    layout = layout_simulation(dualpipe)
    upper, lower = (layout.boxes.filter(part=half) for half in (UPPER, LOWER))
    assert set(upper["op"]) == {"F"}
    assert set(lower["op"]) == {"B"}
    assert len(upper) == len(lower) == (layout.cells["op"] == "FB").sum() > 0
    assert upper.select("cell", "row", "start", "end").equals(
        lower.select("cell", "row", "start", "end")
    )


def test_measured_and_ideal_layouts_hold_the_cells_of_the_comparison(samples):
    held = analysis_of(samples / "overlapped").comparison.head
    layouts = layout_pipeline(held)
    origin = held.cells["start_ns"].min()
    measured, ideal = layouts["measured"].cells, layouts["ideal"].cells
    assert (measured["start"] + origin).to_list() == held.cells["start_ns"].to_list()
    assert ideal["end"].to_list() == held.cells["ideal_end_ns"].to_list()
    assert [layouts["measured"].ranks[row] for row in measured["row"]] == held.cells[
        "rank"
    ].to_list()
    assert layouts["measured"].in_ms().end == held.measured_ns / 1e6
    assert layouts["measured"].boxes["label"][0] == str(held.cells["microbatch"][0])


def test_chunks_are_told_apart():
    assert stage_chunks(generate("zb-v", pp=2, microbatches=2)).tolist() == [0, 0, 1, 1]
    axes = draw_schedule(simulate(generate("dualpipev", pp=2, microbatches=4))).axes[0]
    assert {"0", "0′"} <= set(numbers(axes))  # B and I side by side: a lighter green would mislead
    cells = (
        draw_schedule(simulate(generate("interleaved", pp=2, microbatches=2)))
        .axes[0]
        .collections[1]
    )
    assert len({tuple(colour) for colour in cells.get_facecolor()}) == 4  # F and B, two shades each


def test_large_pictures_drop_the_numbers_and_stay_small(tmp_path):
    done = simulate(generate("interleaved-overlap", pp=32, microbatches=128))
    figure = draw_schedule(done)
    assert not numbers(figure.axes[0])
    assert all(2 <= inches <= 20 for inches in figure.get_size_inches())
    write_schedule(done, tmp_path / "large.svg")
    assert (tmp_path / "large.svg").stat().st_size < 2_000_000
    assert len(schedule_page(done)) < 5_000_000


def test_phases_of_kimi_k2():
    figure = draw_phases(generate("interleaved-overlap", pp=4, microbatches=8, virtual=2))
    warm, steady, cool, grid = figure.axes
    assert [t.get_text() for t in warm.get_yticklabels()] == [
        "Computation",
        "Communication",
        "Offload",
    ]
    shown = {
        axes: {t.get_text().replace("\n", "") for t in axes.texts} for axes in (warm, steady, cool)
    }
    assert shown[warm] == {"attn(F)", "dispatch(F)", "mlp(F)", "combine(F)", "PP", "offload"}
    assert {"combine(B)", "mlp(W)", "offload", "onload", "PP"} <= shown[steady]
    assert "onload" in shown[cool]
    assert "offload" not in shown[cool]
    assert set(numbers(grid)) == {str(microbatch) for microbatch in range(8)}, (
        "counted from 0, as everywhere"
    )


def test_reload_picture():
    axes = draw_schedule(weight_reload(4, 2)).axes[0]
    rows = [t.get_text() for t in axes.get_yticklabels()]
    assert len(rows) == 12
    assert rows[:3] == [
        "device 0 · H2D buffer",
        "device 0 · IPC buffer 0",
        "device 0 · IPC buffer 1",
    ]
    assert len(numbers(axes)) == 4 * (2 + 8 + 8)
    boxes = layout_simulation(weight_reload(4, 2)).boxes
    assert len(boxes.filter(op="D")) == 8 * 3  # every bucket is received by three devices
    assert (
        draw_schedule(weight_reload(32, 3)).axes[0].get_xlim()[1] == weight_reload(32, 3).makespan
    )


@pytest.mark.parametrize("name", [name for name in names() if name != "weight-reload"])
def test_every_schedule_draws(name, tmp_path):
    simulation = simulate(generate(name, pp=2, microbatches=4))
    for extension in set(SCHEDULE_EXTENSIONS) - {".png", ".pdf"}:  # drawn by the same code as .svg
        write_schedule(simulation, tmp_path / f"x{extension}")
    ET.parse(tmp_path / "x.svg")
    assert json.loads((tmp_path / "x.json").read_text())["name"] == name


def test_a_schedule_is_written_in_every_format(tmp_path):
    simulation = simulate(generate("dualpipe", pp=2, microbatches=4))
    for extension in SCHEDULE_EXTENSIONS:
        write_schedule(simulation, tmp_path / f"x{extension}")
    ET.parse(tmp_path / "x.svg")
    assert (tmp_path / "x.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "x.pdf").read_bytes().startswith(b"%PDF")
    assert json.loads((tmp_path / "x.json").read_text())["name"] == "dualpipe"
    assert not [file for file in tmp_path.iterdir() if file.name.startswith(".")]


def test_same_schedule_same_bytes(tmp_path):
    for name in ("a.svg", "b.svg"):
        write_schedule(simulate(generate("dualpipe", pp=2, microbatches=4)), tmp_path / name)
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()


def test_page_holds_a_tooltip_for_each_cell_and_nothing_from_outside(dualpipe):
    page = schedule_page(dualpipe)
    assert page.count("<title>") == 1 + len(layout_simulation(dualpipe).boxes)
    assert "<title>0F0 · rank 0 · 0 to 1</title>" in page
    assert "<title>(0F7;7B13) · rank 0 · 17 to 20</title>" in page
    assert all(colour in page for colour in CELL_COLOURS.values())
    assert "<script" not in page
    assert not re.search(r"(src|href)=|url\(|@import", page)
    ET.fromstring(re.search(r"<svg.*</svg>", page, re.DOTALL).group())


def test_page_of_a_name_with_marks():
    from tracekit.pipeline.schedules import Schedule
    from tracekit.pipeline.schedules.ops import parse_orders

    nasty = Schedule("<b>&", 1, 1, 1, (parse_orders("0F0 0B0"),))
    page = schedule_page(simulate(nasty))
    assert "<b>" not in page
    assert "&lt;b&gt;&amp;" in page


def test_perfetto_trace(dualpipe):
    events = json.loads(schedule_trace(dualpipe))["traceEvents"]
    spans = [e for e in events if e["ph"] == "X"]
    assert len(spans) == len(dualpipe.start)
    assert {e["args"]["name"] for e in events if e["name"] == "thread_name"} == {
        f"rank {r}" for r in range(8)
    }
    assert max(e["ts"] + e["dur"] for e in spans) == 66_000
    pair = next(e for e in spans if e["name"] == "(0F7;7B13)")
    assert pair["args"] == {"stage": 0, "microbatch": 7, "b_stage": 7, "b_microbatch": 13}
    tids = {e["tid"] for e in spans}
    assert len(tids) == 8
    for tid in tids:
        track = sorted((e["ts"], e["ts"] + e["dur"]) for e in spans if e["tid"] == tid)
        assert all(a[1] <= b[0] for a, b in itertools.pairwise(track))
    reload = json.loads(schedule_trace(weight_reload(4, 2)))["traceEvents"]
    assert sum(e["ph"] == "X" for e in reload) == 4 * (2 + 8 + 8)
    # A viewer looks a thread up by its number alone.
    assert len({e["tid"] for e in reload if e["ph"] == "X"}) == 4 * 3


def test_terminal_picture():
    done = layout_simulation(simulate(generate("1f1b", pp=2, microbatches=2)))
    assert gantt(done, width=40).plain.splitlines() == [
        " 0 F0 F1 ......B0--- ...B1--- ",
        " 1 ...F0 B0--- F1 B1--- ......",
    ]
    assert gantt(done, width=40, letters=False).plain.splitlines()[0] == " 0 0 1 .... 0  .. 1  "
    assert gantt(done, width=8) is None
    assert (
        gantt(
            layout_simulation(
                simulate(generate("1f1b", pp=2, microbatches=2), Times(F=0.001, B=50))
            ),
            width=200,
        )
        is None
    )


@pytest.mark.parametrize("width", [1, 20, 80, 300])
def test_terminal_text_at_any_width(width, dualpipe):
    from rich.console import Console

    console = Console(width=width, file=io.StringIO())
    for done in (
        dualpipe,
        weight_reload(4, 2),
        simulate(generate("gpipe", pp=40, microbatches=100)),
    ):
        console.print(schedule_text(done, width=width), soft_wrap=True)
    text = console.file.getvalue()
    assert "makespan  66" in text
    assert "makespan  17" in text
