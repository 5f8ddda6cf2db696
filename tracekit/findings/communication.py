"""Findings about communication and copies that no compute hides, and about gradients reduced more than once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise

import polars as pl

from tracekit.findings.context import Context
from tracekit.findings.finding import EvidenceValue, Finding, Place
from tracekit.findings.host import exposed_pageable_share
from tracekit.schema import COMMUNICATION_LABELS, COPY_LABELS

REDUCTIONS = r"(?i)all_?reduce|reduce_?scatter"
"""Operations that sum gradients over ranks."""
HOST_COPIES = (
    r"(?i)HtoD|DtoH|Host-?to-?Device|Device-?to-?Host"
    r"|(Host|Pageable|Pinned) ->|-> (Host|Pageable|Pinned)"
)
"""Names of copies between the host and the GPU."""
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
        ns = label_ns
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


def _exposed(context: Context, label: str, exposed_ns: int) -> Finding:
    """Return the finding about one exposed label."""
    total = context.analysis.total
    because_ns = total.because_ns.get(label, {})
    known_ns = {cause: ns for cause, ns in because_ns.items() if cause != "unknown"}
    cause = max(known_ns, key=lambda name: known_ns[name], default="unknown")
    if because_ns.get("unknown", 0) > sum(known_ns.values()):
        cause = "unknown"
    evidence = _transfer(context, label, because_ns)
    hidden = context.predict(f"hide {label}") if label in COMMUNICATION_LABELS else None
    unhideable_ns = evidence.get("unhideable_ns")
    cannot_hide = isinstance(unhideable_ns, int) and unhideable_ns > 0 and cause != "peer_late"
    halved = f"{label} x0.5"
    faster = context.predict(halved) if label in COMMUNICATION_LABELS and cannot_hide else None
    hide_saves_ns = 0 if hidden is None else hidden.saves_ns or 0
    link_saves_ns = 0 if faster is None else faster.saves_ns or 0
    wait_share = because_ns.get("peer_late", 0) / max(sum(because_ns.values()), 1)
    evidence |= {
        "exposed_ns": exposed_ns,
        "cause": cause,
        "wait_share": round(wait_share, 4),
        "label": label,
    }
    if link_saves_ns > hide_saves_ns:
        chosen, change, certain = faster, halved, "possible"
    else:
        chosen, change, certain = hidden, f"hide {label}", "bounded"
    if cause == "peer_late":
        chosen = None  # hiding transfers does not bring a late rank forward
    saves_ns = None if chosen is None else max(chosen.saves_ns or 0, 0)
    saves_range_ns = None if saves_ns is None else (0, saves_ns)
    case = "too_little_compute" if certain == "possible" else cause
    if cause == "launched_late" and context.uses_cuda_graphs:
        case = "launched_late_under_graphs"
    if cause == "unknown" and context.has_host_calls:
        case = "unclear"
    if saves_ns == 0:
        # The replay keeps all of the host's time that no recorded call explains: if that is a wait
        # for the GPU, as much as is exposed can be saved.
        chosen = None
        case = "host_takes_as_long"
        certain = "possible"
        saves_ns = None
        saves_range_ns = (0, exposed_ns)
    return Finding(
        code="exposed_comm" if label in COMMUNICATION_LABELS else "exposed_copy",
        case=case,
        cost_ns=exposed_ns,
        share=context.share(exposed_ns),
        where=longest_operations(context, label),
        evidence=evidence | {"framework": context.framework},
        change=None if chosen is None else change,
        saves_ns=saves_ns,
        saves_range_ns=saves_range_ns,
        certain="possible" if certain == "possible" else "bounded",
    )


def _transfer(
    context: Context, label: str, because_ns: Mapping[str, int]
) -> dict[str, EvidenceValue]:
    """Return how much of the exposed time is transfer, how fast that is, and the compute that could still hide it."""
    analysis = context.analysis
    total = analysis.total
    rank_steps = max(1, sum(len(rank.per_step) for rank in analysis.rank_results))
    # Waiting is no transfer; time of unknown cause is not counted, so that what cannot be hidden is
    # a lower bound.
    transfer_ns = sum(
        ns for cause, ns in because_ns.items() if cause not in ("peer_late", "unknown")
    )
    hidden_ns = sum(total.hidden_ns.get(name, 0) for name in ("communication", "copy"))
    free_ns = max(0, total.budget.compute_ns - hidden_ns)
    evidence: dict[str, EvidenceValue] = {
        "transfer_ns": transfer_ns // rank_steps,
        "free_compute_ns": free_ns // rank_steps,
        "unhideable_ns": max(transfer_ns - free_ns, 0) // rank_steps,
    }
    if analysis.rates is not None:
        rows = analysis.rates.communication.filter(
            pl.col("label") == label,
            pl.col("algorithm_gb_s").is_not_null(),
            pl.col("transfer_ns") > 0,
        )
        if len(rows):
            weight = pl.col("transfer_ns") / pl.col("transfer_ns").sum()
            evidence["gb_per_s"] = float(
                rows.select((pl.col("algorithm_gb_s") * weight).sum()).item()
            )
    return evidence


def longest_operations(context: Context, label: str) -> tuple[Place, ...]:
    """Return the operations of a label with the longest exposed time."""
    operations = context.analysis.tables["operations"].filter(
        pl.col("label").cast(pl.String) == label
    )
    exposed = operations.with_columns(
        exposed_ns=pl.col("end_ns") - pl.col("start_ns") - pl.col("hidden_ns")
    )
    rows = exposed.top_k(5, by="exposed_ns").select(
        "rank", "step", "start_ns", "end_ns", pl.col("what").cast(pl.String)
    )
    return tuple(Place(*row) for row in rows.iter_rows())


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
    forwards = context.analysis.tables["timeline"].filter(
        pl.col("label").cast(pl.String) == "forward"
    )
    counts: dict[object, list[int]] = {}
    for (rank, step), of_step in reductions.group_by("rank", "step", maintain_order=True):
        ordered = of_step.sort("start_ns")
        starts = forwards.filter(pl.col("rank") == rank)["start_ns"].to_list()
        repeated_sizes = drop_single_sizes(ordered)
        count = count_repetitions(
            repeated_sizes["bytes"].to_list(), repeated_sizes["start_ns"].to_list(), starts
        )
        counts.setdefault(step, []).append(count)
    # Ranks reduce together: where one lost a kernel and shows no sequence, the others still do.
    repeated = min((max(of_ranks) for of_ranks in counts.values()), default=1)
    if repeated < 2:
        return
    predicted = context.predict(f"dp_comm x{1 / repeated:.4g}")
    exposed_ns = context.step.budget.exposed_ns.get("dp_comm", 0)
    cost_ns = round(exposed_ns * (repeated - 1) / repeated)
    saves_ns = None if predicted is None else max(predicted.saves_ns or 0, 0)
    low_high = None
    if predicted is not None and predicted.predicted_range_ns is not None:
        low, high = predicted.predicted_range_ns
        low_high = (max(context.step_ns - high, 0), max(context.step_ns - low, 0))
    yield Finding(
        code="repeated_reduction",
        cost_ns=cost_ns,
        share=context.share(cost_ns),
        where=longest_operations(context, "dp_comm"),
        evidence={
            "times_per_step": repeated,
            "bytes_per_step": int(
                reductions["bytes"].sum() // max(sum(map(len, counts.values())), 1)
            ),
            "framework": context.framework,
        },
        change=None if predicted is None else f"dp_comm x{1 / repeated:.4g}",
        saves_ns=saves_ns,
        saves_range_ns=low_high,
        certain="bounded",
    )


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
        firsts = start_ns[::period]
        if all(
            any(before < forward < behind for forward in forward_start_ns)
            for before, behind in pairwise(firsts)
        ):
            return times
    return 1
