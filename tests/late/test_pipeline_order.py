"""Pipelines from messages alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.recorders import batch_end, dump, message, write_dumps
from tracekit.late import late
from tracekit.pipeline.schedules import generate

SAMPLES = Path(__file__).parents[2] / "sample_traces/always-on"


def test_the_real_run_is_1f1b_or_its_double_zb_h1():
    """Truth: 1F1B on 4 ranks, 8 micro-batches, 4 steps.

    ZB-H1 differs in weight gradients, which send nothing.
    """
    (pipeline,) = late(str(SAMPLES / "1f1b/fr_rank*")).document.pipelines
    assert pipeline.ranks == (0, 1, 2, 3)
    assert (pipeline.microbatches, pipeline.steps) == (8, 4)
    assert pipeline.schedules == ("1f1b", "zb-h1")


def pipeline_dumps(name, *, stages, microbatches, steps=3, ranks=None, lost=0):
    """Dumps of a pipeline in which every message is a batch of its own.

    *lost*: entries that the ring lost.
    """
    ranks = ranks or list(range(stages))
    schedule = generate(name, pp=stages, microbatches=microbatches)
    dumps = []
    for stage, order in enumerate(schedule.ranks):
        entries = []

        def add(text, entries=entries):
            batch = 1 + len(entries) // 2
            entries.append(message(len(entries) + 1, text, at_ms=len(entries), batch=batch))
            entries.append(batch_end(len(entries) + 1, at_ms=len(entries), batch=batch))

        me = ranks[stage]
        for _ in range(steps):
            for op in order:
                if op.kind == "F":
                    if stage > 0:
                        add(f"recv {me}<-{ranks[stage - 1]}")
                    if stage < stages - 1:
                        add(f"send {me}->{ranks[stage + 1]}")
                elif op.kind in ("B", "I"):
                    if stage < stages - 1:
                        add(f"recv {me}<-{ranks[stage + 1]}")
                    if stage > 0:
                        add(f"send {me}->{ranks[stage - 1]}")
        dumps.append((me, dump(entries[lost:], ranks=range(len(ranks)))))
    ordered = [None] * len(ranks)
    for rank, content in dumps:
        ordered[rank] = content
    return ordered


@pytest.mark.parametrize("name", ["gpipe", "1f1b", "zb-h2"])
@pytest.mark.parametrize(("stages", "microbatches"), [(2, 4), (4, 8), (4, 6)])
def test_schedules_of_one_chunk_per_rank_are_named(tmp_path, name, stages, microbatches):
    folder = write_dumps(tmp_path, pipeline_dumps(name, stages=stages, microbatches=microbatches))
    (pipeline,) = late(folder).document.pipelines
    assert name in pipeline.schedules
    assert pipeline.microbatches == microbatches
    assert pipeline.steps == 3


def test_stages_need_not_be_in_the_order_of_ranks(tmp_path):
    folder = write_dumps(
        tmp_path, pipeline_dumps("1f1b", stages=4, microbatches=8, ranks=[2, 0, 3, 1])
    )
    assert late(folder).document.pipelines[0].ranks == (2, 0, 3, 1)


def test_a_ring_that_lost_the_beginning_still_tells(tmp_path):
    folder = write_dumps(
        tmp_path, pipeline_dumps("1f1b", stages=4, microbatches=8, steps=5, lost=20)
    )
    (pipeline,) = late(folder).document.pipelines
    assert "1f1b" in pipeline.schedules
    assert pipeline.microbatches == 8


def test_an_order_that_no_schedule_has_is_not_named(tmp_path):
    dumps = pipeline_dumps("1f1b", stages=2, microbatches=4)
    entries = dumps[0]["entries"]
    names = [made["profiling_name"] for made in entries]
    # The first stage waits for the first gradient right after its first forward, then runs ahead.
    first_recv = next(i for i, name in enumerate(names) if "recv" in name)
    moved = names.pop(first_recv)
    names.insert(1, moved)
    for made, name in zip(entries, names, strict=True):
        made["profiling_name"] = name
    assert late(write_dumps(tmp_path, dumps)).document.pipelines == ()


def test_a_rank_missing_in_the_middle_leaves_it_open(tmp_path):
    dumps = pipeline_dumps("1f1b", stages=4, microbatches=8)
    dumps[1] = None
    assert late(write_dumps(tmp_path, dumps)).document.pipelines == ()
