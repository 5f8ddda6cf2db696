"""SQL over a store."""

from __future__ import annotations

import sys

import polars as pl
import pytest

from tracekit import ingest
from tracekit.classify import classify
from tracekit.errors import InputError, OptionError
from tracekit.run.analyze import analyze
from tracekit.run.load import load
from tracekit.run.query import query

pytestmark = pytest.mark.slow

pytest.importorskip("duckdb")


@pytest.fixture(scope="module")
def store(tmp_path_factory, samples):
    return ingest(samples / "reload", tmp_path_factory.mktemp("sql") / "store").path


def test_counts_are_those_of_the_tables(store, samples):
    rows = query(
        store, "select label, count(*) n from labelled where rank = 0 group by label order by label"
    )
    own = classify(load(samples / "reload", ranks=[0]).rank(0).events)
    assert dict(rows.iter_rows()) == dict(own["label"].cast(str).value_counts().iter_rows())


def test_every_table_can_be_named(store):
    for table in ("events", "labelled", "ranks", "budgets", "findings"):
        assert query(store, f"select count(*) from {table}").item() > 0


def test_a_query_needs_no_quotes_around_words_of_sql(store):
    rows = query(
        store,
        "select sum(duration_ns), any_value(group_name) from labelled where label = 'broadcast'",
    )
    quoted = """select sum(end_ns - start_ns), any_value("group") from labelled where label = 'broadcast'"""
    assert rows.rows() == query(store, quoted).rows()
    assert query(store, "select pass_name from labelled").schema == {"pass_name": pl.String}


def test_findings_and_budgets_are_those_of_the_analysis(store):
    analysis = analyze(store)
    texts = query(store, "select text from findings order by number")["text"].to_list()
    assert texts == [finding.text for finding in analysis.findings]
    idle = query(
        store, "select sum(ns)::bigint from budgets where part = 'idle' and step is null"
    ).item()
    assert idle == analysis.total.budget.idle_ns


@pytest.mark.parametrize(
    ("sql", "reason"),
    [
        ("select * from nothing", "nothing"),
        ("selekt 1", "selekt"),
        ("select * from read_csv('/etc/passwd')", "query:"),
        ("copy (select 1) to '/tmp/tracekit-query-test'", "query:"),
    ],
)
def test_what_cannot_be_answered_is_one_line(store, sql, reason):
    with pytest.raises(InputError, match=reason):
        query(store, sql)


def test_an_unknown_column_lists_those_there_are(store):
    with pytest.raises(InputError) as caught:
        query(store, "select foo from labelled")
    assert "foo" in caught.value.message
    assert caught.value.hint.startswith("columns of labelled: rank, ")
    assert " label, " in caught.value.hint
    assert "columns of events" not in caught.value.hint


def test_without_duckdb_it_says_what_to_install(store, monkeypatch):
    monkeypatch.setitem(sys.modules, "duckdb", None)
    with pytest.raises(OptionError, match=r"tracekit-ml\[sql\]"):
        query(store, "select 1")
