"""Paths in, one source per rank out: files, folders, globs, URLs, stores and Nsight Systems exports.

A rank is what the file's content says, else what its name says, else what the caller says; one file that says
nothing is rank 0. Two files for one rank and files of different runs are errors that list them.
"""

from __future__ import annotations

import glob
import os
import re
import stat
from collections import defaultdict
from collections.abc import Collection, Iterable
from pathlib import Path

import msgspec
from msgspec.structs import replace

from tracekit._util.text import listing
from tracekit.errors import InputError, Notice, OptionError
from tracekit.parsers import remote
from tracekit.parsers.probe import HEAD_BYTES, NSIGHT_SUFFIXES, TAIL_BYTES, Probe, probe
from tracekit.parsers.ranks import unknown_rank
from tracekit.parsers.refs import DEPTH, SourceRef, check_unmixed, rank_in_name

STORE_MANIFEST = "tracekit-store.json"
_MAYBE_TRACE = re.compile(r"\.(json|json\.gz|sqlite|arrow|nsys-rep|parquetdir|arrowdir)$", re.IGNORECASE)


class Found(msgspec.Struct, frozen=True):
    """What discovery found: the sources, by rank, and how many files beside them are not traces."""

    refs: tuple[SourceRef, ...]
    skipped: int = 0
    notices: tuple[Notice, ...] = ()


def discover(
    paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    *,
    rank: int | None = None,
    ranks: Collection[int] | None = None,
) -> Found:
    """Find the traces at *paths*: one source per rank, ordered by rank.

    *rank* is the rank of a single file that does not say; *ranks* keeps only those.

    >>> [(ref.rank, ref.name) for ref in discover("sample_traces/reload").refs][:2]
    [(0, 'rank0.pt.trace.json.gz'), (1, 'rank1.pt.trace.json.gz')]
    """
    wanted = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
    if not wanted:
        raise OptionError("no path was given", hint="name a trace, a folder of traces or a store")
    expanded = [_expand(os.fspath(path)) for path in wanted]
    refs = _unique(ref for one in expanded for ref in one.refs)
    notices = tuple(notice for one in expanded for notice in one.notices)
    refs = _with_option(refs, rank)
    check_unmixed(refs)
    if ranks is not None:
        refs = _only(refs, ranks)
    order = sorted(refs, key=lambda ref: (ref.rank is None, ref.rank or 0, ref.path))
    return Found(tuple(order), sum(one.skipped for one in expanded), notices)


def _with_option(refs: list[SourceRef], rank: int | None) -> list[SourceRef]:
    if rank is not None:
        if len(refs) != 1:
            raise OptionError(f"--rank names the rank of one file, and there are {len(refs)}", hint="leave it out")
        if refs[0].rank not in (None, rank):
            known = f"its {refs[0].rank_from} says so"
            raise OptionError(f"{refs[0].path}: is rank {refs[0].rank} ({known}), not {rank}", hint="leave --rank out")
        if refs[0].rank is None:
            return [replace(refs[0], rank=rank, rank_from="option")]
    elif len(refs) == 1 and refs[0].rank is None and refs[0].reader == "kineto":
        return [replace(refs[0], rank=0, rank_from="only file")]
    return refs


def _only(refs: list[SourceRef], ranks: Collection[int]) -> list[SourceRef]:
    """Drop what is certainly not wanted; what only reading can tell stays."""
    kept = [ref for ref in refs if ref.rank is None or ref.rank in ranks or ref.reader != "kineto"]
    present = {ref.rank for ref in refs if ref.rank is not None}
    missing = set(ranks) - present
    if missing and all(ref.reader == "kineto" for ref in refs):
        raise unknown_rank(missing, present)
    return kept


def _unique(refs: Iterable[SourceRef]) -> list[SourceRef]:
    """Drop a file that was named twice: `traces/ traces/rank0.json` is not a conflict."""
    return list({ref.path if "://" in ref.path else str(Path(ref.path).resolve()): ref for ref in refs}.values())


def _expand(path: str) -> Found:
    if not path:
        raise InputError("an empty path was given", hint="name a trace or a folder; . means this one")
    if "://" in path:
        return _expand_remote(path)
    if os.path.lexists(path):
        return _from_folder(Path(path)) if _is_folder(Path(path)) and not _is_source(path) else _from_file(path)
    if glob.has_magic(path):
        names = sorted(glob.glob(path, recursive=True))  # noqa: PTH207  # patterns may be absolute
        if not names:
            raise InputError(f"{path}: matches nothing", hint="check the pattern")
        return _from_many(path, [member for name in names for member in _members(Path(name))])
    raise InputError(f"{path}: there is no such file or folder", hint="check the path")


def _is_source(path: str) -> bool:
    """Return whether a folder is itself one source: a store or an exported report."""
    if Path(path).suffix in (".parquetdir", ".arrowdir"):
        return True
    names = (STORE_MANIFEST, "StringIds.parquet", "StringIds.arrow")
    return any(os.path.isfile(f"{path}/{name}") for name in names)  # noqa: PTH113


def _from_file(path: str) -> Found:
    ref, why = _reference(Path(path), path)
    if ref is None:
        closed = why.startswith("cannot be read")
        hint = (
            "check its permissions" if closed else "tracekit reads PyTorch profiler traces and Nsight Systems exports"
        )
        raise InputError(f"{path}: {why}", hint=hint)
    return Found((ref,))


def _from_folder(folder: Path) -> Found:
    members = list(_walk(folder, DEPTH))
    if not members:
        raise InputError(f"{folder}: is an empty folder", hint="name the folder that holds the traces")
    return _from_many(str(folder), members)


def _members(path: Path) -> Iterable[Path]:
    return _walk(path, DEPTH) if _is_folder(path) and not _is_source(str(path)) else [path]


def _walk(folder: Path, depth: int, above: tuple[Path, ...] = ()) -> Iterable[Path]:
    """List the files in a folder and those below it; a link back to a folder *above* leads nowhere new."""
    here = folder.resolve()
    try:
        members = sorted(folder.iterdir())
    except OSError as error:
        if above:
            return  # one closed door in a house of traces
        raise InputError(f"{folder}: cannot be read: {error.strerror}", hint="check its permissions") from error
    for member in members:
        if member.name.startswith("."):
            continue
        if not _is_folder(member) or _is_source(str(member)):
            yield member
        elif depth > 1 and not (member.is_symlink() and member.resolve() in (*above, here)):
            yield from _walk(member, depth - 1, (*above, here))


def _is_folder(path: Path) -> bool:
    """Return whether *path* is a folder; unlike ``Path.is_dir``, False where a folder on the way may not be entered."""
    return os.path.isdir(path)  # noqa: PTH112


def _from_many(asked: str, members: list[Path]) -> Found:
    """Keep the traces among many files; count the others, and name those that look like traces but are not."""
    refs, odd, skipped = [], [], 0
    for member in members:
        ref, why = _reference(member, os.path.relpath(member, asked) if Path(asked).is_dir() else str(member))
        if ref is not None:
            refs.append(ref)
            continue
        skipped += 1
        if _MAYBE_TRACE.search(member.name) and (rank_in_name(member.name) is not None or "trace" in member.name):
            odd.append(f"{member.name} {why}")
    if not refs:
        raise InputError(f"{asked}: holds no traces ({skipped} other files)", hint="name the traces' own folder")
    if len(refs) == 1 and refs[0].rank is None and (number := rank_in_name(refs[0].path)) is not None:
        refs = [replace(refs[0], rank=number, rank_from="name")]  # one file in a folder that is named after a rank
    refs, notices = _one_export_each(refs)
    if odd:
        notices.append(Notice("not-a-trace", f"skipped {listing(odd)}"))
    return Found(tuple(refs), skipped, tuple(notices))


def _one_export_each(refs: list[SourceRef]) -> tuple[list[SourceRef], list[Notice]]:
    """Of one report exported in several formats, keep one."""
    exports: dict[str, list[SourceRef]] = defaultdict(list)
    kept = []
    for ref in refs:
        if ref.reader == "nsight":
            exports[_stem(ref.path)].append(ref)
        else:
            kept.append(ref)
    notices = []
    for several in exports.values():
        best, *others = sorted(several, key=lambda ref: _preference(ref.path))
        kept.append(best)
        if others:
            left = listing(other.name for other in others)
            notices.append(Notice("several-exports", f"read {best.name}; the same report is also there as {left}"))
    return kept, notices


def _stem(path: str) -> str:
    suffix = next((s for s in NSIGHT_SUFFIXES if path.endswith(s)), "")
    return path.removesuffix(suffix)


def _preference(path: str) -> int:
    return next((i for i, suffix in enumerate(NSIGHT_SUFFIXES) if path.endswith(suffix)), len(NSIGHT_SUFFIXES))


def _reference(path: Path, shown: str) -> tuple[SourceRef | None, str]:
    """Return the source at *path*, or why it is not one."""
    try:
        if path.is_dir():
            return _folder_reference(path, shown), ""
        if not stat.S_ISREG((about := path.stat()).st_mode):
            return (
                None,
                "is a pipe or a device; save it as a file first",
            )  # opening a pipe would wait for whoever writes into it
        if not (size := about.st_size):
            return None, "is empty"  # and is not opened: what /proc shows as empty may never answer
        if path.name == STORE_MANIFEST:
            return SourceRef(str(path.parent), "store", bytes=size), ""
        seen = _probe_file(path, size)
    except OSError as error:
        return None, f"cannot be read: {error.strerror}"
    return _as_reference(str(path), shown, seen, size), seen.why


def _folder_reference(path: Path, shown: str) -> SourceRef:
    size = sum(member.stat().st_size for member in path.iterdir() if member.is_file())
    if (path / STORE_MANIFEST).is_file():
        return SourceRef(str(path), "store", bytes=size)
    number = rank_in_name(shown)
    return SourceRef(str(path), "nsight", number, "name" if number is not None else "content", bytes=size)


def _probe_file(path: Path, size: int) -> Probe:
    if path.suffix == ".nsys-rep" and size:
        return Probe("nsight")
    with path.open("rb") as file:
        head = file.read(HEAD_BYTES)
        tail = b""
        if size > HEAD_BYTES and head[:1] in b"{[\xef \n":
            file.seek(max(HEAD_BYTES, size - TAIL_BYTES))
            tail = file.read()
    return probe(head, tail)


def _as_reference(path: str, shown: str, seen: Probe, size: int) -> SourceRef | None:
    if seen.reader is None:
        return None
    if seen.rank is not None:
        return SourceRef(path, seen.reader, seen.rank, "content", seen.world_size, size)
    number = rank_in_name(shown)
    return SourceRef(path, seen.reader, number, "name" if number is not None else "content", seen.world_size, size)


def _expand_remote(url: str) -> Found:
    refs, skipped = [], 0
    files = remote.expand(url, depth=DEPTH)
    for file in files:
        nsight = file.url.endswith((".nsys-rep", ".parquetdir", ".arrowdir"))
        seen = Probe("nsight") if nsight else probe(remote.head(file.url, HEAD_BYTES))
        ref = _as_reference(file.url, file.url, seen, file.bytes)
        if ref is not None:
            refs.append(ref)
        elif len(files) == 1:
            raise InputError(f"{url}: {seen.why}", hint="tracekit reads PyTorch and Nsight Systems traces")
        else:
            skipped += 1
    if not refs:
        raise InputError(f"{url}: holds no traces ({skipped} other files)", hint="name the traces' own folder")
    refs, notices = _one_export_each(refs)
    return Found(tuple(refs), skipped, tuple(notices))
