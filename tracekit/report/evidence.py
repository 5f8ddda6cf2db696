"""Facts about a run that advice may rest on, collected from its analysis in one place."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence, Set
from typing import Any, NamedTuple

import msgspec
import polars as pl

from tracekit._util.text import join_with_and, ms, percent, ranks_named
from tracekit.analysis import Analysis
from tracekit.analysis.combine.notices import without_pipeline_notices
from tracekit.analysis.measured import RankResult
from tracekit.documents.analysis import Straggler, WaitCause
from tracekit.errors import Notice
from tracekit.metrics.overlap import ratio
from tracekit.parsers.source_refs import missing_ranks
from tracekit.report.text import signed_ms
from tracekit.report.words import WORDS, short_kernel
from tracekit.schema import GAP_CAUSES, IDLE_CAUSES, LABEL_WORDS
from tracekit.weight_updates import ReloadSummary

MIN_SHARE = 0.05
"""Share of the span (of the makespan, for parts of the gap) from which exposed time, a gap or a bubble is a fact."""
MIN_LAUNCH_BOUND_SHARE = 0.02
"""Share of the span from which idle time of a host that launches late is a fact."""
MIN_UNLABELLED_SHARE = 0.01
MIN_SHARE_OF_PATH = 0.02
"""Share of the critical path from which exposed time blocks the step: halving less would not save 1 % of the step."""
MIN_HOST_WORK_NS = 1_000_000
"""Mean time in an operator from which it works on the host: to launch a kernel takes a hundredth of that."""
MIN_LATENESS_COST_SHARE = 0.01
"""Share of all steps that a rank's lateness costs, from which it is a fact."""
MAX_MISSING_NAMED = 64
"""Missing ranks that are looked for to be named."""
GAP_LABELS = {
    "exposed_ep": ("ep_dispatch", "ep_combine"),
    "exposed_comm": ("tp_comm", "dp_comm", "cp_comm", "comm"),
    "p2p": ("pp_comm",),
}
"""Causes of a gap that are communication, and the labels they are made of."""
FRAMEWORK_PATTERNS = {
    "Megatron-LM": r"_PARALLEL_GROUP|LinearWithGradAccumulation|\bmegatron\b",
    "FSDP2": r"FSDP::|\bfsdp\b",
    "DeepSpeed": r"(?i)deepspeed",
    "DDP": r"DistributedDataParallel",
}
"""Frameworks by what their traces hold: group descriptions, annotations, operators, packs of rules that decided."""
_GRAPH_NOTICES = ("graphs-whole", "graphs-unseen", "graph-nodes-missing")


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """Facts about a run; None is unknown, or too little to matter. Times are per rank and step."""

    ranks_given: str | None = None
    """``1 of 8 ranks`` if traces are missing."""
    missing_ranks: str | None = None
    """Ranks whose traces are missing."""
    one_sided: str | None = None
    """Labels of operations of which not all sides were recorded, so that waiting inside them is unknown."""
    peers_unnamed: bool | None = None
    """True if messages do not name their peer."""
    groups_unnamed: bool | None = None
    """True if no operation names its process group."""
    framework: str | None = None
    cuda_graphs: bool = False
    schedule: str | None = None
    finding: str | None = None
    """The largest cost as a sentence: a part of the gap to the ideal, or the longest exposed label."""
    gap_cause: str | None = None
    """The largest part of the gap, as ``schema.GAP_CAUSES`` names it."""
    label: str | None = None
    """The label that the finding is about, the largest if there are several; None if it is not communication."""
    cause: str | None = None
    """Largest cause of that label's exposure (``schema.EXPOSURE_CAUSES``); None if it is unknown."""
    cause_share: float | None = None
    """Share of the exposed time."""
    blocks_step: bool | None = None
    """Whether the exposed time is on the critical path; None if the path is not known."""
    transfer_ns: int | None = None
    """Exposed time without waiting for late peers."""
    transfer_rate: str | None = None
    """Its speed, `` at 0.8 GB/s``, with the share of the link where that is known; empty without sizes."""
    free_compute_ns: int | None = None
    """Compute beside which no communication or copy runs yet."""
    unhideable_ns: int | None = None
    """Transfer that exceeds the free compute."""
    own_bubble_share: float | None = None
    """Share of ranks × makespan outside cells in the ideal of the run's own schedule."""
    late_rank: str | None = None
    """The rank that others wait for longest, if clocks and causes leave no doubt."""
    late_when: str | None = None
    """In which steps: ``in step 7``."""
    late_cause: str | None = None
    """Largest cause of its lateness (``WaitCause.cause``), or ``fewer_multiprocessors``."""
    late_ns: int | None = None
    """How late it is, mean of the steps in which it is late."""
    late_at_most: str = ""
    """Words before that time where it is an upper bound."""
    late_share: float | None = None
    """That lateness over all steps, as a share of their time."""
    late_ratio: str | None = None
    """slow_gpu, slow_link: its time over that of the others."""
    late_multiprocessors: int | None = None
    """Multiprocessors that it may use, if every other rank may use more."""
    others_multiprocessors: int | None = None
    launch_bound_share: float | None = None
    """Share of the span in which the host launches late, without the ranks whose host alone is late."""
    launch_bound_where: str = ""
    """Words after that share where there are such ranks."""
    host_doing: str | None = None
    """What the host did in more than half of that time, if it was neither launching nor Python between operators."""
    host_doing_share: float | None = None
    idle_share: float | None = None
    """Share of the span, if idle is the largest part of it."""
    longest_gap: str | None = None
    unlabelled_share: float | None = None
    reload_wait_ns: int | None = None
    """Waiting in broadcasts of a weight update."""
    reload_wait_at_most: str = ""
    """Words before that time where it is an upper bound."""
    reload_alone_ns: int | None = None
    """Reload that runs beside no broadcast."""
    reload_times: str | None = None
    reload_limit: str | None = None
    """The larger of the two: ``wait`` or ``reload``."""
    savings_ns: Mapping[str, int] = {}
    """Upper bound of what each what-if change would save of a step."""


def collect_evidence(analysis: Analysis) -> Evidence:
    """Return the facts about a run.

    >>> from tracekit import analyze
    >>> evidence = collect_evidence(analyze("sample_traces/1f1b"))
    >>> evidence.framework, evidence.gap_cause, evidence.label, evidence.missing_ranks
    ('Megatron-LM', 'p2p', 'pp_comm', None)
    """
    total, span_ns = analysis.total, analysis.total.budget.span_ns
    if not span_ns:
        return Evidence()
    unlabelled_share = total.label_ns.get("other", 0) / span_ns
    schedule = analysis.schedule
    late = _late_ranks(analysis)
    late_hosts = {item.row.rank for item in late if item.cause.cause == "host_late"}
    savings_ns = {row.change: row.saves_ns for row in analysis.changed_steps if row.saves_ns and row.saves_ns > 0}
    late_host_ns = sum(item.all_steps_ns for item in late if item.row.rank in late_hosts)
    # Where most of it is the delay of these ranks, faster launches do not save it.
    if 2 * late_host_ns > max(len(analysis.step.per_step), 1) * savings_ns.get("no host delay", 0):
        savings_ns.pop("no host delay", None)
    return Evidence(
        **_completeness(analysis),
        framework=_framework(analysis),
        cuda_graphs=_uses_cuda_graphs(analysis),
        schedule=schedule.compared_with if schedule is not None else None,
        **_largest_cost(analysis),
        **_late_rank(analysis, late),
        **_idle(analysis, late_hosts),
        unlabelled_share=unlabelled_share if unlabelled_share > MIN_UNLABELLED_SHARE else None,
        **(_reload(analysis, analysis.reload) if analysis.reload is not None else {}),
        savings_ns=savings_ns,
    )


def relevant_notices(analysis: Analysis) -> tuple[Notice, ...]:
    """Return the notices for a reader: without those about the pipeline of a run that has none."""
    return analysis.notices if analysis.total.pipeline else without_pipeline_notices(analysis.notices)


_Facts = dict[str, Any]
"""Some of the fields of ``Evidence``."""


def _completeness(analysis: Analysis) -> _Facts:
    """Return which ranks are missing, and the labels whose waiting is therefore unknown."""
    total, ranks = analysis.total, [r.rank for r in analysis.rank_results if r.whole.budget.span_ns]
    missing = missing_ranks_named(ranks, analysis.world_size)
    unknown = [label for label, ns in total.wait_ns.items() if ns is None and total.budget.exposed_ns.get(label)]
    unnamed = any(is_about_unnamed_peers(notice) for notice in analysis.notices)
    return {
        "ranks_given": f"{len(ranks):,} of {analysis.world_size:,} ranks" if missing else None,
        "missing_ranks": missing or None,
        "one_sided": join_with_and(unknown) if unknown else "pp_comm" if total.lower_bound and total.pipeline else None,
        "peers_unnamed": True if unnamed else None,
        "groups_unnamed": True if analysis.tables["operations"]["group"].is_null().all() else None,
    }


def is_about_unnamed_peers(notice: Notice) -> bool:
    """Return whether waits are unknown because messages do not name their peers."""
    return notice.code == "wait-unknown" and notice.values.get("case") in ("unnamed", "peers_unnamed")


def missing_ranks_named(ranks: Sequence[int], world_size: int | None) -> str:
    """Return the ranks of a run that are not among *ranks*; empty if none is missing.

    >>> missing_ranks_named([0, 1, 4], 5), missing_ranks_named([0], None)
    ('ranks 2, 3', '')
    """
    count, first = missing_ranks(ranks, world_size or 0, most=MAX_MISSING_NAMED)
    more = f" and {count - len(first)} more" if count > len(first) else ""
    return f"{ranks_named(first)}{more}" if count else ""


def _framework(analysis: Analysis) -> str | None:
    """Return the framework that the trace shows; the first of ``FRAMEWORK_PATTERNS`` that is seen."""
    reasons = analysis.tables["reasons"].select("group_desc", "annotations", "chain", "pack")
    texts = "\n".join(text for column in reasons for text in column.drop_nulls().unique())
    return next((name for name, pattern in FRAMEWORK_PATTERNS.items() if re.search(pattern, texts)), None)


def _uses_cuda_graphs(analysis: Analysis) -> bool:
    """Return whether a kernel was launched by a CUDA graph, or a graph was recorded without its kernels."""
    in_graph = bool(analysis.tables["reasons"]["in_graph"].any())
    return in_graph or any(notice.code in _GRAPH_NOTICES for notice in analysis.notices)


def _largest_cost(analysis: Analysis) -> _Facts:
    """Return facts about the largest cost: the largest part of the gap to the ideal, if there is one.

    Else it is the label that is exposed longest; of a schedule that ran exactly, the bubble it has by itself comes
    with it.
    """
    total, span_ns = analysis.total, analysis.total.budget.span_ns
    facts: _Facts = {}
    labels: Sequence[str]
    gap_cause, gap_ns = largest_gap_cause(analysis), (analysis.schedule and analysis.schedule.gap_ns) or {}
    if gap_cause is not None:
        words = gap_words(analysis, gap_cause)
        facts = {
            "gap_cause": gap_cause,
            "finding": of_the_gap(gap_ns[gap_cause], sum(gap_ns.values()), "to the ideal", words),
        }
        labels = GAP_LABELS.get(gap_cause, ())
    else:
        # Copies on the device are not asked to overlap; a weight update has advice of its own.
        hideable_ns = {label: ns for label, ns in total.budget.exposed_ns.items() if ns and label != "memory"}
        labels = [max(hideable_ns, key=lambda name: hideable_ns[name])] if hideable_ns and not analysis.reload else []
        head = analysis.schedule.head if analysis.schedule is not None else None
        if head is not None and head.match.exact and head.gap_ns is not None and head.ideal_bubble > MIN_SHARE:
            facts["own_bubble_share"] = head.ideal_bubble
    cost_ns = {label: total.budget.exposed_ns.get(label, 0) for label in labels}
    label = max(cost_ns, key=lambda name: cost_ns[name], default=None)
    if label is None or (not gap_cause and cost_ns[label] <= MIN_SHARE * span_ns):
        return facts
    facts["label"] = label
    blocking_ns = [total.blocking_ns.get(name) for name in labels if cost_ns[name]]
    if None not in blocking_ns:
        path_ns = span_ns / len(analysis.rank_results)  # spans are summed over ranks, the path is as long as one
        facts["blocks_step"] = sum(ns or 0 for ns in blocking_ns) >= MIN_SHARE_OF_PATH * path_ns
    causes = [total.because_ns.get(name, {}) for name in labels]
    because_ns = {cause: sum(part.get(cause, 0) for part in causes) for cause in WORDS.exposure_causes}
    if any(because_ns.values()) and max(because_ns, key=lambda name: because_ns[name]) != "unknown":
        facts |= _hiding(analysis, because_ns)
        facts["transfer_rate"] = _transfer_rate(analysis, labels)
    if not gap_cause:
        share = percent(cost_ns[label] / span_ns)
        facts["finding"] = f"{LABEL_WORDS[label]} ({label}) is exposed for {share} of the span"
    return facts


def _hiding(analysis: Analysis, because_ns: Mapping[str, int]) -> _Facts:
    """Return the main cause of exposure, and how much of the transfer exceeds the compute that could hide it."""
    total, rank_steps = analysis.total, max(1, sum(len(rank.per_step) for rank in analysis.rank_results))
    cause = max(because_ns, key=lambda name: because_ns[name])
    exposed_ns = sum(because_ns.values())
    # Waiting is no transfer; time of unknown cause is not counted, so that what cannot be hidden is a lower bound.
    transfer_ns = exposed_ns - because_ns["peer_late"] - because_ns["unknown"]
    hidden_ns = sum(total.hidden_ns.get(name, 0) for name in ("communication", "copy"))
    free_ns = max(0, total.budget.compute_ns - hidden_ns)
    return {
        "cause": cause,
        "cause_share": because_ns[cause] / exposed_ns,
        "transfer_ns": transfer_ns // rank_steps,
        "free_compute_ns": free_ns // rank_steps,
        "unhideable_ns": (transfer_ns - free_ns) // rank_steps if transfer_ns > free_ns else None,
    }


def _transfer_rate(analysis: Analysis, labels: Sequence[str]) -> str:
    """Return how fast the transfers of some labels are, as a mean over their time; empty without sizes."""
    if analysis.rates is None:
        return ""
    rows = analysis.rates.communication.filter(
        pl.col("label").is_in(labels), pl.col("algorithm_gb_s").is_not_null(), pl.col("transfer_ns") > 0
    )
    if rows.is_empty():
        return ""
    weight = pl.col("transfer_ns") / pl.col("transfer_ns").sum()
    rate, of_link = rows.select(
        (pl.col("algorithm_gb_s") * weight).sum(), (pl.col("share_of_link") * weight).sum()
    ).row(0)
    link = f", {percent(of_link)} of the link" if not rows["share_of_link"].has_nulls() else ""
    return f" at {rate:,.3g} GB/s{link}"


def largest_gap_cause(analysis: Analysis) -> str | None:
    """Return the largest cause of the gap that can be removed; None where none is worth a line."""
    schedule = analysis.schedule
    if schedule is None or schedule.gap_ns is None:
        return None
    gap_ns = {cause: ns for cause, ns in schedule.gap_ns.items() if cause not in ("unexplained", "early_output")}
    cause = max(gap_ns, key=lambda name: gap_ns[name])
    return cause if gap_ns[cause] > MIN_SHARE * schedule.head.measured_ns else None


def gap_words(analysis: Analysis, cause: str) -> str:
    """Return a cause of the gap in words; other communication by the label that is exposed longest."""
    exposed_ns = analysis.total.budget.exposed_ns
    labels = [label for label in GAP_LABELS.get(cause, ()) if exposed_ns.get(label)]
    if not labels or cause != "exposed_comm":
        return GAP_CAUSES[cause]
    label = max(labels, key=lambda name: exposed_ns[name])
    return f"exposed communication, mostly {label}" if len(labels) > 1 else f"exposed {LABEL_WORDS[label]} ({label})"


def gap_basis(analysis: Analysis, cause: str) -> str:
    """Return how a part of the gap relates to the exposed time of its labels; empty for a cause without labels.

    A part of the gap adds up along the chain of stages that the makespan follows, so that it can be longer than what is
    exposed on any rank, or shorter.
    """
    exposed_ns = analysis.total.budget.exposed_ns
    labels = [label for label in GAP_LABELS.get(cause, ()) if exposed_ns.get(label)]
    rank_steps = max(1, sum(len(rank.per_step) for rank in analysis.rank_results))
    per_rank = ms(sum(exposed_ns[label] for label in labels) / rank_steps)
    named = f"{join_with_and(labels)}: {per_rank} per rank"
    return f" along the chain of stages ({named})" if labels else ""


def of_the_gap(ns: float, total: float, where: str, words: str) -> str:
    """Return what part of a gap one cause is; more than all of it where other causes shorten the run.

    >>> of_the_gap(25_300_000, 26_200_000, "to the ideal", "late launches")
    '25.3 ms of the 26.2 ms to the ideal is late launches'
    >>> of_the_gap(26_300_000, 25_600_000, "to the ideal", "late launches")
    'the 25.6 ms to the ideal is late launches (26.3 ms; other causes −0.7 ms)'
    """
    if ns <= total:
        return f"{ms(ns)} of the {ms(total)} {where} is {words}"
    return f"the {ms(total)} {where} is {words} ({ms(ns)}; other causes {signed_ms(total - ns)})"


class _LateRank(NamedTuple):
    """A rank that is certainly late, and its main cause."""

    late_ns: float
    """Mean of the steps in which it is late; in a pipeline, or where most is unknown, the part that is explained."""
    row: Straggler
    cause: WaitCause

    @property
    def all_steps_ns(self) -> float:
        """Lateness summed over steps."""
        return self.late_ns * len(self.row.steps)


def _late_ranks(analysis: Analysis) -> list[_LateRank]:
    """Return the ranks whose lateness costs enough, is certain and whose main cause is found; a rank once.

    Stages of a pipeline wait for each other, and unequal stages are a part of the gap: there only a slow GPU or a late
    host counts, with the part of the waiting that it explains.
    """
    late: dict[int, _LateRank] = {}
    for row in analysis.stragglers.rows:  # those that cause most waiting first
        in_pipeline = row.label == "pp_comm"  # the times that prove its causes need no clock
        if row.rank in late or not row.steps or (row.uncertain and not in_pipeline):
            continue
        largest = max(row.why, key=lambda part: part.ns)
        main = max((part for part in row.why if part.cause != "unknown"), key=lambda part: part.ns, default=None)
        if in_pipeline:
            main = analysis.stragglers.pipeline_cause(row.rank)
            main = main if main is not None and main.cause in ("slow_gpu", "host_late") else None
        if main is None or main.cause == "waited_itself":
            continue
        is_all = largest is main and not in_pipeline
        late[row.rank] = _LateRank(row.late_ns * (1.0 if is_all else main.ns / row.caused_ns), row, main)
    least_ns = MIN_LATENESS_COST_SHARE * _path_ns(analysis)
    return [item for item in late.values() if item.all_steps_ns >= least_ns]


def _path_ns(analysis: Analysis) -> float:
    """Return the time of all steps, mean of the ranks."""
    return analysis.total.budget.span_ns / max(1, len(analysis.rank_results))


def _late_rank(analysis: Analysis, late: Sequence[_LateRank]) -> _Facts:
    """Return the rank whose lateness costs most."""
    if not late:
        return {}
    worst = max(late, key=lambda item: item.all_steps_ns)
    row, evidence, steps = worst.row, worst.cause.evidence, len(worst.row.steps)
    late_when = f"in step {row.steps[0]}" if steps == 1 else f"in each of {steps} steps"
    if row.label == "pp_comm" and steps > 1:  # by the schedule it is waited for in every step
        late_when = f"per step (mean of {steps})"
    return {
        "late_rank": f"rank {row.rank}",
        "late_when": late_when,
        "late_cause": "fewer_multiprocessors" if evidence.multiprocessors else worst.cause.cause,
        "late_ns": round(worst.late_ns),
        "late_at_most": "at most " if is_wait_bound(analysis, row.label) else "",
        "late_share": worst.all_steps_ns / _path_ns(analysis),
        "late_ratio": f"{evidence.ratio:.2f}" if evidence.ratio else None,
        "late_multiprocessors": evidence.multiprocessors,
        "others_multiprocessors": evidence.multiprocessors_of_others,
    }


def _idle(analysis: Analysis, late_hosts: Set[int]) -> _Facts:
    """Return the share of launch-bound idle time, and the longest gap where idle is the largest part of the span.

    Launch-bound is what every rank is: a rank whose host alone is late (*late_hosts*) is another finding.
    """
    total, budget = analysis.total, analysis.total.budget
    if not total.idle_known:
        return {}
    ranks = [rank for rank in analysis.rank_results if rank.rank not in late_hosts]
    launch_bound_ns = sum(rank.idle_causes.get("launch_bound", 0) for rank in ranks)
    launch_bound_share = ratio(launch_bound_ns, sum(rank.whole.budget.span_ns for rank in ranks))
    facts: _Facts = {}
    if launch_bound_share is not None and launch_bound_share > MIN_LAUNCH_BOUND_SHARE:
        facts = {"launch_bound_share": launch_bound_share, **_host_activity(ranks, launch_bound_ns)}
        facts |= {"launch_bound_where": " on the other ranks"} if late_hosts else {}
    gaps = analysis.tables["gaps"]
    if gaps.is_empty() or budget.idle_ns <= max(budget.compute_ns, *budget.exposed_ns.values(), 0):
        return facts
    longest = gaps.sort("ns", descending=True).row(0, named=True)
    cause = WORDS.idle_causes[max(IDLE_CAUSES, key=lambda name: longest[f"{name}_ns"])]
    ended = f"{short_kernel(longest['next_name']).partition('<')[0][:60]} ({longest['next_label']})"
    text = f"the longest gap, {ms(longest['ns'])} on rank {longest['rank']}, {cause} and ended with {ended}"
    return {**facts, "idle_share": budget.idle_ns / budget.span_ns, "longest_gap": text}


def _host_activity(ranks: Sequence[RankResult], launch_bound_ns: int) -> _Facts:
    """Return what the host did in most of the launch-bound idle time, if faster launches would not help against it."""
    ns_of: Counter[str] = Counter()
    for row in (row for rank in ranks for row in rank.instead):
        words = WORDS.host_activities.get(row["instead"])
        is_long = row["instead"] != "operator" or row["ns"] >= MIN_HOST_WORK_NS * row["count"]
        if words is not None and is_long and (row["what"] or "{}" not in words):
            ns_of[words.format(row["what"])] += row["ns"]
    (doing, ns), *_ = ns_of.most_common(1) or [("", 0)]
    return {"host_doing": doing, "host_doing_share": ns / launch_bound_ns} if 2 * ns > launch_bound_ns else {}


def is_wait_bound(analysis: Analysis, label: str) -> bool:
    """Return whether the waits of a label are upper bounds."""
    return any(notice.code == "wait-bound" and label in notice.labels for notice in analysis.notices)


def _reload(analysis: Analysis, reload: ReloadSummary) -> _Facts:
    """Return the two costs that stand between a weight update and its ideal: waiting in broadcasts, reload alone."""
    lane = reload.lanes.filter(lane="reload").join(reload.hidden, on="rank")
    ranks = max(1, len(analysis.rank_results))
    alone_ns = float((lane["ns"] * (1 - lane["reload_under_broadcast"].fill_null(0.0))).sum()) / ranks
    wait_ns = (analysis.total.wait_ns.get("broadcast") or 0) / ranks
    ideal = f"; {ms(reload.measured_ns)} could be {ms(reload.ideal_ns)}" if reload.ideal_ns is not None else ""
    return {
        "reload_limit": "wait" if wait_ns > alone_ns else "reload",
        "reload_wait_ns": round(wait_ns),
        "reload_wait_at_most": "at most " if is_wait_bound(analysis, "broadcast") else "",
        "reload_alone_ns": round(alone_ns),
        "reload_times": ideal,
    }
