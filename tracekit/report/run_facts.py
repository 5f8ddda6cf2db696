"""Name, inputs, ranks and devices of a run, as reports say them."""

import re
import shlex
from collections.abc import Sequence

from tracekit._util.text import counted, ranks_named
from tracekit.analysis import Analysis
from tracekit.errors import Notice
from tracekit.metrics.peaks import find_gpu
from tracekit.report.gap_words import missing_ranks_named
from tracekit.schema import Source


def describe_ranks(analysis: Analysis) -> str:
    """Return the number of ranks, and which of them are missing or damaged."""
    results = analysis.ranks
    world = analysis.world_size
    whole: list[int] = []
    empty: list[int] = []
    for result in results:
        if result.whole.budget.span_ns:
            whole.append(result.rank)
        else:
            empty.append(result.rank)
    if not whole:
        return counted(len(results), "rank")
    remarks = []
    missing = missing_ranks_named([*whole, *empty], world)
    if missing:
        remarks.append(f"{missing} missing")
    if empty:
        remarks.append(f"{ranks_named(empty)} without GPU events")
    remarks += [_cut_files(notice) for notice in analysis.notices if notice.code == "truncated"]
    of_world = f" of {world:,}" if world and world != len(whole) else ""
    noun = "rank" if (world or len(whole)) == 1 else "ranks"
    count = f"{len(whole):,}{of_world} {noun}"
    if not remarks:
        return count
    return f"{count} ({'; '.join(dict.fromkeys(remarks))})"


def _cut_files(notice: Notice) -> str:
    """Return which ranks a notice of a truncated file is about."""
    return f"{ranks_named(notice.ranks)} truncated" if notice.ranks else "a file truncated"


def input_path(analysis: Analysis) -> str | None:
    """Return the input as one path: the only one, or the folder that holds them all.

    None if there is none.

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


def quoted_path(analysis: Analysis) -> str | None:
    """Return that path as a word of a command."""
    path = input_path(analysis)
    return None if path is None else shlex.quote(path)


def run_name(analysis: Analysis) -> str:
    """Return the name of the input: the last part of its path; empty if there are several."""
    folder, _, name = (input_path(analysis) or "").partition("?")[0].rstrip("/").rpartition("/")
    if re.match(r"(trace|rank\d+)\b", name):  # such a name says nothing: the folder's does
        name = folder.rpartition("/")[2] or name
    return re.sub(r"(\.pt)?(\.trace)?\.json(\.gz)?$", "", name).strip(".")


def source_paths(analysis: Analysis) -> tuple[str, ...]:
    """Return the paths that were analysed, as they were given."""
    return tuple(analysis.paths or (source.path for source in analysis.sources))


def device_names(sources: Sequence[Source]) -> tuple[str, ...]:
    """Return the GPUs of a run, with the multiprocessors that its ranks may use where these are not all.

    >>> from msgspec.structs import replace
    >>> source = Source("rank0.json", "kineto", 0, "content", devices=("NVIDIA H200",), multiprocessors=33)
    >>> device_names([source]), device_names([source, replace(source, multiprocessors=12)])
    (('NVIDIA H200 (33 of 132 multiprocessors)',), ('NVIDIA H200 (12 or 33 of 132 multiprocessors)',))
    """
    usable: dict[str, set[int]] = {}
    for source in sources:
        for device in source.devices:
            usable.setdefault(device, set()).update(
                [] if source.multiprocessors is None else [source.multiprocessors]
            )
    names = []
    for device, counts in sorted(usable.items()):
        gpu = find_gpu(device)
        is_part = gpu is not None and any(count < gpu.multiprocessors for count in counts)
        share = (
            f" ({' or '.join(map(str, sorted(counts)))} of {gpu.multiprocessors} multiprocessors)"
            if gpu
            else ""
        )
        names.append(device + (share if is_part else ""))
    return tuple(names)
