"""Alternatives of work that is done more than once, or for figures alone: a second backward, figures of all logits."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from tracekit._util.shapes import is_shape, parse_list
from tracekit.metrics.alternatives.entry import Alternative
from tracekit.metrics.alternatives.remedy import without_events
from tracekit.metrics.rank_work import RankWork
from tracekit.metrics.sites import count_elements
from tracekit.schema import COMMUNICATION_LABELS

EVALUATION = "^autograd::engine::evaluate_function: "
"""Operator around the work of one node of a backward."""
OF_SECOND_ORDER = "BackwardBackward"
"""Nodes of a backward that is differentiated itself: it goes through the nodes of the forward again, with other
gradients."""
MIN_REPEATED_NODES = 8
"""Nodes of a step that run again, from which a graph was gone through twice."""
MIN_LOGITS = 1 << 22
"""Elements of logits from which figures of them cost time."""
LOSS_NODE = (
    r"^((Log)?Softmax|NllLoss\w*|BinaryCrossEntropy\w*|SoftplusBackward|LogsumexpB)\w*Backward"
)
"""Nodes of losses that read logits."""
HIDES_ITS_NODE = {
    "aten::_softmax": "SoftmaxBackward0",
    "aten::_log_softmax": "LogSoftmaxBackward0",
    "aten::copy_": "ToCopyBackward0",
}
"""Operators that only forwards call, whether something trains by them or not, and the node that tells."""


class RepeatedBackward(Alternative, frozen=True, kw_only=True):
    """A backward goes through a graph that another one of the step has gone through already."""

    change = "one backward"
    rests_on = "gradients of all losses go back through the parts that they share together"
    code = "repeated_backward"
    title = "backwards"
    training_only = True
    says = "backwards go through the same part of the model more than once a step ({what} nodes run again): {work}"
    advises = "add the losses and go backward once (`(loss_a + loss_b).backward()`)"
    caveat = "Gradients of each loss that are looked at, weighed or projected apart need their own backward."

    def find(self, rank: RankWork) -> Iterator[pl.DataFrame]:
        # Schedules go back for inputs first, and for weights later.
        if rank.events["label"].is_in(COMMUNICATION_LABELS).any():
            return
        nodes = rank.operators_named(EVALUATION).filter(pl.col("sequence") >= 0)
        if (
            nodes.is_empty()
            or nodes.select(
                pl.col("name").cast(pl.String).str.contains(OF_SECOND_ORDER).any()
            ).item()
        ):
            return
        same_node = ("part", "tid", "name", "sequence")
        times_run = pl.len().over(same_node)
        run = pl.col("start_ns").rank("ordinal").over(same_node)
        nodes = nodes.with_columns(run=run, times_run=times_run).sort("start_ns")
        if nodes.filter(pl.col("run") > 1).height < MIN_REPEATED_NODES * nodes["part"].n_unique():
            return
        backward = rank.events.drop_nulls(["node", "launch_ns"]).sort("launch_ns")
        inside = backward.join_asof(
            nodes.select("start_ns", "end_ns", "sequence", "run", "times_run", of_part="part"),
            left_on="launch_ns",
            right_on="start_ns",
        ).filter(pl.col("launch_ns") < pl.col("end_ns_right"))
        # Another run of a node does the same; a node that is split does one part in each.
        work = pl.concat_str("op", "shapes", ignore_nulls=True).sort().str.join(" ")
        by_run = inside.group_by("of_part", "node", "sequence", "run").agg(work=work)
        first = by_run.filter(pl.col("run") == 1).drop("run")
        alike = by_run.filter(pl.col("run") > 1).join(
            first, on=["of_part", "node", "sequence", "work"], how="semi"
        )
        again = inside.join(alike, on=["of_part", "node", "sequence", "run"], how="semi")
        # What a second backward adds to gradients goes as well.
        adds = backward.filter(
            (pl.col("node") == "AccumulateGrad")
            & pl.col("op").str.contains("^aten::add_?$").fill_null(value=False)
        )
        per_step = round(alike.height / nodes["part"].n_unique())
        if per_step >= MIN_REPEATED_NODES:
            what = f"{per_step:,}"
            yield without_events(again, self.change, what=what)
            yield without_events(adds, self.change, what=what)


class RareFigures(Alternative, frozen=True, kw_only=True):
    """Steps of training compute figures of all logits that nothing trains by."""

    change = "figures rarely"
    rests_on = "figures of logits that nothing trains by are computed every so many steps"
    code = "figures"
    title = "figures for logs"
    training_only = True
    says = "every step computes figures of all logits that nothing trains by (with {what}): {work}"
    advises = (
        "compute them every N steps, or of what the loss has already (its log-probabilities); `torch.compile` "
        "reads the logits once for all of them"
    )
    caveat = "Targets of distillation made of the same logits are needed."

    def find(self, rank: RankWork) -> Iterator[pl.DataFrame]:
        logits = rank.events.filter(
            pl.col("node").str.contains(LOSS_NODE).fill_null(value=False)
            & (pl.col("elements") >= MIN_LOGITS)
        )
        sizes = logits["elements"].unique()
        if sizes.is_empty() or _heads_without_loss(rank, sizes):
            return
        vocabularies = logits.select(pl.col("dims").list.last().unique())["dims"]
        between_memories = pl.col("name").str.contains("(?i)HtoD|DtoH|HostToDevice|DeviceToHost")
        forward = rank.events.filter(
            pl.col("node").is_null()
            & ~pl.col("is_backward")
            & ~between_memories
            & pl.col("elements").is_in(sizes.implode())
            & pl.col("dims").list.last().is_in(vocabularies.implode())
            & pl.col("op").is_not_null()
            & (pl.col("kind").is_null() | (pl.col("kind") != "product"))
        )
        figures = forward.filter(pl.col("label").is_in(["other", "memory"]))
        if not figures.select((pl.col("label") == "other").any()).item():
            return
        hidden = [_without_node(rank, forward, op, node) for op, node in HIDES_ITS_NODE.items()]
        all_figures = pl.concat([figures, *hidden]).unique("row", maintain_order=True)
        longest = (
            all_figures.group_by("op").agg(pl.col("ns").sum()).sort("ns", "op", descending=True)
        )
        what = ", ".join(op.removeprefix("aten::").strip("_") for op in longest["op"].head(3))
        yield without_events(all_figures, self.change, what=what)


def _heads_without_loss(rank: RankWork, sizes: pl.Series) -> bool:
    """Return whether products make more logits than losses read: another model's, which a loss compares with."""
    elements = set(sizes)
    made = 0
    products = rank.events.filter((pl.col("kind") == "product") & ~pl.col("is_backward"))
    for shapes, calls in (
        products.drop_nulls("shapes").group_by("shapes").agg(pl.col("call").n_unique()).iter_rows()
    ):
        matrices = [
            size for size in parse_list(shapes) if size and is_shape(size) and len(size) > 1
        ]
        if len(matrices) > 1 and count_elements(matrices[-2][:-1]) * matrices[-1][-1] in elements:
            made += calls
    losses = rank.events.filter(
        pl.col("node").str.contains("^((Log)?Softmax|BinaryCrossEntropy)").fill_null(value=False)
        & pl.col("elements").is_in(sizes.implode())
    )
    return made > losses["call"].n_unique()


def _without_node(rank: RankWork, forward: pl.DataFrame, op: str, node: str) -> pl.DataFrame:
    """Return the last calls of an operator of each size that have no node in the backward."""
    nodes = rank.events.filter(pl.col("node") == node)
    ran = nodes.group_by("part", "elements").agg(ran=pl.col("call").n_unique())
    calls = forward.filter(pl.col("op") == op).join(ran, on=["part", "elements"], how="left")
    number = pl.col("launch_ns").rank("dense").over("part", "elements")
    return calls.filter(number > pl.col("ran").fill_null(0)).select(forward.columns)
