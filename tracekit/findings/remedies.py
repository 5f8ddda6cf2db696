"""Findings that a change of types, kernels or calls would help: their cost is the GPU work it changes.

What each change would make of the work was found rank by rank (``metrics.remedies``); what it saves is
what the replay of all ranks with that change predicts.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from functools import cache
from typing import ClassVar, TypeVar

import msgspec
import numpy as np
import polars as pl

from tracekit._util.text import short_ms
from tracekit.documents.analysis import ChangedStep
from tracekit.documents.findings import MAX_PLACES_PER_FINDING, Place
from tracekit.findings.context import Context, places_of
from tracekit.findings.kind import FindingKind
from tracekit.findings.phrases import FUSED_BY_HAND, or_unknown, switch
from tracekit.graph.change import Remedied
from tracekit.graph.event_graph import EventGraph
from tracekit.graph.remedies import FUSE, FUSE_LOSS, select_remedies
from tracekit.metrics.alternatives import ALTERNATIVES, Alternative
from tracekit.metrics.alternatives.remedy import HOST_ALONE, SLOWER_OPERATORS
from tracekit.metrics.remedies.messages import PARAMETERS

MIN_FUSED_KERNELS = 16
"""Kernels of a step in chains, below which fusing them is no advice: a mask or a position is made once."""
MIN_EXPLAINED_SHARE = 0.5
"""Share of an operator's time that has a remedy, above which its rate is no finding of its own."""
NARROW = ("bf16", "fp16")


class ChangedWork(msgspec.Struct, frozen=True):
    """GPU work that a change concerns, per rank and step."""

    ns: float
    events: float
    whats: tuple[str, ...]
    """What is changed, that with most time first."""
    op: str | None
    """Operator that takes most of the time."""
    module: str | None


class ChangeOfWork(FindingKind, frozen=True, kw_only=True):
    """GPU work that a change of types, kernels or calls would spare."""

    what_if: ClassVar[str]
    """The change."""
    min_saved_share: ClassVar[float] = Alternative.min_saved_share
    """Share of the step that the change must save to be advised."""
    rests_on: ClassVar[str | None] = None
    """What is assumed if the change is replayed; None if the list of changes says it."""
    case_is_work: ClassVar[bool] = False
    """Whether its case is what is changed, that with most time."""
    names_vendor = True

    work_ns: int
    kernels_per_step: int
    what: str | None
    op: str | None
    module: str | None
    framework: str | None
    change_to: str

    @classmethod
    def find(cls, context: Context) -> Iterator[FindingKind]:
        finding = cls.of(context, cls.what_if)
        if finding is not None:
            yield finding

    @classmethod
    def of(cls: type[AnyChangeOfWork], context: Context, remedy: str) -> AnyChangeOfWork | None:
        """Return the finding of a remedy; None if it saves too little."""
        graph = context.analysis.graph
        if graph is None or select_remedies(graph.graph, remedy).is_empty():
            return None
        change = Remedied(remedy, cls.rests_on)
        predicted = context.predict(change)
        if predicted is None or (predicted.saves_ns or 0) < cls.min_saved_share * _step_ns(
            predicted
        ):
            return None
        work = _changed_work(context, remedy)
        if not cls.is_enough(work):
            return None
        return cls.kind_of(work)(
            variant=work.whats[0] if cls.case_is_work and work.whats else "",
            cost_ns=round(work.ns),
            share=context.share(work.ns),
            where=_places(context, graph.graph, remedy),
            work_ns=round(work.ns),
            kernels_per_step=round(work.events),
            what=", ".join(work.whats) or None,
            op=work.op,
            module=work.module,
            framework=context.framework,
            change_to=remedy,
            change=change,
            saves_ns=predicted.saves_ns,
            saves_range_ns=cls.saved_range_ns(predicted),
            certain="bounded",
        )

    @classmethod
    def is_enough(cls, work: ChangedWork) -> bool:
        """Return whether there is enough work to advise about."""
        return True

    @classmethod
    def kind_of(cls: type[AnyChangeOfWork], work: ChangedWork) -> type[AnyChangeOfWork]:
        """Return the class by what is changed."""
        return cls

    @classmethod
    def saved_range_ns(cls, predicted: ChangedStep) -> tuple[int, int] | None:
        """Return what the change saves at least and at most."""
        return predicted.saves_range_ns

    def _switch(self, topic: str) -> str:
        return switch(topic, framework=self.framework, vendor=self.run.vendor)

    @property
    def _gpu_time(self) -> str:
        return short_ms(self.work_ns)

    @property
    def _work(self) -> str:
        """GPU time of its kernels, and that the CPU launches them where the saving is larger than that."""
        work = f"{self._gpu_time} of GPU time"
        if self.saves_ns is not None and self.saves_ns > self.work_ns:
            return f"{work}, and the CPU's to launch them"
        return work

    @property
    def _kernels(self) -> str:
        return f"{self.kernels_per_step:,} kernels {self.run.per_step}"


AnyChangeOfWork = TypeVar("AnyChangeOfWork", bound=ChangeOfWork)


class NarrowTypes(ChangeOfWork, frozen=True, kw_only=True):
    """Products and attention run in float32, and 16 bits would do."""

    code = "precision"
    case = "narrow"
    title = "precision"

    further: str | None = None
    """Narrower type that would save more than TF32."""
    further_ns: int | None = None

    @classmethod
    def find(cls, context: Context) -> Iterator[FindingKind]:
        """Yield the findings about types: TF32 first, which keeps the model as it is, then 16 bits."""
        narrow = [context.predict(Remedied(remedy)) for remedy in NARROW]
        further = next((predicted for predicted in narrow if predicted is not None), None)
        first = TensorCoresUnused.of(context, "tf32")
        if first is not None:
            if further is not None:
                first = msgspec.structs.replace(
                    first, further=further.change, further_ns=further.saves_ns
                )
            yield first
        elif further is not None:
            finding = NarrowTypes.of(context, further.change)
            if finding is not None:
                yield finding

    def text(self) -> str:
        if self.run.is_inference:
            return f"products and attention run in float32: {self._gpu_time} of GPU time"
        return f"matrix products and attention run in float32: {self._gpu_time} of GPU time"

    def advice(self) -> str:
        if self.run.is_inference:
            return f"load the weights in {self.change_to} and compute in it"
        return (
            f"compute in {self.change_to} ({self._switch('narrow')}); weights and losses may stay in "
            "float32"
        )


class TensorCoresUnused(NarrowTypes, frozen=True, kw_only=True):
    """Products in float32 run without tensor cores."""

    case = "tf32"

    def text(self) -> str:
        return f"matrix products in float32 run without tensor cores: {self._gpu_time} of GPU time"

    def advice(self) -> str:
        advice = f"let them use TF32, slightly less precise ({self._switch('tf32')})"
        if self.further_ns is None:
            return advice
        advice += (
            f"; {or_unknown(self.further)} instead ({self._switch('narrow')}) would save "
            f"{short_ms(self.further_ns)}"
        )
        if self.further_ns > self.work_ns:
            advice += ", because other kernels get faster, too"
        return advice


class Float64(ChangeOfWork, frozen=True, kw_only=True):
    """Kernels compute in float64."""

    code = "precision"
    case = "fp64"
    title = "precision"
    what_if = "fp32"

    def text(self) -> str:
        return (
            f"kernels compute in float64, first {or_unknown(self.op)}: {self._gpu_time} of GPU time"
        )

    def advice(self) -> str:
        return "use float32: NumPy's arrays and `torch.from_numpy` are float64 unless a `dtype` is given"


class CastsOfFixedWeights(ChangeOfWork, frozen=True, kw_only=True):
    """Autocast casts weights that do not change."""

    code = "precision"
    case = "fixed_weights"
    title = "precision"
    what_if = "cast once"
    case_is_work = True

    @classmethod
    def kind_of(cls, work: ChangedWork) -> type[CastsOfFixedWeights]:
        is_trained = bool(work.whats) and work.whats[0] == CastsOfTrainedWeights.case
        return CastsOfTrainedWeights if is_trained else CastsOfFixedWeights

    def text(self) -> str:
        return (
            f"autocast casts to 16 bits {self.kernels_per_step:,} times {self.run.per_step}, weights that "
            f"do not change among them ({self._work})"
        )

    def advice(self) -> str:
        return "keep these weights in 16 bits (`model.to(torch.bfloat16)`)"


class CastsOfTrainedWeights(CastsOfFixedWeights, frozen=True, kw_only=True):
    """Autocast casts weights more often than they change."""

    case = "trained_weights"
    training_only = True

    def text(self) -> str:
        return (
            f"autocast casts weights to 16 bits {self.kernels_per_step:,} times {self.run.per_step} more "
            f"often than they change ({self._work})"
        )

    def advice(self) -> str:
        return (
            "use fewer and larger micro-batches, or keep the weights in 16 bits and a copy in float32 for the "
            "optimizer"
        )


class AttentionWrittenOut(ChangeOfWork, frozen=True, kw_only=True):
    """Attention runs in separate kernels."""

    code = "attention"
    title = "attention"
    what_if = "fused attention"
    case_is_work = True

    @classmethod
    def kind_of(cls, work: ChangedWork) -> type[AttentionWrittenOut]:
        is_efficient = bool(work.whats) and work.whats[0] == EfficientAttention.case
        return EfficientAttention if is_efficient else AttentionWrittenOut

    def text(self) -> str:
        return (
            f"attention runs in separate kernels: {self.kernels_per_step:,} kernels and copies "
            f"{self.run.per_step} read or write a matrix of tokens × tokens ({self._work})"
        )

    def advice(self) -> str:
        return f"use one fused kernel ({self._switch('attention')}), with `is_causal` instead of a causal mask"


class EfficientAttention(AttentionWrittenOut, frozen=True, kw_only=True):
    """It runs in the memory-efficient kernel, although another takes its inputs."""

    case = "efficient"

    def text(self) -> str:
        return (
            f"attention takes {self._gpu_time} in the memory-efficient kernel, although "
            "FlashAttention takes its inputs"
        )

    def advice(self) -> str:
        return (
            "allow it: `torch.nn.attention.sdpa_kernel(SDPBackend.FLASH_ATTENTION)`, or leave the "
            "choice to PyTorch"
        )


class Unfused(ChangeOfWork, frozen=True, kw_only=True):
    """Kernels in a row only move memory."""

    code = "unfused"
    title = "kernels that only move memory"
    what_if = FUSE
    case_is_work = True

    @classmethod
    def is_enough(cls, work: ChangedWork) -> bool:
        return work.events >= MIN_FUSED_KERNELS

    def text(self) -> str:
        return (
            f"{self._kernels} only move memory, each reading what the "
            f"last one wrote ({or_unknown(self.what)}; {self._work})"
        )

    def advice(self) -> str:
        found = (self.what or "").split(", ")
        by_hand = [kernel for kind, kernel in FUSED_BY_HAND.items() if kind in found]
        kernels = f", or use one kernel for each ({', '.join(by_hand)})" if by_hand else ""
        return f"fuse them: {self._switch('fuse')}{kernels}"


class UnfusedLoss(ChangeOfWork, frozen=True, kw_only=True):
    """The loss, or sampling, reads and writes logits over the whole vocabulary."""

    code = "unfused"
    case = "loss"
    title = "kernels that only move memory"
    what_if = FUSE_LOSS

    def text(self) -> str:
        logits = "reads and writes its logits over the whole vocabulary in"
        if self.run.is_inference:
            return f"the head {logits} {self.kernels_per_step:,} kernels ({self._gpu_time})"
        return f"the loss {logits} {self.kernels_per_step:,} kernels ({self._work})"

    def advice(self) -> str:
        if self.run.is_inference:
            return "fuse sampling into one kernel, or compute logits only for the tokens that are sampled"
        return f"fuse it: {self._switch('loss')}"


class Recomputation(ChangeOfWork, frozen=True, kw_only=True):
    """Forwards are computed again in the backward."""

    code = "recompute"
    title = "recomputation"
    label_of_kernels = "recompute"
    training_only = True
    what_if = "no recompute"

    def text(self) -> str:
        return f"forwards are computed again in the backward: {self._work}"

    def advice(self) -> str:
        return f"keep the activations of more layers, as far as memory allows ({self._switch('recompute')})"


class SmallCopies(ChangeOfWork, frozen=True, kw_only=True):
    """Small copies from the host, one by one."""

    code = "small_copies"
    title = "small copies"
    what_if = "one copy"

    def text(self) -> str:
        return (
            f"{self.kernels_per_step:,} small copies from the host {self.run.per_step}, one by one"
        )

    def advice(self) -> str:
        return "put them into one pinned tensor, copy it once with `non_blocking=True`, and split it on the GPU"


class OptimizerOneByOne(ChangeOfWork, frozen=True, kw_only=True):
    """The optimizer goes parameter by parameter."""

    code = "optimizer"
    title = "optimizer"
    label_of_kernels = "optimizer"
    training_only = True
    what_if = "fused optimizer"
    case_is_work = True

    @classmethod
    def kind_of(cls, work: ChangedWork) -> type[OptimizerOneByOne]:
        is_foreach = bool(work.whats) and work.whats[0] == ForeachOptimizer.case
        return ForeachOptimizer if is_foreach else OptimizerOneByOne

    def text(self) -> str:
        return f"the optimizer goes parameter by parameter: {self._kernels} ({self._work})"

    def advice(self) -> str:
        return "let it update all parameters at once (`fused=True`, or `foreach=True` where there is no fused one)"


class ForeachOptimizer(OptimizerOneByOne, frozen=True, kw_only=True):
    """It reads and writes all parameters for each of its operations."""

    case = "foreach"

    def text(self) -> str:
        return f"the optimizer reads and writes all parameters for each of its operations ({self._work})"

    def advice(self) -> str:
        return "use its fused kernel (`fused=True`)"


class ClippingOneByOne(ChangeOfWork, frozen=True, kw_only=True):
    """Gradients are clipped parameter by parameter."""

    code = "optimizer"
    case = "clipping"
    title = "optimizer"
    label_of_kernels = "optimizer"
    training_only = True
    what_if = "clip together"

    def text(self) -> str:
        return f"gradients are clipped parameter by parameter: {self._kernels} ({self._work})"

    def advice(self) -> str:
        return "clip all at once: `clip_grad_norm_` with `foreach=True`, on gradients that are all on the GPU"


class ImagesWithChannelsFirst(ChangeOfWork, frozen=True, kw_only=True):
    """Images have their channels first."""

    code = "layout"
    title = "layout of images"
    what_if = "channels last"

    def text(self) -> str:
        return (
            f"images have their channels first: conversions around convolutions and batch norms take "
            f"{self._gpu_time}"
        )

    def advice(self) -> str:
        return f"put channels last: {self._switch('layout')}"


class SmallMessages(ChangeOfWork, frozen=True, kw_only=True):
    """Gradients, or parameters, are reduced in messages too small for the link."""

    code = "small_messages"
    title = "small messages"
    training_only = True
    what_if = "large messages"

    def text(self) -> str:
        are_reduced = "parameters are averaged" if self._averages else "gradients are reduced"
        return (
            f"{are_reduced} in {self.kernels_per_step:,} messages {self.run.per_step}, too small "
            f"for the link's bandwidth ({self._gpu_time})"
        )

    @property
    def _averages(self) -> bool:
        """Whether it is parameters that are reduced, behind the optimizer."""
        return self.what == PARAMETERS

    def advice(self) -> str:
        if self._averages:
            return "join them: one flat tensor instead of one call per parameter"
        return f"join them: {self._switch('messages')}"


class LateReduction(ChangeOfWork, frozen=True, kw_only=True):
    """Gradients are reduced only when the backward has ended."""

    code = "late_reduction"
    title = "late reduction of gradients"
    training_only = True
    what_if = "reduce in backward"

    def text(self) -> str:
        return f"gradients are reduced only when the backward has ended: {self._gpu_time} of communication"

    def advice(self) -> str:
        return f"reduce them while the backward runs: {self._switch('reduction')}"


class GatheredTwice(ChangeOfWork, frozen=True, kw_only=True):
    """Parameters are gathered again for the backward."""

    code = "exposed_comm"
    case = "gathered_twice"
    title = "exposed {label}"
    section = "overlap"
    training_only = True
    what_if = "gather once"

    def text(self) -> str:
        return f"parameters are gathered again for the backward: {self._gpu_time} of communication"

    def advice(self) -> str:
        return "keep them after the forward where memory allows (`reshard_after_forward=False`)"


class BusyCpu(ChangeOfWork, frozen=True, kw_only=True):
    """Other processes share the host's cores."""

    code = "busy_cpu"
    title = "busy CPU"
    what_if = "free cpu"

    @classmethod
    def saved_range_ns(cls, predicted: ChangedStep) -> tuple[int, int] | None:
        """Return what the change saves at least and at most.

        Other processes take as much of a core as they need at the moment: how much they took during the
        recording bounds what they take otherwise.
        """
        return 0, max(predicted.saves_ns or 0, 0)

    def text(self) -> str:
        return (
            "operators that usually take microseconds stand still for milliseconds again and again: "
            "other processes share the CPU"
        )

    def advice(self) -> str:
        if self.run.is_inference:
            program = "server" if self.run.generates else "program"
            return (
                f"give the {program} cores of its own: fewer threads (`OMP_NUM_THREADS`), other jobs "
                "elsewhere, no limit of CPU time"
            )
        return (
            "give the loop cores of its own: fewer DataLoader workers and threads (`OMP_NUM_THREADS`), "
            "other jobs elsewhere, no limit of CPU time"
        )


class UnalignedSizes(ChangeOfWork, frozen=True, kw_only=True):
    """Products have sizes that are no multiples of 8."""

    code = "slow_kernel"
    case = "padding"
    title = "slow kernels"
    section = "rates"
    is_about_operator = True
    what_if = "pad sizes"

    def text(self) -> str:
        return (
            f"products with sizes that are no multiples of 8 take {self._gpu_time}, first "
            f"{or_unknown(self.op)}"
        )

    def advice(self) -> str:
        return "pad these sizes to multiples of 64 (vocabulary, hidden size, heads)"


@cache
def kind_of_alternative(alternative: Alternative) -> type[ChangeOfWork]:
    """Return the class of the findings of an entry of the catalogue of alternatives."""

    class OfAlternative(ChangeOfWork, frozen=True, kw_only=True):
        code = alternative.code
        case = alternative.case
        title = alternative.title
        training_only = alternative.training_only
        what_if = alternative.change
        rests_on = alternative.rests_on
        min_saved_share = alternative.min_saved_share

        def text(self) -> str:
            return alternative.says.format(
                work_ns=self._gpu_time,
                what=or_unknown(self.what),
                kernels_per_step=f"{self.kernels_per_step:,}",
            )

        def advice(self) -> str:
            return alternative.advises

    return OfAlternative


CHANGES_OF_WORK: tuple[type[ChangeOfWork], ...] = (
    NarrowTypes,
    Float64,
    CastsOfFixedWeights,
    AttentionWrittenOut,
    Unfused,
    UnfusedLoss,
    Recomputation,
    SmallCopies,
    OptimizerOneByOne,
    ClippingOneByOne,
    ImagesWithChannelsFirst,
    SmallMessages,
    LateReduction,
    GatheredTwice,
    BusyCpu,
    UnalignedSizes,
    *map(kind_of_alternative, ALTERNATIVES),
)
"""What looks for changes of the GPU's work, in order."""


def operators_with_remedy(context: Context, findings: Collection[FindingKind]) -> set[str]:
    """Return the operators most of whose time *findings* explain, and say how to save."""
    graph = context.analysis.graph
    changes = {finding.change for finding in findings if isinstance(finding, ChangeOfWork)}
    if graph is None or not changes:
        return set()
    events = graph.graph.events
    is_explained = np.zeros(events.height, np.bool_)
    for change in changes:
        if change is not None:
            is_explained[_changed_events(graph.graph, str(change))["event"].to_numpy()] = True
    ns = pl.col("end_ns") - pl.col("start_ns")
    times = events.select("op", ns=ns, explained_ns=ns * pl.Series(is_explained))
    by_op = times.group_by("op").agg(share=pl.col("explained_ns").sum() / pl.col("ns").sum())
    explained = by_op.filter(pl.col("share") > MIN_EXPLAINED_SHARE)["op"]
    return set(explained.drop_nulls().cast(pl.String))


def _step_ns(predicted: ChangedStep) -> int:
    """Return the step that a saving is a part of: without the profiler where that is known."""
    return predicted.measured_ns if predicted.free_ns is None else predicted.free_ns


def _changed_work(context: Context, change: str) -> ChangedWork:
    """Return the GPU work that a change concerns."""
    graph = context.analysis.graph
    if graph is None:
        raise ValueError("the run's events were not kept")
    events = graph.graph.events
    remedies = _changed_events(graph.graph, change)
    rank_steps = max(graph.graph.measured_bounds.height, 1)
    described = remedies.select(
        "what", "ns", *(events[name].gather(remedies["event"]) for name in ("op", "module"))
    )
    described = described.group_by("what", "op", "module").agg(pl.col("ns").sum())
    described = described.cast({pl.Categorical(): pl.String})
    return ChangedWork(
        ns=float(remedies["ns"].sum()) / rank_steps,
        events=remedies.height / rank_steps,
        whats=tuple(_longest(described, "what")),
        op=next(iter(_longest(described, "op")), None),
        module=next(iter(_longest(described, "module")), None),
    )


def _changed_events(graph: EventGraph, change: str) -> pl.DataFrame:
    """Return the remedies of a change but those that spare the host alone, or make something slower."""
    is_changed = pl.col("what").is_in([HOST_ALONE, SLOWER_OPERATORS]).fill_null(value=False).not_()
    return select_remedies(graph, change).filter(is_changed)


def _places(context: Context, graph: EventGraph, change: str) -> tuple[Place, ...]:
    """Return the stretches of GPU work in a row that a change concerns, those with most work first.

    They are named by the operator, or kernel, that takes longest in them.
    """
    remedies = _changed_events(graph, change).unique("event").sort("event")
    facts = ("rank", "step", "start_ns", "end_ns", "name", "op")
    changed = graph.events.select(facts)[remedies["event"]].with_columns(
        remedies["ns"],
        # Rows of a rank are in order of time: among rows in a row, the row less its place here is the same.
        stretch=remedies["event"] - pl.int_range(remedies.height, eager=True),
    )
    longest_first = changed.sort("ns", descending=True, maintain_order=True)
    stretches = longest_first.group_by("rank", "step", "stretch", maintain_order=True).agg(
        pl.col("start_ns").min(),
        pl.col("end_ns").max(),
        pl.coalesce(pl.col("op", "name").cast(pl.String)).first().alias("what"),
        pl.col("ns").sum(),
    )
    most = stretches.sort("ns", "start_ns", descending=[True, False]).head(MAX_PLACES_PER_FINDING)
    clocks = context.analysis.clocks
    recorded = {
        name: clocks.to_recorded_each(most["rank"].to_numpy(), most[name].to_numpy())
        for name in ("start_ns", "end_ns")
    }
    return places_of(
        most.with_columns(**recorded).select("rank", "step", "start_ns", "end_ns", "what")
    )


def _longest(described: pl.DataFrame, column: str) -> list[str]:
    """Return the values of a column of remedies' sums, that with most time first."""
    ns_by_value: dict[str, int] = {}
    for value, ns in described.select(column, "ns").iter_rows():
        if value is not None:
            ns_by_value[value] = ns_by_value.get(value, 0) + ns
    return sorted(ns_by_value, key=lambda value: (-ns_by_value[value], value))
