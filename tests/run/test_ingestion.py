"""ingest: what a store holds is what loading and labelling give, however many processes wrote it."""

from __future__ import annotations

import pytest

import tracekit
from tracekit.classify import classify
from tracekit.errors import InputError, TracekitError
from tracekit.report.notices import notice_sentence
from tracekit.store.files import labelled_by

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def trace(samples):
    return tracekit.load(samples / "reload")


@pytest.mark.parametrize("workers", [1, 2])
def test_a_store_holds_the_events_and_their_labels(samples, trace, tmp_path, workers):
    store = tracekit.ingest(samples / "reload", tmp_path / "store", workers=workers)
    assert store.notices == ()
    assert store.sources == trace.sources
    for rank_events in trace.parts:
        rank = rank_events.source.rank
        assert store.rank(rank).events.equals(rank_events.events)
        assert store.labelled(rank).equals(classify(rank_events.events))
    assert tracekit.load(tmp_path / "store").events.equals(trace.events)


def test_nsight_ranks_are_stored_alike(samples, tmp_path):
    store = tracekit.ingest(samples / "nsys-1f1b", tmp_path / "store", ranks=[2])
    assert store.ranks == (2,)
    assert store.labelled(2).height > 0
    assert {"several-exports"} <= {notice.code for notice in store.notices}


def test_a_store_can_be_ingested_again(samples, trace, tmp_path):
    tracekit.ingest(samples / "reload", tmp_path / "one")
    store = tracekit.ingest(tmp_path / "one", tmp_path / "two", ranks=[0, 3])
    assert store.ranks == (0, 3)
    assert store.rank(3).events.equals(trace.rank(3).events)
    store = tracekit.ingest(tmp_path / "one", tmp_path / "one", ranks=[1], overwrite=True)
    assert tracekit.load(tmp_path / "one").ranks == (1,)


def one_bad_of_two(samples, tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in/rank0.json.gz").write_bytes(
        (samples / "reload/rank0.pt.trace.json.gz").read_bytes()
    )
    (tmp_path / "in/rank1.json").write_text('{"traceEvents": [{"a": 1}, {"b": 2}]}')
    return tmp_path / "in"


def test_a_trace_that_cannot_be_read_is_listed_and_left_out(samples, tmp_path):
    store = tracekit.ingest(one_bad_of_two(samples, tmp_path), tmp_path / "store")
    assert store.ranks == (0,)
    listed = next(
        notice_sentence(notice) for notice in store.notices if notice.code == "rank-failed"
    )
    assert listed.startswith(f"rank 1 is left out: {tmp_path}/in/rank1.json: ")
    assert tracekit.open_store(tmp_path / "store").notices[0].code == "rank-failed"


def test_strict_stops_and_keeps_what_was_done(samples, tmp_path):
    with pytest.raises(InputError, match=r"rank1\.json"):
        tracekit.ingest(
            one_bad_of_two(samples, tmp_path), tmp_path / "store", on_damage="error", workers=1
        )
    left = tracekit.open_store(tmp_path / "store")
    assert (left.ranks, left.complete) == ((0,), False)


def test_a_failure_leaves_the_store_that_was_there(samples, tmp_path):
    tracekit.ingest(samples / "reload", tmp_path / "store", ranks=[3])
    with pytest.raises(InputError, match=r"rank1\.json"):
        tracekit.ingest(
            one_bad_of_two(samples, tmp_path), tmp_path / "store", overwrite=True, on_damage="error"
        )
    assert tracekit.open_store(tmp_path / "store").ranks == (3,)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in", "store"]


def test_where_nothing_can_be_read_no_store_is_left(tmp_path):
    (tmp_path / "rank1.json").write_text('{"traceEvents": [{"a": 1}, {"b": 2}]}')
    with pytest.raises(InputError, match=r"rank1\.json"):
        tracekit.ingest(tmp_path / "rank1.json", tmp_path / "store")
    assert [path.name for path in tmp_path.iterdir()] == ["rank1.json"]


def test_rules_are_read_first_and_remembered(samples, tmp_path):
    with pytest.raises(TracekitError, match=r"no-rules\.toml"):
        tracekit.ingest(samples / "reload", tmp_path / "store", rules=tmp_path / "no-rules.toml")
    rules = tmp_path / "rules.toml"
    rules.write_text("# none\n")
    assert labelled_by(rules) != labelled_by()
