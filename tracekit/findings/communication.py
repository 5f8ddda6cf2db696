"""Findings about communication and copies that no compute hides, and about gradients reduced more than once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import NamedTuple

import polars as pl

from tracekit._util.text import percent, short_ms
from tracekit.documents.analysis import ChangedStep
from tracekit.documents.findings import MAX_PLACES_PER_FINDING, Certainty, Place
from tracekit.findings.context import Context, places_of, saved_range_ns
from tracekit.findings.host import exposed_pageable_share
from tracekit.findings.kind import FindingKind
from tracekit.findings.phrases import (
    NEARLY_ALL,
    communication_log,
    faster_links,
    framework_options,
    graphs,
    label_with_meaning,
    more_queues,
)
from tracekit.graph.change import Change, FewerReductions, Hidden, NoHostDelay, Scaled
from tracekit.intervals import union_of
from tracekit.metrics.alternatives.messages import REDUCTIONS
from tracekit.schema import COMMUNICATION_LABELS, COPY_LABELS

HOST_COPIES = (
    r"(?i)HtoD|DtoH|Host-?to-?Device|Device-?to-?Host"
    r"|(Host|Pageable|Pinned) ->|-> (Host|Pageable|Pinned)"
)
"""Names of copies between the host and the GPU."""
MIN_SHARE_LEFT_BY_HOST = 0.5
"""Share of what hiding communication saves with a host that is always ahead, which it must save with
the host as it is; below, the host is the limit of the changed step."""
MIN_SHARE_OF_LATE_RANK = 0.5
"""Share of the waiting in a label that a rank causes, to be the one that the others wait for."""
NO_COMPUTE_SHARE = 0.01
"""Share of exposed transfers up to which compute that could hide them is none."""
MIN_REPEATED_BYTES_SHARE = 0.5
"""Share of a step's reduced bytes that repeated sizes must be, to be those of the gradients; the
rest, such as a loss that is averaged once, is left out."""


class ExposedTransfers(FindingKind, frozen=True, kw_only=True):
    """Transfers of a label that no compute hides. Copies of pageable memory are the host's."""

    section = "overlap"
    stated_times = ("exposed_ns",)

    transfer_ns: int
    free_compute_ns: int
    """Compute that hides nothing yet."""
    unhideable_ns: int
    """Transfer for which no compute is left."""
    gb_per_s: float | None = None
    exposed_ns: int
    cause: str
    cause_share: float
    wait_share: float
    late_rank: int | None = None
    """The rank that the others wait for longest."""
    late_rank_share: float | None = None
    """Its share of that waiting."""
    late_rank_ns: int | None = None
    """Time by which it comes last, per step."""
    meanwhile: str | None = None
    """What that rank mostly does meanwhile: a label, ``compute``, or ``idle``."""
    meanwhile_share: float | None = None
    """Share of that time that it does."""
    label: str
    framework: str | None

    @classmethod
    def find(cls, context: Context) -> Iterator[FindingKind]:
        exposed_ns = context.step.budget_ns.exposed_ns
        schedule = context.analysis.comparison
        pageable_share = exposed_pageable_share(context)
        for label, label_ns in exposed_ns.items():
            ns = round(label_ns * context.free_exposed_share(label))
            if label == "memory":  # copies on the device are not asked to overlap
                ns = min(ns, find_host_copies_ns(context))
            if not ns:
                continue
            if label in COPY_LABELS and pageable_share:
                ns = round(ns * (1 - pageable_share))  # the rest is a finding about the host
                if not ns:
                    continue
            if label == "pp_comm" and schedule is not None and schedule.gap_ns is not None:
                continue  # the gap to the ideal says how much of it the schedule asks for
            if (
                label in COMMUNICATION_LABELS
                and context.analysis.total.wait_ns.get(label, 0) is None
            ):
                continue  # how much of it is waiting must be recorded first
            yield exposed_finding(context, label, ns)

    @property
    def _is_exposed(self) -> str:
        return (
            f"{short_ms(self.exposed_ns)} of {label_with_meaning(self.label)} is exposed (no compute "
            "beside it)"
        )

    def _because(self, reason: str) -> str:
        """Return that it is exposed, how much of it because of the *reason* unless it is nearly all."""
        mostly = ""
        if self.cause_share < NEARLY_ALL:
            mostly = f"{percent(self.cause_share, digits=0)} of that "
        return f"{self._is_exposed}, {mostly}because {reason}"

    @property
    def _option(self) -> str:
        """The framework's own options for the label, in brackets; empty if there are none."""
        options = framework_options(self.framework, self.label)
        return f" ({options})" if options else ""


class ExposedCopy(ExposedTransfers, frozen=True, kw_only=True):
    """Copies that no compute hides; the case is the cause."""

    code = "exposed_copy"
    title = "exposed {label}"

    def text(self) -> str:
        return self._is_exposed

    def advice(self) -> str:
        return "copy earlier, on a stream of its own, from pinned memory"


class ExposedComm(ExposedTransfers, frozen=True, kw_only=True):
    """Communication that no compute hides, for a reason that is not known: the host's calls were not recorded."""

    code = "exposed_comm"
    case = "unknown"
    title = "exposed {label}"
    names_vendor = True

    def text(self) -> str:
        return f"{self._is_exposed}; the trace does not show why"

    def advice(self) -> str:
        return "record the host's calls (`tracekit doctor` says how)"


class UnclearComm(ExposedComm, frozen=True, kw_only=True):
    """The same where the host's calls were recorded."""

    case = "unclear"

    def advice(self) -> str:
        return (
            "look at its longest operations in the timeline: which compute comes next, and what "
            "that waits for"
        )


class TooLittleCompute(ExposedComm, frozen=True, kw_only=True):
    """There is too little compute to hide it: faster links would save more than hiding it."""

    case = "too_little_compute"
    with_faster_links = True

    def text(self) -> str:
        rate = "" if self.gb_per_s is None else f" at {self.gb_per_s:,.2g} GB/s"
        hide = f"compute could hide {short_ms(self.free_compute_ns)}"
        if self.free_compute_ns < NO_COMPUTE_SHARE * self.exposed_ns:
            hide = "there is no compute to hide it"
        return (
            f"{short_ms(self.exposed_ns)} of {label_with_meaning(self.label)} is exposed{rate}; "
            f"{hide}{faster_links(self.saving_ns)}"
        )

    def advice(self) -> str:
        fewer_bytes = framework_options(self.framework, "bytes") or "a narrower type, compression"
        return (
            f"check links and transport{communication_log(self.run.vendor)}, or send fewer bytes "
            f"({fewer_bytes})"
        )


class HostTakesAsLong(ExposedComm, frozen=True, kw_only=True):
    """Hiding it saves little, because the host takes as long for a step."""

    case = "host_takes_as_long"

    def text(self) -> str:
        return (
            f"{self._is_exposed}; hiding it saves less where the CPU takes as long to start a step as "
            "the GPU takes to run it"
        )

    def advice(self) -> str:
        return (
            f"start it earlier or beside other compute{self._option}, and keep the CPU ahead (fewer "
            "kernels, less Python)"
        )


class PeerLate(ExposedComm, frozen=True, kw_only=True):
    """Most of it is waiting for late ranks."""

    case = "peer_late"

    def text(self) -> str:
        late = "late ranks"
        share = self.late_rank_share or 0.0
        if share >= MIN_SHARE_OF_LATE_RANK:
            late = f"late ranks, mostly rank {self.late_rank}"
        if share >= NEARLY_ALL:
            late = f"rank {self.late_rank}"
        waiting = percent(self.wait_share, digits=0)
        text = f"{self._is_exposed}, {waiting} of that waiting for {late}"
        return f"{text}; {self._what_it_does}" if self._what_it_does else text

    @property
    def _what_it_does(self) -> str:
        """When the latest rank comes and what it does until then; empty if that is not known."""
        if self.late_rank is None or self.late_rank_ns is None or self.meanwhile is None:
            return ""
        it_is = {"compute": "it computes", "idle": "its GPU is idle"}.get(
            self.meanwhile, f"it is in {self.meanwhile}"
        )
        share = percent(self.meanwhile_share, digits=0)
        return (
            f"rank {self.late_rank} comes last by {short_ms(self.late_rank_ns)}: "
            f"{it_is} for {share} of that time"
        )

    def advice(self) -> str:
        if self.late_rank is None:
            return "find in the timeline which rank comes last, and what it does before"
        match self.meanwhile:
            case None:
                return (
                    f"look in the timeline at what rank {self.late_rank} does before the others wait "
                    "for it"
                )
            case "compute":
                return f"give rank {self.late_rank} less to compute, or the others more"
            case "idle":
                return f"look in the timeline at why rank {self.late_rank}'s GPU is idle before"
            case label:
                return (
                    f"shorten rank {self.late_rank}'s {label} first: it comes late because of that"
                )


class OnComputeStream(ExposedComm, frozen=True, kw_only=True):
    """It is queued on the stream of the compute."""

    case = "same_stream"

    def text(self) -> str:
        if self.run.is_inference:
            return self._because("the next compute waits for its result")
        return self._because("it is queued on the compute stream")

    def advice(self) -> str:
        if self.run.is_inference:
            return message_advice(self.label)
        return (
            "run it on a stream of its own (`async_op=True`) and let compute wait for its "
            f"event{self._option}"
        )


class OneQueue(ExposedComm, frozen=True, kw_only=True):
    """Compute is queued behind it in one hardware queue."""

    case = "one_queue"

    def text(self) -> str:
        return self._because("compute is queued behind it in the same hardware queue")

    def advice(self) -> str:
        return f"{more_queues(self.run.vendor)}, or launch the compute first"


class LaunchedLate(ExposedComm, frozen=True, kw_only=True):
    """The host launches it after the compute that could hide it."""

    case = "launched_late"

    def text(self) -> str:
        return self._because("the CPU starts it late")

    def advice(self) -> str:
        own_graphs = graphs(self.run.vendor)
        return f"launch it earlier: {own_graphs}, fewer small kernels, or less Python in the step"


class LaunchedLateUnderGraphs(ExposedComm, frozen=True, kw_only=True):
    """The same although graphs of kernels are used."""

    case = "launched_late_under_graphs"

    def text(self) -> str:
        return self._because(f"the CPU starts it late although {graphs(self.run.vendor)} are used")

    def advice(self) -> str:
        return "use fewer and larger graphs, and less Python between their launches"


class NothingToHide(ExposedComm, frozen=True, kw_only=True):
    """No compute that does not depend on it is left to run beside it."""

    case = "nothing_to_hide"

    def text(self) -> str:
        if self.run.is_inference:
            return self._because("the next compute waits for its result")
        return self._because("there is nothing else to compute at that time")

    def advice(self) -> str:
        if self.run.is_inference:
            return message_advice(self.label)
        return f"start it earlier or in smaller pieces, or beside another micro-batch{self._option}"


class ComputeWaited(ExposedComm, frozen=True, kw_only=True):
    """The next compute needs its result at once."""

    case = "compute_waited"

    def text(self) -> str:
        return self._because("the next compute waits for its result")

    def advice(self) -> str:
        if self.run.is_inference:
            return message_advice(self.label)
        return f"start it earlier (prefetch), or move the wait to the first use{self._option}"


KINDS_OF_CASE: dict[str, type[ExposedComm]] = {
    kind.case: kind
    for kind in (
        ExposedComm,
        UnclearComm,
        TooLittleCompute,
        HostTakesAsLong,
        PeerLate,
        OnComputeStream,
        OneQueue,
        LaunchedLate,
        LaunchedLateUnderGraphs,
        NothingToHide,
        ComputeWaited,
    )
}
"""Class of exposed communication by what decides the advice: the cause (``schema.EXPOSURE_CAUSES``) or the remedy."""
TWO_HALVES = "let two halves of the batch take turns, so that one computes while the other sends"
MESSAGE_ADVICE = {
    "tp_comm": (
        "for small messages use one-shot all-reduce kernels (the server's custom all-reduce), fused "
        "with the norm behind them; for large ones let two halves of the batch take turns"
    ),
    "ep_dispatch": f"{TWO_HALVES}, and use low-latency kernels (DeepEP) in decode",
    "ep_combine": f"{TWO_HALVES}, and use low-latency kernels (DeepEP) in decode",
}


def message_advice(label: str) -> str:
    """Return what makes communication cheaper in inference that the next compute waits for."""
    return MESSAGE_ADVICE.get(label, TWO_HALVES)


def find_host_copies_ns(context: Context) -> int:
    """Return the time per step of copies between host and GPU whose role is unknown, mean of ranks."""
    kernels = context.analysis.tables["kernels"].filter(pl.col("label").cast(pl.String) == "memory")
    is_host_copy = pl.col("name").cast(pl.String).str.contains(HOST_COPIES)
    return round(kernels.filter(is_host_copy)["ns"].sum())


class Remedy(NamedTuple):
    """What a change of exposed transfers would save."""

    change: Change | None = None
    saves_ns: int | None = None
    saves_range_ns: tuple[int, int] | None = None
    certain: Certainty = "bounded"
    case: str | None = None
    """What the remedy says about the transfers, if it decides what to advise."""


def exposed_finding(context: Context, label: str, exposed_ns: int) -> ExposedTransfers:
    """Return the finding about one exposed label."""
    recorded_because_ns = context.analysis.total.because_ns.get(label, {})
    because_ns = causes_without_profiler(recorded_because_ns, context.free_exposed_share(label))
    cause = _main_cause(because_ns)
    transfer = measure_transfer(context, label, recorded_because_ns)
    is_communication = label in COMMUNICATION_LABELS
    remedy = Remedy()
    if is_communication and cause != "peer_late":  # hiding transfers brings no late rank forward
        remedy = best_remedy(context, label, exposed_ns, unhideable_ns=transfer.unhideable_ns)
    wait_share = because_ns.get("peer_late", 0) / max(sum(because_ns.values()), 1)
    case = exposed_case(context, cause, remedy)
    latest = _latest_rank(context, label) if cause == "peer_late" else LatestRank()
    kind = KINDS_OF_CASE[case] if is_communication else ExposedCopy
    return kind(
        variant=case,
        cost_ns=exposed_ns,
        share=context.share(exposed_ns),
        where=longest_operations(context, label, waits=cause == "peer_late"),
        **transfer._asdict(),
        exposed_ns=exposed_ns,
        cause=cause,
        cause_share=_cause_share(because_ns, cause),
        wait_share=round(wait_share, 4),
        **latest._asdict(),
        label=label,
        framework=context.framework,
        change=remedy.change,
        saves_ns=remedy.saves_ns,
        saves_range_ns=remedy.saves_range_ns,
        certain=remedy.certain,
    )


class LatestRank(NamedTuple):
    """The rank that others wait for longest in a label."""

    late_rank: int | None = None
    late_rank_share: float | None = None
    late_rank_ns: int | None = None
    meanwhile: str | None = None
    meanwhile_share: float | None = None


def _latest_rank(context: Context, label: str) -> LatestRank:
    """Return the rank that others certainly wait for longest in a label, and what it does meanwhile."""
    rows = [row for row in context.analysis.stragglers if row.label == label]
    total_ns = sum(row.caused_ns for row in rows)
    for row in rows:
        share = row.caused_ns / max(total_ns, 1)
        if not row.uncertain and (row.steps or share >= MIN_SHARE_OF_LATE_RANK):
            meanwhile, of_time = _does_meanwhile(context, row.rank, label)
            return LatestRank(row.rank, round(share, 4), row.late_ns or None, meanwhile, of_time)
    return LatestRank()


def _does_meanwhile(context: Context, rank: int, label: str) -> tuple[str | None, float | None]:
    """Return what a rank mostly does while others wait for it in a label, and the share of that time that it does."""
    tables = context.analysis.tables
    late = tables["operations"].filter(
        pl.col("rank") == rank,
        pl.col("label").cast(pl.String) == label,
        pl.col("last_rank") == rank,
        pl.col("late_ns") > 0,
    )
    waited = union_of(
        late.select(start_ns=pl.col("start_ns") - pl.col("late_ns"), end_ns="start_ns")
    )
    if not waited.total_ns:
        return None, None
    name = pl.col("label").cast(pl.String)
    timeline = tables["timeline"].filter(pl.col("rank") == rank)
    is_communication = name.is_in([*COMMUNICATION_LABELS, *COPY_LABELS])
    compute = union_of(timeline.filter(~is_communication))
    times_ns = {"compute": (waited & compute).total_ns}
    # Time under compute is the compute's, as in the budget.
    left = waited - compute
    for (other,), intervals in timeline.filter(is_communication).group_by(name):
        times_ns[str(other)] = (left & union_of(intervals)).total_ns
    times_ns["idle"] = (left - union_of(timeline)).total_ns
    longest = max(times_ns, key=lambda doing: times_ns[doing])
    return longest, round(times_ns[longest] / waited.total_ns, 4)


def free_wait_share(context: Context, label: str) -> float:
    """Return the waiting for late ranks in *label* without the profiler over the recorded one, 0 to 1."""
    because_ns = context.analysis.total.because_ns.get(label, {})
    waits_ns = because_ns.get("peer_late", 0)
    if not waits_ns:
        return 1.0
    free_share = context.free_exposed_share(label)
    return causes_without_profiler(because_ns, free_share).get("peer_late", 0) / waits_ns


def causes_without_profiler(because_ns: Mapping[str, int], free_share: float) -> dict[str, int]:
    """Return the exposed time by cause that is left without the profiler.

    The profiler slows hosts, not links: what it adds is waiting for ranks whose host it delays, then
    launches of the rank's own that come late.

    Args:
        because_ns: Recorded exposed time by cause.
        free_share: Exposed time without the profiler over the recorded one, 0 to 1.

    >>> causes_without_profiler({"peer_late": 70, "nothing_to_hide": 30}, 0.4)
    {'peer_late': 10, 'nothing_to_hide': 30}
    """
    left_ns = dict(because_ns)
    added_ns = round(sum(because_ns.values()) * (1 - free_share))
    for cause in ("peer_late", "launched_late"):
        removed_ns = min(left_ns.get(cause, 0), added_ns)
        if removed_ns:
            left_ns[cause] -= removed_ns
            added_ns -= removed_ns
    return left_ns


def _main_cause(because_ns: Mapping[str, int]) -> str:
    """Return the cause of most of the exposed time; unknown if more of it has none than has one.

    >>> _main_cause({"same_stream": 5, "peer_late": 4, "unknown": 8})
    'same_stream'
    """
    known_causes_ns = dict(because_ns)
    unknown_ns = known_causes_ns.pop("unknown", 0)
    if unknown_ns > sum(known_causes_ns.values()):
        return "unknown"
    return max(known_causes_ns, key=lambda cause: known_causes_ns[cause], default="unknown")


def _cause_share(because_ns: Mapping[str, int], cause: str) -> float:
    """Return the share of the exposed time that has a cause, 0 to 1.

    >>> _cause_share({"same_stream": 3, "peer_late": 1}, "same_stream")
    0.75
    """
    return round(because_ns.get(cause, 0) / max(sum(because_ns.values()), 1), 4)


def best_remedy(context: Context, label: str, exposed_ns: int, *, unhideable_ns: int) -> Remedy:
    """Return the change of a label's transfers that saves most: under compute, or twice as fast.

    Faster transfers are considered only if compute cannot hide them all.
    """
    hide = Hidden(label)
    hidden = context.predict(hide)
    hide_saves_ns = _saving_of(hidden)
    halve = Scaled(label, 0.5)
    halve_saves_ns = 0
    if unhideable_ns > 0:
        halve_saves_ns = _saving_of(context.predict(halve))
    if halve_saves_ns > max(hide_saves_ns, 0):
        return Remedy(
            halve, halve_saves_ns, (0, halve_saves_ns), "possible", case="too_little_compute"
        )
    if hidden is None:
        return Remedy()
    ahead_saves_ns = _saving_beyond(context, hide, NoHostDelay())
    if hide_saves_ns > MIN_SHARE_LEFT_BY_HOST * ahead_saves_ns:
        return Remedy(hide, hide_saves_ns, (0, hide_saves_ns))
    # The replay keeps all of the host's time that no recorded call explains. If that is a wait for
    # the GPU, the host stays ahead of it, and as much can be saved as if it had no delay.
    most_ns = min(ahead_saves_ns, exposed_ns) if ahead_saves_ns > 0 else exposed_ns
    return Remedy(saves_range_ns=(0, most_ns), certain="possible", case="host_takes_as_long")


def _saving_beyond(context: Context, change: Change, before: Change) -> int:
    """Return what a change saves of the step that another change leaves; 0 if it cannot be predicted."""
    both = context.predict(before, change)
    if both is None:
        return 0
    return max(_saving_of(both) - _saving_of(context.predict(before)), 0)


def _saving_of(predicted: ChangedStep | None) -> int:
    """Return what a change saves; 0 if it cannot be predicted."""
    if predicted is None:
        return 0
    return predicted.saves_ns or 0


def exposed_case(context: Context, cause: str, remedy: Remedy) -> str:
    """Return which case of the advice applies, the strongest statement first."""
    if remedy.case == "host_takes_as_long":
        return remedy.case
    if cause == "unknown" and context.has_host_calls:
        return "unclear"
    if cause == "launched_late" and context.uses_cuda_graphs:
        return "launched_late_under_graphs"
    return remedy.case or cause


class Transfer(NamedTuple):
    """Exposed transfers of a label, per rank and step."""

    transfer_ns: int
    free_compute_ns: int
    """Compute that hides nothing yet."""
    unhideable_ns: int
    """Transfer for which no compute is left."""
    gb_per_s: float | None


def measure_transfer(context: Context, label: str, because_ns: Mapping[str, int]) -> Transfer:
    """Return how much of the exposed time is transfer, how fast that is, and the compute that could still hide it."""
    analysis = context.analysis
    total = analysis.total
    rank_steps = max(1, sum(len(rank.per_step) for rank in analysis.ranks))
    # Waiting is no transfer; time of unknown cause is not counted, so that what cannot be hidden is
    # a lower bound.
    no_transfer_ns = because_ns.get("peer_late", 0) + because_ns.get("unknown", 0)
    transfer_ns = sum(because_ns.values()) - no_transfer_ns
    hidden_ns = total.hidden_ns.get("communication", 0) + total.hidden_ns.get("copy", 0)
    free_ns = max(0, total.budget.compute_ns - hidden_ns)
    return Transfer(
        transfer_ns=transfer_ns // rank_steps,
        free_compute_ns=free_ns // rank_steps,
        unhideable_ns=max(transfer_ns - free_ns, 0) // rank_steps,
        gb_per_s=transfer_rate(context, label),
    )


def transfer_rate(context: Context, label: str) -> float | None:
    """Return the mean algorithm bandwidth of a label's transfers, weighted by their time; None if unknown."""
    rates = context.analysis.rate_tables
    if rates is None:
        return None
    rows = rates.communication.filter(
        pl.col("label") == label,
        pl.col("algorithm_gb_s").is_not_null(),
        pl.col("transfer_ns") > 0,
    )
    if rows.is_empty():
        return None
    weight = pl.col("transfer_ns") / pl.col("transfer_ns").sum()
    return float(rows.select((pl.col("algorithm_gb_s") * weight).sum()).item())


def longest_operations(context: Context, label: str, *, waits: bool = False) -> tuple[Place, ...]:
    """Return the longest exposed transfers of a label, or its longest waits for other ranks.

    A place is the part of an operation that is meant: it waits first and then transfers. Where the
    wait is not known, it is the whole operation.
    """
    times = ("start_ns", "end_ns", "hidden_ns", "wait_ns", "transfer_ns")
    operations = (
        context.analysis.tables["operations"]
        .select("rank", "step", "label", "what", *times)
        .filter(pl.col("label").cast(pl.String) == label)
    )
    exposed_ns = pl.col("end_ns") - pl.col("start_ns") - pl.col("hidden_ns")
    shown_ns = pl.col("wait_ns") if waits else pl.col("transfer_ns").fill_null(exposed_ns)
    exposed = operations.with_columns(shown_ns=pl.min_horizontal(shown_ns, exposed_ns))
    wait_end_ns = pl.col("start_ns") + pl.col("wait_ns")
    transfer_start_ns = pl.col("end_ns") - pl.col("transfer_ns")
    rows = exposed.top_k(MAX_PLACES_PER_FINDING, by="shown_ns").select(
        "rank",
        "step",
        "start_ns" if waits else transfer_start_ns.fill_null(pl.col("start_ns")).alias("start_ns"),
        wait_end_ns.fill_null(pl.col("end_ns")).alias("end_ns") if waits else "end_ns",
        pl.col("what").cast(pl.String),
    )
    return places_of(rows)


class RepeatedReduction(FindingKind, frozen=True, kw_only=True):
    """The gradients of one group are reduced several times in each step.

    The sizes of a step's reductions are then the same sequence several times over, and a forward
    begins between two of these sequences: buckets of equal size are no repetition.
    """

    code = "repeated_reduction"
    title = "repeated reduction of gradients"
    training_only = True
    quick_to_try = True

    times_per_step: int
    bytes_per_step: int
    framework: str | None

    @classmethod
    def find(cls, context: Context) -> Iterator[FindingKind]:
        of_label = context.analysis.tables["operations"].filter(
            pl.col("label").cast(pl.String) == "dp_comm"
        )
        reductions = of_label.filter(pl.col("what").cast(pl.String).str.contains(REDUCTIONS))
        if reductions.is_empty() or reductions["bytes"].null_count() == len(reductions):
            return
        repetitions = _repetitions_by_step(context, reductions)
        # Ranks reduce together: where one lost a kernel and shows no sequence, the others still do. A
        # step with fewer repetitions shows that they are not the rule.
        times_per_step = min((max(of_ranks) for of_ranks in repetitions.values()), default=1)
        if times_per_step < 2:
            return
        factor = float(f"{1 / times_per_step:.4g}")
        change: Change = Scaled("dp_comm", factor)
        if len(of_label) > len(reductions):  # gathers stay
            change = FewerReductions("dp_comm", factor)
        saves_ns = None
        saves_range_ns = None
        predicted = context.predict(change)
        if predicted is not None:
            saves_ns = max(predicted.saves_ns or 0, 0)
            saves_range_ns = saved_range_ns(predicted)
        exposed_ns = context.step.budget_ns.exposed_ns.get("dp_comm", 0)
        cost_ns = round(exposed_ns * (times_per_step - 1) / times_per_step)
        rank_steps = sum(len(of_ranks) for of_ranks in repetitions.values())
        yield cls(
            cost_ns=cost_ns,
            share=context.share(cost_ns),
            where=longest_operations(context, "dp_comm"),
            times_per_step=times_per_step,
            bytes_per_step=int(reductions["bytes"].sum() // rank_steps),
            framework=context.framework,
            change=None if predicted is None else change,
            saves_ns=saves_ns,
            saves_range_ns=saves_range_ns,
            certain="bounded",
        )

    def text(self) -> str:
        return f"gradients are reduced {self.times_per_step:,} times per optimizer step"

    def advice(self) -> str:
        return (
            "reduce them once, after the last micro-batch: `no_sync()` with DDP, "
            "`set_requires_gradient_sync(False)` with FSDP2"
        )


def _repetitions_by_step(context: Context, reductions: pl.DataFrame) -> dict[object, list[int]]:
    """Return for each step how often each rank reduced the same sequence of sizes."""
    forwards = context.analysis.tables["timeline"].filter(
        pl.col("label").cast(pl.String) == "forward"
    )
    repetitions: dict[object, list[int]] = {}
    for (rank,), of_rank in reductions.group_by("rank", maintain_order=True):
        forward_start_ns = forwards.filter(pl.col("rank") == rank)["start_ns"].to_list()
        for (step,), of_step in of_rank.group_by("step", maintain_order=True):
            several = drop_single_sizes(of_step.sort("start_ns"))
            count = count_repetitions(
                several["bytes"].to_list(), several["start_ns"].to_list(), forward_start_ns
            )
            repetitions.setdefault(step, []).append(count)
    return repetitions


def drop_single_sizes(reductions: pl.DataFrame) -> pl.DataFrame:
    """Return a step's reductions without sizes that occur once, if the others are most of its bytes.

    >>> drop_single_sizes(pl.DataFrame({"bytes": [800, 4, 800]}))["bytes"].to_list()
    [800, 800]
    """
    several = reductions.filter(pl.col("bytes").is_duplicated())
    share = int(several["bytes"].sum()) / max(int(reductions["bytes"].sum()), 1)
    return several if share >= MIN_REPEATED_BYTES_SHARE else reductions


def count_repetitions(
    sizes: list[int | None], start_ns: list[int], forward_start_ns: list[int]
) -> int:
    """Return how often a sequence of sizes repeats, with a forward that begins between two repetitions; 1 if never.

    >>> count_repetitions([8, 4, 8, 4], [10, 12, 30, 32], [0, 20])
    2
    >>> count_repetitions([8, 8, 8, 8], [10, 12, 14, 16], [0])
    1
    """
    count = len(sizes)
    for times in range(count, 1, -1):
        period, rest = divmod(count, times)
        if rest or sizes != sizes[:period] * times:
            continue
        if _is_forward_between_all(start_ns[::period], forward_start_ns):
            return times
    return 1


def _is_forward_between_all(start_ns: list[int], forward_start_ns: list[int]) -> bool:
    """Return whether a forward begins between each of the *start_ns* and the next one."""
    for before_ns, behind_ns in pairwise(start_ns):
        if not any(before_ns < forward_ns < behind_ns for forward_ns in forward_start_ns):
            return False
    return True
