"""Mean times of a run's ops, from which its ideal and the ideals of other schedules are simulated."""

from __future__ import annotations

import msgspec
import polars as pl

from tracekit.compare.gap import StepReplays
from tracekit.schedules import Times

MAX_WEIGHT_GRADIENT_SHARE = 0.9
"""Largest share of a backward's time that is taken as weight gradients."""


class StageTimes(msgspec.Struct, frozen=True):
    """Times in nanoseconds that one micro-batch takes on one rank, all layers of the rank together."""

    forward: int
    input_grad: int
    weight_grad: int
    overlap: float | None  # time of an FB / time of its F and B one after the other; None if no FB ran
    split_known: bool  # whether the run shows how a backward splits into input and weight gradients
    chunks: float  # chunks per rank in the run

    def for_chunks(self, chunks: float | None = None) -> Times:
        """Return the times of ops if the layers of a rank are cut into *chunks*; into those of the run if None."""
        chunks = chunks or self.chunks
        forward, input_grad, weight_grad = (
            max(1, round(ns / chunks)) for ns in (self.forward, self.input_grad, self.weight_grad)
        )
        block = forward + input_grad + weight_grad
        if self.overlap is not None:
            block = max(1, round(block * self.overlap))
        return Times(F=forward, I=input_grad, W=weight_grad, B=input_grad + weight_grad, FB=block)


def measure_stage_times(replays: StepReplays, cells: pl.DataFrame, pp: int) -> StageTimes:
    """Return the mean times of the run's ops.

    A kind of op that did not run is derived from the others: a backward that never ran split is split by the labels of
    its kernels, or in half; an FB is one third forward and two thirds backward.

    Args:
        replays: The step.
        cells: Cells of the step (``DETAILED``).
        pp: Ranks of the pipeline.
    """
    graph = replays.graph
    last_stage = int(max(graph.stage.max(initial=0), graph.b_stage.max(initial=0)))
    chunks = (last_stage + 1) / pp
    # All cells of one kind have the same balanced time.
    mean_ns = {
        op: int(replays.balanced[graph.op == op][0]) for op in ("F", "I", "W", "B", "FB") if (graph.op == op).any()
    }
    block = mean_ns.get("FB")
    backward = mean_ns.get("B") or None
    if backward is None and "I" in mean_ns and "W" in mean_ns:
        backward = mean_ns["I"] + mean_ns["W"]
    if backward is None:
        backward = round((block or 3) * 2 / 3)
    forward = mean_ns.get("F")
    if not forward:
        forward = block - backward if block and block > backward else round(backward / 2)
    weight_share = _weight_gradient_share(replays, cells)
    weight_grad = mean_ns.get("W", round(backward * (0.5 if weight_share is None else weight_share)))
    input_grad = mean_ns.get("I", backward - weight_grad)
    return StageTimes(
        forward=round(forward * chunks),
        input_grad=round(input_grad * chunks),
        weight_grad=round(weight_grad * chunks),
        overlap=block / (forward + input_grad + weight_grad) if block else None,
        split_known=weight_share is not None or "W" in mean_ns,
        chunks=chunks,
    )


def _weight_gradient_share(replays: StepReplays, cells: pl.DataFrame) -> float | None:
    """Return the share of weight gradients in the time of whole backwards, by labels; None if none is labelled."""
    is_backward = replays.graph.op == "B"
    weight_ns = int(cells["wgrad_ns"].to_numpy()[is_backward].sum())
    total_ns = int(replays.work[is_backward].sum())
    return min(weight_ns / total_ns, MAX_WEIGHT_GRADIENT_SHARE) if weight_ns and total_ns else None
