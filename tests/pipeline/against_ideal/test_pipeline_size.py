"""Size of pipelines with missing ranks, with and without evidence for it.

Layouts that contradict the messages.
"""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from msgspec import structs

from tests.pipeline.against_ideal.conftest import SAMPLES, strip
from tracekit.classify import classify
from tracekit.errors import OptionError
from tracekit.pipeline.against_ideal import compare_pipelines
from tracekit.pipeline.against_ideal.find_schedule import pipeline_of
from tracekit.pipeline.reconstruct import rank_pipeline
from tracekit.pipeline.schedules import Times, generate
from tracekit.report.notices import notice_sentence
from tracekit.run.load import load
from tracekit.schema import Source
from tracekit.synthetic import Recipe, rank_events

pytestmark = pytest.mark.slow

SIZE_CODES = {"schedule-ambiguous", "size-from-order"}


def without_groups(table):
    """Return the tables of a rank without process groups and world size."""
    return replace(table, groups=(), world_size=None)


def compare(tables, **options):
    comparison, notices = compare_pipelines(tables, **options)
    messages = {}
    for n in notices:
        messages.setdefault(n.code, []).append(notice_sentence(n))
    return comparison, {code: "; ".join(texts) for code, texts in messages.items()}


@pytest.mark.parametrize(
    ("name", "recorded_ranks", "bare"),
    [
        ("1f1b", (0,), True),
        ("1f1b", (0, 3), True),
        *itertools.product(["interleaved"], [(0,), (1,), (3,), (0, 3)], [True]),
        *(
            pytest.param("1f1b", recorded_ranks, True, marks=pytest.mark.nightly)
            for recorded_ranks in ((1,), (3,))
        ),
        ("1f1b", (3,), False),
        ("interleaved", (0,), False),
        ("interleaved", (0, 3), False),
    ],
)
def test_a_size_that_nothing_tells_is_never_claimed_wrongly(
    sample_ranks, name, recorded_ranks, bare
):
    comparison, messages = compare(
        [without_groups(t) for t in sample_ranks(name, bare) if t.rank in recorded_ranks]
    )
    if comparison is None:
        assert "no-schedule" in messages
        assert "1f1b of 2" in messages["no-schedule"] or "of 4" in messages["no-schedule"]
    else:
        assert (comparison.name, comparison.pp, comparison.microbatches) == (name, 4, 8)
        assert messages.keys() & SIZE_CODES
        assert comparison.gap_ns is None


def test_the_first_rank_alone_names_the_sizes_that_fit(sample_ranks):
    comparison, messages = compare([without_groups(sample_ranks("1f1b")[0])])
    assert (comparison.name, comparison.pp) == ("1f1b", 4)
    assert "interleaved-overlap of 2 ranks" in messages["schedule-ambiguous"]


def test_the_last_rank_alone_fits_several_sizes_and_is_none(sample_ranks):
    comparison, messages = compare([without_groups(sample_ranks("1f1b")[3])])
    assert comparison is None
    assert "1f1b of 2, 4 ranks" in messages["no-schedule"]
    assert "no-pipeline" not in messages
    comparison, _ = compare([without_groups(sample_ranks("1f1b")[3])], layout="pp=4")
    assert (comparison.name, comparison.pp, comparison.exact) == ("1f1b", 4, True)


def test_gpipe_looks_the_same_at_every_size():
    recipe = Recipe(
        generate("gpipe", pp=4, microbatches=8),
        Times(F=1_000_000, I=900_000, W=700_000),
        p2p_ns=50_000,
    )
    table = rank_pipeline(classify(rank_events(recipe, 0)), Source("rank0", "kineto", 0, "name"))
    comparison, messages = compare([without_groups(table)])
    assert comparison is None
    assert "gpipe of 2, 3, 4, 5, +11 more ranks" in messages["no-schedule"]
    world = replace(table, groups=(), world_size=6)  # of 2, 3 and 6
    assert "gpipe of 2, 3, 6 ranks" in compare([world])[1]["no-schedule"]


@pytest.mark.parametrize("bare", [False, True])
def test_messages_that_list_their_group_tell_the_size(bare):
    """As when the file has no ``distributedInfo``."""
    trace = load(sorted((SAMPLES / "1f1b").glob("rank3*")))
    rank = trace.rank(3)
    events, source = strip(rank.events, rank.source) if bare else (rank.events, rank.source)
    table = rank_pipeline(classify(events), structs.replace(source, groups=(), world_size=None))
    assert [g.ranks for g in table.groups] == [(0, 1, 2, 3)]
    comparison, messages = compare([table])
    assert (comparison.name, comparison.pp, comparison.exact) == ("1f1b", 4, True)
    assert not messages.keys() & (SIZE_CODES | {"no-schedule"})


@pytest.mark.parametrize("schedule", ["auto", "1f1b"])
def test_a_layout_that_the_messages_contradict_names_nothing(sample_ranks, schedule):
    comparison, messages = compare(sample_ranks("1f1b"), layout="pp=2,ep=2", schedule=schedule)
    assert comparison is None
    assert "rank 0 exchanges its messages with rank 1" in messages["no-schedule"]
    comparison, messages = compare(sample_ranks("vpp-overlap"), layout="pp=4,ep=2")
    assert comparison.exact
    assert "no-schedule" not in messages


def test_lines_of_a_mesh():
    assert [pipeline_of(r, size=2, stride=1) for r in (0, 1, 2)] == [(0, 1), (0, 1), (2, 3)]
    assert pipeline_of(9, size=2, stride=4) == (9, 13)


def test_a_layout_that_the_run_cannot_have_is_refused(sample_ranks):
    with pytest.raises(OptionError, match="layout pp=3 has 3 ranks, the run has 4"):
        compare(sample_ranks("1f1b"), layout="pp=3")
    alone = [
        replace(table, messages=table.messages.clear(), world_size=None)
        for table in sample_ranks("1f1b")[:1]
    ]
    with pytest.raises(OptionError, match="no rank here sends or receives anything"):
        compare(alone, layout="pp=3")
