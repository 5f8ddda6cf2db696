"""analyze() on real captures: published and independently computed answers."""

from __future__ import annotations

import polars as pl
import pytest

from tests.kept import analysis_of
from tests.reference import read
from tracekit.metrics.label_intervals import Lanes
from tracekit.run.load import load

pytestmark = pytest.mark.slow


def test_1f1b_rank_0(run):
    one = run("1f1b").rank(0).whole
    assert one.budget.span_ns == 118_845_920
    assert one.set_ns["communication"] == one.label_ns["pp_comm"] == 50_202_203
    assert one.hidden_ns["communication"] == pytest.approx(1_447_000, abs=500)
    assert one.budget.idle_ns / one.budget.span_ns == pytest.approx(0.049, abs=0.0005)
    assert one.budget.compute_ns / one.budget.span_ns == pytest.approx(0.537, abs=0.0005)


def test_1f1b_wait_and_transfer_sum_to_the_kernels_and_give_the_bubble(run):
    analysis = run("1f1b")
    ops = analysis.tables["operations"]
    assert len(ops) == 11 + 21 + 19 + 9
    assert ops["wait_ns"].null_count() == 0
    assert (ops["wait_ns"] + ops["transfer_ns"] == ops["end_ns"] - ops["start_ns"]).all()
    for one in analysis.ranks:
        whole = one.whole
        assert not whole.lower_bound
        assert (
            whole.bubble_fraction
            == (whole.budget.idle_ns + whole.bubble.wait_ns) / whole.budget.span_ns
        )
        # A rank of a 4-deep pipeline with 8 micro-batches cannot lose less than (p-1)/(m+p-1),
        # transfers apart.
        assert 3 / 11 < whole.bubble_fraction < 0.45
        assert whole.bubble.wait_ns <= whole.wait_ns["pp_comm"]


def test_1f1b_clocks_of_one_machine_stay(run):
    assert run("1f1b").clocks.table["offset_ns"].to_list() == [0, 0, 0, 0]


def test_1f1b_last_rank_waits_longest_before_its_first_backward(run):
    """The pipeline fills from rank 0: what a rank waits before its first backward grows with its rank."""
    table = run("1f1b").tables["phases"].filter(phase="warm-up").sort("rank")
    assert table["span_ns"].to_list()[3] > 30_000_000
    waits = table["wait_ns"].to_list()
    assert waits[3] == max(waits)


def test_overlapped_rank_0(run):
    one = run("overlapped").rank(0).whole
    assert one.set_ns["communication"] == pytest.approx(214_304_000, abs=500)
    assert one.overlap["communication"] == pytest.approx(0.172, abs=0.0005)


def test_overlapped_rank_0_copies_between_host_and_device(samples):
    events = load(samples / "overlapped", ranks=[0]).rank(0)
    from tracekit.classify import classify

    labelled = classify(events.events)
    lanes = Lanes.of(labelled)
    both = lanes.label("offload") | lanes.label("onload")
    assert both.total_ns == pytest.approx(90_241_000, abs=500)
    assert (both & lanes.compute).total_ns / both.total_ns == pytest.approx(0.197, abs=0.0005)


def test_overlapped_copies_report(run):
    table = run("overlapped").tables["copies"].filter(rank=0, label="offload").row(0, named=True)
    copied = read_copies(run("overlapped").sources[0].path, "DtoH")
    assert (table["count"], table["bytes"]) == (len(copied), copied["bytes"].sum())
    assert table["bandwidth_gb_s"] == pytest.approx(copied["bytes"].sum() / table["ns"])


def read_copies(path, way):
    events = read(path)
    return events.filter(
        pl.col("kind") == "memcpy", pl.col("name").cast(pl.String).str.contains(way)
    )


def test_reload(run):
    reload = run("reload").reload
    assert (reload.rounds, reload.buckets, reload.owners) == (2, 8, 4)
    assert reload.sources == [0, 1, 2, 3] * 2
    # This run waits for every reload.
    assert [rank.reload_under_broadcast for rank in reload.hidden] == [0.0] * 4
    lanes = {(lane.rank, lane.lane): lane for lane in reload.lanes}
    assert lanes[0, "h2d"].bytes == 2 * (32 << 20)
    assert lanes[3, "broadcast"].count == lanes[3, "reload"].count == 8
    assert reload.ideal_ns < reload.measured_ns


def test_reload_with_two_buffers_hides_some(run):
    reload = run("reload-overlap").reload
    assert (reload.rounds, reload.buckets, reload.sources) == (2, 8, [0, 1, 2, 3] * 2)
    assert min(rank.reload_under_broadcast for rank in reload.hidden) > 0.1


def test_deepseek(corpus):
    analysis = analysis_of(corpus / "deepseek", schedule="none")
    one = analysis.rank(0).whole
    assert one.budget.span_ns == 129_012_000
    assert one.set_ns["communication"] == 113_440_000
    assert one.set_ns["compute"] == 124_338_000
    assert one.hidden_ns["communication"] == pytest.approx(109_263_000, abs=10_000)
    assert one.overlap["communication"] == pytest.approx(0.963, abs=0.0005)
    assert 4_170_000 <= sum(one.budget.exposed_ns.values()) <= 4_190_000
    assert one.budget.idle_ns == 497_000


def test_deepseek_what_hides_what(corpus):
    table = analysis_of(corpus / "deepseek", schedule="none").tables["hidden"].filter("detail")

    def share(label, which, **by):
        rows = table.filter(label=label, **{"pass": which})
        return rows.filter(**by)["ns"].sum() / rows["ns"].sum()

    assert share("ep_dispatch", "forward", by_module="mlp", by_pass="backward") > 0.8
    assert share("ep_combine", "forward", by_module="attention", by_pass="backward") > 0.8


def test_dlrm_waits_and_its_straggler(corpus):
    analysis = analysis_of(corpus / "dlrm-8ranks", schedule="none")
    ops = analysis.tables["operations"]
    all_to_all = ops.filter(pl.col("transfer_ns").is_not_null()).with_columns(
        late=pl.col("start_ns").max().over("match") - pl.col("start_ns"),
        apart=pl.col("end_ns").max().over("match") - pl.col("end_ns").min().over("match"),
    )
    exchanges = all_to_all.filter(~pl.col("what").str.contains("(?i)reduce"))
    assert exchanges["match"].n_unique() == 5
    assert exchanges["apart"].max() <= 10_000
    worst = exchanges.sort("late").row(-1, named=True)
    assert worst["late"] == pytest.approx(7_600_000, abs=100_000)
    assert worst["wait_ns"] == pytest.approx(worst["late"], abs=20_000)
    # By hand: the rank that starts the first exchange last, from the raw file.
    first = exchanges.filter(match=worst["match"]).sort("start_ns")
    assert worst["last_rank"] == first["rank"][-1]
    assert analysis.tables["stragglers"]["rank"].to_list()[0] in range(8)
    assert analysis.clocks.residual_ns <= 10_000
