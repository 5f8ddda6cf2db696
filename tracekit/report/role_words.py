"""Sentences about RL iterations and weight updates, and what to do about them."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean

from tracekit._util.text import counted, join_with_and, ms, percent
from tracekit.analysis import Analysis
from tracekit.documents.roles import Iteration, RolloutTail, WeightUpdate

MIN_IDLE_SHARE = 0.05
"""Share of the iterations from which time in which no role runs is named."""
MIN_SHARE = 0.01
"""Share of an iteration, or of a weight update, from which something is advised."""
PHASE_WORDS = {
    "rollout": "rollout",
    "train": "train",
    "weight_sync": "weight sync",
    "other": "other forward",
    "idle": "idle",
}
GAP_WORDS = {
    "serial_h2d": "copies from the host that do not run at once",
    "host_and_rpc": "the host and messages between buckets",
    "late_rank": "waiting for a late rank",
    "reload_not_overlapped": "reloads beside no broadcast",
}
GAP_REMEDIES = {
    "serial_h2d": "ranks copy one after the other or share a link: spread the owners of buckets over links",
    "host_and_rpc": "use larger buckets, so that there are fewer round trips between server and worker",
    "late_rank": "see what that rank does before it enters a broadcast",
    "reload_not_overlapped": "with two shared buffers the next broadcast runs beside a reload",
}


def decode_words(tail: RolloutTail) -> str:
    """Return the decode steps of the longest and of the median rank; empty if they are unknown."""
    if tail.decode_steps is None or tail.median_decode_steps is None:
        return ""
    return f" ({tail.decode_steps} decode steps, median {tail.median_decode_steps:g})"


def iteration_sentence(analysis: Analysis) -> str | None:
    """Return what an iteration takes, by phase, which role waits, and the tail of the rollout; None without any."""
    iterations = analysis.role_results.iterations
    if not iterations:
        return None
    total = sum(iteration.end_ns - iteration.start_ns for iteration in iterations)
    shares = {phase: sum(iteration.phase_ns.get(phase, 0) for iteration in iterations) / total for phase in PHASE_WORDS}
    parts = [f"{percent(share)} {PHASE_WORDS[phase]}" for phase, share in shares.items() if share]
    count = len(iterations)
    over = f" (mean of {count})" if count > 1 else ""
    text = f"An iteration takes {ms(total / count)}{over}: {join_with_and(parts)}"
    waits = _mean_waits(iterations)
    if waits:
        role, share, other = max(waits, key=lambda wait: wait[1])
        text += f"; role {role} waits for {other} in {percent(share)} of it"
    return f"{text}.{_tail_sentence(iterations)}"


def _mean_waits(iterations: Sequence[Iteration]) -> list[tuple[str, float, str]]:
    """Return by role the share of the iterations in which it waits for the role it waits for most."""
    total = sum(iteration.end_ns - iteration.start_ns for iteration in iterations)
    waits = []
    for role in dict.fromkeys(wait.role for iteration in iterations for wait in iteration.roles):
        own = [wait for iteration in iterations for wait in iteration.roles if wait.role == role]
        by_other: dict[str, int] = {}
        for wait in own:
            for other, ns in wait.waited_ns.items():
                by_other[other] = by_other.get(other, 0) + ns
        longest = max(by_other, key=lambda name: by_other[name], default="")
        if by_other.get(longest):
            waits.append((role, by_other[longest] / total, longest))
    return waits


def _tail_sentence(iterations: Sequence[Iteration]) -> str:
    tails = [iteration.rollout_tail for iteration in iterations if iteration.rollout_tail is not None]
    if not tails:
        return ""
    ranks = {tail.rank for tail in tails}
    if len(ranks) > 1:
        listed = ", ".join(f"rank {tail.rank} {ms(tail.ns)}" for tail in tails[:4])
        return f" The rollout's tail (longest minus median rank) changes: {listed}."
    tail = tails[0]
    longer = ms(mean(tail.ns for tail in tails))
    return f" Rank {tail.rank} is the rollout's tail: {longer} longer than the median rank{decode_words(tail)}."


def update_sentence(analysis: Analysis) -> str | None:
    """Return what a weight update moves and takes, and how far it is from the ideal; None without any."""
    updates = analysis.role_results.weight_updates
    if not updates or analysis.reload is not None:
        return None
    longest = max(updates, key=lambda update: update.measured_ns)
    count = f"The longest of {len(updates)} weight updates" if len(updates) > 1 else "The weight update"
    moved = f"{longest.bytes / 1e9:,.2f} GB in {counted(longest.buckets, 'bucket')}"
    text = f"{count} moves {moved} in {ms(longest.measured_ns)} ({longest.gb_s:.2f} GB/s)"
    if longest.ideal_ns is None or longest.gap_ns is None:
        return f"{text}; reloads are not recorded, so that its ideal is unknown."
    cause = max(longest.gap_ns, key=lambda name: (longest.gap_ns or {})[name])
    text += f"; with two buffers and the same times for each bucket it would take {ms(longest.ideal_ns)}"
    return f"{text}. Most of the difference, {ms(longest.gap_ns[cause])}, is {_cause_words(longest, cause)}."


def _cause_words(update: WeightUpdate, cause: str) -> str:
    late = f" (rank {update.late_rank})" if cause == "late_rank" and update.late_rank is not None else ""
    return f"{GAP_WORDS[cause]}{late}"


def role_advice(analysis: Analysis) -> list[str]:
    """Return what to do about waiting roles, the rollout's tail and the weight update, the largest first."""
    results, advice = analysis.role_results, []
    iterations = results.iterations
    if iterations:
        total = sum(iteration.end_ns - iteration.start_ns for iteration in iterations)
        tails = [iteration.rollout_tail for iteration in iterations if iteration.rollout_tail is not None]
        tail_ns = sum(tail.ns for tail in tails)
        if tails:
            text = (
                f"the rollout of rank {tails[0].rank} takes {ms(tail_ns / len(tails))} longer than the median rank's: "
                "cap the longest sequences or spread them over ranks, or train on the finished ones meanwhile"
            )
            advice.append((tail_ns / total, text))
        sync = sum(iteration.phase_ns["weight_sync"] for iteration in iterations)
        moved = sum(update.measured_ns for update in results.weight_updates)
        if moved and sync > 2 * moved:
            text = (
                f"weight sync takes {ms(sync / len(iterations))} per iteration, but moving the weights only "
                f"{ms(moved / len(results.weight_updates))}: the rest is gathering, registering and releasing them"
            )
            advice.append(((sync - moved) / total, text))
    for update in results.weight_updates[:1] if analysis.reload is None else ():
        if update.gap_ns is not None and update.ideal_ns is not None:
            cause = max(update.gap_ns, key=lambda name: (update.gap_ns or {})[name])
            text = (
                f"{ms(update.gap_ns[cause])} of the {ms(update.measured_ns - update.ideal_ns)} between the weight "
                f"update and its ideal is {_cause_words(update, cause)}: {GAP_REMEDIES[cause]}"
            )
            span = total if iterations else update.measured_ns
            advice.append((update.gap_ns[cause] / span, text))
    lines = [text for share, text in sorted(advice, reverse=True) if share > MIN_SHARE]
    idle = sum(iteration.phase_ns["idle"] for iteration in iterations)
    if iterations and idle > MIN_IDLE_SHARE * total:
        lines.append(f"no role runs in {percent(idle / total)} of an iteration: see what passes between the roles then")
    return lines
