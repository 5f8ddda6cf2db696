"""Zero-bubble runs as PyTorch's pipelining makes them: W in one engine call after another, none but W on stage 0."""

from __future__ import annotations

import polars as pl
import pytest

from tracekit.pipeline.against_ideal import compare_pipelines
from tracekit.pipeline.reconstruct import rank_pipeline
from tracekit.pipeline.schedules import generate, simulate
from tracekit.schema import LABELLED, Source, conform

LAYERS = 4  # forward kernels of a stage; the last one's node runs no kernel backwards, as a residual add does
NS = 100_000  # one unit of simulated time


class Rank:
    """One rank's kernels in launch order, with the numbers autograd would give them."""

    def __init__(self, schedule, rank, *, ranges):
        self.schedule, self.rank, self.ranges = schedule, rank, ranges
        self.rows, self.number, self.first = [], 100, {}

    def kernel(self, label, span, *, number=None, node=None, p2p=None, under=None, name="k"):
        index = len(self.rows)
        self.rows.append(
            {
                "id": index,
                "label": label,
                "name": name,
                "node": node,
                "autograd_sequence": number,
                "p2p": p2p,
                "annotations": f"PP:{under}" if under and self.ranges else None,
                "launch_ns": index,
                "start_ns": span[0],
                "end_ns": span[1],
            }
        )

    def work(self, start, end, kernels, under):
        """Run the kernels, each an equal part of the cell's time."""
        kernel_ns = (end - start) // len(kernels)
        for k, (label, number, name) in enumerate(kernels):
            span = (
                start + k * kernel_ns,
                end if k == len(kernels) - 1 else start + (k + 1) * kernel_ns,
            )
            node = "MmBackward0" if number is not None and label != "forward" else None
            self.kernel(label, span, number=number, node=node, under=under, name=name)

    def message(self, way, stage, microbatch, when):
        """A message from or to the rank of another stage, if there is one and it is another rank."""
        if 0 <= stage < self.schedule.stages:
            peer = self.schedule.stage_ranks[stage, microbatch]
            if peer != self.rank:
                self.kernel("pp_comm", (when, when + 1), p2p=f"{way}:{peer}", name="nccl")

    def op(self, kind, stage, microbatch, start, end):
        under = f"{stage}{kind}{microbatch}"
        if kind == "F":
            self.message("recv", stage - 1, microbatch, start)
            first = self.first[stage, microbatch] = self.number
            self.number += LAYERS + 1
            self.work(start, end, [("forward", first + k, f"f{k}") for k in range(LAYERS)], under)
            self.message("send", stage + 1, microbatch, end)
            return
        first = self.first[stage, microbatch]
        walk = [first + k for k in reversed(range(LAYERS - 1))]
        inputs = [("dgrad", n, f"d{n - first}") for n in walk]
        # One engine call for every parameter, the lowest number first, each with a sum outside the
        # engine before it.
        weights = [
            w
            for n in reversed(walk)
            for w in (("wgrad", None, "add"), ("wgrad", n, f"w{n - first}"))
        ]
        whole = [
            k for n in walk for k in (("dgrad", n, f"d{n - first}"), ("wgrad", n, f"w{n - first}"))
        ]
        if stage == 0 and kind == "I":
            return
        if stage == 0 or kind == "I":
            self.message("recv", stage + 1, microbatch, start)
        self.work(start, end, whole if stage == 0 else inputs if kind == "I" else weights, under)
        if kind == "I":
            self.message("send", stage - 1, microbatch, end)


def run(name, *, pp, microbatches, ranges):
    schedule = generate(name, pp=pp, microbatches=microbatches)
    ranks = []
    for rank, cells in (
        simulate(schedule).cells.sort("rank", "start").group_by("rank", maintain_order=True)
    ):
        recorded = Rank(schedule, rank[0], ranges=ranges)
        for cell in cells.iter_rows(named=True):
            start, end = int(cell["start"] * NS), int(cell["end"] * NS)
            recorded.op(cell["op"], cell["stage"], cell["microbatch"], start, end)
        table = conform(pl.DataFrame(recorded.rows, infer_schema_length=None), LABELLED)
        ranks.append(rank_pipeline(table, Source("x", "kineto", rank[0], "name")))
    comparison, notices = compare_pipelines(ranks)
    return schedule, comparison, {n.code for n in notices}


def fused_on_the_first_stage(order):
    """What such a run shows: on stage 0 nothing under I, and all of the backward under W."""
    return [
        op.replace("0W", "0B") if op.startswith("0W") else op
        for op in order
        if not op.startswith("0I")
    ]


@pytest.mark.parametrize("ranges", [False, True])
@pytest.mark.parametrize(
    ("name", "pp", "microbatches"),
    [("zb-v", 4, 8), ("interleaved-zb", 4, 8), ("zb-h1", 3, 6), ("zb-v", 2, 5)],
)
def test_it_comes_back_whole(name, pp, microbatches, ranges):
    schedule, comparison, codes = run(name, pp=pp, microbatches=microbatches, ranges=ranges)
    assert (comparison.name, comparison.exact, comparison.microbatches) == (
        name,
        True,
        microbatches,
    )
    assert comparison.head.orders() == [
        fused_on_the_first_stage(order) for order in schedule.orders()
    ]
    assert "blocks-differ" in codes
    assert "pairs-by-order" not in codes
    assert comparison.head.pipeline.stages_from == ("annotations" if ranges else "messages")
