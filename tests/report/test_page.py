"""The page in a real browser: it loads alone, it answers to the hand, and text from a trace never runs."""

from __future__ import annotations

import gzip
import json
import re

import numpy as np
import polars as pl
import pytest

from tracekit.report.html.page import render_html
from tracekit.report.html.schedules import schedule_data
from tracekit.report.palette import IDLE_COLOUR
from tracekit.report.schedule.plot import colour
from tracekit.run.analyze import analyze

HOSTILE = "<script>window.ran=1</script><img src=x onerror='window.ran=1'>"


@pytest.mark.parametrize("name", ["1f1b", "vpp-overlap", "reload-overlap"])
def test_it_loads_alone_and_silently(look, pages, name):
    page = look(pages(name))
    assert page.said == []
    assert page.asked == [pages(name).as_uri()]


def test_hovering_a_cell_tells_its_facts(look, pages):
    page = look(pages("1f1b"))
    chart = page.locator("#schedule-chart")
    chart.scroll_into_view_if_needed()
    box = chart.bounding_box()
    page.mouse.move(box["x"] + 112, box["y"] + 45)  # rank 0's first forward
    tip = page.locator("#tip")
    tip.wait_for(state="visible")
    assert re.match(r"forward · rank 0 · measured\nstage 0, micro-batch 0\n0\.000 to ", tip.inner_text())


def zoom_of(page):
    look = "echarts.getInstanceByDom(document.getElementById('schedule-chart')).getOption().dataZoom[0]"
    return page.evaluate(f"[{look}.start, {look}.end]")


def test_keys_zoom_both_schedules_together(look, pages):
    page = look(pages("1f1b"))
    assert zoom_of(page) == [0, 100]
    page.focus("#schedule-chart")
    page.keyboard.press("+")
    start, end = zoom_of(page)
    assert 0 < start < end < 100
    extents = page.evaluate(
        "(() => { const c = echarts.getInstanceByDom(document.getElementById('schedule-chart'));"
        "return [0, 1].map(i => c.convertFromPixel({xAxisIndex: i}, 300)); })()"
    )
    assert extents[0] == pytest.approx(extents[1], abs=0.2)  # a pixel is 0.07 ms
    page.keyboard.press("0")
    assert zoom_of(page) == [0, 100]


def test_the_wheel_scrolls_the_page_until_the_timeline_is_in_hand(look, pages):
    page = look(pages("1f1b"))
    chart = page.locator("#schedule-chart")
    chart.scroll_into_view_if_needed()
    box, before = chart.bounding_box(), page.evaluate("scrollY")
    page.mouse.move(box["x"] + 500, box["y"] + 60)
    page.mouse.wheel(0, 40)
    page.wait_for_timeout(300)
    assert page.evaluate("scrollY") == before + 40
    assert zoom_of(page) == [0, 100]
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
    said = []
    for key in ("n", "n", "p", "n", "n", "ArrowDown"):
        page.keyboard.press(key)
        said.append(page.locator("#said").inner_text())
    told = [
        re.match(r"([\w ]+) · rank (\d) · measured(?:\s+stage 0, micro-batch (\d))?", text).groups()
        for text in said[:5]
    ]
    first, hair, second = ("forward", "0", "0"), ("outside cells", "0", None), ("forward", "0", "1")
    assert told == [first, hair, first, hair, second]
    assert said[5].startswith("outside cells · rank 1 · measured")
    assert page.locator("#tip").is_visible()
    page.locator("#schedule-chart").blur()
    assert not page.locator("#tip").is_visible()


def test_what_is_narrower_than_a_pixel_keeps_its_share(look, pages):
    """Two kinds take turns, one third and two thirds of the time, in boxes of 0.1 and 0.2 pixels."""
    page = look(pages("reload-overlap"))
    weights = page.evaluate(
        """() => {
            const n = 200, start = [], end = [], kind = [], half = Array(n).fill(0);
            for (let i = 0, t = 0; i < n; i++) { start.push(t); t += i % 2 ? 0.2 : 0.1; end.push(t); kind.push(i % 2); }
            const all = { start, end, kind, half, rows: new Map([[0, [0, n]]]), views: new Map() };
            const paint = (hidden) => {
                const { narrow } = boxes.view(all, { row: 0, x0: 0, scale: 1, left: 0, right: 30 }, new Set(hidden));
                const seen = {}; let left = 1;
                for (const k of [...narrow.keys()].sort((a, b) => b - a)) { // the last painted is on top
                    seen[k] = left * narrow.get(k)[0][7]; left -= seen[k];
                }
                return seen;
            };
            return [paint([]), paint([1])];
        }"""
    )
    both, alone = weights
    assert both["0"] + both["1"] == pytest.approx(1, abs=1e-5)
    assert both["1"] == pytest.approx(2 / 3, abs=0.1)  # a column holds three boxes of each, and parts of two
    assert alone == {"0": pytest.approx(0.4, abs=1e-5)}  # faint, but seen


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
    assert page.locator("#schedule-legend button").all_inner_texts() == ["forward", "backward", "outside cells"]


def test_what_is_switched_off_stays_off_on_another_rank(look, pages):
    page = look(pages("vpp-overlap"))
    button = page.locator("#lanes-legend button", has_text=re.compile("^pp_comm$"))
    button.click()
    page.select_option("#lanes-rank", "3")
    page.wait_for_timeout(300)
    assert button.get_attribute("aria-pressed") == "false"
    selected = "echarts.getInstanceByDom(document.getElementById('lanes-chart')).getOption().legend[0].selected.pp_comm"
    assert page.evaluate(selected) is False
    button.click()
    assert page.evaluate(selected) is True


def test_lanes_follow_the_chosen_rank(look, pages):
    page = look(pages("vpp-overlap"))
    chart = page.locator("#lanes-chart")
    before = chart.screenshot()
    page.select_option("#lanes-rank", "3")
    page.wait_for_timeout(300)
    assert chart.screenshot() != before
    page.select_option("#lanes-phase", label="steady")
    look = "echarts.getInstanceByDom(document.getElementById('lanes-chart')).getOption().dataZoom[0]"
    assert page.evaluate(f"{look}.start") > 0


def test_it_fits_a_phone_in_the_dark(look, pages):
    page = look(pages("1f1b"), dark=True)
    page.set_viewport_size({"width": 390, "height": 800})
    page.wait_for_function("document.documentElement.scrollWidth <= 390")  # charts are drawn anew a moment later
    ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert ground == "rgb(20, 25, 29)"


def test_print_is_light_and_keeps_the_legend(look, pages):
    page = look(pages("1f1b"), dark=True)
    page.emulate_media(media="print", color_scheme="dark")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert page.locator("#schedule-legend").is_visible()
    assert not page.locator("nav").is_visible()


def test_a_viewer_without_scripts_says_so(browser, pages):
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(pages("1f1b").as_uri())
    assert page.get_by_text("The timeline needs scripts").first.is_visible()
    assert not page.locator("#schedule-chart").is_visible()
    assert page.get_by_text("What to do next").is_visible()
    context.close()


def test_a_viewer_that_cannot_unpack_says_so(browser, pages):
    page = browser.new_page()
    page.add_init_script("delete window.DecompressionStream")
    page.goto(pages("1f1b").as_uri())
    page.get_by_text("The timeline could not be drawn in this viewer").first.wait_for()


def test_every_link_of_the_page_leads_somewhere(pages):
    for name in ("1f1b", "vpp-overlap", "reload-overlap"):
        text = pages(name).read_text()
        links = re.findall(r'href="#(\w+)"', text)
        assert len(links) > 5
        assert [link for link in links if f'id="{link}"' not in text] == []


def test_one_rank_without_steps_or_peers_has_no_empty_parts(look, tmp_path):
    kernel = {"ph": "X", "cat": "kernel", "name": "mystery", "pid": 0, "tid": 7, "ts": 0, "dur": 2000,
              "args": {"device": 0, "stream": 7, "correlation": 1}}  # fmt: skip
    (tmp_path / "one.json").write_text(json.dumps({"traceEvents": [kernel]}))
    path = tmp_path / "page.html"
    path.write_text(render_html(analyze(tmp_path / "one.json")), encoding="utf-8")
    page = look(path)
    assert page.title() == "tracekit: one.json, 1 rank"
    assert page.locator(".source").inner_text().startswith("1 rank · no step marks")
    answer = page.locator(".answer").inner_text().replace("\N{NO-BREAK SPACE}", " ")
    assert "The trace spans 2.0 ms: 100.0 % compute and 0.0 % idle" in answer
    assert "100.0 % of the span is work that no rule knows (other)" in answer
    assert page.locator("tr.loud").count() == 1
    assert page.locator("#budget tbody tr").count() == 1  # a mean of one rank would say the same again
    assert not page.locator("#lanes-rank").is_visible()
    assert not page.locator("#lanes-phase").is_visible()


def test_a_trace_without_gpu_events_shows_no_empty_tables(look, tmp_path):
    event = {"ph": "X", "cat": "cpu_op", "name": "aten::add", "pid": 1, "tid": 1, "ts": 0, "dur": 5}
    (tmp_path / "cpu.json").write_text(json.dumps({"traceEvents": [event]}))
    path = tmp_path / "page.html"
    path.write_text(render_html(analyze(tmp_path / "cpu.json")), encoding="utf-8")
    page = look(path)
    assert page.locator("table").count() == 0
    assert page.locator("section h2").all_inner_texts() == ["What to do next", "Warnings", "How each number is defined"]


ODD = ["\"quoted\" & 'both'", "kernel 🚀 名前", "\N{RIGHT-TO-LEFT OVERRIDE}drawkcab<b>", "x" * 2048, "{{ 7 * 7 }}"]


def test_odd_and_long_names_stay_whole_and_inside_the_page(look, tmp_path, kernels_named):
    trace = kernels_named(ODD)
    path = tmp_path / "page.html"
    path.write_text(render_html(analyze(trace)), encoding="utf-8")
    page = look(path)
    shown = {name.replace("\N{RIGHT-TO-LEFT OVERRIDE}", "\N{REPLACEMENT CHARACTER}") for name in ODD}
    assert set(page.locator("#kernels th.kernel").all_text_contents()) == shown
    assert {one.get_attribute("title") for one in page.locator("#kernels th.kernel").all()} == shown
    assert page.evaluate("document.documentElement.scrollWidth") <= 1200
    page.set_viewport_size({"width": 390, "height": 800})
    page.wait_for_function("document.documentElement.scrollWidth <= 390")  # charts are drawn anew a moment later
    assert page.said == []


def test_text_from_a_trace_is_shown_and_never_run(look, samples, tmp_path):
    source = samples / "recompute" / "rank0.pt.trace.json.gz"
    trace = json.loads(gzip.decompress(source.read_bytes()))
    for event in trace["traceEvents"]:
        if event.get("cat") == "kernel":
            event["name"] = HOSTILE
    (tmp_path / "rank0.json").write_text(json.dumps(trace))
    path = tmp_path / "page.html"
    path.write_text(render_html(analyze(tmp_path / "rank0.json")), encoding="utf-8")
    page = look(path)
    assert page.evaluate("window.ran") is None
    assert HOSTILE in page.locator("#kernels").inner_text()


def test_every_budget_bar_adds_up_on_the_page(pages):
    text = pages("1f1b").read_text()
    for bar in re.findall(r'<div class="bar" role="img" aria-label="([^"]+)"', text):
        shares = [float(share) for share in re.findall(r"([\d.]+) %", bar)]
        assert sum(shares) == pytest.approx(100, abs=0.11 * len(shares))


def test_cells_have_the_colours_of_the_pictures(analysed):
    """Chunks are told apart by shade, on the page as in a plot; legend entries are ops."""
    found = schedule_data(analysed("vpp-overlap"))
    assert [(kind["name"], kind["colour"]) for kind in found["choices"][0]["kinds"]] == [
        ("forward", colour("F", 0, 2)),
        ("forward", colour("F", 1, 2)),
        ("backward", colour("B", 0, 2)),
        ("backward", colour("B", 1, 2)),
        ("outside cells", IDLE_COLOUR),
    ]


def lanes_window(page):
    look = "echarts.getInstanceByDom(document.getElementById('lanes-chart')).getOption().dataZoom[0]"
    return page.evaluate(f"[{look}.start, {look}.end]")


def test_a_cell_opens_its_moment_in_the_lanes_and_says_what_it_waited_for(look, pages, analysed):
    page = look(pages("1f1b"))
    page.focus("#schedule-chart")
    page.keyboard.press("ArrowDown")  # rank 1: outside cells until its first forward
    page.keyboard.press("n")
    said = page.locator("#said").inner_text()
    assert re.search(r"forward · rank 1 · measured\s+stage 1, micro-batch 0", said)
    assert "after 0F0 on rank 0" in said
    page.keyboard.press("Enter")
    page.locator("#said", has_text="lanes of rank 1").wait_for(state="attached")
    assert page.input_value("#lanes-rank") == "1"
    start, end = lanes_window(page)
    held = analysed("1f1b").schedule.head
    cell = held.cells.filter(rank=1).sort("start_ns").row(0, named=True)
    share = 100 * 2 * (cell["end_ns"] - cell["start_ns"]) / held.measured_ns  # the cell and half of it on both sides
    assert end - start == pytest.approx(share, rel=0.1)


def test_every_rank_on_the_page_opens_its_lanes(look, pages):
    page = look(pages("1f1b"))
    for section in ("#budget", "#stragglers", "#idle"):
        link = page.locator(f"{section} a[data-rank]").last
        rank = link.get_attribute("data-rank")
        link.click()
        page.locator("#said", has_text=f"lanes of rank {rank}").wait_for(state="attached")
        assert page.input_value("#lanes-rank") == rank
        page.evaluate("document.getElementById('said').textContent = ''")
    assert lanes_window(page) == [0, 100]


def test_commands_are_whole_and_copied(look, pages, samples):
    page = look(pages("1f1b"))
    commands = [one.get_attribute("data-copy") for one in page.locator("[data-copy]").all()]
    assert f"tracekit analyze {samples / '1f1b'} --what-if" in commands
    assert sum("--explain" in words for words in commands) == page.locator("[data-why]").count() > 0
    page.locator("[data-copy]").first.click()
    page.locator("#said", has_text="copied").wait_for(state="attached")


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
    assert page.locator("#schedule-legend button").all_inner_texts() == ["forward", "backward", "outside cells"]
    page.locator("#schedule-legend button").first.click()
    page.focus("#schedule-chart")
    page.keyboard.press("n")
    assert page.locator("#said").inner_text().startswith("outside cells · rank 0")


def test_lanes_of_every_step_can_be_chosen_and_a_step_leads_to_its_own(look, pages):
    page = look(pages("steps/a"))
    assert page.locator("#lanes-step option").all_inner_texts() == [str(step) for step in range(2, 10)]
    shown = page.locator("#schedule-which option").first.inner_text()  # the one the numbers are of
    assert page.locator("#lanes-step option:checked").inner_text() == shown.removeprefix("step ")
    page.locator("#steps a[data-step='7']").click()
    page.locator("#said", has_text=re.compile(r"lanes of rank \d, step 7")).wait_for(state="attached")
    assert page.locator("#lanes-step option:checked").inner_text() == "7"
    before = page.locator("#lanes-chart").screenshot()
    page.select_option("#lanes-step", label="8")
    page.wait_for_function(
        "echarts.getInstanceByDom(document.getElementById('lanes-chart')).getOption().xAxis[0].max"
        " !== null && document.getElementById('lanes-step').selectedOptions[0].text === '8'"
    )
    page.wait_for_timeout(100)
    assert page.locator("#lanes-chart").screenshot() != before
    assert page.said == []


def test_a_cell_of_any_step_opens_its_moment(look, pages, analysed):
    page = look(pages("steps/a"))
    page.select_option("#schedule-which", label="step 6")
    page.wait_for_timeout(200)
    page.focus("#schedule-chart")
    page.keyboard.press("n")
    page.keyboard.press("Enter")
    page.locator("#said", has_text="lanes of rank 0, step 6").wait_for(state="attached")
    found = analysed("steps/a")
    held = next(one for one in found.schedule.all if one.pipeline.step == 6)
    cell = held.cells.filter(rank=0).sort("start_ns").row(0, named=True)
    step = found.tables["steps"].filter(rank=0, step=6).row(0, named=True)
    start = held.pipeline.clocks.to_recorded(0, np.array([cell["start_ns"]]))[0] - step["start_ns"]
    length, span = cell["end_ns"] - cell["start_ns"], step["end_ns"] - step["start_ns"]
    wanted = [100 * max(0, start - length / 2) / span, 100 * (start + 1.5 * length) / span]
    assert lanes_window(page) == pytest.approx(wanted, abs=0.5)


def test_a_label_is_shown_alone_in_the_lanes(look, pages):
    page = look(pages("1f1b"))
    page.locator("#overlap a[data-label='pp_comm']").click()
    page.locator("#said", has_text="lanes of rank 0: pp_comm alone").wait_for(state="attached")
    pressed = page.locator("#lanes-legend button[aria-pressed=true]").all_inner_texts()
    assert pressed == ["pp_comm"]


def test_a_segment_of_the_path_opens_its_moment(look, pages, analysed):
    page = look(pages("1f1b", path=True))
    rows = page.locator("#path tbody tr")
    link = rows.nth(4).locator("a").first
    rank = link.get_attribute("data-rank")
    link.click()
    page.locator("#said", has_text=f"lanes of rank {rank}").wait_for(state="attached")
    start, end = lanes_window(page)
    step = analysed("1f1b").tables["steps"].filter(rank=int(rank)).row(0, named=True)
    moment = [float(link.get_attribute(name)) for name in ("data-from", "data-to")]
    span = (step["end_ns"] - step["start_ns"]) / 1e6
    assert end - start == pytest.approx(100 * 2 * (moment[1] - moment[0]) / span, rel=0.1)
    cell = rows.nth(4).locator("td").last.inner_text()
    found = analysed("1f1b").schedule.head.cells.filter(
        (pl.col("rank") == int(rank))
        & (pl.format("{}{}{}", "stage", pl.col("op").cast(pl.String), "microbatch") == cell)
    )
    assert moment[1] - moment[0] == pytest.approx((found["end_ns"] - found["start_ns"])[0] / 1e6, rel=0.05)


def test_what_the_predictions_rest_on_stands_below_them(look, tmp_path, analysed):
    found = analysed("1f1b", what_if=True)
    path = tmp_path / "page.html"
    path.write_text(render_html(found), encoding="utf-8")
    page = look(path)
    notes = page.locator(".basis li").all_inner_texts()
    first = next(line for line in found.schedule.what_if if not line.ran)
    rests = page.locator(".whatif tbody tr").first.locator("td a")
    said = {notes[int(number) - 1].replace("\xa0", " ") for number in rests.all_inner_texts()}
    assert said == {*first.rests_on, *(f"not known: {text}" for text in first.unknown)}
    rests.last.click()
    assert page.url.endswith(f"#rests-{rests.last.inner_text()}")
    assert page.evaluate("document.querySelector('.whatif').getBoundingClientRect().right") <= 1200
