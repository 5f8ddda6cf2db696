"""Tests of the page of a diff in a real browser: two runs on one timeline, matched and coloured by their difference."""

from __future__ import annotations

import polars as pl
import pytest

from tests.kept import analysis_of
from tracekit.diffs import diff
from tracekit.pipeline.schedules import generate
from tracekit.report.html.page import render_diff
from tracekit.synthetic import Recipe, write_run

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def changed(samples):
    return diff(analysis_of(samples / "steps/a"), analysis_of(samples / "steps/straggler"))


@pytest.fixture(scope="module")
def page_path(changed, tmp_path_factory):
    path = tmp_path_factory.mktemp("diff") / "diff.html"
    changed.save(path)
    return path


def side(page, number, expression):
    """Evaluate an expression of ``run`` (a source's run) of one side."""
    sources = f"const source = tracekit.timeline.sources[{number}], {{ run }} = source"
    return page.evaluate(f"(() => {{ {sources}; return {expression}; }})()")


@pytest.mark.parametrize("width", [1440, 390])
def test_both_runs_begin_at_their_steps_start(look, page_path, width):
    page = look(page_path, width=width)
    assert page.said == []
    assert page.asked == [page_path.as_uri()]
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    for number in (0, 1):
        chosen = page.locator(f"#step-{('before', 'after')[number]} option:checked").inner_text()
        start = side(
            page,
            number,
            f"run.data.steps.find(({{ step }}) => step === {chosen}).from_ms + source.shift",
        )
        assert start == pytest.approx(0, abs=1e-9)
    groups = page.evaluate(
        "[...new Set(tracekit.timeline.chart.rows().map((row) => row.group.name))]"
    )
    # Rank 1 changed, rank 0 waits for it.
    assert groups == [
        "1 before",
        "1 after",
        "0 before",
        "0 after",
    ]


def test_the_page_begins_with_the_rank_that_changed(look, page_path, changed):
    """Rank 1's compute grew; rank 0 takes as long because it waits."""
    waterfall = changed.document.waterfall
    assert (waterfall.rank, waterfall.compute_changed) == (1, True)
    assert waterfall.changes[0].part == "compute"
    page = look(page_path)
    assert (
        page.locator(".waterfall caption")
        .inner_text()
        .startswith("A step of rank 1 (its compute changed most)")
    )


def test_kernels_are_matched_by_name_and_order_within_the_step(look, page_path, changed):
    page = look(page_path)
    before, after = (analysis.events for analysis in changed.analyses)
    pairs = side(
        page, 0, "[...run.ranks[0].events.counterpart.entries()].filter(([, other]) => other >= 0)"
    )
    assert len(pairs) > 50

    def names(rank):
        texts = rank.descriptions.select("name", "label").rows()
        return [texts[number] for number in rank.events["description"].to_list()]

    first, second = names(before[0]), names(after[0])
    assert all(first[i] == second[j] for i, j in pairs)
    # Of one kernel the nth of the step is matched with the nth.
    for name in {first[i] for i, _ in pairs}:
        of_name = [(i, j) for i, j in pairs if first[i] == name]
        assert [j for _, j in of_name] == sorted(j for _, j in of_name)


def test_differences_are_coloured(look, tmp_path):
    """In the second run rank 1 takes twice as long; rank 0 is as before."""
    for name, factor in (("a", 1.0), ("b", 2.0)):
        write_run(
            Recipe(generate("1f1b", pp=2, microbatches=2), layers=1, rank_factor={1: factor}),
            tmp_path / name,
        )
    changed = diff(tmp_path / "a", tmp_path / "b")
    path = tmp_path / "diff.html"
    path.write_text(render_diff(changed.document, analyses=changed.analyses), encoding="utf-8")
    page = look(path)
    compute = "run.text('label', run.ranks[{0}].events.description[i]) === 'forward'"
    kinds = [
        side(
            page,
            1,
            f"[...run.ranks[{rank}].events.kind].filter((_, i) => {compute.format(rank)})"
            ".map((kind) => tracekit.timeline.kinds[kind].name)",
        )
        for rank in (0, 1)
    ]
    assert set(kinds[0]) == {"about the same"}
    assert set(kinds[1]) == {"takes over 10 % longer after"}
    cells = side(
        page,
        1,
        "[...source.cells.kind].map((kind, i) => [source.cells.rank[i], tracekit.timeline.kinds[kind].name])",
    )
    assert {name for rank, name in cells if rank == 1} == {"takes over 10 % longer after"}


def test_a_click_tells_both_durations_and_leads_to_the_other_run(look, page_path):
    page = look(page_path, width=1440, height=1000)
    page.evaluate("document.getElementById('timeline').scrollIntoView()")
    number, other = side(
        page, 0, "[...run.ranks[1].events.counterpart.entries()].find(([, other]) => other >= 0)"
    )
    page.evaluate(
        f"(() => {{ const source = tracekit.timeline.sources[0]; tracekit.timeline.select("
        f"{{ source, rank: source.run.ranks[1], event: {number} }}, {{ reveal: true }}); }})()"
    )
    facts = page.locator("#details").inner_text()
    assert "before → after" in facts
    page.locator("#details .partners button").click()
    selected = "(({ selected }) => [selected.source.name, selected.event])(tracekit.timeline.state)"
    assert page.evaluate(selected) == ["after", other]


def test_a_cell_of_the_table_is_selected_and_linked_with_the_other_run(look, page_path, changed):
    page = look(page_path, width=1440, height=1000)
    row = next(row for row in changed.to_dict()["cells"] if row["op"] == "F")
    page.locator(f"[data-cell='{row['rank']},F,{row['stage']},{row['microbatch']}']").click()
    details = page.locator("#details")
    cell = f"Cell: forward, stage {row['stage']}, micro-batch {row['microbatch']}"
    assert details.locator("h3").inner_text() == cell
    assert details.locator("dd").first.inner_text() == f"rank {row['rank']} (after)"
    details.locator("button", has_text="the same cell before").click()
    assert details.locator("h3").inner_text() == cell
    assert details.locator("dd").first.inner_text() == f"rank {row['rank']} (before)"
    # A link to this moment brings the cell back; the page writes it a moment after the selection.
    page.wait_for_function("() => location.hash.includes('box=cells.0.')")
    page.reload()
    page.wait_for_selector("html[data-ready=true]")
    assert details.locator("h3").inner_text() == cell
    # The cell and its counterpart are outlined.
    assert page.evaluate("tracekit.timeline.state.marked.map(({ source }) => source.name)") == [
        "before",
        "after",
    ]
    page.locator("section a[data-rank='1']").click()
    assert page.evaluate("[...tracekit.timeline.state.ranks]") == [1]
    assert page.said == []


def test_colours_can_be_those_of_the_labels(look, page_path):
    page = look(page_path)
    assert "takes over 10 % longer after" in page.locator("#timeline-legend").inner_text()
    page.locator("#colour-by button", has_text="label").click()
    assert "pp_comm" in page.locator("#timeline-legend").inner_text()
    assert "longer after" not in page.locator("#timeline-legend").inner_text()


def test_a_kernel_of_the_table_is_searched_for(look, page_path, changed):
    page = look(page_path)
    row = pl.DataFrame(changed.to_dict()["kernels"]).row(0, named=True)
    page.locator(f"a[data-find='name:\"={row['name']}\" label:={row['label']}']").first.click()
    page.locator("#find-summary", has_text="events of 1 kernel").wait_for()


def test_saved_analyses_have_no_timeline_and_no_empty_section(look, samples, tmp_path):
    analysis = analysis_of(samples / "steps/a")
    analysis.save(tmp_path / "a.json")
    path = tmp_path / "diff.html"
    diff(tmp_path / "a.json", tmp_path / "a.json").save(path)
    page = look(path)
    assert page.locator("#timeline").count() == 0
    assert page.said == []


def test_cells_of_other_parts_of_the_model_are_not_compared(look, tmp_path):
    """One run has one stage on each rank, the other two: their cells keep the colours of their ops."""
    for name, virtual in (("1f1b", None), ("interleaved", 2)):
        write_run(
            Recipe(generate(name, pp=2, microbatches=2, virtual=virtual), layers=1), tmp_path / name
        )
    path = tmp_path / "diff.html"
    diff(tmp_path / "1f1b", tmp_path / "interleaved").save(path)
    page = look(path)
    assert page.said == []
    assert page.locator("h2", has_text="Cells").count() == 0
    assert (
        "hold different parts of the model"
        in page.locator(".note", has_text="Cells are not compared").inner_text()
    )
    kinds = "[...source.cells.kind].map((kind, i) => kind === source.cells.opKind[i])"
    assert all(set(side(page, number, kinds)) == {True} for number in (0, 1))
    assert all(
        set(side(page, number, "[...source.cells.counterpart].map((i) => i < 0)")) == {True}
        for number in (0, 1)
    )
