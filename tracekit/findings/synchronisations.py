"""Synchronisations by who asks for them: the operator or call in which the host waits for the GPU tells it."""

from __future__ import annotations

import re

import polars as pl

from tracekit._util.values import first_that_holds
from tracekit.findings.context import Context

MASKS = r"aten::(nonzero|masked_select|index|index_put_?|unique\w*|_unique2?|argwhere|repeat_interleave)$"
"""Operators whose result has a size that only the GPU knows."""
VALUES = r"aten::(item|_local_scalar_dense|is_nonzero|equal|allclose|__bool__)$"
"""Operators that hand one value to Python."""
COPIES = r"aten::(copy_|to|_to_copy|cpu|clone)$"
COLLECTIVES = r"record_param_comms|c10d|nccl|rccl"
SCALER = "_amp_foreach_non_finite_check_and_unscale_"
"""Operator of ``GradScaler``, which then asks whether a gradient is infinite."""
CHECKS = r"aten::(logical_or|isfinite)"
"""Operators of gradient clipping that asks whether the norm is finite."""
MAX_WAITS_OF_OPTIMIZER = 4
"""Waits a step up to which an optimizer's own checks may be all of them."""


def who_waits(context: Context, op: str | None, call: str | None, count: float) -> str:
    """Return the case of a ``host_sync``: mask, scaler, clipping, value, copy, collective or explicit.

    Args:
        context: The run.
        op: Operator in which the host waits longest; None: outside any.
        call: The call that waits.
        count: Waits of that operator in a step.
    """
    operator = op or ""
    is_value = re.search(VALUES, operator) is not None
    is_rare = count <= MAX_WAITS_OF_OPTIMIZER
    cases = [  # the first that holds decides
        (re.search(MASKS, operator) is not None, "mask"),
        (is_value and is_rare and runs_operator(context, SCALER), "scaler"),
        (is_value and is_rare and runs_operator(context, CHECKS), "clipping"),
        (is_value, "value"),
        (re.search(COPIES, operator) is not None, "copy"),
        (re.search(COLLECTIVES, operator) is not None, "collective"),
        (op is None and "ynchronize" in (call or ""), "explicit"),
        (True, ""),
    ]
    return first_that_holds(cases)


def runs_operator(context: Context, pattern: str) -> bool:
    """Return whether the GPU runs work of an operator."""
    graph = context.analysis.graph
    if graph is None:
        return False
    ops = graph.graph.events["op"].unique().drop_nulls().cast(pl.String)
    return bool(ops.str.contains(pattern).any())
