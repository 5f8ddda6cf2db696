"""Names that no compiler writes are shortened when they are read, stay different, and are counted."""

from __future__ import annotations

import json

import polars as pl
import pytest

from tests.parsers.nsight_files import Report
from tracekit._util.categories import CategoryColumn
from tracekit.classify.collectives import function_name
from tracekit.classify.matmul import roles_by_layout
from tracekit.classify.rules import family_of
from tracekit.parsers import kineto, nsight
from tracekit.parsers.long_names import shorten_name, shorten_names

LIMIT = 16_384
DIGEST_CHARS = 17  # a sign and sixteen digits
LONG = "k" * 100_000
ALIKE = LONG + "2"


def kernel_names(rank):
    return rank.events.filter(pl.col("kind") == "kernel")["name"].cast(pl.String).to_list()


def long_name_counts(rank):
    return [notice.values for notice in rank.source.notices if notice.code == "bad-text"]


def test_a_name_of_the_limit_stays_and_one_character_more_is_shortened():
    at_limit = "x" * LIMIT
    assert shorten_name(at_limit) == at_limit
    assert shorten_name(at_limit + "x")[:-DIGEST_CHARS] == at_limit


def test_a_column_is_shortened_where_names_are_long_and_nulls_stay():
    names, shortened = shorten_names(pl.Series([None, "a", LONG, LONG, ALIKE]))
    assert names.to_list() == [None, "a", *[shorten_name(LONG)] * 2, shorten_name(ALIKE)]
    assert len(shortened) == 2


def check(rank):
    """Two long names and one short one were read, and both long ones are counted."""
    names = kernel_names(rank)
    assert sorted(map(len, names)) == [len("gemm"), LIMIT + DIGEST_CHARS, LIMIT + DIGEST_CHARS]
    assert len(set(names)) == 3
    assert long_name_counts(rank) == [{"case": "too_long", "count": 2, "limit": LIMIT}]


def test_long_names_of_a_pytorch_trace(tmp_path):
    events = []
    for i, name in enumerate((LONG, "gemm", ALIKE)):
        args = {"correlation": i, "stream": 7, "device": 0}
        events.append({"ph": "X", "cat": "kernel", "name": name, "ts": 10 * i, "dur": 5, "pid": 0,
                       "tid": 7, "args": args})  # fmt: skip
    path = tmp_path / "rank0.json"
    path.write_text(json.dumps({"traceEvents": events}))
    check(kineto.read(path))


def test_long_names_of_an_nsight_report(tmp_path):
    report = Report()
    for i, name in enumerate((LONG, "gemm", ALIKE)):
        report.kernel(name, 10 * i, 10 * i + 5, corr=i)
    report.string("z" * 50_000)  # no event has this name
    (rank,) = nsight.read(report.save(tmp_path / "rank0.sqlite"))
    check(rank)


def test_a_range_of_an_nsight_report_is_shortened_behind_its_sizes(tmp_path):
    sizes = ", ".join(["[4096, 4096]"] * 2_000)
    report = (
        Report()
        .kernel("gemm", 0, 5)
        .range(f"aten::_foreach_add_, seq = 3, sizes = [{sizes}]", 0, 5)
    )
    report.range(LONG, 1, 4)
    (rank,) = nsight.read(report.save(tmp_path / "rank0.sqlite"))
    operator = rank.events.filter(pl.col("kind") == "cpu_op").row(0, named=True)
    assert operator["name"] == "aten::_foreach_add_"
    assert len(json.loads(operator["shapes"])) == 2_000
    assert long_name_counts(rank) == [{"case": "too_long", "count": 1, "limit": LIMIT}]


@pytest.mark.parametrize(("characters", "is_found"), [(8_000, True), (9_000, False)])
def test_patterns_look_at_the_start_of_a_name(characters, is_found):
    padding = "k" * characters
    assert (family_of(f"{padding} sm90_xmma_gemm_bf16bf16_bf16f32") is not None) is is_found
    roles = roles_by_layout(
        CategoryColumn.from_series(pl.Series([f"{padding} volta_sgemm_64x64_nt"]))
    )
    assert (roles.strings() == ["wgrad"]) is is_found
    assert function_name(padding + "<T>") == padding[:8_192]
