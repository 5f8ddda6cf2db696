"""Checks, before anything is read, that sources are ranks of one run; roles that their names tell."""

import os
import shlex
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path

import msgspec

from tracekit._util.text import listing
from tracekit.errors import InputError
from tracekit.parsers.source_refs import SourceRef, file_listing, name_stem
from tracekit.schema import PYTORCH_READERS, Source


def check_single_run(refs: Sequence[SourceRef | Source]) -> None:
    """Raise InputError if the sources cannot be ranks of one run: several files per rank, tools or world sizes."""
    by_rank: dict[int, list[str]] = defaultdict(list)
    for ref in refs:
        if ref.rank is not None:
            by_rank[ref.rank].append(ref.path)
    for rank, files in sorted(by_rank.items()):
        if len(files) > 1:
            if runs := _run_folders(refs):
                raise several_runs_error(sorted(set(runs)))
            raise InputError(
                f"rank {rank} has {len(files)} files{file_listing(files)}",
                hint="name one file per rank, for instance with a glob; of several processes per rank, each role:"
                " --role trainer=PATH --role rollout=PATH",
            )
    readers: dict[str, object] = {}
    world_sizes: dict[str, object] = {}
    for ref in refs:
        readers[ref.path] = ref.reader
        if ref.world_size:
            world_sizes[ref.path] = ref.world_size
    _check_same(readers, "different tools")
    _check_same(world_sizes, "different world sizes")
    of_pytorch = [ref for ref in refs if ref.reader in PYTORCH_READERS]
    unknown = [ref.path for ref in of_pytorch if ref.rank is None]
    if unknown and len(refs) > 1:
        raise unranked_files_error(unknown)


def unranked_files_error(paths: Sequence[str]) -> InputError:
    """Return the error about files that do not say their rank, with what their caller may have meant."""
    of_one_run = "ranks of one run: put the rank into their names (rank0.json, rank1.json, …)"
    hint = of_one_run
    if len(paths) == 2:
        hint = f"two runs to compare: tracekit diff {shlex.join(paths)}; {of_one_run}"
    return InputError(f"{len(paths)} files do not say their rank{file_listing(paths)}", hint=hint)


def _run_folders(refs: Sequence[SourceRef | Source]) -> list[str]:
    """Return the folder of each source's run or role; empty if folders do not separate them.

    >>> _run_folders([SourceRef(f"runs/{name}/rank{n}.json", "kineto", n) for name in "ab" for n in (0, 1)])
    ['runs/a', 'runs/a', 'runs/b', 'runs/b']
    >>> _run_folders([SourceRef(f"runs/{name}.json", "kineto", 0) for name in "ab"])
    []
    """
    folders = []
    absolute = 0
    for ref in refs:
        if "://" in ref.path:
            return []
        folder, _, _ = ref.path.rstrip("/").rpartition("/")
        folders.append(folder)
        absolute += ref.path.startswith("/")
    if 0 < absolute < len(refs):
        return []
    common = os.path.commonpath(folders)
    start = len(common) + 1 if common else 0
    first_level = []  # the first folder below the common one
    for folder in folders:
        name, _, _ = folder[start:].partition("/")
        first_level.append(folder[: start + len(name)])
    # Runs are separated by the first folder below the common one (runs/a/host0/…), else by the
    # files' own folders.
    for run_folders in (first_level, folders):
        if len(set(run_folders)) > 1 and _has_each_rank_once(run_folders, refs):
            return run_folders
    return []


def _has_each_rank_once(names: Sequence[str], refs: Sequence[SourceRef | Source]) -> bool:
    """Return whether no two sources of one run or role, which *names* tell, are of the same rank."""
    pairs = {(name, ref.rank) for name, ref in zip(names, refs, strict=True)}
    return len(pairs) == len(refs)


def roles_by_name(refs: Sequence[SourceRef]) -> list[SourceRef] | None:
    """Return the sources with the roles that their folders, else their file names, tell.

    None if they do not.

    >>> from tracekit.parsers.source_refs import rank_in_name
    >>> files = [f"{role}/rank{rank}.json" for role in ("trainer", "rollout") for rank in (0, 1)]
    >>> [ref.role for ref in roles_by_name([SourceRef(file, "kineto", rank_in_name(file)) for file in files])]
    ['trainer', 'trainer', 'rollout', 'rollout']
    >>> files = [f"{role}{rank}.json" for role in ("rank", "worker") for rank in (0, 1)]
    >>> roles_by_name([SourceRef(file, "kineto", rank_in_name(file)) for file in files]) is None
    True
    """
    if any(ref.rank is None for ref in refs):
        return None
    processes = max(Counter(ref.rank for ref in refs).values())
    folders = [folder.rpartition("/")[2].removeprefix("role=") for folder in _run_folders(refs)]
    stems = [name_stem(ref.name) for ref in refs]
    for names in (folders, stems):
        if not names or not all(names) or not _has_each_rank_once(names, refs):
            continue
        if len(set(names)) == processes > 1:
            return [
                msgspec.structs.replace(ref, role=name)
                for ref, name in zip(refs, names, strict=True)
            ]
    return None


def several_runs_error(runs: Sequence[str]) -> InputError:
    """Return the error about the folders of several runs, of which one must be chosen."""
    if len(runs) < 2:
        return InputError(
            f"the files in {', '.join(runs)} look like several runs",
            hint="name one file per rank of one run",
        )
    problem = f"these look like {len(runs)} runs{file_listing([run or '.' for run in runs])}"
    apart = [run for run in runs if not _contains_another(run, runs)]
    if len(apart) < len(runs):
        # A folder above the others holds them as well: its name does not choose one.
        command = f"tracekit analyze {shlex.quote(apart[0])}"
        return InputError(problem, hint=f"name the files of one run, or its folder: {command}")
    first = shlex.quote(runs[0])
    second = shlex.quote(runs[1])
    roles = [f"--role {shlex.quote(Path(run).name)}={shlex.quote(run)}" for run in runs[:2]]
    return InputError(
        problem,
        hint=f"name one: tracekit analyze {first}; compare two: tracekit diff {first} {second}; "
        f"or, if they ran together: {' '.join(roles)}",
    )


def _contains_another(folder: str, folders: Sequence[str]) -> bool:
    """Return whether another folder lies below this one; the empty name is the working folder.

    >>> _contains_another("", ["", "b"]), _contains_another("a", ["a", "ab"]), _contains_another("a", ["a", "a/b"])
    (True, False, True)
    """
    above = f"{folder}/" if folder else ""
    return any(other != folder and other.startswith(above) for other in folders)


def _check_same(values: dict[str, object], what: str) -> None:
    """Raise InputError if the values by path differ; *what* names the difference."""
    groups: dict[object, list[str]] = defaultdict(list)
    for path, value in sorted(values.items()):
        groups[value].append(path)
    if len(groups) > 1:
        shown = "; ".join(f"{value}: {listing(files, most=2)}" for value, files in groups.items())
        raise InputError(
            f"these traces come from different runs ({what}): {shown}",
            hint="name the files of one run",
        )
