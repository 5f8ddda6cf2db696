"""Pipelines of which ranks are missing, with and without what tells their size; layouts that messages contradict."""

from __future__ import annotations

from dataclasses import replace

import pytest
from msgspec import structs

from tests.compare.conftest import SAMPLES, strip
from tracekit.classify import classify
from tracekit.compare import compare_pipelines
from tracekit.compare.sizes import line_of
from tracekit.reconstruct import rank_pipeline
from tracekit.run.load import load
from tracekit.schedules import Times, generate
from tracekit.schema import Source
from tracekit.synthetic import Recipe, rank_events

pytestmark = pytest.mark.slow

SAID = {"schedule-ambiguous", "size-from-order"}


def forgotten(table):
    """One rank's tables without anything that tells the members of a group."""
    return replace(table, groups=(), world_size=None)


def compared(tables, **options):
    found, notices = compare_pipelines(tables, **options)
    said = {}
    for n in notices:
        said.setdefault(n.code, []).append(n.message)
    return found, {code: "; ".join(messages) for code, messages in said.items()}


@pytest.mark.parametrize("bare", [False, True])
@pytest.mark.parametrize("name", ["1f1b", "interleaved"])
@pytest.mark.parametrize("there", [(0,), (1,), (2,), (3,), (0, 1), (0, 3)])
def test_a_size_that_nothing_tells_is_never_claimed_wrongly(ran, name, there, bare):
    found, said = compared([forgotten(t) for t in ran(name, bare) if t.rank in there])
    if found is None:
        assert "pipeline-size-unknown" in said
        assert "1f1b of 2" in said["pipeline-size-unknown"] or "of 4" in said["pipeline-size-unknown"]
    else:
        assert (found.name, found.pp, found.microbatches) == (name, 4, 8)
        assert said.keys() & SAID
        assert found.gap_ns is None


def test_the_first_rank_alone_names_the_sizes_that_fit(ran):
    found, said = compared([forgotten(ran("1f1b")[0])])
    assert (found.name, found.pp) == ("1f1b", 4)
    assert "interleaved-overlap of 2 ranks" in said["schedule-ambiguous"]


def test_the_last_rank_alone_fits_several_sizes_and_is_none(ran):
    found, said = compared([forgotten(ran("1f1b")[3])])
    assert found is None
    assert "1f1b of 2, 4 ranks" in said["pipeline-size-unknown"]
    assert "no-pipeline" not in said
    found, _ = compared([forgotten(ran("1f1b")[3])], layout="pp=4")
    assert (found.name, found.pp, found.exact) == ("1f1b", 4, True)


def test_gpipe_looks_the_same_at_every_size():
    recipe = Recipe(generate("gpipe", pp=4, microbatches=8), Times(F=1_000_000, I=900_000, W=700_000), p2p_ns=50_000)
    table = rank_pipeline(classify(rank_events(recipe, 0)), Source("rank0", "kineto", 0, "name"))
    found, said = compared([forgotten(table)])
    assert found is None
    assert "gpipe of 2, 3, 4, 5 … ranks" in said["pipeline-size-unknown"]
    world = replace(table, groups=(), world_size=6)  # of 2, 3 and 6
    assert "gpipe of 2, 3, 6 ranks" in compared([world])[1]["pipeline-size-unknown"]


@pytest.mark.parametrize("bare", [False, True])
def test_messages_that_list_their_group_tell_the_size(bare):
    """As when the file has no ``distributedInfo``."""
    trace = load(sorted((SAMPLES / "1f1b").glob("rank3*")))
    one = trace.rank(3)
    events, source = strip(one.events, one.source) if bare else (one.events, one.source)
    table = rank_pipeline(classify(events), structs.replace(source, groups=(), world_size=None))
    assert [g.ranks for g in table.groups] == [(0, 1, 2, 3)]
    found, said = compared([table])
    assert (found.name, found.pp, found.exact) == ("1f1b", 4, True)
    assert not said.keys() & (SAID | {"pipeline-size-unknown"})


@pytest.mark.parametrize("schedule", ["auto", "1f1b"])
def test_a_layout_that_the_messages_contradict_names_nothing(ran, schedule):
    found, said = compared(ran("1f1b"), layout="pp=2,ep=2", schedule=schedule)
    assert found is None
    assert "rank 0 exchanges its messages with rank 1" in said["layout-contradicted"]
    found, said = compared(ran("vpp-overlap"), layout="pp=4,ep=2")
    assert found.exact
    assert "layout-contradicted" not in said


def test_lines_of_a_mesh():
    assert [line_of(r, size=2, stride=1) for r in (0, 1, 2)] == [(0, 1), (0, 1), (2, 3)]
    assert line_of(9, size=2, stride=4) == (9, 13)
