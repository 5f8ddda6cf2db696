"""Discovery of sources: from files, folders, globs, URLs, stores and Nsight Systems exports to one source per rank.

The rank of a file comes from its content, else from its name, else from the caller; a single file
without any is rank 0. Two files for one rank, and files of different runs, are errors that list
them.
"""

import glob
import os
import re
import stat
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path

import msgspec
from msgspec.structs import replace

from tracekit._util.arguments import checked_paths
from tracekit._util.text import counted, listed, listing, ranks_named
from tracekit.errors import InputError, Notice, NoticeValues, OptionError
from tracekit.parsers import remote
from tracekit.parsers.file_type import (
    FLIGHT_RECORDER,
    HEAD_BYTES,
    MERGED,
    MERGED_WHAT,
    NSIGHT_SUFFIXES,
    RECORDINGS,
    TAIL_BYTES,
    FileType,
    detect_file_type,
    unreadable_file,
)
from tracekit.parsers.one_run import check_single_run
from tracekit.parsers.rank_numbers import unknown_rank_error
from tracekit.parsers.source_refs import (
    MAX_FOLDER_DEPTH,
    SourceRef,
    last_number_in_name,
    number_by_position,
    rank_in_name,
)
from tracekit.schema import PYTORCH_READERS

STORE_MANIFEST = "tracekit-store.json"
_WHAT_IS_READ = (
    "tracekit reads traces of PyTorch's profiler, Nsight Systems and AMD's rpd and rocprofv3"
)
_SUFFIX_OF_TRACES = re.compile(
    r"\.(json|json\.gz|sqlite|arrow|nsys-rep|parquetdir|arrowdir|pftrace|pftrace\.gz|perfetto-trace)$",
    re.IGNORECASE,
)


class Discovery(msgspec.Struct, frozen=True):
    """What is at some paths: sources ordered by rank, and notices about files that are none."""

    refs: tuple[SourceRef, ...]
    notices: tuple[Notice, ...] = ()
    # Dumps, logs and snapshots of the run (``file_type.RECORDINGS``).
    recordings: tuple[SourceRef, ...] = ()


def discover(
    paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    *,
    rank: int | None = None,
    ranks: Collection[int] | None = None,
    check: bool = True,
    need_traces: bool = True,
) -> Discovery:
    """Find the traces at *paths*: one source per rank, ordered by rank.

    And the recordings beside them.

    Args:
        paths: Files, folders, globs, URLs or stores.
        rank: The rank of a single file that does not state it.
        ranks: Ranks to keep; None for all.
        check: Raise if the sources cannot be one rank each of one run.
        need_traces: Raise if there is no trace. Otherwise recordings alone are enough.

    >>> [(ref.rank, ref.name) for ref in discover("sample_traces/reload").refs][:2]
    [(0, 'rank0.pt.trace.json.gz'), (1, 'rank1.pt.trace.json.gz')]
    """
    path_list = checked_paths(paths, "traces")
    if not path_list:
        raise OptionError("no path was given", hint="name a trace, a folder of traces or a store")
    discoveries = [_expand(os.fspath(path), alone=len(path_list) == 1) for path in path_list]
    recordings = _unique(chain.from_iterable(at_path.recordings for at_path in discoveries))
    refs = _unique(chain.from_iterable(at_path.refs for at_path in discoveries))
    refs, merged_notices = _without_merged(refs)
    if not refs and (need_traces or not recordings):
        raise _no_trace_error(path_list, recordings)
    refs = _apply_rank_option(number_by_position(refs), rank)
    if check:
        check_single_run(refs)
    if ranks is not None:
        refs = _select_ranks(refs, ranks)
    return Discovery(
        _by_rank(refs),
        (*chain.from_iterable(at_path.notices for at_path in discoveries), *merged_notices),
        _by_rank(recordings),
    )


def _without_merged(refs: list[SourceRef]) -> tuple[list[SourceRef], list[Notice]]:
    """Return the sources without files into which ranks were merged, where these ranks are there as well."""
    merged = [ref for ref in refs if ref.reader == MERGED]
    single = [ref for ref in refs if ref.reader != MERGED]
    if not merged or not any(ref.reader in PYTORCH_READERS for ref in single):
        return refs, []
    names = tuple(ref.name for ref in merged)
    reasons = (MERGED_WHAT,) * len(names)
    values: NoticeValues = {"case": "found", "files": names, "errors": reasons}
    return single, [Notice("not-a-trace", _skipped_text(names, reasons), values=values)]


def _skipped_text(names: Sequence[str], reasons: Sequence[str]) -> str:
    skipped = (f"{name} {reason}" for name, reason in zip(names, reasons, strict=True))
    return f"skipped {listing(skipped)}"


def _by_rank(refs: Iterable[SourceRef]) -> tuple[SourceRef, ...]:
    """Return sources ordered by rank; those whose rank is not known come last."""
    return tuple(sorted(refs, key=lambda ref: (ref.rank is None, ref.rank or 0, ref.path)))


def _no_trace_error(
    paths: Sequence[str | os.PathLike[str]], recordings: Sequence[SourceRef]
) -> InputError:
    """Return the error for paths without a trace; it names the recordings that are there."""
    if not recordings:
        return InputError(
            f"none of the {len(paths)} files is a trace", hint="name traces, or their folder"
        )
    counts = Counter(RECORDINGS[ref.reader] for ref in recordings)
    kinds = listing(counted(count, kind) for kind, count in counts.items())
    name = os.fspath(paths[0]) if len(paths) == 1 else "these paths"
    them = "it" if len(recordings) == 1 else "them"
    hint = f"tracekit late reads {them}"
    if recordings[0].reader == "memory_snapshot":
        hint = f"tracekit memory shows what fills the GPU; with a profiler trace beside {them}, analyze does"
    return InputError(f"no profiler trace, only {kinds}", path=name, hint=hint)


def _apply_rank_option(refs: list[SourceRef], rank: int | None) -> list[SourceRef]:
    """Give a single file without a rank the rank of the option, or rank 0."""
    if rank is not None:
        if len(refs) != 1:
            raise OptionError(
                f"--file-rank names the rank of one file, and there are {len(refs)}",
                hint="leave it out",
            )
        if refs[0].rank not in (None, rank):
            origin = f"its {refs[0].rank_from} says so"
            raise OptionError(
                f"is rank {refs[0].rank} ({origin}), not {rank}",
                path=refs[0].path,
                hint="leave --file-rank out",
            )
        if refs[0].rank is None:
            return [replace(refs[0], rank=rank, rank_from="option")]
    elif len(refs) == 1 and refs[0].rank is None and refs[0].reader in PYTORCH_READERS:
        return [replace(refs[0], rank=0, rank_from="only file")]
    return refs


def _select_ranks(refs: list[SourceRef], ranks: Collection[int]) -> list[SourceRef]:
    """Return the sources of *ranks*, and those whose ranks only reading can tell."""
    selected = [
        ref for ref in refs if ref.rank in {None, *ranks} or ref.reader not in PYTORCH_READERS
    ]
    present = {ref.rank for ref in refs if ref.rank is not None}
    missing = set(ranks) - present
    if missing and all(ref.reader in PYTORCH_READERS for ref in refs):
        raise unknown_rank_error(missing, present)
    return selected


def _unique(refs: Iterable[SourceRef]) -> list[SourceRef]:
    """Return the sources without repetitions: `traces/ traces/rank0.json` names one file twice."""
    unique = list({ref.url or str(Path(ref.path).resolve()): ref for ref in refs}.values())
    # Addresses that differ in their query alone are shown alike: they are numbered, because paths
    # tell sources apart.
    count_so_far: Counter[str] = Counter()
    for i, ref in enumerate(unique):
        count_so_far[ref.path] += 1
        if ref.url is not None and count_so_far[ref.path] > 1:
            unique[i] = replace(ref, path=f"{ref.path}#{count_so_far[ref.path]}")
    return unique


def _expand(path: str, *, alone: bool) -> Discovery:
    """Return the sources at one path, pattern or URL.

    *alone* tells whether no other path was named.
    """
    if not path:
        raise InputError(
            "an empty path was given", hint="name a trace or a folder; . means this one"
        )
    if "://" in path:
        return _expand_remote(path)
    if os.path.lexists(path):
        if not _is_folder(Path(path)) or _is_source(path):
            return _from_file(path, alone=alone)
        members = list(_walk(Path(path), MAX_FOLDER_DEPTH))
        if not members:
            raise InputError(
                "is an empty folder", path=Path(path), hint="name the folder that holds the traces"
            )
        return _from_many(str(Path(path)), members)
    if glob.has_magic(path):
        names = sorted(glob.glob(path, recursive=True))  # noqa: PTH207  # patterns may be absolute
        if not names:
            raise InputError("matches nothing", path=path, hint="check the pattern")
        return _from_many(path, chain.from_iterable(_members(Path(name)) for name in names))
    raise InputError("there is no such file or folder", path=path, hint="check the path")


def _is_source(path: str) -> bool:
    """Return whether a folder is itself one source: a store or an exported report."""
    if Path(path).suffix in (".parquetdir", ".arrowdir"):
        return True
    names = (STORE_MANIFEST, "StringIds.parquet", "StringIds.arrow")
    return any(os.path.isfile(f"{path}/{name}") for name in names)  # noqa: PTH113


def _from_file(path: str, *, alone: bool) -> Discovery:
    """Return the trace at *path*.

    A file that does not look like one is skipped, unless it was named alone.
    """
    file = Path(path)
    ref = _reference(file, path)
    if isinstance(ref, SourceRef):
        is_recording = ref.reader in RECORDINGS
        return Discovery((), recordings=(ref,)) if is_recording else Discovery((ref,))
    if not alone and not _looks_like_trace(file):
        values: NoticeValues = {"case": "named", "file": file.name, "error": ref.why}
        return Discovery(
            (), (Notice("not-a-trace", (f"skipped {file.name}: {ref.why}"), values=values),)
        )
    hint = ref.hint or _WHAT_IS_READ
    raise InputError(ref.why, path=path, hint=hint)


def _members(path: Path) -> Iterable[Path]:
    is_searched = _is_folder(path) and not _is_source(str(path))
    return _walk(path, MAX_FOLDER_DEPTH) if is_searched else [path]


def _walk(folder: Path, depth: int, above: tuple[Path, ...] = ()) -> Iterable[Path]:
    """Yield the files in a folder and below it; a link back to a folder *above* is not followed."""
    resolved = folder.resolve()
    try:
        members = sorted(folder.iterdir())
    except OSError as error:
        if above:
            return  # a subfolder without permission does not stop the search
        raise InputError(
            f"cannot be read: {error.strerror}", path=folder, hint="check its permissions"
        ) from error
    for member in members:
        if member.name.startswith("."):
            continue
        if not _is_folder(member) or _is_source(str(member)):
            yield member
        elif depth > 1 and not (member.is_symlink() and member.resolve() in (*above, resolved)):
            yield from _walk(member, depth - 1, (*above, resolved))


def _is_folder(path: Path) -> bool:
    """Return whether *path* is a folder.

    Unlike ``Path.is_dir``, False where a folder on the way may not be entered.
    """
    return os.path.isdir(path)  # noqa: PTH112


def _from_many(path: str, members: Iterable[Path]) -> Discovery:
    """Return the traces among many files."""
    is_folder = Path(path).is_dir()
    files = {}
    for member in members:
        shown = os.path.relpath(member, path) if is_folder else str(member)
        files[str(member)] = _reference(member, shown)
    return _discovery(path, files)


def _discovery(path: str, files: Mapping[str, SourceRef | FileType]) -> Discovery:
    """Return the traces among the *files* at *path*; warn about others that look like traces.

    By its own path, *files* has each file's source, or its type if it is none.
    """
    all_refs = [ref for ref in files.values() if isinstance(ref, SourceRef)]
    others = {Path(file): type_ for file, type_ in files.items() if isinstance(type_, FileType)}
    refs = [ref for ref in all_refs if ref.reader not in RECORDINGS]
    recordings = [ref for ref in all_refs if ref.reader in RECORDINGS]
    if not refs and not recordings:
        reasons = []
        for other, file_type in others.items():
            is_damaged = (
                file_type.is_unreadable and _SUFFIX_OF_TRACES.search(other.name) is not None
            )
            if is_damaged or file_type.hint or _looks_like_trace(other):
                reasons.append(f"{other.name} {file_type.why}")
        shown_reasons = f": {listing(reasons, most=2)}" if reasons else ""
        hints = dict.fromkeys(file_type.hint for file_type in others.values() if file_type.hint)
        raise InputError(
            f"holds no traces ({counted(len(others), 'other file')}{shown_reasons})",
            path=path,
            hint=next(iter(hints), "name the traces' own folder"),
        )
    if len(refs) == 1 and refs[0].rank is None:
        # The only file may be in a folder named after a rank.
        number = rank_in_name(refs[0].path)
        if number is not None:
            refs = [replace(refs[0], rank=number, rank_from="name")]
    refs, notices = _drop_duplicate_exports(refs)
    notices += _skipped_files(others, {ref.rank for ref in refs if ref.rank is not None})
    return Discovery(tuple(refs), tuple(notices), tuple(recordings))


def _skipped_files(others: Mapping[Path, FileType], ranks: Collection[int]) -> list[Notice]:
    """Return notices of the files that are not traces but are named like one, or may be what is left of one.

    A file named after a rank of which nothing can be read is that rank's, unless *ranks* has it
    from another file.
    """
    failed_ranks = []
    skipped_names: list[str] = []
    reasons: list[str] = []
    for file, file_type in others.items():
        rank = file_type.rank
        if not _SUFFIX_OF_TRACES.search(file.name):
            continue
        if rank is not None and rank not in ranks and file_type.is_unreadable:
            values: NoticeValues = {
                "case": "rank",
                "path": str(file),
                "error": f"{file.name} {file_type.why}",
            }
            failed_ranks.append(
                Notice(
                    "rank-failed",
                    (f"{ranks_named((rank,))} is left out: {file.name} {file_type.why}"),
                    ranks=(rank,),
                    values=values,
                )
            )
        elif _looks_like_trace(file) or file_type.is_unreadable:
            skipped_names.append(file.name)
            reasons.append(file_type.why)
    if skipped_names:
        values = {"case": "found", "files": tuple(skipped_names), "errors": tuple(reasons)}
        message = _skipped_text(skipped_names, reasons)
        return [*failed_ranks, Notice("not-a-trace", message, values=values)]
    return failed_ranks


def _looks_like_trace(path: Path) -> bool:
    """Return whether a file is named like the trace of a rank."""
    is_named = rank_in_name(path.name) is not None or "trace" in path.name
    return is_named and _SUFFIX_OF_TRACES.search(path.name) is not None


def _drop_duplicate_exports(refs: list[SourceRef]) -> tuple[list[SourceRef], list[Notice]]:
    """Return one source per report where reports were exported in several formats, with a notice about the others."""
    # By report: preference and source.
    exports: dict[str, list[tuple[int, SourceRef]]] = defaultdict(list)
    remaining = []
    for ref in refs:
        if ref.reader != "nsight":
            remaining.append(ref)
            continue
        suffix = next((suffix for suffix in NSIGHT_SUFFIXES if ref.path.endswith(suffix)), "")
        preference = (*NSIGHT_SUFFIXES, "").index(suffix)
        exports[ref.path.removesuffix(suffix)].append((preference, ref))
    notices = []
    for report_exports in exports.values():
        report_exports.sort(key=lambda export: export[0])
        best, *others = [ref for _, ref in report_exports]
        remaining.append(best)
        if others:
            names = tuple(other.name for other in others)
            notices.append(
                Notice(
                    "several-exports",
                    (f"read {best.name}; the same report is also there as {listed(names)}"),
                    values={"file": best.name, "others": names},
                    severity="note",
                )
            )
    return remaining, notices


def _reference(path: Path, shown: str) -> SourceRef | FileType:
    """Return the source at *path*; the type of the file, which tells why, if it is none.

    *shown* is the part of the path that may name a rank.
    """
    size = 0
    try:
        if path.is_dir():
            size = sum(member.stat().st_size for member in path.iterdir() if member.is_file())
            file_type = FileType("store" if (path / STORE_MANIFEST).is_file() else "nsight")
        else:
            status = path.stat()
            size = status.st_size
            file_type = _detect_type(path, status)
    except OSError as error:
        file_type = unreadable_file(
            f"cannot be read: {error.strerror}", hint="check its permissions"
        )
    if file_type.reader == "store":
        folder = path.parent if path.name == STORE_MANIFEST else path
        return SourceRef(str(folder), "store", bytes=size)
    if file_type.is_unreadable:
        return replace(file_type, rank=rank_in_name(shown))
    return _make_reference(str(path), shown, file_type, size)


def _detect_type(path: Path, status: os.stat_result) -> FileType:
    """Return the type of the file at *path*."""
    size = status.st_size
    # Opening a pipe would block until something writes into it.
    if not stat.S_ISREG(status.st_mode):
        return FileType(None, why="is a pipe or a device; save it as a file first")
    if not size:  # not opened: reading a file of /proc with size 0 may block
        return unreadable_file("is empty")
    if path.name == STORE_MANIFEST:
        return FileType("store")
    with path.open("rb") as file:
        head = file.read(HEAD_BYTES)
        tail = b""
        if size > HEAD_BYTES and head[:1] in b"{[\xef \n":
            file.seek(max(HEAD_BYTES, size - TAIL_BYTES))
            tail = file.read()
    file_type = detect_file_type(head, tail)
    # The format of Nsight Systems' reports is not documented: these alone are told by their name.
    is_report = path.suffix == ".nsys-rep" and file_type.reader is None and not file_type.hint
    return FileType("nsight") if is_report else file_type


def _make_reference(
    path: str, shown: str, file_type: FileType, size: int, *, url: str | None = None
) -> SourceRef | FileType:
    """Return the source at *path*, or the type of the file if it is none."""
    if file_type.reader is None:
        return file_type
    rank = file_type.rank
    rank_from = "content"
    if rank is None:
        rank = rank_in_name(shown)
        if rank is None and file_type.reader == FLIGHT_RECORDER:
            # PyTorch writes the rank last, behind a prefix and perhaps the name of the host.
            rank = last_number_in_name(shown)
        if rank is not None:
            rank_from = "name"
    return SourceRef(path, file_type.reader, rank, rank_from, file_type.world_size, size, url=url)


def _expand_remote(url: str) -> Discovery:
    """Return the sources behind a URL."""
    files: dict[str, SourceRef | FileType] = {}
    for file_url, size in remote.list_files(url, depth=MAX_FOLDER_DEPTH).items():
        path = remote.public_url(file_url)
        is_nsight = path.endswith((".nsys-rep", ".parquetdir", ".arrowdir"))
        file_type = (
            FileType("nsight")
            if is_nsight
            else detect_file_type(remote.read_head(file_url, HEAD_BYTES))
        )
        files[file_url] = _make_reference(path, path, file_type, size, url=file_url)
    shown = remote.public_url(url)
    first, *others = files.values()
    if isinstance(first, FileType) and not others:
        raise InputError(first.why, path=shown, hint=first.hint or _WHAT_IS_READ)
    return _discovery(shown, files)
