"""Reports of many ranks: what differs is found, the mesh is drawn as it is, and a thousand ranks stay readable."""

from __future__ import annotations

import io
import re
from dataclasses import replace
from pathlib import Path

import pytest
from msgspec import structs
from rich.console import Console

from tests.figures import with_figures
from tests.kept import analysis_of
from tracekit.analysis.combine.spread import spread
from tracekit.documents.analysis import Budget
from tracekit.documents.coding import to_plain
from tracekit.errors import Notice
from tracekit.pipeline.schedules import generate
from tracekit.report.html import charts
from tracekit.report.html.charts import PageClock, timeline_data
from tracekit.report.html.page import render_html
from tracekit.report.notices import shorten_notices
from tracekit.report.run_facts import input_path
from tracekit.report.sections.budget import budgets_of_ranks
from tracekit.report.sections.stragglers import stragglers
from tracekit.report.terminal.analysis import render
from tracekit.report.terminal.table import histogram
from tracekit.run.analyze import analyze
from tracekit.synthetic import Recipe, write_run

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def small(samples):
    # Its path is not that of the ranks made here.
    return replace(analysis_of(samples / "reload"), walked_path=None)


def run_of(small, compute, *, span=1000):
    """A run whose rank r computes for compute[r] of 1000 ns and is idle for the rest."""
    one = small.ranks[0]

    def rank(number, busy):
        budget = Budget(span_ns=span, compute_ns=busy, exposed_ns={}, idle=span - busy)
        whole = with_figures(
            one, budget=budget, exposed_wait_ns=0, least_wait_ns=0, lower_bound=False, pipeline=True
        )
        return structs.replace(whole, rank=number)

    # A run of many ranks keeps no events, so that no changes are listed.
    return replace(small, ranks=tuple(rank(*pair) for pair in enumerate(compute)), changed_steps=())


@pytest.fixture(scope="module")
def pipelines(tmp_path_factory):
    """17 pipelines of two ranks; the trace of rank 3 (stage 0, replica 3) is missing."""
    folder = tmp_path_factory.mktemp("pipelines")
    recipe = Recipe(
        generate("1f1b", pp=2, microbatches=2), replicas=17, layers=1, stage_factor={1: 2.0}
    )
    write_run(recipe, folder, ranks=[rank for rank in range(34) if rank != 3])
    return analyze(folder, workers=1)


def text_of(analysis, width=80):
    console = Console(file=io.StringIO(), width=width, highlight=False)
    render(analysis, console)
    return console.file.getvalue()


def test_quantiles_and_histogram_can_be_counted(small):
    rank_spread = spread(run_of(small, [500] * 38 + [400, 900]))
    compute = next(one for one in rank_spread.figures if one.name == "compute")
    assert (compute.least, compute.median, compute.most) == (0.4, 0.5, 0.9)
    assert (compute.least_rank, compute.most_rank) == (38, 39)
    # 20 bins of 0.025 from 0.4.
    assert (compute.counts[0], compute.counts[4], compute.counts[-1]) == (
        1,
        38,
        1,
    )
    assert sum(compute.counts) == 40
    bars = histogram(compute.counts)
    assert (bars[0], bars[4], bars[1]) == ("▁", "█", " ")


def test_only_ranks_that_differ_are_named(small):
    jitter = [500 + rank % 5 for rank in range(40)]
    assert spread(run_of(small, jitter)).different == ()
    slow = spread(run_of(small, [*jitter[:20], 440, *jitter[21:]])).different
    assert [(one.rank, one.like) for one in slow] == [(20, "all ranks")]
    # Equally far in both.
    expected = {"compute": (0.44, 0.502), "bubble": (0.56, 0.498)}[slow[0].figure]
    assert (slow[0].value, slow[0].median) == pytest.approx(expected)


def test_a_rank_whose_peer_is_missing_is_not_called_different(small):
    """Its bubble is a lower bound: less than the others' because less of it is known."""
    run = run_of(small, [500] * 40)
    one = run.ranks[7]
    bound = structs.replace(one.bubble, fraction=0.1, wait_ns=None, lower_bound=True)
    run = replace(
        run,
        ranks=(
            *run.ranks[:7],
            structs.replace(one, bubble=bound),
            *run.ranks[8:],
        ),
    )
    rank_spread = spread(run)
    assert rank_spread.different == ()
    assert next(figure.least for figure in rank_spread.figures if figure.name == "bubble") == 0.5
    alone = replace(
        run,
        ranks=tuple(
            structs.replace(r, bubble=structs.replace(r.bubble, lower_bound=True))
            for r in run.ranks
        ),
    )
    assert next(figure.least for figure in spread(alone).figures if figure.name == "bubble") == 0.1


def test_of_many_ranks_those_that_differ_most_have_bars(small):
    bars = budgets_of_ranks(run_of(small, [500 + 300 * (rank < 8) for rank in range(100)]))
    assert len(bars) == 16
    assert [bar.rank for bar in bars[:8]] == list(range(8))
    assert len(budgets_of_ranks(run_of(small, [500] * 64))) == 64


def test_without_pipelines_the_heat_map_shows_idle_time(small):
    run = run_of(small, [500] * 40)
    alone = replace(
        run,
        ranks=tuple(with_figures(r, pipeline=False) for r in run.ranks),
    )
    assert spread(run).heat.name == "bubble"
    assert (spread(alone).heat.name, spread(alone).heat.most) == ("idle", 0.5)
    assert "bubble" not in text_of(alone)


def test_without_pipelines_the_mesh_is_rows_of_ranks(small):
    mesh = spread(run_of(small, [500] * 40)).mesh
    assert mesh.rows == ("ranks 0–31", "ranks 32–39")
    assert mesh.cells == (tuple(range(32)), tuple(range(32, 40)))


def test_the_mesh_is_stage_by_replica_with_a_hole_for_the_missing_rank(pipelines):
    mesh = spread(pipelines).mesh
    assert mesh.rows == ("stage 0", "stage 1")
    assert mesh.cells[0] == (0, 1, 2, None, *range(4, 17))
    assert mesh.cells[1] == tuple(range(17, 34))


def test_the_terminal_shows_spread_and_heat_map_from_33_ranks_on(pipelines, small):
    text = text_of(pipelines)
    assert "Over the ranks" in text
    stages = re.findall(r"^  stage \d  (.*)$", text, re.MULTILINE)
    assert [len(line) for line in stages] == [17, 17]
    assert stages[0][3] == " "
    assert stages[1][3] == "?"  # it waits for the rank whose trace is missing
    assert len(set(stages[0]) & set(stages[1])) == 0  # the two stages have different bubbles
    assert "Over the ranks" not in text_of(run_of(small, [500] * 32))


def test_the_page_shows_a_cell_for_each_rank(pipelines, small):
    page = render_html(pipelines)
    assert page.count('<td title="rank ') == 33
    assert page.count('<td title="no trace"') == 1
    assert re.search(r'title="rank 33: bubble \d', page)
    assert 'id="ranks"' not in render_html(run_of(small, [500] * 32))


def test_a_thousand_ranks_stay_readable(small):
    many = run_of(small, [500 + rank % 7 for rank in range(1024)])
    noisy = [Notice("no-steps", f"rank {rank}: no marks", ranks=(rank,)) for rank in range(1024)]
    failed = Notice("rank-failed", "rank 7 is left out: a/b.json: ends early", ranks=(7,))
    many = replace(many, notices=(*noisy, failed))
    text, page = text_of(many), render_html(many)
    assert len(text.splitlines()) < 170  # a section a line of thought: the host's is one of them
    assert max(map(len, text.splitlines())) <= 80
    assert "1019 more like this" in text
    assert "a/b.json" in text
    assert page.count('<td title="rank ') == 1024
    assert len(page.encode()) < 10_000_000


def test_failures_are_all_listed_and_others_shortened():
    failed = [
        Notice("rank-failed", f"rank {n} is left out: ends early", ranks=(n,)) for n in range(8)
    ]
    assert [line.message for line in shorten_notices(failed)] == [
        f"rank {n} is left out: ends early" for n in range(8)
    ]
    cut = [Notice("graphs-whole", f"{n} graphs were recorded whole") for n in range(7)]
    lines = shorten_notices([*cut[:6], Notice("no-events"), cut[6]])
    assert [line.code for line in lines] == ["graphs-whole"] * 6 + ["no-events"]
    assert [line.message.split()[0] for line in lines[:5]] == ["0", "1", "2", "3", "4"]
    assert lines[5].message == "2 more like this"


def test_the_terminals_bars_and_names_are_whole_at_any_rank_number(small):
    many = run_of(small, [500 + rank % 7 for rank in range(1024)])
    unsure = tuple(with_figures(one, lower_bound=one.rank == 9) for one in many.ranks)
    for width in (80, 120):
        text = text_of(replace(many, ranks=unsure), width)
        budget = text.split("Where the step went")[1].split("Over the ranks")[0]
        assert "…" not in budget
        assert max(map(len, text.splitlines())) <= width


def test_every_rank_of_the_heat_map_tells_its_figures_and_the_way_to_its_lanes(
    look, pipelines, tmp_path, monkeypatch
):
    """33 ranks without single events, 16 of them in the file: those open, of the others a command makes a page."""
    monkeypatch.setattr(charts, "MAX_RANKS_ON_PAGE", 16)
    path = tmp_path / "page.html"
    path.write_text(render_html(replace(pipelines, events=())), encoding="utf-8")
    page = look(path)
    cells = page.locator(".heat button")
    assert cells.count() == 33
    assert page.locator(".heat button.in").count() == 16
    page.locator(".heat button.in").nth(1).click()
    cell_text = page.locator("#heat-said")
    assert cell_text.inner_text().startswith("rank ")
    cell_text.locator("a").click()
    page.locator("#said", has_text="timeline of rank").wait_for(state="attached")
    apart = page.locator(".heat button:not(.in)").first
    rank = apart.get_attribute("data-cell")
    apart.click()
    assert cell_text.inner_text().startswith(f"rank {rank}: bubble ")
    assert not cell_text.locator("a").is_visible()
    command = cell_text.locator("code").inner_text()
    folder = Path(input_path(pipelines)).name  # without what is above it: a page is shared
    assert command == f"tracekit analyze {folder} --ranks {rank} -o rank-{rank}.html"
    assert cell_text.locator("button").get_attribute("data-copy") == command
    assert page.said == []


def test_the_ranks_a_page_tells_about_have_their_lanes_in_it(pipelines, monkeypatch):
    monkeypatch.setattr(charts, "MAX_RANKS_ON_PAGE", 16)
    merged = replace(pipelines, events=())  # as of a run with too many ranks to keep single events
    held = {entry["rank"] for entry in to_plain(timeline_data(merged, PageClock(merged)))["ranks"]}
    assert len(held) == 16
    assert {0, 33, *pipelines.comparison.head.pipeline.ranks} <= held
    assert {row.rank for row in stragglers(pipelines)[:3]} <= held
