"""`no host delay` saves no more than GPUs computed nothing before launches, with what follows from it on other ranks.

How long they were is counted here from the events alone. A delay of one rank holds up others at
most as long as it lasts, and a chain of ranks passes through each delay once: the sum over ranks is
the most that can be saved.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from tests.mutate import CALLS
from tracekit import analyze
from tracekit.align.steps import host_ranges
from tracekit.classify import classify
from tracekit.intervals import union
from tracekit.run.load import load
from tracekit.schema import COMMUNICATION_LABELS, GPU_KINDS

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("measured_once")]

CORPUS = Path(os.environ.get("TRACEKIT_CORPUS", "nowhere"))
SAMPLES = Path(__file__).parents[2] / "sample_traces"
RECORDINGS = (
    *(f"checked/{name}" for name in ("gpipe", "ep", "meg-1f1b", "titan-fsdp-pp")),
    *(
        f"frameworks/{name}"
        for name in ("titan-fsdp", "hf-ddp-ckpt", "ds-pipe", "cp-ring", "titan-ac", "meg-recompute")
    ),
    *(f"frameworks/{name}" for name in ("slow-ddp", "once-ddp", "varlen-ddp", "fp8-fsdp")),
    *(f"everyday/{name}" for name in ("accum", "accum-nosync", "fsdp-offload")),
    *(f"h200/{name}" for name in ("dualpipe", "interleaved")),
)
ROUNDING_NS = 1_000


def idle_before_launches(events: pl.DataFrame) -> int:
    """Return the time in which nothing was computed and the launch of what ran next had not returned: worst step.

    A communication kernel that waits on the GPU meanwhile does not make the host any sooner.
    """
    calls = events.filter(CALLS & pl.col("correlation").is_not_null())
    returned = calls.group_by("correlation").agg(returned_ns=pl.col("end_ns").max())
    on_gpu = (
        classify(events)
        .drop_nulls("step")
        .join(returned, on="correlation", how="left")
        .sort("start_ns")
    )
    is_communication = on_gpu["label"].is_in(COMMUNICATION_LABELS).to_numpy()
    start = on_gpu["start_ns"].to_numpy()
    computed_until = np.maximum.accumulate(
        np.where(is_communication, start[0], on_gpu["end_ns"].to_numpy())
    )[:-1]
    launched = np.minimum(on_gpu["returned_ns"].fill_null(0).to_numpy(), start)[1:]
    is_late = launched > computed_until
    steps, step = np.unique(on_gpu["step"].to_numpy()[1:][is_late], return_inverse=True)
    return max(
        union(computed_until[is_late], launched[is_late], step).totals_ns(len(steps)).tolist(),
        default=0,
    )


def lead(events: pl.DataFrame) -> int:
    """Return the time from the host's start of the first step to its first work on the GPU."""
    hosts = host_ranges(events)
    on_gpu = events.filter(pl.col("kind").is_in(GPU_KINDS))
    first = on_gpu.filter(pl.col("step") == hosts["step"].min())["start_ns"].min()
    return max(first - hosts["host_start_ns"].min(), 0)


def check_bound(folder: Path) -> None:
    trace = load(folder)
    idle_ns = [
        idle_before_launches(trace.rank(rank).events) + lead(trace.rank(rank).events)
        for rank in trace.ranks
    ]
    change = analyze(folder, what_if=True).what_if("no host delay")
    assert change.why_not is None
    assert 0 <= change.saves_ns <= sum(idle_ns) + ROUNDING_NS


@pytest.mark.parametrize("name", RECORDINGS)
def test_recordings(name):
    if not (CORPUS / name).is_dir():
        pytest.skip("TRACEKIT_CORPUS is not set: this capture is not in the repository")
    check_bound(CORPUS / name)


def test_a_shipped_pipeline():
    check_bound(SAMPLES / "1f1b")
