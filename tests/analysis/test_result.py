"""The result of analyze(): its JSON, totals, tables for pandas and notebooks, and the parts that ranks send."""

from __future__ import annotations

import dataclasses
import json
import pickle

import pytest

from tests.kept import measured_tables
from tracekit.analysis.combine.combine_ranks import combine
from tracekit.analysis.result import UnknownTableError
from tracekit.run.load import load
from tracekit.schema import LABELS

pytestmark = pytest.mark.slow


def test_json_has_every_key_of_the_contract(run):
    data = json.loads(run("1f1b", schedule="auto").to_json())
    assert data["format"] == "tracekit.analysis/2"
    assert set(data) >= {"tracekit", "format", "source", "ranks", "total", "schedule", "warnings"}
    assert set(data["source"]) >= {"paths", "reader", "ranks", "world_size"}
    one = data["ranks"][0]
    keys = {"span_ns", "budget_ns", "label_ns", "label_count", "overlap", "hidden_ns", "bubble"}
    assert set(one) >= keys | {"rank", "steps", "per_step"}
    assert set(data["total"]) >= keys
    assert set(one["budget_ns"]) == {"span", "compute", "exposed", "idle", "not_recorded"}
    assert set(one["bubble"]) >= {"idle_ns", "wait_ns", "fraction"}
    assert set(one["label_ns"]) <= set(LABELS)
    assert one["overlap"]["copy"] is not None
    assert set(one["per_step"][0]) >= keys | {"step"}
    assert one["per_step"][0]["step"] == 2
    spent = (
        one["budget_ns"]["compute"]
        + sum(one["budget_ns"]["exposed"].values())
        + one["budget_ns"]["idle"]
    )
    assert spent == one["span_ns"]
    assert data["schedule"]["name"] == "1f1b"
    assert set(data["schedule"]) >= {
        "name",
        "pp",
        "microbatches",
        "virtual",
        "ranks",
        "measured",
        "ideal",
        "gap_ns",
    }


def test_totals_are_sums_and_ratios_of_sums(run):
    analysis = run("overlapped")
    total = analysis.total
    for label in ("ep_dispatch", "ep_combine", "offload"):
        assert total.label_ns[label] == sum(one.whole.label_ns[label] for one in analysis.ranks)
        hidden = sum(one.whole.hidden_ns[label] for one in analysis.ranks)
        assert total.overlap[label] == hidden / total.label_ns[label]


def test_the_result_is_frozen_and_its_tables_become_pandas(run):
    analysis = run("reload")
    with pytest.raises(dataclasses.FrozenInstanceError):
        analysis.ranks = ()
    tables = analysis.to_pandas()
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


def test_labels_hold_no_sums_of_other_rows(run):
    for name in ("reload", "steps/a"):
        labels = run(name).tables["labels"]
        assert not set(labels["label"].unique()) & {"compute", "communication", "copy"}
        assert labels["step"].null_count() == 0
        assert not labels.select("rank", "step", "label").is_duplicated().any()


@pytest.mark.parametrize("name", ["slow-ddp", "1f1b"])
def test_python_names_are_those_of_the_json(run, name):
    analysis = run(name)
    document = analysis.to_dict()
    assert [rank.rank for rank in analysis.ranks] == [rank["rank"] for rank in document["ranks"]]
    for key in ("time_ns", "free_ns", "free_from"):
        assert getattr(analysis.step, key) == document["step"][key]
    if analysis.schedule is not None:
        outside = document["schedule"]["measured"]["outside_cells"]
        assert analysis.schedule.measured.outside_cells == outside


def test_a_notebook_shows_a_table(run):
    _, _, behind = run("1f1b")._repr_html_().partition("<summary>Ranks</summary>")
    ranks = behind.partition("</details>")[0]
    assert ranks.count("<tr>") == 1 + 4 + 1
    assert "119.666" in ranks


def test_only_small_tables_travel(samples):
    """What leaves a rank is picklable and far smaller than its events."""
    rank = load(samples / "1f1b", ranks=[0]).rank(0)
    packed = pickle.dumps(measured_tables(rank))
    assert len(packed) < rank.events.estimated_size() / 3.5
    again = combine([pickle.loads(packed)])
    assert again.rank(0).whole.budget.span_ns == 118_845_920


def test_one_table_becomes_a_pandas_frame(run):
    analysis = run("reload")
    assert analysis.to_pandas("steps").equals(analysis.to_pandas()["steps"])
    with pytest.raises(UnknownTableError):
        analysis.to_pandas("nothing")


def test_tables_name_themselves_and_an_unknown_one_names_those_there_are(run):
    tables = run("reload").tables
    assert repr(tables).startswith("<Tables: steps, budget, labels")
    with pytest.raises(KeyError, match=r"there is no table 'step' \(there are: steps, budget, "):
        _ = tables["step"]
    assert tables.get("step") is None
    assert repr(pickle.loads(pickle.dumps(tables))) == repr(tables)


def test_an_analysis_shows_its_ranks_steps_and_step_time(run):
    analysis = run("steps/a")
    assert (
        repr(analysis)
        == f"<Analysis: 2 ranks, 8 steps, step time {analysis.step.time_ns / 1e6:,.3f} ms>"
    )
