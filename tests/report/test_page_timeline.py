"""Tests of the page's timeline in a real browser: zoom, search, click, links to a moment, tables that lead to it."""

from __future__ import annotations

import re

import numpy as np
import polars as pl
import pytest

from tests.kept import analysis_of, labelled_of
from tests.unpack import unpacked, unpacked_json
from tracekit import load
from tracekit._util.text import short_ms
from tracekit.documents.coding import to_plain
from tracekit.pipeline.schedules import generate
from tracekit.report.html import charts
from tracekit.report.html.charts import PageClock, timeline_data
from tracekit.report.html.page import render_html
from tracekit.run.analyze import analyze
from tracekit.schema import EXPOSURE_CAUSES
from tracekit.synthetic import Recipe, write_run

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("measured_once")]

WIDTHS = (1440, 390)
"""Above and below the width at which the page's layout changes."""


def window(page):
    """The shown stretch of time, in ms."""
    return page.evaluate("tracekit.timeline.chart.window()")


def point_of(page, rank, lane, event=None):
    """Return where an event of a lane is drawn (by default its longest), and its number."""
    return page.evaluate(
        """([rank, lane, event]) => {
            const { chart } = tracekit.timeline;
            const row = chart.rows().find((one) => one.rank?.rank === rank && one.name === lane);
            const { boxes, index } = row.tracks[0], length = (i) => boxes.end[i] - boxes.start[i];
            const chosen = event ?? index.reduce((best, i) => (length(i) > length(best) ? i : best), index[0]);
            chart.revealRow(row);
            const area = chart.element.getBoundingClientRect();
            const x = area.left + chart.toX((boxes.start[chosen] + boxes.end[chosen]) / 2);
            return [x, area.top + 30 + row.top - chart.element.scrollTop + row.height / row.tracks.length / 2, chosen];
        }""",
        [rank, lane, event],
    )


def details(page):
    """The facts of the selected event, by topic."""
    topics, texts = (page.locator(f"#details {name}").all_inner_texts() for name in ("dt", "dd"))
    return dict(zip(topics, texts, strict=True))


@pytest.fixture
def timeline(look, pages):
    def opened(name, *, width=1440, path=True, view=""):
        page = look(pages(name, path=path), width=width, height=1000)
        page.evaluate("document.getElementById('timeline').scrollIntoView()")
        return page

    return opened


def test_the_page_holds_every_gpu_event_with_its_texts(analysed, samples):
    """Read back from the packed columns, and counted again from the labelled events."""
    analysis = analysed("1f1b")
    clock = PageClock(analysis)
    data = to_plain(timeline_data(analysis, clock))
    described = unpacked_json(data["descriptions"])
    for entry in data["ranks"]:
        labelled = labelled_of(samples / "1f1b")[entry["rank"]][0].sort("start_ns")
        events = unpacked(entry["events"])
        start = labelled.select(clock.on_page(entry["rank"], "start_ns")).to_series().to_numpy()
        assert events["start"].tolist() == start.tolist()
        assert events["length"].tolist() == (labelled["end_ns"] - labelled["start_ns"]).to_list()
        for column in ("name", "label", "module", "chain", "rule"):
            numbers = np.array(described["columns"][column])[events["description"]]
            texts = [described["texts"][i] if i >= 0 else None for i in numbers]
            expected = labelled[column].cast(pl.String)
            assert texts == (expected.str.tail(300) if column == "chain" else expected).to_list()
        assert (
            np.array(described["stream"])[events["description"]].tolist()
            == labelled["stream"].to_list()
        )
        late = (labelled["start_ns"] - labelled["launch_ns"]).to_numpy()
        assert np.abs((events["delay"] - 1) * 100 - late).max() < 100  # stored in steps of 100 ns


def test_ranks_are_on_one_clock(tmp_path):
    write_run(
        Recipe(generate("1f1b", pp=2, microbatches=2), layers=1, skew_ns={1: 5_000_000}), tmp_path
    )
    analysis = analyze(tmp_path, workers=1)
    assert abs(analysis.clocks.offset_ns[1] - analysis.clocks.offset_ns[0]) > 4_000_000
    data = to_plain(timeline_data(analysis, PageClock(analysis)))
    ends = [unpacked(entry["events"])["start"][-1] for entry in data["ranks"]]
    assert abs(ends[0] - ends[1]) < 2_000_000  # 5 ms apart on the recorded clocks


@pytest.mark.parametrize("width", WIDTHS)
def test_a_click_tells_about_an_event_and_leads_on(timeline, analysed, width):
    page = timeline("1f1b", width=width)
    x, y, number = point_of(page, 1, "pipeline")
    page.mouse.click(x, y)
    page.locator("#details").wait_for(state="visible")
    facts = details(page)
    operation = (
        analysed("1f1b")
        .tables["operations"]
        .filter(rank=1)
        .sort(pl.col("end_ns") - pl.col("start_ns"))[-1]
        .to_dicts()[0]
    )
    length_ms = (operation["end_ns"] - operation["start_ns"]) / 1e6
    assert facts["where"].startswith("rank 1, step 2, stream ")
    assert facts["when"].endswith(f"{length_ms:.3f} ms long")
    assert facts["label"].startswith("pp_comm, by rule ")
    assert facts["waiting"].startswith(f"{operation['wait_ns'] / 1e6:.3f} ms for other ranks")
    # So that all of its wait is exposed, and its causes sum to its length.
    assert operation["hidden_ns"] == 0
    causes = {
        words: float(time)
        for time, words in re.findall(r"([\d.]+) ms (.*?)(?:; |$)", facts["exposed"])
    }
    assert causes["waiting for a late peer"] == pytest.approx(operation["wait_ns"] / 1e6, abs=1e-3)
    assert sum(causes.values()) == pytest.approx(length_ms, abs=2e-3)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.set_viewport_size({"width": 768, "height": 1000})
    assert page.evaluate("document.documentElement.scrollWidth") <= 768
    commands = page.locator("#details [data-command]").evaluate_all(
        "(all) => all.map((one) => one.dataset.command)"
    )
    assert any(
        re.search(r"analyze (sample_traces/)?1f1b --ranks 1 --explain 'nccl", command)
        for command in commands
    )
    rank_and_time = next(
        re.search(r"--at (\d+):(\d+)$", command) for command in commands if "open" in command
    )
    assert [int(rank_and_time[1]), int(rank_and_time[2])] == analysed("1f1b").clocks.to_common(
        1, np.array([operation["start_ns"], operation["end_ns"]])
    ).tolist()
    # The matched operation on another rank is a click away, and leads back.
    other = page.locator("#details .partners button").first
    rank = int(re.match(r"rank (\d+)", other.inner_text())[1])
    other.click()
    assert details(page)["where"].startswith(f"rank {rank},")
    page.locator("#details .partners button", has_text="rank 1:").click()
    assert page.evaluate("tracekit.timeline.state.selected.event") == number
    page.locator("#details .close").click()
    assert not page.locator("#details").is_visible()
    assert page.said == []


def test_next_and_longest_of_a_kernel_and_the_same_on_other_ranks(timeline, samples):
    page = timeline("1f1b")
    x, y, number = point_of(page, 0, "compute")
    page.mouse.click(x, y)
    name = page.locator("#details .whole").inner_text()
    rows = [row.split("\t") for row in page.locator("#details tbody tr").all_inner_texts()]
    for rank, _, median, longest, count in rows:
        labelled, _ = labelled_of(samples / "1f1b")[int(rank)]
        events = labelled.filter(pl.col("name") == name)
        lengths = ((events["end_ns"] - events["start_ns"]) / 1e6).sort()
        shown = [float(text.removesuffix(" ms")) for text in (median, longest)]
        assert shown == pytest.approx([lengths[len(lengths) // 2], lengths[-1]], abs=6e-4)
        assert int(count) == len(lengths)
    assert len(rows) > 1
    # It is the longest of all.
    assert page.get_by_role("button", name="longest of this kernel").count() == 0
    page.locator("#details button", has_text="previous of this kernel").click()
    assert page.locator("#details .whole").inner_text() == name
    page.locator("#details button", has_text="longest of this kernel").click()
    assert page.evaluate("tracekit.timeline.state.selected.event") == number


@pytest.mark.parametrize("width", WIDTHS)
def test_search_counts_marks_and_steps(timeline, analysed, width):
    page = timeline("1f1b", width=width)
    page.fill("#find", "label:pp_comm")
    page.locator("#find-summary", has_text="events of").wait_for()
    expected = analysed("1f1b").total.label_count["pp_comm"]
    assert page.locator("#find-summary").inner_text().startswith(f"{expected} events of 1 kernel, ")
    page.press("#find", "Enter")
    assert details(page)["label"].startswith("pp_comm")
    first = page.evaluate("tracekit.timeline.state.selected.start")
    page.locator("#find-next").click()
    assert page.evaluate("tracekit.timeline.state.selected.start") >= first
    page.fill("#find", "label:pp_comm rank:2")
    page.wait_for_function(f"() => tracekit.timeline.state.matches.list.length < {expected}")
    assert page.evaluate("tracekit.timeline.state.matches.list.every((one) => one.rank.rank === 2)")
    page.fill("#find", "no such thing")
    page.locator("#find-summary", has_text="nothing on the GPU").wait_for()
    page.locator("#find-clear").click()
    assert page.evaluate("tracekit.timeline.state.found") is None
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_a_search_dims_what_it_does_not_name(timeline):
    page = timeline("1f1b")
    chart = page.locator("#timeline-chart")
    before = chart.screenshot()
    page.fill("#find", "optimizer")
    page.locator("#find-summary", has_text="events of").wait_for()
    page.wait_for_timeout(200)
    assert chart.screenshot() != before
    kinds = page.evaluate(
        "(() => { const { sources, kinds } = tracekit.timeline, rank = sources[0].run.ranks[0];"
        "return [...new Set(rank.events.kind)].map((kind) => kinds[kind].name || kinds[kind].colour); })()"
    )
    assert sorted(kinds) == ["dim", "optimizer"]


def test_a_link_brings_the_view_back(timeline, browser):
    page = timeline("1f1b")
    page.locator("#timeline-ranks button", has_text=re.compile("^2$")).click()
    x, y, _ = point_of(page, 2, "compute")
    page.mouse.click(x, y)
    page.focus("#timeline-chart")
    for _ in range(4):
        page.keyboard.press("w")
    page.fill("#find", "label:forward")
    page.locator("#find-summary", has_text="events of").wait_for()
    page.wait_for_function("() => location.hash.includes('find')")
    assert page.evaluate("tracekit.timeline.link()") == page.url
    other = browser.new_page(viewport={"width": 1440, "height": 1000})
    other.goto(page.url)
    other.wait_for_selector("html[data-ready=true]")
    assert window(other) == pytest.approx(window(page), abs=1e-5)
    assert other.locator("#details h3").inner_text() == page.locator("#details h3").inner_text()
    assert other.input_value("#find") == "label:forward"
    assert other.evaluate("[...tracekit.timeline.state.ranks]") == [2]
    other.close()


def test_keys_and_wheel_move_the_window(timeline):
    page = timeline("1f1b")
    start, end = window(page)
    page.focus("#timeline-chart")
    page.keyboard.press("w")
    near = window(page)
    assert near[1] - near[0] == pytest.approx((end - start) * 2 / 3, rel=0.01)
    page.keyboard.press("d")
    assert window(page)[0] > near[0]
    page.keyboard.press("a")
    page.keyboard.press("s")
    assert window(page) == pytest.approx([start, end], abs=0.02 * (end - start))
    box = page.locator("#timeline-chart").bounding_box()
    page.mouse.move(box["x"] + 700, box["y"] + 100)
    page.mouse.wheel(0, -300)
    page.wait_for_function(
        f"tracekit.timeline.chart.window()[1] - tracekit.timeline.chart.window()[0] < {0.9 * (end - start)}"
    )


def test_two_fingers_zoom(browser, pages):
    context = browser.new_context(viewport={"width": 390, "height": 800}, has_touch=True)
    page = context.new_page()
    page.goto(pages("1f1b", path=True).as_uri())
    page.wait_for_selector("html[data-ready=true]")
    page.evaluate("document.getElementById('timeline').scrollIntoView()")
    start, end = window(page)
    box = page.locator("#timeline-chart").bounding_box()
    session, y = context.new_cdp_session(page), box["y"] + 100

    def touch(kind, *xs):
        points = [{"x": box["x"] + x, "y": y, "id": i} for i, x in enumerate(xs)]
        session.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})

    touch("touchStart", 180, 220)
    for step in range(1, 8):
        touch("touchMove", 180 - 8 * step, 220 + 8 * step)
    touch("touchEnd")
    page.wait_for_timeout(200)
    now = window(page)
    assert now[1] - now[0] < 0.8 * (end - start)
    context.close()


def test_a_screen_reader_hears_events_row_by_row(timeline):
    page = timeline("1f1b")
    page.focus("#timeline-chart")
    page.keyboard.press("n")
    assert page.locator("#said").inner_text().startswith("on the critical path")
    for _ in range(2):
        page.keyboard.press("ArrowDown")
    text = page.locator("#said").text_content()
    assert re.search(r"forward \(forward pass\) · rank 0\n21\.011 to 21\.031 ms", text)
    assert page.locator("#details").is_visible()  # an event that is reached is selected
    page.keyboard.press("n")
    assert page.locator("#said").inner_text() != text


def test_every_rank_on_the_page_is_shown_on_the_timeline(timeline):
    page = timeline("1f1b")
    for section in ("#budget", "#stragglers", "#idle"):
        link = page.locator(f"{section} a[data-rank]").last
        rank = link.get_attribute("data-rank")
        link.click()
        page.locator("#said", has_text=f"timeline of rank {rank}").wait_for(state="attached")
        assert page.evaluate("[...tracekit.timeline.state.ranks]") == [int(rank)]
        page.evaluate("document.getElementById('said').textContent = ''")


def test_steps_can_be_chosen_and_lead_to_their_moment(look, pages, analysed):
    page = look(pages("steps/a"))
    options = page.locator("#timeline-step option").all_inner_texts()
    assert options == ["all", *(str(step) for step in range(2, 10))]
    shown = page.locator("#schedule-which option").first.inner_text()  # the one the numbers are of
    assert page.locator("#timeline-step option:checked").inner_text() == shown.removeprefix("step ")
    page.locator("#steps a[data-step='7']").click()
    page.locator("#said", has_text=re.compile(r"timeline of rank \d, step 7")).wait_for(
        state="attached"
    )
    analysis = analysed("steps/a")
    steps = PageClock(analysis).steps.filter(step=7)
    start, end = steps["start_ns"].min() / 1e6, steps["end_ns"].max() / 1e6
    assert window(page) == pytest.approx(
        [start - 0.01 * (end - start), end + 0.01 * (end - start)], abs=0.001
    )
    page.locator(".heat [data-step='3']").first.click()
    page.locator("#said", has_text="step 3").wait_for(state="attached")
    # The choice follows the window, also when it is panned to another step.
    page.focus("#timeline-chart")
    for _ in range(12):
        page.keyboard.press("d")
    page.wait_for_function(
        "() => Number(document.querySelector('#timeline-step option:checked').textContent) > 3"
    )
    page.locator(".heat [data-step='3']").first.click()
    assert window(page)[1] < start


def test_a_cell_opens_its_moment_and_says_what_it_waited_for(look, pages, analysed):
    page = look(pages("1f1b"))
    page.focus("#schedule-chart")
    page.keyboard.press("ArrowDown")  # rank 1: outside cells until its first forward
    page.keyboard.press("n")
    text = page.locator("#said").inner_text()
    assert re.search(r"forward · rank 1 · measured\s+stage 1, micro-batch 0", text)
    assert "after 0F0 on rank 0" in text
    page.keyboard.press("Enter")
    page.locator("#said", has_text="timeline of rank 1").wait_for(state="attached")
    analysis = analysed("1f1b")
    cell = analysis.comparison.head.cells.filter(rank=1).sort("start_ns").row(0, named=True)
    origin = PageClock(analysis).origin_ns
    start, end = (cell["start_ns"] - origin) / 1e6, (cell["end_ns"] - origin) / 1e6
    assert window(page) == pytest.approx(
        [start - (end - start) / 2, end + (end - start) / 2], abs=0.01
    )


def test_a_label_is_shown_alone_and_a_number_leads_to_its_events(look, pages, analysed):
    page = look(pages("1f1b"))
    page.locator("#overlap a[data-label='pp_comm']").first.click()
    page.locator("#said", has_text="pp_comm alone").wait_for(state="attached")
    pressed = page.locator("#timeline-legend button[aria-pressed=true]").all_inner_texts()
    assert [label for label in pressed if not label.startswith("host")] == ["pp_comm"]
    page.locator("#overlap tr[data-find='label:=wgrad'] td").nth(2).click()
    page.locator("#find-summary", has_text="events of").wait_for()
    count = analysed("1f1b").total.label_count["wgrad"]
    assert page.locator("#find-summary").inner_text().startswith(f"{count:,} events")


def test_a_segment_of_the_path_opens_its_moment(look, pages, analysed):
    page = look(pages("1f1b", path=True))
    rows = page.locator("#critical-path tbody tr")
    row = rows.nth(4)
    link = row.locator("th a")
    rank = link.get_attribute("data-rank")
    link.click()
    page.locator("#said", has_text=f"timeline of rank {rank}").wait_for(state="attached")
    start, end = window(page)
    moment = [float(link.get_attribute(name)) for name in ("data-from", "data-to")]
    assert end - start == pytest.approx(2 * (moment[1] - moment[0]), rel=0.05)
    cell = row.locator("td").last.inner_text()
    cells = analysed("1f1b").comparison.head.cells.filter(
        (pl.col("rank") == int(rank))
        & (pl.format("{}{}{}", "stage", pl.col("op").cast(pl.String), "microbatch") == cell)
    )
    assert moment[1] - moment[0] == pytest.approx(
        (cells["end_ns"] - cells["start_ns"])[0] / 1e6, rel=0.05
    )
    stage, microbatch = re.fullmatch(r"(\d+)\w(\d+)", cell).groups()
    assert (
        page.locator("#details h3")
        .inner_text()
        .endswith(f"stage {stage}, micro-batch {microbatch}")
    )


@pytest.mark.parametrize("name", ["1f1b", "steps/straggler"])
def test_each_row_of_the_path_opens_its_own_event(look, pages, name):
    page = look(pages(name, path=True))
    for row in page.locator("#critical-path tbody tr").all():
        # Time, of step, rank, kind, label, came last, what.
        cells = row.locator("td").all_inner_texts()
        link = row.locator("th a")
        start, end = (float(link.get_attribute(name)) for name in ("data-from", "data-to"))
        row.locator("td").last.click()
        facts = details(page)
        from_ms, to_ms = (
            float(time) for time in re.match(r"([\d.]+) to ([\d.]+) ms", facts["when"]).groups()
        )
        assert facts["where"].startswith(f"rank {cells[2]}")
        # A segment of kernels shows one of them.
        assert min(to_ms, end) - max(from_ms, start) > (
            0 if cells[3] == "kernel" else 0.8 * (end - start)
        )
        if cells[3] == "host":
            assert page.locator("#details h3").inner_text() == "On the critical path: the host"
            assert "host" in page.evaluate("[...tracekit.timeline.state.lanes]")
        elif cells[3] != "cell":
            assert facts["label"].startswith(cells[4])
        assert (
            page.locator("#details button", has_text="next longest on the critical path").count()
            == 1
        )
    # Another link of the page does not leave the panel of what was selected before.
    page.locator("#steps a, #budget tbody a").first.click()
    assert not page.locator("#details").is_visible()


@pytest.mark.parametrize("width", WIDTHS)
def test_tables_sort_and_filter(look, pages, width):
    page = look(pages("1f1b"), width=width)
    rows = page.locator("#kernels > .scroll > table > tbody > tr:not(.why)")
    before = rows.all_inner_texts()
    head = page.locator("#kernels > .scroll > table > thead th", has_text=re.compile("^per step$"))
    head.locator("button").click()
    counts = [float(text.split("\t")[3].replace(",", "")) for text in rows.all_inner_texts()]
    assert counts == sorted(counts, reverse=True)
    assert head.get_attribute("aria-sort") == "descending"
    head.locator("button").click()
    assert [
        float(text.split("\t")[3].replace(",", "")) for text in rows.all_inner_texts()
    ] == sorted(counts)
    head.locator("button").click()
    assert rows.all_inner_texts() == before
    page.locator("#kernels .filter").fill("wgrad")
    shown = [row for row in rows.all() if row.is_visible()]
    assert 0 < len(shown) < len(before)
    assert all("wgrad" in row.inner_text() for row in shown)
    texts = ["1,234", "45 %", "–", "2.5 ms", "900 µs", "−3.0 ms", "1.2 GB"]
    assert page.evaluate("(texts) => texts.map(sortableTables.numberOf)", texts) == pytest.approx(
        [1234, 0.45, None, 2.5e-3, 9e-4, -3e-3, 1.2e9]
    )


def test_memory_stands_under_the_lanes(look, pages):
    page = look(pages("memory"), width=1440)
    page.locator("#timeline-ranks button", has_text=re.compile("^3$")).click()
    page.evaluate("document.getElementById('timeline').scrollIntoView()")
    position = page.evaluate(
        """() => {
            const { chart } = tracekit.timeline, row = chart.rows().find((one) => one.line);
            const area = chart.element.getBoundingClientRect();
            chart.revealRow(row);
            return [area.left + area.width / 2, area.top + 30 + row.top - chart.element.scrollTop + row.height / 2];
        }"""
    )
    page.mouse.move(*position)
    page.locator("#tip", has_text="GB allocated").wait_for(state="visible")


def test_a_run_without_single_events_says_so(look, analysed, tmp_path):
    from dataclasses import replace

    path = tmp_path / "merged.html"
    path.write_text(render_html(replace(analysed("1f1b"), events=())), encoding="utf-8")
    page = look(path)
    assert page.get_by_text("merged intervals by label").is_visible()
    x, y, _ = point_of(page, 0, "compute")
    page.evaluate("document.getElementById('timeline').scrollIntoView()")
    x, y, _ = point_of(page, 0, "compute")
    page.mouse.click(x, y)
    assert "merged interval" in page.locator("#details h3").inner_text()
    assert page.said == []


def test_a_store_has_single_events_too(samples, tmp_path):
    from tracekit import ingest

    ingest(str(samples / "1f1b"), tmp_path / "store")
    stored, direct = analyze(tmp_path / "store"), analysis_of(samples / "1f1b")
    assert [len(rank.events) for rank in stored.events] == [
        len(rank.events) for rank in direct.events
    ]
    assert (
        stored.events[1]
        .descriptions.sort("name", "chain", "annotations")
        .equals(direct.events[1].descriptions.sort("name", "chain", "annotations"))
    )


def test_source_lines_are_those_around_the_launch(tmp_path):
    import json

    frame = {"ph": "X", "cat": "python_function", "pid": 1, "tid": 1}
    events = [
        {**frame, "name": "train.py(10): main", "ts": 0, "dur": 100},
        {**frame, "name": "model.py(42): forward", "ts": 10, "dur": 20},
        *(
            {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": 1, "ts": ts, "dur": 2,
             "args": {"correlation": n}} for n, ts in ((1, 15), (2, 50))
        ),
        *(
            {"ph": "X", "cat": "kernel", "name": f"kernel{n}", "pid": 0, "tid": 7, "ts": ts, "dur": 5,
             "args": {"device": 0, "stream": 7, "correlation": n}} for n, ts in ((1, 200), (2, 210))
        ),
    ]  # fmt: skip
    (tmp_path / "one.json").write_text(json.dumps({"traceEvents": events}))
    path, store = tmp_path / "one.json", tmp_path / "store"
    for traces, options in (
        (path, {}),
        (load(path, stacks=True), {}),
        (path, {"store": store}),
        (store, {"what_if": True}),
    ):
        (rank,) = analyze(traces, stacks=True, **options).events
        lines = rank.events.join(
            rank.descriptions.with_row_index("description"), on="description", maintain_order="left"
        ).select("name", "source")
        assert lines.rows() == [
            ("kernel1", "model.py(42): forward"),
            ("kernel2", "train.py(10): main"),
        ]


def test_what_holds_the_step_up_longest_is_one_click_away(timeline, analysed):
    page = timeline("1f1b")
    pieces = analysed("1f1b").critical_path.pieces.with_columns(
        ns=pl.col("end_ns") - pl.col("start_ns")
    )
    longest = pieces.sort("ns", descending=True).head(3)
    origin = PageClock(analysed("1f1b")).origin_ns
    for piece in longest.iter_rows(named=True):
        page.locator("#path-longest").click()
        text = page.locator("#details").inner_text()
        if piece["kind"] == "host":
            assert f"{(piece['start_ns'] - origin) / 1e6:.4f} to" in text
        else:
            facts = details(page)
            assert facts["where"].startswith(f"rank {piece['rank']},")
            assert facts["label"].startswith(piece["label"])
            assert re.match(
                rf"runs through it.* for {piece['ns'] / 1e6:.3f} ms", facts["critical path"]
            )
            # Kernels that follow each other are joined on the path: then it says so.
            length_ms = float(re.search(r"([\d.]+) ms long$", facts["when"])[1])
            assert ("in a row with it" in facts["critical path"]) == (
                piece["ns"] / 1e6 > 1.05 * length_ms
            )


def test_too_many_events_leave_the_shortest_out_and_say_so(analysed):
    analysis = analysed("1f1b")
    total = sum(len(rank.events) for rank in analysis.events)
    data = to_plain(timeline_data(analysis, PageClock(analysis), max_events=total // 2))
    shown = sum(entry["events"]["count"] for entry in data["ranks"])
    assert total // 2 - len(analysis.events) <= shown <= total // 2
    assert data["left_out"][0].startswith(
        f"{total - shown:,} events, the shortest of each rank, are left out"
    )
    lengths = [unpacked(entry["events"])["length"] for entry in data["ranks"]]
    for rank, kept in zip(analysis.events, lengths, strict=True):
        every = (rank.events["end_ns"] - rank.events["start_ns"]).sort(descending=True)
        assert sorted(kept, reverse=True) == every.head(len(kept)).to_list()


def test_host_ranges_that_are_left_out_are_named_with_the_longest_of_them(analysed, monkeypatch):
    analysis = analysed("1f1b")
    monkeypatch.setattr(charts, "MAX_HOST_RANGES_ON_PAGE", 8 * len(analysis.events))
    data = to_plain(timeline_data(analysis, PageClock(analysis)))
    shortest_kept_ns = []
    for rank in analysis.events:
        lengths = (rank.host["end_ns"] - rank.host["start_ns"]).sort(descending=True)
        shortest_kept_ns.append(lengths[7])
    words = f"operators, ranges and calls of at most {short_ms(max(shortest_kept_ns))}."
    assert data["left_out"][-1].endswith(words)


def test_each_exposed_event_has_its_own_causes_and_they_sum_to_those_of_its_label(analysed):
    """Counted again from the page's packed columns: label by label, what the rank's budget says."""
    analysis = analysed("1f1b")
    data = to_plain(timeline_data(analysis, PageClock(analysis)))
    described = unpacked_json(data["descriptions"])
    for entry in data["ranks"]:
        events, causes = unpacked(entry["events"]), unpacked(entry["causes"])
        labels = np.array(described["columns"]["label"])[events["description"][causes["event"]]]
        sums: dict[str, dict[str, int]] = {}
        for label, cause, time in zip(labels, causes["cause"], causes["time"], strict=True):
            of_label = sums.setdefault(described["texts"][label], {})
            of_label[EXPOSURE_CAUSES[cause]] = (
                of_label.get(EXPOSURE_CAUSES[cause], 0) + int(time) * 100
            )
        expected = {
            label: ns for label, ns in analysis.rank(entry["rank"]).whole.because_ns.items() if ns
        }
        assert {label: set(of_label) for label, of_label in sums.items()} == {
            label: set(of_label) for label, of_label in expected.items()
        }
        for label, of_label in expected.items():
            for cause, ns in of_label.items():
                # Stored in steps of 100 ns.
                assert ns - 100 * len(causes["event"]) <= sums[label][cause] <= ns


def test_roles_share_one_time_axis_and_are_chosen_by_buttons(look, pages, analysed):
    page = look(pages("rl"), width=1440, height=1000)
    buttons = page.locator("#timeline-roles button")
    assert buttons.all_inner_texts() == ["all", "trainer", "rollout"]
    groups = "tracekit.timeline.chart.rows().map((row) => `${row.rank?.rank} ${row.source?.name}`)"
    both = [f"{rank} {role}" for rank in range(4) for role in ("trainer", "rollout")]
    assert list(dict.fromkeys(page.evaluate(groups))) == both
    buttons.filter(has_text="rollout").click()
    assert set(page.evaluate(groups)) == {f"{rank} rollout" for rank in range(4)}
    page.wait_for_function("() => location.hash.includes('roles=1')")
    # On the common clock each rank's rollout lies outside its training: they share a GPU and take
    # turns.
    bands = [band for band in analysed("rl").role_results.bands if band.role == "rollout"]
    origin = PageClock(analysed("rl")).origin_ns
    for rank in range(4):
        own = [
            ((b.start_ns - origin) / 1e6, (b.end_ns - origin) / 1e6)
            for b in bands
            if b.rank == rank
        ]
        forwards = page.evaluate(
            """(number) => {
                const { run } = tracekit.timeline.sources[1], { events } = run.ranks[number];
                const isForward = (_, i) => run.text("label", events.description[i]) === "forward";
                return Array.from(events.start).filter(isForward);
            }""",
            rank,
        )
        assert forwards
        assert all(any(start - 0.1 <= time <= end + 0.1 for start, end in own) for time in forwards)
    # A role's row of the table finds the events of that role alone.
    page.locator("#roles tr", has_text="rollout").locator(".shows").click()
    assert page.evaluate(
        "tracekit.timeline.state.matches.list.every(({ source }) => source.name === 'rollout')"
    )
    assert page.locator("#find-summary").inner_text().split(" ")[0] != "nothing"
    # The commands of an event name its role; an iteration leads to its moment.
    page.evaluate("tracekit.timeline.stepMatch(1)")
    commands = page.locator("#details [data-command]").evaluate_all(
        "(all) => all.map((one) => one.dataset.command)"
    )
    assert any(" --role rollout --ranks " in command for command in commands)
    page.locator("#iterations a", has_text=re.compile("^1$")).first.click()
    iteration = analysed("rl").role_results.iterations[1]
    start, end = (iteration.start_ns - origin) / 1e6, (iteration.end_ns - origin) / 1e6
    shown = window(page)
    assert shown[0] <= start < end <= shown[1] + 1e-6
    assert page.said == []


@pytest.mark.parametrize("name", ["rl", "router"])
def test_every_search_of_a_table_finds_events(look, pages, name):
    page = look(pages(name))
    searched, empty = page.evaluate(
        """() => {
            const searches = [...new Set([...document.querySelectorAll("[data-find]")].map((one) => one.dataset.find))];
            return [searches.length, searches.filter((query) => {
                const { list, hostCount } = tracekit.timeline.search(query);
                return !list.length && !hostCount;
            })];
        }"""
    )
    assert searched > 20
    assert empty == []
    # A number of a row is a button: keys reach it, and it marks the events on the timeline.
    page.evaluate("tracekit.timeline.search('')")
    page.locator("#overlap .shows").first.focus()
    page.keyboard.press("Enter")
    page.locator("#find-summary", has_text="events of").wait_for()
    assert page.said == []


def test_the_host_on_the_critical_path_says_what_it_did(timeline):
    page = timeline("rl")
    page.locator("#path-longest").click()
    facts = details(page)
    # Its rollout takes longest, and its trainer starts late because of it.
    assert facts["where"] == "rank 3 (trainer)"
    assert re.match(r"no host activity was recorded here \([\d.]+ ms\), until ", facts["the host"])
    assert re.search(r"[\d.]+ ms of GPU work of role rollout on this rank", facts["meanwhile"])
    assert "host" in page.evaluate("[...tracekit.timeline.state.lanes]")
    page.locator("#details button", has_text="what it launched then").click()
    assert re.match(r"rank 3 \(trainer\), step \d, stream ", details(page)["where"])
    assert details(page)["operators"].endswith("aten::copy_")
    # A range of the host tells about itself.
    page.evaluate("tracekit.timeline.chart.setWindow(-100, 4300)")
    x, y, _ = point_of(page, 3, "ranges")
    page.mouse.click(x, y)
    assert details(page)["where"] == "rank 3 (trainer), host, ranges"
