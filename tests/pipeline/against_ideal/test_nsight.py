"""Pipelines recorded under Nsight Systems without operators: from threads, kernel names and messages alone."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing

import pytest

from tests.kept import analysis_of
from tracekit import analyze
from tracekit.documents.coding import to_plain
from tracekit.pipeline.schedules import generate
from tracekit.report.notices import notice_sentence

pytestmark = pytest.mark.slow

PYTORCH = {"forward": 29.9, "dgrad": 36.6, "wgrad": 18.3, "optimizer": 15.1}
"""Shares of rank 1's compute in a PyTorch profile of the same program on the same card, by
autograd's nodes; products of attention, which have no weights, as dgrad."""


@pytest.fixture(scope="module")
def recorded(corpus):
    folder = corpus.parent / "frameworks" / "nsys-meg-1f1b-payloads"
    if not folder.exists():
        pytest.skip("the recordings of frameworks are not here")
    return folder


@pytest.fixture(scope="module")
def with_payloads(recorded):
    return analyze(recorded)


@pytest.fixture(scope="module")
def without_payloads(recorded, tmp_path_factory):
    """The same recording exported without payloads and without Megatron's ranges."""
    folder = tmp_path_factory.mktemp("plain")
    for path in sorted(recorded.glob("rank*.sqlite")):
        copy = folder / path.name
        shutil.copyfile(path, copy)
        with closing(sqlite3.connect(copy)) as connection, connection:
            connection.execute(
                "UPDATE NVTX_EVENTS SET jsonText = NULL, jsonTextId = NULL, binaryData = NULL"
            )
            connection.execute("DELETE FROM NVTX_EVENTS WHERE text LIKE 'megatron%' OR textId IN "
                               "(SELECT id FROM StringIds WHERE value LIKE 'megatron%')")  # fmt: skip
    return analyze(folder)


@pytest.mark.parametrize("fixture", ["with_payloads", "without_payloads"])
def test_the_schedule_is_1f1b_in_both_steps(request, fixture):
    comparison = request.getfixturevalue(fixture).schedule
    data = to_plain(comparison.to_document())
    assert (data["name"], data["pp"], data["microbatches"], data["virtual"]) == ("1f1b", 4, 8, 1)
    assert data["exact"]
    assert data["ranks"] == generate("1f1b", pp=4, microbatches=8).orders()
    assert [(step.pipeline.step, step.match.exact) for step in comparison.all] == [
        (0, True),
        (1, True),
    ]
    assert abs(data["gap_ns"]["unexplained"]) < 0.01 * data["measured"]["makespan_ns"]


def test_payloads_change_the_confidence_and_not_the_answer(with_payloads, without_payloads):
    with_them, without = with_payloads.to_dict(), without_payloads.to_dict()
    assert with_them["total"]["bubble"] == without["total"]["bubble"]
    waits = [run["total"]["wait_ns"]["pp_comm"] for run in (with_them, without)]
    assert waits[0] == waits[1]
    assert not without["total"]["bubble"]["lower_bound"]
    # Sizes come from payloads: without them a few bytes cannot be told from gradients of the same
    # group.
    with_ns, without_ns = with_them["total"]["label_ns"], without["total"]["label_ns"]
    unlike = {
        label for label in with_ns | without_ns if with_ns.get(label) != without_ns.get(label)
    }
    assert unlike == {"comm", "dp_comm"}
    assert (
        with_ns["comm"] + with_ns.get("dp_comm", 0)
        == without_ns.get("comm", 0) + without_ns["dp_comm"]
    )
    assert with_them["schedule"]["ranks"] == without["schedule"]["ranks"]
    assert with_them["schedule"]["confidence"] > without["schedule"]["confidence"]
    with_them, without = (
        {(n.code, n.values.get("case")) for n in a.notices}
        for a in (with_payloads, without_payloads)
    )
    assert ("no-peers", "by_order") in without - with_them


@pytest.mark.parametrize("fixture", ["with_payloads", "without_payloads"])
def test_passes_are_those_of_the_pytorch_profiler_within_two_points(request, fixture):
    times = request.getfixturevalue(fixture).rank(1).whole.label_ns
    compute = sum(times[label] for label in PYTORCH)
    assert {label: 100 * times[label] / compute for label in PYTORCH} == pytest.approx(
        PYTORCH, abs=2
    )


def test_the_bubble_of_the_plain_recording_is_about_half(samples):
    analysis = analysis_of(samples / "nsys-meg-1f1b")
    assert not analysis.total.lower_bound
    assert analysis.total.bubble_fraction == pytest.approx(0.5, abs=0.03)
    assert analysis.schedule.exact


def test_a_bound_far_below_the_pipelines_own_table_says_so(samples, monkeypatch, measured_once):
    """Where no layout of the ranks makes the two sides of messages meet, waiting stays unknown."""
    monkeypatch.setattr("tracekit.align.peers.MIN_MET_SHARE", 2.0)
    analysis = analyze(samples / "nsys-1f1b", workers=1)
    assert analysis.schedule.exact
    assert analysis.total.lower_bound
    messages = {note.code: notice_sentence(note) for note in analysis.notices}
    assert ("no-peers", "by_order") not in {
        (n.code, n.values.get("case")) for n in analysis.notices
    }
    assert "4.2 %" in messages["bubble-bound-low"]
    assert "49.4 %" in messages["bubble-bound-low"]


def test_a_bubble_that_is_known_has_no_bound(without_payloads):
    assert "bubble-bound-low" not in {note.code for note in without_payloads.notices}
