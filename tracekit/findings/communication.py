"""Findings about communication and copies that no compute hides, and about gradients reduced more than once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import NamedTuple

import polars as pl

from tracekit._util.values import without_none
from tracekit.documents.analysis import ChangedStep
from tracekit.documents.findings import (
    MAX_PLACES_PER_FINDING,
    Certainty,
    EvidenceValue,
    Finding,
    Place,
)
from tracekit.findings.context import Context, places_of, saved_range_ns
from tracekit.findings.host import exposed_pageable_share
from tracekit.graph.changes import NO_HOST_DELAY
from tracekit.schema import COMMUNICATION_LABELS, COPY_LABELS

REDUCTIONS = r"(?i)all_?reduce|reduce_?scatter"
"""Operations that sum gradients over ranks."""
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
MIN_REPEATED_BYTES_SHARE = 0.5
"""Share of a step's reduced bytes that repeated sizes must be, to be those of the gradients; the
rest, such as a loss that is averaged once, is left out."""


def exposed_findings(context: Context) -> Iterator[Finding]:
    """Yield a finding for each label whose exposed time is worth one.

    Copies of pageable memory are the host's.
    """
    exposed_ns = context.step.budget.exposed_ns
    schedule = context.analysis.schedule
    pageable_share = exposed_pageable_share(context)
    for label, label_ns in exposed_ns.items():
        ns = round(label_ns * context.free_exposed_share(label))
        if label == "memory":  # copies on the device are not asked to overlap
            ns = min(ns, _host_copies_ns(context))
        if not ns:
            continue
        if label in COPY_LABELS and pageable_share:
            ns = round(ns * (1 - pageable_share))  # the rest is a finding about the host
            if not ns:
                continue
        if label == "pp_comm" and schedule is not None and schedule.gap_ns is not None:
            continue  # the gap to the ideal says how much of it the schedule asks for
        if label in COMMUNICATION_LABELS and context.analysis.total.wait_ns.get(label, 0) is None:
            continue  # how much of it is waiting must be recorded first
        yield _exposed(context, label, ns)


def _host_copies_ns(context: Context) -> int:
    """Return the time per step of copies between host and GPU whose role is unknown, mean of ranks."""
    kernels = context.analysis.tables["kernels"].filter(pl.col("label").cast(pl.String) == "memory")
    is_host_copy = pl.col("name").cast(pl.String).str.contains(HOST_COPIES)
    return round(kernels.filter(is_host_copy)["ns"].sum())


class Remedy(NamedTuple):
    """What a change of exposed transfers would save."""

    change: str | None = None
    saves_ns: int | None = None
    saves_range_ns: tuple[int, int] | None = None
    certain: Certainty = "bounded"
    case: str | None = None
    """What the remedy says about the transfers, if it decides what to advise."""


def _exposed(context: Context, label: str, exposed_ns: int) -> Finding:
    """Return the finding about one exposed label."""
    recorded_because_ns = context.analysis.total.because_ns.get(label, {})
    because_ns = causes_without_profiler(recorded_because_ns, context.free_exposed_share(label))
    cause = _main_cause(because_ns)
    transfer = _transfer(context, label, recorded_because_ns)
    is_communication = label in COMMUNICATION_LABELS
    remedy = Remedy()
    if is_communication and cause != "peer_late":  # hiding transfers brings no late rank forward
        remedy = _best_remedy(context, label, exposed_ns, unhideable_ns=transfer.unhideable_ns)
    wait_share = because_ns.get("peer_late", 0) / max(sum(because_ns.values()), 1)
    return Finding(
        code="exposed_comm" if is_communication else "exposed_copy",
        case=_exposed_case(context, cause, remedy),
        cost_ns=exposed_ns,
        share=context.share(exposed_ns),
        where=longest_operations(context, label, waits=cause == "peer_late"),
        evidence={
            **transfer.evidence(),
            "exposed_ns": exposed_ns,
            "cause": cause,
            "cause_share": _cause_share(because_ns, cause),
            "wait_share": round(wait_share, 4),
            **(_longest_waited_for(context, label) if cause == "peer_late" else {}),
            "label": label,
            "framework": context.framework,
        },
        change=remedy.change,
        saves_ns=remedy.saves_ns,
        saves_range_ns=remedy.saves_range_ns,
        certain=remedy.certain,
    )


def _longest_waited_for(context: Context, label: str) -> dict[str, EvidenceValue]:
    """Return the rank that makes most of the waiting in a label, and its share; empty if none certainly does."""
    rows = [row for row in context.analysis.stragglers.rows if row.label == label]
    total_ns = sum(row.caused_ns for row in rows)
    for row in rows:
        share = row.caused_ns / max(total_ns, 1)
        if not row.uncertain and share >= MIN_SHARE_OF_LATE_RANK:
            return {"late_rank": row.rank, "late_rank_share": round(share, 4)}
    return {}


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


def _best_remedy(context: Context, label: str, exposed_ns: int, *, unhideable_ns: int) -> Remedy:
    """Return the change of a label's transfers that saves most: under compute, or twice as fast.

    Faster transfers are considered only if compute cannot hide them all.
    """
    hide = f"hide {label}"
    hidden = context.predict(hide)
    hide_saves_ns = _saving_of(hidden)
    halve = f"{label} x0.5"
    halve_saves_ns = 0
    if unhideable_ns > 0:
        halve_saves_ns = _saving_of(context.predict(halve))
    if halve_saves_ns > max(hide_saves_ns, 0):
        return Remedy(
            halve, halve_saves_ns, (0, halve_saves_ns), "possible", case="too_little_compute"
        )
    if hidden is None:
        return Remedy()
    ahead_saves_ns = _saving_beyond(context, hide, NO_HOST_DELAY)
    if hide_saves_ns > MIN_SHARE_LEFT_BY_HOST * ahead_saves_ns:
        return Remedy(hide, hide_saves_ns, (0, hide_saves_ns))
    # The replay keeps all of the host's time that no recorded call explains. If that is a wait for
    # the GPU, the host stays ahead of it, and as much can be saved as if it had no delay.
    most_ns = min(ahead_saves_ns, exposed_ns) if ahead_saves_ns > 0 else exposed_ns
    return Remedy(saves_range_ns=(0, most_ns), certain="possible", case="host_takes_as_long")


def _saving_beyond(context: Context, change: str, before: str) -> int:
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


def _exposed_case(context: Context, cause: str, remedy: Remedy) -> str:
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

    def evidence(self) -> dict[str, EvidenceValue]:
        """Return the figures that are known."""
        return without_none(self._asdict())


def _transfer(context: Context, label: str, because_ns: Mapping[str, int]) -> Transfer:
    """Return how much of the exposed time is transfer, how fast that is, and the compute that could still hide it."""
    analysis = context.analysis
    total = analysis.total
    rank_steps = max(1, sum(len(rank.per_step) for rank in analysis.rank_results))
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
        gb_per_s=_transfer_rate(context, label),
    )


def _transfer_rate(context: Context, label: str) -> float | None:
    """Return the mean algorithm bandwidth of a label's transfers, weighted by their time; None if unknown."""
    rates = context.analysis.rates
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


def repeated_reductions(context: Context) -> Iterator[Finding]:
    """Yield a finding if the gradients of one group are reduced several times in each step.

    The sizes of a step's reductions are then the same sequence several times over, and a forward
    begins between two of these sequences: buckets of equal size are no repetition.
    """
    operations = context.analysis.tables["operations"].with_columns(
        pl.col("label", "what").cast(pl.String)
    )
    reductions = operations.filter(
        (pl.col("label") == "dp_comm") & pl.col("what").str.contains(REDUCTIONS)
    )
    if reductions.is_empty() or reductions["bytes"].null_count() == len(reductions):
        return
    repetitions = _repetitions_by_step(context, reductions)
    # Ranks reduce together: where one lost a kernel and shows no sequence, the others still do. A
    # step with fewer repetitions shows that they are not the rule.
    times_per_step = min((max(of_ranks) for of_ranks in repetitions.values()), default=1)
    if times_per_step < 2:
        return
    change = f"dp_comm x{1 / times_per_step:.4g}"
    saves_ns = None
    saves_range_ns = None
    predicted = context.predict(change)
    if predicted is not None:
        saves_ns = max(predicted.saves_ns or 0, 0)
        saves_range_ns = saved_range_ns(predicted)
    exposed_ns = context.step.budget.exposed_ns.get("dp_comm", 0)
    cost_ns = round(exposed_ns * (times_per_step - 1) / times_per_step)
    rank_steps = sum(len(of_ranks) for of_ranks in repetitions.values())
    yield Finding(
        code="repeated_reduction",
        cost_ns=cost_ns,
        share=context.share(cost_ns),
        where=longest_operations(context, "dp_comm"),
        evidence={
            "times_per_step": times_per_step,
            "bytes_per_step": int(reductions["bytes"].sum() // rank_steps),
            "framework": context.framework,
        },
        change=None if predicted is None else change,
        saves_ns=saves_ns,
        saves_range_ns=saves_range_ns,
        certain="bounded",
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
