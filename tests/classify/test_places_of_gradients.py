"""Where work of autograd's engine belongs in the model, and what a narrow adapter is, each in a few rows."""

from __future__ import annotations

import numpy as np
import pytest

from tests.classify.conftest import event_row
from tracekit._util.categories import CategoryColumn
from tracekit.classify import classify
from tracekit.classify.model_position import UNKNOWN_FRAME, Frames, Placement, module_frames

OUTSIDE = -1


@pytest.mark.parametrize(
    ("launch_ns", "by_engine", "frame"),
    [
        (5_000, False, OUTSIDE),
        (5_000, True, UNKNOWN_FRAME),  # autograd's engine
        (-1, False, UNKNOWN_FRAME),  # launched at an unknown time
    ],
)
def test_what_is_launched_outside_of_modules_may_belong_to_one(
    program, launch_ns, by_engine, frame
):
    """The module runs from 0 to 10 µs on thread 1, the launch is on thread 2."""
    program.add("python", "nn.Module: Block_0", 0, 10, tid=1)
    frames = Frames.of(module_frames(program.events()))
    placement = Placement(
        tid=np.array([2]),
        launch_ns=np.array([launch_ns]),
        by_engine=np.array([by_engine]),
        node=CategoryColumn.constant(None, 1),
        sequence=np.array([-1]),
        creators=None,
    )
    assert placement.frames(frames, by_sequence=False).tolist() == [frame]


def test_a_narrow_adapter_without_an_activation_is_no_feed_forward_part(program):
    """From 8 columns to 2 and back, between projections and attention."""
    rows = (
        ("aten::mm", "gemm", [[4, 8], [8, 24]]),
        ("aten::_flash_attention_forward", "flash_fwd_kernel", [[1, 4, 1, 8]] * 3),
        ("aten::mm", "gemm", [[4, 8], [8, 8]]),
        ("aten::mm", "gemm", [[4, 8], [8, 2]]),
        ("aten::mm", "gemm", [[4, 2], [2, 8]]),
    )
    adapters = []
    for layer in range(3):
        for i, (op, kernel, shapes) in enumerate(rows):
            start = 10 * layer + i
            program.op(op, start, start + 0.9, shapes=str(shapes))
            event = program.kernel(kernel, start + 0.1)
            if i > 2:
                adapters.append(event)
    table = classify(program.events())
    assert {event_row(table, event)["module"] for event in adapters} <= {None, "attention"}
