"""Tests of the page's schedule chart in a real browser: mouse, wheel, keys and legend."""

from __future__ import annotations

import re

import pytest

from tracekit.documents.coding import to_plain
from tracekit.report.html.charts import schedule_data
from tracekit.report.schedule.layout import shade_colour

pytestmark = pytest.mark.slow


def test_hovering_a_cell_tells_its_facts(look, pages):
    page = look(pages("1f1b"))
    chart = page.locator("#schedule-chart")
    chart.scroll_into_view_if_needed()
    box = chart.bounding_box()
    page.mouse.move(box["x"] + 132, box["y"] + 50)  # rank 0's first forward
    tip = page.locator("#tip")
    tip.wait_for(state="visible")
    facts = re.match(
        r"forward · rank 0 · measured\nstage 0, micro-batch 0\n([\d.]+) to ", tip.inner_text()
    )
    assert float(facts[1]) == pytest.approx(start_of_pipeline_ms(page), abs=0.001)


def start_of_pipeline_ms(page):
    """When the pipeline starts on the timeline, which the schedule's axis shares."""
    return page.evaluate(
        "(() => { const data = JSON.parse(document.getElementById('data').textContent);"
        "const [{ origin_ns }] = data.schedule.choices, [{ timeline }] = data.timelines;"
        "return Number(BigInt(origin_ns) - BigInt(timeline.origin_ns)) / 1e6; })()"
    )


def zoom_of(page):
    """The window of the schedule chart, in per cent of the pipeline's time."""
    start_ms = start_of_pipeline_ms(page)
    return page.evaluate(
        "(start) => { const chart = tracekit.drawn.schedule, [from, to] = chart.window();"
        "const { end_ns } = JSON.parse(document.getElementById('data').textContent).schedule.choices[0];"
        "return [from, to].map((time) => 1e8 * (time - start) / end_ns); }",
        start_ms,
    )


def test_keys_zoom_both_schedules_together(look, pages):
    page = look(pages("1f1b"))
    assert zoom_of(page) == pytest.approx([0, 100])
    page.focus("#schedule-chart")
    page.keyboard.press("+")
    start, end = zoom_of(page)
    assert 0 < start < end < 100
    groups = page.evaluate(
        "[...new Set(tracekit.drawn.schedule.rows().map((row) => row.group.name))]"
    )
    assert groups == ["measured", "ideal"]  # two groups of rows, one window
    page.keyboard.press("0")
    assert zoom_of(page) == pytest.approx([0, 100])


def test_the_wheel_scrolls_the_page_until_the_timeline_is_in_hand(look, pages):
    page = look(pages("1f1b"))
    chart = page.locator("#schedule-chart")
    chart.scroll_into_view_if_needed()
    box, before = chart.bounding_box(), page.evaluate("scrollY")
    page.mouse.move(box["x"] + 500, box["y"] + 60)
    page.mouse.wheel(0, 40)
    page.wait_for_timeout(300)
    assert page.evaluate("scrollY") == before + 40
    assert zoom_of(page) == pytest.approx([0, 100])
    page.mouse.click(box["x"] + 500, box["y"] + 20)
    page.mouse.wheel(0, -400)
    page.wait_for_timeout(200)
    start, end = zoom_of(page)
    assert end - start < 100
    assert page.evaluate("scrollY") == before + 40


def test_dragging_pans(look, pages):
    page = look(pages("1f1b"))
    page.focus("#schedule-chart")
    page.keyboard.press("+")
    start, end = zoom_of(page)
    box = page.locator("#schedule-chart").bounding_box()
    page.mouse.move(box["x"] + 500, box["y"] + 60)
    page.mouse.down()
    page.mouse.move(box["x"] + 400, box["y"] + 60, steps=5)
    page.mouse.up()
    page.wait_for_timeout(200)
    moved = zoom_of(page)
    assert moved[0] > start
    assert moved[1] - moved[0] == pytest.approx(end - start)


def test_keys_step_through_cells_and_say_each(look, pages):
    page = look(pages("1f1b"))
    page.focus("#schedule-chart")
    labels = []
    for key in ("n", "n", "p", "n", "n", "ArrowDown"):
        page.keyboard.press(key)
        labels.append(page.locator("#said").inner_text())
    told = [
        re.match(r"([\w ]+) · rank (\d) · measured(?:\s+stage 0, micro-batch (\d))?", text).groups()
        for text in labels[:5]
    ]
    first, hair, second = ("forward", "0", "0"), ("outside cells", "0", None), ("forward", "0", "1")
    assert told == [first, hair, first, hair, second]
    assert labels[5].startswith("outside cells · rank 1 · measured")
    assert page.locator("#tip").is_visible()
    page.locator("#schedule-chart").blur()
    assert not page.locator("#tip").is_visible()


def test_what_is_narrower_than_a_pixel_keeps_its_share(look, pages):
    """Two kinds take turns, one third and two thirds of the time, in boxes of 0.1 and 0.2 pixels."""
    page = look(pages("reload-overlap"))
    counted = page.evaluate(
        """(count) => {
            const start = [], end = [], kind = [], width = 30, height = 90;
            for (let i = 0, time = 0; i < count; i++) {
                start.push(time); time += (i % 2 ? 2 : 1) * width / (1.5 * count); end.push(time); kind.push(i % 2);
            }
            const [track] = tracks.makeTracks({ start, end, kind }, start.keys());
            const paint = (hidden) => {
                const pixels = new Uint32Array(width * height);
                const picture = { pixels, stride: width, left: 0, width, from: 0, to: width, begin: 0, end: width,
                                  colours: [7, 8], hidden: new Set(hidden) };
                tracks.draw(track, picture, 0, height);
                return [7, 8].map((colour) => pixels.filter((pixel) => pixel === colour).length / pixels.length);
            };
            return [paint([]), paint([1])];
        }""",
        200,
    )
    assert counted[0] == pytest.approx([1 / 3, 2 / 3], abs=0.02)
    assert counted[1] == pytest.approx([1 / 3, 0], abs=0.02)


def test_bins_show_the_shares_that_the_boxes_have(look, pages):
    """Drawn from bins (many boxes) and from the boxes themselves, a view has the same shares of colour."""
    page = look(pages("reload-overlap"))
    shares = page.evaluate(
        """() => {
            const count = 60000, start = [], end = [], kind = [], width = 400, height = 50;
            for (let i = 0, time = 0; i < count; i++) {
                const length = 0.2 + (i * 7919 % 100) / 100; // a fixed pattern without a short period
                start.push(time); end.push(time + 0.7 * length); kind.push(i * 31 % 3); time += length;
            }
            const boxes = { start, end, kind }, last = end.at(-1);
            const drawn = (indices) => {
                const pixels = new Uint32Array(width * height), [track] = tracks.makeTracks(boxes, indices);
                tracks.draw(track, { pixels, stride: width, left: 0, width, from: 0, to: last, begin: 0, end: last,
                    colours: [7, 8, 9], hidden: new Set() }, 0, height);
                const shareOf = (colour) => pixels.filter((pixel) => pixel === colour).length / pixels.length;
                return [[7, 8, 9].map(shareOf), track.bins !== null];
            };
            const busy = [0, 0, 0];
            start.forEach((time, i) => { busy[kind[i]] += (end[i] - time) / last; });
            return { all: drawn(start.keys()), busy };
        }"""
    )
    share, from_bins = shares["all"]
    assert from_bins
    assert share == pytest.approx(shares["busy"], abs=0.02)


def test_the_legend_switches_cells_off(look, pages):
    page = look(pages("1f1b"))
    chart = page.locator("#schedule-chart")
    before = chart.screenshot()
    button = page.locator("#schedule-legend button", has_text=re.compile("^forward$"))
    button.click()
    assert button.get_attribute("aria-pressed") == "false"
    page.wait_for_timeout(100)
    without = chart.screenshot()
    assert without != before
    button.click()
    assert button.get_attribute("aria-pressed") == "true"


def test_the_legend_names_only_what_ran(look, pages):
    page = look(pages("1f1b"))
    assert page.locator("#schedule-legend button").all_inner_texts() == [
        "forward",
        "backward",
        "outside cells",
    ]


def test_cells_have_the_colours_of_the_pictures(analysed):
    """Chunks are told apart by shade, on the page as in a plot; legend entries are ops."""
    data = to_plain(schedule_data(analysed("vpp-overlap")))
    assert [(kind["name"], kind["colour"]) for kind in data["choices"][0]["kinds"]] == [
        ("forward", shade_colour("F", 0, 2)),
        ("forward", shade_colour("F", 1, 2)),
        ("backward", shade_colour("B", 0, 2)),
        ("backward", shade_colour("B", 1, 2)),
        ("outside cells", "idle"),
    ]


def test_pipelines_and_steps_can_be_chosen(look, pages):
    page = look(pages("steps/a"))
    names = page.locator("#schedule-which option").all_inner_texts()
    assert sorted(names) == [f"step {n}" for n in range(2, 10)]
    before = page.locator("#schedule-chart").screenshot()
    page.select_option("#schedule-which", index=3)
    page.wait_for_timeout(400)
    assert page.locator("#schedule-chart").screenshot() != before
    assert page.said == []


def test_a_legend_entry_switches_every_chunk(look, pages):
    page = look(pages("vpp-overlap"))
    assert page.locator("#schedule-legend button").all_inner_texts() == [
        "forward",
        "backward",
        "outside cells",
    ]
    page.locator("#schedule-legend button").first.click()
    page.focus("#schedule-chart")
    page.keyboard.press("n")
    assert page.locator("#said").inner_text().startswith("outside cells · rank 0")


def test_a_much_shorter_ideal_can_be_fitted(look, pages, tmp_path):
    """The ideal of this sample takes more than half of the run: no button.

    The same page with a longer axis has it.
    """
    page = look(pages("1f1b"))
    assert not page.locator("#schedule-fit").is_visible()
    text = pages("1f1b").read_text(encoding="utf-8")
    longer = tmp_path / "longer.html"
    longer.write_text(
        re.sub(
            r'"end_ns":(\d+)(?=,"origin_ns")', lambda match: f'"end_ns":{3 * int(match[1])}', text
        )
    )
    page = look(longer)
    whole = page.evaluate("tracekit.drawn.schedule.window()[1]")
    page.locator("#schedule-fit").click()
    fitted = page.evaluate("tracekit.drawn.schedule.window()[1]")
    assert whole / 6 < fitted < whole / 3
    page.locator("#schedule-fit", has_text="show all").click()
    assert page.evaluate("tracekit.drawn.schedule.window()[1]") == whole
