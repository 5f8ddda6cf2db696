"""The input of an analysis in words: title, ranks, steps and path."""

from tracekit._util.text import counted, ranks_named
from tracekit.analysis import Analysis
from tracekit.report.evidence import missing_ranks_named


def run_title(analysis: Analysis) -> str:
    """Return the name of the input, its schedule and its ranks."""
    schedule = "" if analysis.schedule is None else f"{analysis.schedule.name} on "
    name = (input_path(analysis) or "").rstrip("/").rpartition("/")[2].partition("?")[0]
    # A folder that is named after its schedule is not named twice.
    run = f"{name}, " if name.strip(".") and schedule != f"{name} on " else ""
    return f"tracekit: {run}{schedule}{describe_ranks(analysis)}"


def describe_ranks(analysis: Analysis) -> str:
    """Return the number of ranks, and which of them are missing or damaged."""
    results, world = analysis.rank_results, analysis.world_size
    whole = [result.rank for result in results if result.whole.budget.span_ns]
    empty = [result.rank for result in results if not result.whole.budget.span_ns]
    missing = missing_ranks_named([*whole, *empty], world)
    remarks = [
        f"{missing} missing" if missing else "",
        f"{ranks_named(empty)} without GPU events" if empty and whole else "",
        *(_cut_files(notice.message) for notice in analysis.notices if notice.code == "truncated"),
    ]
    of_world = f" of {world:,}" if world and world != len(whole) else ""
    count = f"{len(whole):,}{of_world} {'rank' if (world or len(whole)) == 1 else 'ranks'}"
    remark = "; ".join(dict.fromkeys(filter(None, remarks)))
    return f"{count} ({remark})" if remark and whole else count if whole else counted(len(results), "rank")


def _cut_files(message: str) -> str:
    """Return which ranks a notice of a truncated file is about."""
    ranks, _, rest = message.partition(":")
    return f"{ranks} truncated" if rest and ranks.startswith("rank") else "a file truncated"


def describe_steps(analysis: Analysis) -> str:
    """Return the first and the last step."""
    steps = sorted({step for rank in analysis.rank_results for step in rank.steps})
    if not steps:
        return "no step marks"
    return f"step {steps[0]}" if len(steps) == 1 else f"steps {steps[0]}–{steps[-1]}"


def input_path(analysis: Analysis) -> str | None:
    """Return the input as one path: the only one, or the folder that holds them all; None if there is none.

    >>> from tracekit import analyze
    >>> input_path(analyze("sample_traces/reload", schedule="none"))
    'sample_traces/reload'
    """
    paths = dict.fromkeys(analysis.paths)
    folders = {path.rpartition("/")[0] for path in paths}
    if len(paths) == 1:
        return next(iter(paths))
    if analysis.role_results.roles and len(folders) > 1:  # a folder per role
        folders = {folder.rpartition("/")[0] for folder in folders}
    return (folders.pop() or ".") if len(folders) == 1 else None
