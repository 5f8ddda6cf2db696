"""Steps of a memory history without ranges, by what allocates.

A step ends with the optimizer's allocations. An optimizer that allocates nothing after its first
step leaves the calls of ``backward()``: each makes the gradient of the loss.
"""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from tracekit.memory.measures.stacks import Stack, stack_origin, with_slashes

MIN_OPTIMIZER_STEPS = 2
"""Ends of optimizer steps from which these divide the history."""
_COMPUTE = ("forward", "backward", "recompute")
_ROOT_GRADIENT = ("_make_grads", "torch/autograd/__init__.py")
"""Function and file that allocate the gradient of the loss."""


def starts_by_allocations(allocations: pl.DataFrame, stacks: Sequence[Stack]) -> list[int]:
    """Return the times at which steps begin; empty where allocations do not tell.

    Args:
        allocations: ``replay.ALLOCATIONS``.
        stacks: Stacks by their number.

    """
    origins = pl.DataFrame(
        {
            "stack": range(len(stacks)),
            "origin": [stack_origin(stack) for stack in stacks],
            "is_root": [_makes_root_gradient(stack) for stack in stacks],
        },
        schema={"stack": pl.Int32(), "origin": pl.String(), "is_root": pl.Boolean()},
    )
    in_history = allocations.filter(pl.col("alloc_row").is_not_null()).sort("alloc_row")
    with_origin = in_history.join(origins, on="stack", how="inner", maintain_order="left")
    if with_origin.is_empty():
        return []
    first_ns = int(with_origin["alloc_ns"][0])
    of_passes = with_origin.filter(pl.col("origin").is_in([*_COMPUTE, "optimizer"]))
    follows_optimizer = (pl.col("origin").shift(1) == "optimizer") & (
        pl.col("origin") != "optimizer"
    )
    after_optimizer = of_passes.filter(follows_optimizer)["alloc_ns"].to_list()
    if len(after_optimizer) >= MIN_OPTIMIZER_STEPS:
        return [first_ns, *after_optimizer]
    # The forward after each gradient of a loss begins a step.
    numbered = with_origin.with_columns(backwards=pl.col("is_root").cum_sum())
    forwards = numbered.filter((pl.col("origin") == "forward") & (pl.col("backwards") > 0))
    starts = forwards.group_by("backwards").agg(pl.col("alloc_ns").min()).sort("backwards")
    after_backward = starts["alloc_ns"].to_list()
    if len(after_backward) < MIN_OPTIMIZER_STEPS:
        return []
    return [first_ns, *after_backward]


def _makes_root_gradient(stack: Stack) -> bool:
    """Return whether a stack passes through the function that makes the gradient of the loss."""
    function, file = _ROOT_GRADIENT
    return any(frame[0] == function and with_slashes(frame[1]).endswith(file) for frame in stack)
