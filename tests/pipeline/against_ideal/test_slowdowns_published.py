"""Slowdowns of three public jobs (ByteDance StragglerAnalysis) against the figures published with them."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from tests.published_jobs import Job, groups_of
from tracekit.pipeline.against_ideal.replay import measure_slowdown, replay_group

FOLDER = Path(os.environ.get("TRACEKIT_CORPUS", "")) / "public/bytedance-stragglers"
pytestmark = pytest.mark.skipif(
    not os.environ.get("TRACEKIT_CORPUS") or not FOLDER.is_dir(),
    reason="set TRACEKIT_CORPUS to the folder of traces",
)
TOLERANCE = 0.02


@pytest.fixture(scope="module", params=["ST", "SE", "AR"])
def job(request: pytest.FixtureRequest) -> Job:
    return Job(FOLDER, request.param)


def test_slowdowns_match_the_published_ones(job: Job) -> None:
    result = measure_slowdown(
        job.graph.step_times, job.durations, job.usual, groups_of(job), min_ratio=1.0
    )
    assert result.ratio == pytest.approx(job.published["blocking_slowdown"], rel=TOLERANCE)
    by_step = job.published["blocking_step_slowdown"]
    assert sorted(result.step_ratios) == pytest.approx(sorted(by_step.values()), rel=TOLERANCE)
    for by in ("optype", "stage", "dp_rank"):
        published = job.published[f"blocking_decompose_by_{by}"]
        computed = {str(group.name): group.alone for group in result.groups if group.by == by}
        assert computed == pytest.approx(
            {str(name): value for name, value in published.items()}, rel=TOLERANCE
        ), by


def test_worst_workers_and_the_last_stage_explain_what_was_published(job: Job) -> None:
    result = measure_slowdown(
        job.graph.step_times, job.durations, job.usual, groups_of(job), min_ratio=1.0
    )
    alone = {(group.by, group.name): group.alone for group in result.groups}

    def score(rank: float) -> float:
        row, lane = (index[0] for index in np.nonzero(job.rank == rank))
        return min(
            alone["dp_rank", int(job.replica[row, lane])], alone["stage", int(job.stage[row])]
        )

    ranks = np.unique(job.rank).tolist()
    worst = sorted(ranks, key=lambda rank: (score(rank), -rank), reverse=True)[
        : -(-len(ranks) * 3 // 100)
    ]
    cases = [
        (np.isin(job.rank, worst), job.workers),
        (
            np.repeat((job.stage == job.stage.max())[:, None], len(job.lane_step), axis=1),
            job.last_stage,
        ),
    ]
    for selected, published in cases:
        only, without = replay_group(job.graph.step_times, job.durations, job.usual, selected)
        assert only == pytest.approx(published["tadd"], rel=TOLERANCE)
        assert without == pytest.approx(published["trem"], rel=TOLERANCE)
