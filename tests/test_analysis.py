"""analyze() on real captures: published and independently computed answers, and conservation everywhere."""

from __future__ import annotations

import dataclasses
import gzip
import json
import pickle

import polars as pl
import pytest

from tests.kept import analysis_of
from tests.reference import read
from tracekit.analysis.combine import combine
from tracekit.analysis.tables import rank_tables
from tracekit.classify import Rule, RuleBook
from tracekit.errors import InputError, OptionError
from tracekit.intervals import union
from tracekit.metrics.lanes import Lanes
from tracekit.run.analyze import analyze
from tracekit.run.load import load
from tracekit.schema import LABELS

GPU = ["kernel", "memcpy", "memset"]


@pytest.fixture(scope="module")
def run(samples):
    """Analyze a sample once."""
    done = {}

    def get(name, **options):
        key = (name, tuple(sorted(options.items())))
        if key not in done:
            done[key] = analysis_of(samples / name, **{"schedule": "none", **options})
        return done[key]

    return get


def reference_span(path):
    events = read(path).filter(pl.col("kind").is_in(GPU))
    return int(events["end_ns"].max() - events["start_ns"].min())


SAMPLES = ["1f1b", "1f1b-noshapes", "interleaved", "dualpipe", "overlapped", "vpp-overlap", "reload", "reload-overlap",
           "recompute", "compile", "steps/a", "nsys-1f1b"]  # fmt: skip


@pytest.mark.parametrize("name", SAMPLES)
def test_the_budget_is_conserved_on_every_rank_and_step(run, name):
    found = run(name)
    assert found.ranks
    for one in found.ranks:
        for scope in (one.whole, *one.per_step):
            assert scope.budget.span_ns > 0
            assert scope.budget.conserved
            exposed = {label: ns for label, ns in scope.budget.exposed_ns.items() if ns}
            assert {label: sum(causes.values()) for label, causes in scope.because_ns.items()} == exposed
        assert sum(one.idle_causes.values()) == one.whole.budget.idle_ns
        assert [s.step for s in one.per_step] == list(one.steps) or one.steps == ()
    assert found.total.budget.conserved
    assert found.total.budget.span_ns == sum(one.whole.budget.span_ns for one in found.ranks)


def test_public_traces_conserve_too(corpus):
    for path in sorted(p for p in corpus.glob("*/*") if p.suffix in (".gz", ".sqlite")):
        for one in analyze(path).ranks:
            for scope in (one.whole, *one.per_step):
                assert scope.budget.conserved, path
                exposed = {label: ns for label, ns in scope.budget.exposed_ns.items() if ns}
                assert {label: sum(causes.values()) for label, causes in scope.because_ns.items()} == exposed, path


def test_1f1b_rank_0(run):
    one = run("1f1b").rank(0).whole
    assert one.budget.span_ns == 118_845_920
    assert one.label_ns["communication"] == one.label_ns["pp_comm"] == 50_202_203
    assert one.hidden_ns["communication"] == pytest.approx(1_447_000, abs=500)
    assert one.budget.idle_ns / one.budget.span_ns == pytest.approx(0.049, abs=0.0005)
    assert one.budget.compute_ns / one.budget.span_ns == pytest.approx(0.537, abs=0.0005)


def test_1f1b_wait_and_transfer_sum_to_the_kernels_and_give_the_bubble(run):
    found = run("1f1b")
    ops = found.tables["operations"]
    assert len(ops) == 11 + 21 + 19 + 9
    assert ops["wait_ns"].null_count() == 0
    assert (ops["wait_ns"] + ops["transfer_ns"] == ops["end_ns"] - ops["start_ns"]).all()
    for one in found.ranks:
        whole = one.whole
        assert not whole.lower_bound
        assert whole.bubble_fraction == (whole.budget.idle_ns + whole.bubble.wait_ns) / whole.budget.span_ns
        # A rank of a 4-deep pipeline with 8 micro-batches cannot lose less than (p-1)/(m+p-1), transfers apart.
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


def test_without_its_peers_the_bubble_is_a_lower_bound(samples):
    alone = analysis_of(samples / "1f1b", ranks=[0], schedule="none")
    one = alone.rank(0).whole
    assert one.bubble.wait_ns is None
    assert one.wait_ns == {"pp_comm": None}
    assert one.lower_bound
    assert one.bubble_fraction == one.budget.idle_ns / one.budget.span_ns
    assert "wait-unknown" in {note.code for note in alone.notices}


def test_overlapped_rank_0(run):
    one = run("overlapped").rank(0).whole
    assert one.label_ns["communication"] == pytest.approx(214_304_000, abs=500)
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
    return events.filter(pl.col("kind") == "memcpy", pl.col("name").cast(pl.String).str.contains(way))


def test_reload(run):
    found = run("reload").reload
    assert (found.rounds, found.buckets, found.owners) == (2, 8, 4)
    assert found.sources == (0, 1, 2, 3, 0, 1, 2, 3)
    assert found.hidden["reload_under_broadcast"].to_list() == [0.0] * 4  # this run waits for every reload
    lanes = {(r["rank"], r["lane"]): r for r in found.lanes.iter_rows(named=True)}
    assert lanes[0, "h2d"]["bytes"] == 2 * (32 << 20)
    assert lanes[3, "broadcast"]["count"] == lanes[3, "reload"]["count"] == 8
    assert found.ideal_ns < found.measured_ns


def test_reload_with_two_buffers_hides_some(run):
    found = run("reload-overlap").reload
    assert (found.rounds, found.buckets, found.sources) == (2, 8, (0, 1, 2, 3, 0, 1, 2, 3))
    assert min(found.hidden["reload_under_broadcast"].to_list()) > 0.1


def test_several_steps(run):
    one = run("steps/a").rank(0)
    assert one.steps == tuple(range(2, 10))
    assert len(one.per_step) == 8
    table = run("steps/a").tables["steps"].filter(rank=0)
    assert one.whole.budget.span_ns == table["end_ns"].max() - table["start_ns"].min()
    # Time between steps is the window's, no step's; nothing is counted twice.
    assert sum(s.budget.compute_ns for s in one.per_step) == one.whole.budget.compute_ns


def test_chosen_steps(samples):
    one = analysis_of(samples / "steps/a", steps="4:6", schedule="none").rank(1)
    assert one.steps == (4, 5)
    with pytest.raises(OptionError, match="selects none"):
        analyze(samples / "steps/a", steps="40", schedule="none")


@pytest.mark.parametrize("asked", ["2:4", [2, 3], (3, 2), range(2, 4), slice(2, 4)], ids=str)
def test_steps_are_named_as_in_python_too(samples, asked):
    found = analysis_of(samples / "steps/a", ranks=[0], steps=asked, schedule="none")
    assert found.rank(0).steps == (2, 3)


def test_ranks_of_two_recordings_of_one_program(samples, tmp_path):
    """The same operations, 8.2 s later: clocks could differ by that, so it is said and not refused."""
    for run, rank in (("a", 0), ("b", 1)):
        name = f"rank{rank}.pt.trace.json.gz"
        (tmp_path / name).write_bytes((samples / "steps" / run / name).read_bytes())
    said = [n.message for n in analyze(tmp_path, schedule="none").notices if n.code == "clocks-apart"]
    assert len(said) == 1
    assert said[0].startswith("rank 1 was recorded 8.2 s after rank 0: ")
    assert not [n for n in analysis_of(samples / "steps/a", schedule="none").notices if n.code == "clocks-apart"]


def test_why_waiting_is_not_known(run):
    """All four ranks of the Nsight run are there, so giving more would not help; of the other, one of four is."""
    said = {n.code: n.message for n in run("nsys-1f1b").notices}["wait-unknown"]
    assert said.startswith("60 of 60 sends and receives do not name their peer: ")
    assert said.endswith("; record the peers")
    said = {n.code: n.message for n in run("1f1b", ranks=(0,)).notices}["wait-unknown"]
    assert said.startswith("11 of 11 sends and receives have no peer in these traces: ")
    assert said.endswith("; give all ranks of the pipeline")


def test_a_rank_that_was_not_analyzed(run):
    with pytest.raises(InputError, match=r"there is no rank 9 \(ranks here: 0, 1, 2, 3\)"):
        run("1f1b").rank(9)


def test_one_step_is_a_number(samples):
    assert list(analysis_of(samples / "steps/a", ranks=[0], steps=2, schedule="none").rank(0).steps) == [2]
    with pytest.raises(OptionError, match="leaves steps out"):
        analysis_of(samples / "steps/a", ranks=[0], steps=slice(2, 9, 2), schedule="none")


def test_rules_made_in_python(samples):
    """A book of rules instead of a file: every matrix product is the router's."""
    book = RuleBook((Rule("mine", "forward", {"gemm": True}, module="router"),))
    found = analyze(samples / "compile", rules=book, schedule="none")
    kernels = found.tables["kernels"].filter(module="router")
    assert kernels["count"].sum() > 0
    assert set(kernels["label"]) == {"forward"}


def test_deepseek(corpus):
    found = analysis_of(corpus / "deepseek", schedule="none")
    one = found.rank(0).whole
    assert one.budget.span_ns == 129_012_000
    assert one.label_ns["communication"] == 113_440_000
    assert one.label_ns["compute"] == 124_338_000
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
    found = analysis_of(corpus / "dlrm-8ranks", schedule="none")
    ops = found.tables["operations"]
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
    assert found.tables["stragglers"]["rank"].to_list()[0] in range(8)
    assert found.clocks.residual_ns <= 10_000


def test_json_has_every_key_of_the_contract(run):
    data = json.loads(run("1f1b", schedule="auto").to_json())
    assert data["format"] == "tracekit.analysis/1"
    assert set(data) >= {"tracekit", "format", "source", "ranks", "total", "schedule", "warnings"}
    assert set(data["source"]) >= {"paths", "reader", "ranks", "world_size"}
    one = data["ranks"][0]
    keys = {"span_ns", "budget_ns", "label_ns", "label_count", "overlap", "hidden_ns", "bubble"}
    assert set(one) >= keys | {"rank", "steps", "per_step"}
    assert set(data["total"]) >= keys
    assert set(one["budget_ns"]) == {"compute", "exposed", "idle"}
    assert set(one["bubble"]) >= {"idle_ns", "wait_ns", "fraction"}
    assert set(one["label_ns"]) <= set(LABELS)
    assert one["overlap"]["copy"] is not None
    assert set(one["per_step"][0]) >= keys | {"step"}
    assert one["per_step"][0]["step"] == 2
    spent = one["budget_ns"]["compute"] + sum(one["budget_ns"]["exposed"].values()) + one["budget_ns"]["idle"]
    assert spent == one["span_ns"]
    assert data["schedule"]["name"] == "1f1b"
    assert set(data["schedule"]) >= {"name", "pp", "microbatches", "virtual", "ranks", "measured", "ideal", "gap_ns"}


def test_totals_are_sums_and_ratios_of_sums(run):
    found = run("overlapped")
    total = found.total
    for label in ("ep_dispatch", "ep_combine", "offload"):
        assert total.label_ns[label] == sum(one.whole.label_ns[label] for one in found.ranks)
        hidden = sum(one.whole.hidden_ns[label] for one in found.ranks)
        assert total.overlap[label] == hidden / total.label_ns[label]


def test_the_result_is_frozen_and_its_tables_become_pandas(run):
    found = run("reload")
    with pytest.raises(dataclasses.FrozenInstanceError):
        found.ranks = ()
    tables = found.to_pandas()
    assert len(tables["operations"]) == 4 * 8
    assert set(tables) >= {
        "steps",
        "budget",
        "labels",
        "hidden",
        "bubbles",
        "phases",
        "operations",
        "stragglers",
        "gaps",
        "copies",
    }


def test_a_notebook_shows_a_table(run):
    page = run("1f1b")._repr_html_()
    assert page.count("<tr>") == 1 + 4 + 1
    assert "118.846" in page


def test_only_small_tables_travel(samples):
    """What leaves a rank is picklable and far smaller than its events."""
    part = load(samples / "1f1b", ranks=[0]).rank(0)
    packed = pickle.dumps(rank_tables(part))
    assert len(packed) < part.events.estimated_size() / 4
    again = combine([pickle.loads(packed)])
    assert again.rank(0).whole.budget.span_ns == 118_845_920


def test_a_trace_in_memory_gives_the_same_as_its_path(samples, run):
    assert analyze(load(samples / "reload"), schedule="none").to_dict()["ranks"] == run("reload").to_dict()["ranks"]


def test_a_store_gives_the_same_as_its_traces(samples, run, tmp_path):
    from tracekit.run.ingest import ingest

    ingest(samples / "1f1b", tmp_path / "store")
    assert analyze(tmp_path / "store", schedule="none").to_dict()["ranks"] == run("1f1b").to_dict()["ranks"]


def test_missing_ranks_are_said(samples):
    with pytest.raises(InputError, match="no rank 9"):
        analyze(load(samples / "reload"), ranks=[9], schedule="none")


def write(path, events):
    with gzip.open(path, "wt") as out:
        json.dump({"schemaVersion": 1, "distributedInfo": {"rank": 0, "world_size": 1}, "traceEvents": events}, out)
    return path


def kernel(ts, dur, correlation, **args):
    return {"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "ts": ts, "dur": dur,
            "args": {"device": 0, "stream": 7, "correlation": correlation, **args}}  # fmt: skip


def launch(ts, correlation, name="cudaLaunchKernel"):
    return {"ph": "X", "cat": "cuda_runtime", "name": name, "pid": 1, "tid": 1, "ts": ts, "dur": 2,
            "args": {"correlation": correlation}}  # fmt: skip


def test_graph_launches_without_kernels_give_null_not_idle(tmp_path):
    """Two small kernels around graph launches that left nothing behind: 98 % idle would be false."""
    path = write(tmp_path / "rank0.json.gz", [
        launch(0, 1), kernel(5, 10, 1), launch(100, 2, "cudaGraphLaunch"), launch(500, 3), kernel(990, 10, 3),
    ])  # fmt: skip
    found = analyze(path, schedule="none")
    data = found.to_dict()["ranks"][0]
    assert data["budget_ns"]["idle"] is None
    assert data["bubble"]["fraction"] is None
    assert data["idle_causes_ns"] is None
    assert "graphs-unseen" in {note.code for note in found.notices}


def test_a_file_that_lost_its_kernels_gives_null_not_idle(tmp_path):
    """Cut off in the middle of the GPU's part: launches are there, most kernels are not."""
    calls = [launch(10 * n, n) for n in range(100)]
    found = analyze(write(tmp_path / "rank0.json.gz", [*calls, kernel(5, 9, 0), kernel(995, 9, 99)]), schedule="none")
    assert found.rank(0).whole.bubble_fraction is None
    assert "gpu-events-lost" in {note.code for note in found.notices}
    whole = [*calls, *(kernel(10 * n + 5, 9, n) for n in range(100))]
    kept = analyze(write(tmp_path / "rank1.json.gz", whole), schedule="none").ranks[0].whole
    assert kept.idle_known
    assert kept.budget.idle_ns < 0.2 * kept.budget.span_ns


def test_graph_kernels_fill_the_graph(tmp_path):
    path = write(tmp_path / "rank0.json.gz", [
        launch(0, 1), kernel(5, 10, 1), launch(100, 2, "cudaGraphLaunch"), kernel(110, 200, 2), kernel(310, 200, 2),
    ])  # fmt: skip
    data = analyze(path, schedule="none").to_dict()["ranks"][0]
    assert data["budget_ns"]["idle"] == 95_000
    assert data["span_ns"] == 505_000


def test_no_gpu_events_at_all(tmp_path):
    path = write(tmp_path / "rank0.json.gz", [launch(0, 1)])
    found = analyze(path, schedule="none")
    assert found.rank(0).whole.bubble_fraction is None
    assert "no-gpu-events" in {note.code for note in found.notices}
    json.loads(found.to_json())


def test_intervals_of_the_reference_reader_agree(samples):
    """An independent reader and a plain union give the same span and busy time."""
    path = samples / "1f1b" / "rank2.pt.trace.json.gz"
    events = read(path).filter(pl.col("kind").is_in(GPU))
    busy = union(events["start_ns"].to_numpy(), events["end_ns"].to_numpy()).total_ns
    one = analyze(path, schedule="none").rank(2).whole
    assert one.budget.span_ns == reference_span(path)
    assert one.budget.span_ns - one.budget.idle_ns == busy
