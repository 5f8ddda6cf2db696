"""One rank's part of a pipeline: messages and sampled steps."""

from __future__ import annotations

import polars as pl

from tracekit.pipeline.reconstruct.parallel_groups import (
    find_parallel_groups,
)
from tracekit.pipeline.reconstruct.rank_pipeline import rank_pipeline, sample_steps
from tracekit.report.notices import notice_sentence
from tracekit.schema import LABELLED, ProcessGroup, Source, conform


def test_groups_give_ranks_their_places():
    groups = (
        ProcessGroup("0", "default_pg", (0, 1, 2, 3)),
        ProcessGroup("1", "PIPELINE_MODEL_PARALLEL_GROUP", (1, 3)),
        ProcessGroup("2", "EXPERT_MODEL_PARALLEL_GROUP", (2, 3)),
        ProcessGroup("3", "mesh_tp", (3,)),
    )
    table = {"label": ["forward"], "start_ns": [0], "end_ns": [1]}
    rank = rank_pipeline(
        conform(pl.DataFrame(table), LABELLED), Source("x", "kineto", 3, "name", groups=groups)
    )
    assert find_parallel_groups([rank]).positions[3] == {"pp": 1, "ep": 1, "tp": 0}


def test_many_steps_are_sampled_alike_on_ranks_that_differ_by_a_step():
    rows = [pl.DataFrame({"step": list(range(first, 200))}) for first in (0, 1)]
    sampled = [sample_steps(rank)[0]["step"].to_list() for rank in rows]
    assert sampled[0] == list(range(0, 200, 8))
    assert sampled[1] == sampled[0][1:]


def test_step_numbers_that_skip_are_sampled_by_place():
    odd = pl.DataFrame({"step": list(range(1, 201, 2))})
    sampled, (notice,) = sample_steps(odd)
    assert sampled["step"].to_list() == list(range(1, 201, 8))
    assert "one step in 4" in notice_sentence(notice)


def test_few_steps_are_all_kept():
    rows = pl.DataFrame({"step": [1, 2, None]})
    sampled, notices = sample_steps(rows)
    assert sampled is rows
    assert notices == ()
