"""Timelines of operations against their ideal: simulated ones whose answer is known, and the published ones."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tracekit.errors import InputError
from tracekit.pipeline.against_ideal import compare_timeline
from tracekit.pipeline.schedules import Times, generate, simulate

FOLDER = Path(os.environ.get("TRACEKIT_CORPUS", "nowhere")) / "public/bytedance-timelines"
AGREEMENT = 0.02


def write_timeline(
    path, *, name="1f1b", pp=3, microbatches=5, times=None, replicas=2, steps=(4, 7)
):
    """A timeline of a simulated schedule in µs; messages lie between the cells that they join."""
    times = times or Times(F=100, B=200, P2P=10)
    simulation = simulate(generate(name, pp=pp, microbatches=microbatches), times)
    cells = simulation.cells.rows(named=True)
    events = []
    for replica in range(replicas):
        for rank in range(pp):
            for tid, kind in ((2 * rank, "compute"), (2 * rank + 1, "pp-comm")):
                thread = {"name": f"PP rank {rank}, TP rank 0, {kind}"}
                events.append(
                    {"name": "thread_name", "pid": replica, "tid": tid, "ph": "M", "args": thread}
                )
        for number, step in enumerate(steps):
            origin = 100_000 * number
            for cell in cells:
                rank, microbatch = cell["rank"], cell["microbatch"]
                kind, last = ("forward", pp - 1) if cell["op"] == "F" else ("backward", 0)
                common_fields = {"pid": replica, "ph": "X"}
                args = {"step": step, "model_chunk": 0, "mb_id": microbatch, "seq_id": microbatch}
                start, end = origin + cell["start"], origin + cell["end"]
                events.append(
                    {
                        "name": f"{kind}-compute",
                        "tid": 2 * rank,
                        "ts": start,
                        "dur": end - start,
                        "args": args,
                        **common_fields,
                    }
                )
                if rank != last:
                    peer = rank + (1 if kind == "forward" else -1)
                    args = {**args, "model_chunk": -1, "mb_id": -1}
                    for verb, owner in (("send", rank), ("recv", peer)):
                        events.append(
                            {
                                "name": f"{kind}-{verb}",
                                "tid": 2 * owner + 1,
                                "ts": end,
                                "dur": times.P2P,
                                "args": args,
                                **common_fields,
                            }
                        )
    path.write_text(json.dumps(events))
    return simulation


def test_a_simulated_timeline_is_its_own_ideal_of_averages(tmp_path):
    simulation = write_timeline(tmp_path / "timeline.json")
    done = compare_timeline(tmp_path / "timeline.json")
    comparison = done.comparison
    assert (comparison.name, comparison.exact, comparison.pp, comparison.microbatches) == (
        "1f1b",
        True,
        3,
        5,
    )
    assert comparison.pipelines == ((0, 1, 2), (3, 4, 5))
    assert len(comparison.all) == 4
    assert comparison.head.measured_ns == simulation.makespan * 1000
    assert done.average_ideal_ns == simulation.makespan * 1000
    assert (done.times.F, done.times.B, done.times.P2P) == (100_000, 200_000, 10_000)
    # Free messages are what tracekit's own ideal saves: (p - 1 + m) (F + B).
    assert comparison.head.ideal_ns == 7 * 300_000
    assert comparison.gap_ns["p2p"] == (simulation.makespan - 7 * 300) * 1000
    assert done.notices == ()


def test_a_slow_stage_is_imbalance_in_the_gap(tmp_path):
    write_timeline(tmp_path / "timeline.json", times=Times(F=(100, 100, 160), B=200, P2P=0))
    done = compare_timeline(tmp_path / "timeline.json")
    assert done.times.F == 120_000
    assert done.average_ideal_ns == done.comparison.head.ideal_ns == 7 * 320_000
    gap = done.comparison.gap_ns
    assert gap["imbalance"] == done.comparison.head.measured_ns - done.comparison.head.ideal_ns > 0


def test_another_schedule_is_named(tmp_path):
    write_timeline(tmp_path / "timeline.json", name="gpipe")
    assert compare_timeline(tmp_path / "timeline.json").comparison.name == "gpipe"


def test_several_chunks_per_rank_are_refused(tmp_path):
    path = tmp_path / "timeline.json"
    write_timeline(path)
    path.write_text(path.read_text().replace('"model_chunk": 0', '"model_chunk": 1', 1))
    with pytest.raises(InputError, match="several model chunks"):
        compare_timeline(path)


@pytest.mark.slow
@pytest.mark.skipif(not FOLDER.is_dir(), reason="set TRACEKIT_CORPUS to the folder of traces")
@pytest.mark.parametrize(
    ("job", "stages", "microbatches", "replicas"), [("ST", 4, 4, 2), ("SE", 2, 8, 32)]
)
def test_published_ideals_are_repeated_from_the_same_input(job, stages, microbatches, replicas):
    done = compare_timeline(FOLDER / f"timeline-{job}.json.gz")
    published = compare_timeline(FOLDER / f"ideal-timeline-{job}.json.gz")
    comparison = done.comparison
    assert (comparison.name, comparison.exact) == ("1f1b", True)
    assert (comparison.pp, comparison.microbatches, len(comparison.pipelines)) == (
        stages,
        microbatches,
        replicas,
    )
    theirs_ns = {step.measured_ns for step in published.comparison.all}
    # All steps of all replicas are alike, but for rounding.
    assert max(theirs_ns) - min(theirs_ns) < 10_000
    assert abs(done.average_ideal_ns / max(theirs_ns) - 1) < AGREEMENT
    # Simulated with the very averages of their ideal, nothing is left of the difference.
    assert abs(published.average_ideal_ns / max(theirs_ns) - 1) < 1e-4
    # Where micro-batches differ so much that the typical ones take longer than the run, there is no
    # gap to split.
    split = [step for step in comparison.all if step.gap_ns is not None]
    assert len(split) > 0.95 * len(comparison.all)
    for step in split:
        assert sum(step.gap_ns.values()) == step.measured_ns - step.ideal_ns
