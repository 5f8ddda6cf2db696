"""Programs of ranks under another schedule: pieces and messages."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest

from tracekit.graph import rank_programs
from tracekit.graph.rank_programs import ScheduleWriter


@pytest.fixture
def writer(monkeypatch):
    """Three stages, of which ranks 0, 1 and 1 hold one each, with one micro-batch."""
    schedule = SimpleNamespace(ranks=[(), ()], stage_ranks=np.array([[0], [1], [1]]), stages=3)
    writer = ScheduleWriter(schedule)
    monkeypatch.setattr(writer, "message", lambda output, source, target: (source, target))
    return writer


@pytest.mark.parametrize(
    ("output", "needed"),
    [
        (None, None),
        (("forward", 0, 0), None),
        (("forward", 1, 0), ("forward", 0, 0)),
        (("forward", 2, 0), ("forward", 1, 0)),
        (("backward", 2, 0), None),
        (("backward", 0, 0), ("backward", 1, 0)),
    ],
)
def test_a_piece_needs_the_output_of_the_stage_before_it_in_its_direction(writer, output, needed):
    assert writer.input_of(SimpleNamespace(output=output)) == needed


@pytest.mark.parametrize(
    ("output", "message"),
    [
        (None, None),
        (("forward", 0, 0), (0, 1)),
        (("forward", 1, 0), None),  # the same rank needs it
        (("forward", 2, 0), None),  # the last stage
        (("backward", 1, 0), (1, 0)),
        (("backward", 0, 0), None),
    ],
)
def test_a_message_carries_what_another_rank_needs(writer, output, message):
    assert writer.message_of(output) == message


@pytest.mark.parametrize(("early_share", "queues"), [(0.10, "compute"), (0.11, "free")])
def test_receives_wait_for_no_compute_if_more_than_a_tenth_begin_early(
    monkeypatch, early_share, queues
):
    monkeypatch.setattr(rank_programs, "share_of_early_receives", lambda *_: early_share)
    assert rank_programs.find_queues({}, pl.DataFrame()) == queues
