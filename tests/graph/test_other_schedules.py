"""Other schedules that are proposed."""

from __future__ import annotations

import pytest

from tracekit.graph import schedule_rows
from tracekit.graph.schedule_rows import too_large_to_search
from tracekit.pipeline.schedules import Times, generate


def test_orders_of_up_to_4000_units_are_searched_for():
    """A micro-batch has three units of work on each rank."""
    assert not too_large_to_search(pp=1, microbatches=1_333)
    assert too_large_to_search(pp=1, microbatches=1_334)


@pytest.mark.parametrize("is_too_large", [True, False])
def test_of_a_run_too_large_to_search_all_other_schedules_are_shown(monkeypatch, is_too_large):
    monkeypatch.setattr(schedule_rows, "too_large_to_search", lambda *_: is_too_large)
    own = generate("1f1b", pp=2, microbatches=4)
    times = Times(F=1, I=1, W=1)
    shown = {other.name for other in schedule_rows.other_schedules(own, times)}
    assert {"gpipe", "1f1b", "interleaved", "zb-h1"} <= shown
    assert ("zb-2p" in shown) is not is_too_large  # whose order is searched for
