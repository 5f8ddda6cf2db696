"""The page of memory snapshots: its data against an independent replay, and what clicks on it show."""

from __future__ import annotations

import gzip
import json
import pickle
import re

import pytest

import tracekit
from tests.allocator_model import MIB, Allocator, Training, frame
from tests.memory_snapshots import write
from tests.unpack import unpacked, unpacked_json
from tracekit.memory.page import render_memory, render_memory_diff

LEAKED = 30 * MIB
HOSTILE = "<img src=x onerror='window.ran=1'></script>"


def page_data(page):
    match = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    return json.loads(match[1])["memory"]


def sizes(lives):
    return [
        (tera << 40) + (mega << 20) + rest
        for tera, mega, rest in zip(lives["tera"], lives["mega"], lives["rest"], strict=True)
    ]


def total_after(lives, row):
    """Bytes of the page's allocations after an event."""
    rows = zip(lives["made"], lives["length"], sizes(lives), strict=True)
    return sum(size for made, length, size in rows if made <= row < made + length)


def leaking():
    gpu = Allocator(1000 * MIB)
    training = Training(gpu, layers=4, leak=LEAKED)
    training.run(40)
    return gpu


def replayed_levels(content):
    """Bytes in blocks after each event, forwards from nothing: each block as large as it is rounded to.

    For histories that begin with the process and blocks that nothing was left over of.
    """
    levels = []
    allocated = {}
    for event in content["device_traces"][0]:
        if event["action"] == "alloc":
            allocated[event["addr"]] = max(512, -(-event["size"] // 512) * 512)
        elif event["action"] == "free_requested":
            del allocated[event["addr"]]
        levels.append(sum(allocated.values()))
    return levels


def test_the_pages_sums_are_those_of_an_independent_replay(tmp_path):
    content = leaking().snapshot()
    report = tracekit.memory(write(tmp_path / "memory.pickle", content))
    (track,) = page_data(render_memory(report))["tracks"]
    lives = unpacked(track["lives"])
    expected = replayed_levels(content)
    for row in range(0, len(expected), 37):
        assert total_after(lives, row) == expected[row]
    assert total_after(lives, len(expected) - 1) == expected[-1]


@pytest.mark.parametrize("run", ["oom", "expandable", "streams", "cut", "no-stacks", "cpp-stacks"])
def test_the_pages_sums_are_those_that_the_snapshot_holds(snapshots, run):
    report = tracekit.memory(snapshots / run, ranks=[0])
    data = page_data(render_memory(report))
    content = pickle.loads(
        gzip.decompress((snapshots / run / "memory_rank0.pickle.gz").read_bytes())
    )
    allocated = sum(segment["allocated_size"] for segment in content["segments"])
    (track,) = data["tracks"]
    assert total_after(unpacked(track["lives"]), len(content["device_traces"][0]) - 1) == allocated
    measured = report.snapshots[0].contents
    assert total_after(unpacked(track["lives"]), track["peak"]) == measured.figures.peak.bytes


def test_leaks_are_marked_one_by_one(tmp_path):
    report = tracekit.memory(write(tmp_path / "memory.pickle", leaking().snapshot()))
    (track,) = page_data(render_memory(report))["tracks"]
    lives = unpacked(track["lives"])
    marked = [size for size, leaks in zip(sizes(lives), lives["leak"], strict=True) if leaks]
    assert set(marked) == {LEAKED}
    assert sum(marked) == report.snapshots[0].contents.figures.out_of_memory.leaked_bytes


def test_blocks_lie_in_their_segments(tmp_path):
    gpu = leaking()
    report = tracekit.memory(write(tmp_path / "memory.pickle", gpu.snapshot()))
    (track,) = page_data(render_memory(report))["tracks"]
    lives, segments = unpacked(track["lives"]), unpacked(track["segments"])
    rows = zip(lives["segment"], lives["at_mega"], lives["at_rest"], sizes(lives), strict=True)
    for segment, mega, rest, size in rows:
        assert segment > 0
        total = (int(segments["mega"][segment - 1]) << 20) + segments["rest"][segment - 1]
        assert (mega << 20) + rest + size <= total


def test_stacks_begin_at_the_outermost_frame_and_hold_no_home_folder(tmp_path):
    gpu = Allocator(1000 * MIB)
    gpu.alloc(
        5 * MIB, [frame("inner", "/home/ada/nets/model.py", 3), frame("outer", "train.py", 1)]
    )
    data = page_data(
        render_memory(tracekit.memory(write(tmp_path / "memory.pickle", gpu.snapshot())))
    )
    frames = unpacked_json(data["frames"])["texts"]
    stacks = unpacked_json(data["tracks"][0]["stacks"])
    assert [[frames[number] for number in stack] for stack in stacks["frames"]] == [
        ["train.py:1 outer", "nets/model.py:3 inner"]
    ]


def test_a_snapshot_without_a_history_has_a_page(tmp_path):
    gpu = Allocator(1000 * MIB)
    gpu.alloc(5 * MIB, [frame("inner", "model.py", 3)])
    content = {**gpu.snapshot(), "device_traces": [[]]}
    data = page_data(render_memory(tracekit.memory(write(tmp_path / "memory.pickle", content))))
    (track,) = data["tracks"]
    assert track["levels"]["count"] == 0
    assert total_after(unpacked(track["lives"]), -1) == 5 * MIB


@pytest.fixture
def leak_page(look, tmp_path):
    gpu = leaking()
    path = tmp_path / "memory.html"
    report = tracekit.memory(write(tmp_path / "memory.pickle", gpu.snapshot()))
    path.write_text(render_memory(report), encoding="utf-8")
    return look(path)


@pytest.mark.nightly
def test_a_drag_shows_what_grew_and_a_click_the_moment(leak_page):
    page = leak_page
    assert page.said == []
    assert "left behind by steps" in page.locator("#memory-moment").text_content()
    curve = page.locator("#memory-curve")
    curve.scroll_into_view_if_needed()
    area = curve.bounding_box()
    page.mouse.move(area["x"] + 300, area["y"] + 90)
    page.mouse.down()
    page.mouse.move(area["x"] + 600, area["y"] + 90)
    page.mouse.up()
    assert page.locator("#memory-moment").text_content().startswith("From ")
    assert "train.py:55 log_loss" in page.locator("#memory-table tbody").text_content()
    page.mouse.click(area["x"] + 400, area["y"] + 90)
    assert page.locator("#memory-moment").text_content().startswith("At ")


@pytest.mark.nightly
def test_the_flame_graph_zooms_searches_and_inverts(leak_page):
    page = leak_page
    boxes = page.locator("#memory-flame button")
    assert boxes.first.get_attribute("aria-label").startswith("all\n")
    leak = page.locator("#memory-flame button", has_text="log_loss").first
    width = leak.bounding_box()["width"]
    leak.click()
    assert (
        page.locator("#memory-flame button", has_text="log_loss").first.bounding_box()["width"]
        > width
    )
    page.locator("#memory-unzoom").click()
    page.locator("#memory-search").fill("LOG_LOSS")
    # 20 of 30 MiB of 982: what the steps left, and the last one's.
    assert "629.1 MB" in page.locator("#memory-found").text_content()
    page.locator("#memory-invert").click()
    assert boxes.nth(1).text_content().startswith("train.py:55 log_loss")
    page.locator("#memory-leaks").click()
    assert "597.7 MB" in page.locator("#memory-flame-note").text_content()


@pytest.mark.nightly
def test_frames_are_text_and_the_page_fits_a_phone(look, tmp_path):
    gpu = Allocator(1000 * MIB)
    gpu.alloc(5 * MIB, [frame(HOSTILE, f"{HOSTILE}.py", 3)])
    path = tmp_path / "memory.html"
    report = tracekit.memory(write(tmp_path / "memory.pickle", gpu.snapshot()))
    path.write_text(render_memory(report), encoding="utf-8")
    page = look(path, dark=True)
    assert page.asked == [path.as_uri()]
    assert page.evaluate("window.ran") is None
    page.set_viewport_size({"width": 390, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


@pytest.mark.nightly
def test_a_diff_shows_the_stacks_that_grew(look, tmp_path, snapshots):
    run = snapshots / "leak"
    changes = tracekit.diff_memory(
        str(run / "early_rank1.pickle.gz"), str(run / "memory_rank1.pickle.gz")
    )
    path = tmp_path / "diff.html"
    path.write_text(render_memory_diff(changes), encoding="utf-8")
    page = look(path)
    assert page.said == []
    assert "before: 407.1 MB; after: 432.2 MB" in page.locator("#memory-moment").text_content()
    assert "model.py:40 forward" in page.locator("#memory-table tbody").text_content()
