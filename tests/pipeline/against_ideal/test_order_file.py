"""A run held against an order file that was written for another number of ranks."""

from __future__ import annotations

import pytest

from tracekit import analyze
from tracekit.report.notices import notice_sentence

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("measured_once")]


@pytest.mark.parametrize(("ranks", "size"), [(1, "1 rank"), (6, "6 ranks")])
def test_an_order_file_of_another_size_is_said(samples, tmp_path, ranks, size):
    order = tmp_path / "mine.txt"
    order.write_text("".join(f"{stage}F0 {stage}B0\n" for stage in range(ranks)))
    analysis = analyze(samples / "1f1b", schedule=str(order))
    assert analysis.schedule is None
    assert f"{order} is an order of {size}, and the pipeline has 4" in [
        notice_sentence(notice) for notice in analysis.notices
    ]
