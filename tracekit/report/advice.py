"""What to do next, the most time first: the same words in every report."""

from __future__ import annotations

from collections.abc import Sequence

from tracekit._util.text import ms, percent, ranks_named, signed_ms
from tracekit.analysis import Analysis
from tracekit.metrics.reload import Reload
from tracekit.parsers.ranks import missing_ranks
from tracekit.report.names import short_kernel
from tracekit.report.remedies import BECAUSE, FIXES, main_cause
from tracekit.report.role_words import role_advice
from tracekit.schema import GAP_CAUSES, IDLE_CAUSES

WORTH = 0.05
"""Share of the span (of the makespan, of compute) below which time is not worth a line."""
LATE = 0.02
"""Share of the span from which idle time of a host that launches late is worth a line."""
_HIDEABLE = {"exposed_ep": ("ep_dispatch", "ep_combine"), "exposed_comm": ("tp_comm", "dp_comm", "cp_comm", "comm")}
"""Causes of a gap that compute could hide, and the labels they are made of."""
_NAMED = 64
"""Missing ranks that are looked at to be named."""
_GAP_WORDS = {
    "launch_bound": "was launch-bound",
    "dependency": "waited for other work",
    "warm_up": "was a slow launch call",
    "unknown": "has no known cause",
}
"""What a gap of each cause did."""
_BY_OVERLAP = ("nothing_to_hide", "same_stream", "one_queue", "compute_waited", "unknown")
"""Causes of exposure whose remedy needs compute to put beside it."""


def advice(analysis: Analysis) -> list[str]:
    """Return what to do next; each line names the figure it rests on.

    >>> from tracekit import analyze
    >>> advice(analyze("sample_traces/1f1b"))[0].split(":")[0]
    '25.3 ms of the 26.2 ms to the ideal is pipeline transfer and its wait'
    """
    span = analysis.total.budget.span_ns
    if not span:
        return []
    if lines := role_advice(analysis):
        return lines
    found = [*(_gap(analysis) or _exposed(analysis, span)), *_idle(analysis, span), *_unknown(analysis, span)]
    if analysis.total.lower_bound:
        nameless = any(n.code == "wait-unknown" and "their peer" in n.message for n in analysis.notices)
        first = "record to whom messages go (`tracekit doctor` says how)" if nameless else _missing(analysis)
        found.append((0.0, f"{first}: waiting is only known from both sides"))
    lines = [text for _, text in sorted(found, reverse=True)]
    if analysis.graph is None and (lines or analysis.schedule is not None):
        schedules = ", and ranks the schedules it could use" if analysis.schedule is not None else ""
        lines.append(f"`--what-if` shows what faster links, equal ranks or no host delay would give{schedules}")
    return lines


def _missing(analysis: Analysis) -> str:
    """Ask for the ranks whose traces are not there, and for no other; where none is known to be, for messages."""
    lost, named = missing_ranks([one.rank for one in analysis.rank_results], analysis.world_size or 0, most=_NAMED)
    if not lost:
        return "add the ranks that are missing, or record every message (`tracekit doctor` says how)"
    more = f" and {lost - len(named)} more" if lost > len(named) else ""
    return f"add the {'trace' if lost == 1 else 'traces'} of {ranks_named(named)}{more}"


def _gap(analysis: Analysis) -> list[tuple[float, str]]:
    """Name the largest cause that keeps a pipeline from its ideal: exposed waiting is what follows from it."""
    held, cause = analysis.schedule, _largest(analysis)
    if held is None or held.gap_ns is None or cause is None:
        return []
    gap, total, why = held.gap_ns, sum(held.gap_ns.values()), GAP_CAUSES[cause]
    remedy = cannot_fit(analysis, _HIDEABLE[cause]) if cause in _HIDEABLE else None
    return [(1.0, f"{of_the_gap(gap[cause], total, 'to the ideal', why.words)}: {remedy or why.remedy}")]


def _largest(analysis: Analysis) -> str | None:
    """Return the largest cause of the gap that has a remedy; None where none is worth a line."""
    held = analysis.schedule
    gap = {cause: ns for cause, ns in ((held and held.gap_ns) or {}).items() if GAP_CAUSES[cause].remedy}
    cause = max(gap, key=lambda name: gap[name], default=None)
    return cause if held is not None and cause is not None and gap[cause] > WORTH * held.head.measured_ns else None


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


def _exposed(analysis: Analysis, span: int) -> list[tuple[float, str]]:
    total = analysis.total
    if analysis.reload is not None:
        return [(1.0, _reload(analysis, analysis.reload))]
    asked = {label: ns for label, ns in total.budget.exposed_ns.items() if label != "memory"}  # memsets, device copies
    label = max(asked, key=lambda name: asked[name], default=None)
    if label is None or asked[label] <= WORTH * span:
        return []
    ns = asked[label]
    text = f"{label} is exposed for {percent(ns / span)} of the span"
    found = main_cause(total, label)
    if found is not None and found[0] in _BY_OVERLAP and (remedy := cannot_fit(analysis, (label,))):
        text += f": {remedy}"
    elif found is not None:
        cause, share = found
        text += f", {percent(share)} of that because {BECAUSE[cause]}: {FIXES[cause]}"
    return [(ns / span, text)]


def cannot_fit(analysis: Analysis, labels: Sequence[str]) -> str | None:
    """Return by how much these labels' exposed time exceeds the compute that could still hide it; None where it fits.

    >>> from tracekit import analyze
    >>> cannot_fit(analyze("sample_traces/1f1b", schedule="none"), ["pp_comm"]) is None
    True
    """
    total, runs = analysis.total, max(1, sum(len(one.per_step) for one in analysis.rank_results))
    exposed = sum(total.budget.exposed_ns.get(label, 0) for label in labels)
    room = max(0, total.budget.compute_ns - sum(total.hidden_ns.get(name, 0) for name in ("communication", "copy")))
    if exposed <= room:
        return None
    free = "no compute" if not room else f"only {ms(room / runs)} of compute"
    each = "per rank and step" if runs > len(analysis.rank_results) else "per rank"
    said = f"{ms(exposed / runs)} {each} are exposed and {free} runs beside nothing yet, "
    said += f"so {ms((exposed - room) / runs)} cannot be hidden, whatever the order; "
    return said + "move fewer bytes, use faster links, or compute more per byte"


def _idle(analysis: Analysis, span: int) -> list[tuple[float, str]]:
    """Say what to do about a host that launches late, and where to look when idle time is more than anything else."""
    total, found = analysis.total, []
    bound = sum(one.idle_causes.get("launch_bound", 0) for one in analysis.rank_results)
    gap = _longest_gap(analysis) if total.idle_known else None
    if total.idle_known and bound > LATE * span:
        text = f"the GPU is idle {percent(bound / span)} of the span because the host launches late"
        text += "" if _largest(analysis) == "host" else ": CUDA graphs, fewer small kernels, or less Python in the step"
        if gap is not None and 2 * bound > total.budget.idle_ns:
            text, gap = f"{text}; {gap}", None
        found.append((bound / span, text))
    if gap is not None:
        share = total.budget.idle_ns / span
        found.append((share, f"idle is most of the span, {percent(share)}: {gap}"))
    return found


def _longest_gap(analysis: Analysis) -> str | None:
    """Name the longest gap and what ended it, where idle time is more than anything else."""
    budget, gaps = analysis.total.budget, analysis.tables["gaps"]
    if gaps.is_empty() or budget.idle_ns <= max(budget.compute_ns, *budget.exposed_ns.values(), 0):
        return None
    worst = gaps.sort("ns", descending=True).row(0, named=True)
    why = max(IDLE_CAUSES, key=lambda cause: worst[f"{cause}_ns"])
    ended = f"{short_kernel(worst['next_name']).partition('<')[0][:60]} ({worst['next_label']})"
    return f"the longest gap, {ms(worst['ns'])} on rank {worst['rank']}, {_GAP_WORDS[why]} and ended with {ended}"


def _unknown(analysis: Analysis, span: int) -> list[tuple[float, str]]:
    other = analysis.total.label_ns.get("other", 0)
    if other <= 0.01 * span:
        return []
    text = f"{percent(other / span)} of the span has no label: `--explain other` lists it, a rules file names it"
    return [(other / span, text)]


def _reload(analysis: Analysis, found: Reload) -> str:
    """Name the larger of the two that stand between an update and its ideal: waiting in broadcasts, reload alone."""
    lane = found.lanes.filter(lane="reload").join(found.hidden, on="rank")
    ranks = max(1, len(analysis.rank_results))
    alone = float((lane["ns"] * (1 - lane["reload_under_broadcast"].fill_null(0.0))).sum()) / ranks
    wait = analysis.total.wait_ns.get("broadcast") or 0
    if wait / ranks > alone:
        text = f"broadcasts wait {ms(wait / ranks)} per rank for the last to start (see whom the others wait for)"
        text += f"; reload beside no broadcast takes {ms(alone)}"
    else:
        text = f"{ms(alone)} of reload per rank runs beside no broadcast: with two buffers broadcast g+1 runs beside it"
    if found.ideal_ns is None:
        return text
    return f"{text}; {ms(found.measured_ns)} could be {ms(found.ideal_ns)}"


def asked(analysis: Analysis) -> str | None:
    """Name the input again, short: one path, or the folder that holds them all.

    >>> from tracekit import analyze
    >>> asked(analyze("sample_traces/reload", schedule="none"))
    'sample_traces/reload'
    """
    paths = dict.fromkeys(analysis.paths)
    folders = {path.rpartition("/")[0] for path in paths}
    if len(paths) == 1:
        return next(iter(paths))
    if analysis.role_results.roles and len(folders) > 1:  # a folder per role
        folders = {folder.rpartition("/")[0] for folder in folders}
    return (folders.pop() or ".") if len(folders) == 1 else None
