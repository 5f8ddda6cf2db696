"""References to sources before they are read, validation of ranks, and the check that sources are ranks of one run."""

import os
import re
import shlex
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Sequence
from itertools import islice
from pathlib import Path

import msgspec
from msgspec.structs import replace

from tracekit._util.text import listing
from tracekit.errors import InputError, OptionError
from tracekit.schema import PYTORCH_READERS, Source

MAX_RANKS = 10_000_000
"""Upper limit of ranks in a run: a larger number in a file is damage, in a command a typing
error."""
MAX_DIGITS = 18
"""Longest number that is read: Python refuses to read very long ones."""
MAX_SHOWN_OPTION_CHARS = 100
"""Characters of an option that a message repeats."""
RankChoice = str | Collection[int]
"""Ranks to read: their numbers, or text such as ``0,4-6``."""


def chosen_ranks(ranks: RankChoice | None) -> tuple[int, ...] | None:
    """Return the numbers of ranks: a collection of them, or numbers and spans, separated by commas.

    >>> chosen_ranks("0,4-6"), chosen_ranks([2, 1]), chosen_ranks(None)
    ((0, 4, 5, 6), (1, 2), None)
    """
    if ranks is None:
        return None
    if isinstance(ranks, str):
        return _numbers_in_text(ranks)
    if not isinstance(ranks, Iterable) or not all(isinstance(rank, int) for rank in ranks):
        raise _no_rank_error(str(ranks), str(ranks))
    return tuple(sorted(ranks))


def _numbers_in_text(text: str) -> tuple[int, ...]:
    numbers: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise _no_rank_error(text, part)
        if max(len(first), len(last)) > MAX_DIGITS or int(last or first) >= MAX_RANKS:
            number = (last or first)[:MAX_SHOWN_OPTION_CHARS]
            problem = f"ranks {text[:MAX_SHOWN_OPTION_CHARS]}: {number} is more than any run has"
            raise OptionError(problem, hint="write 0,2 or 0-7")
        if dash and int(last) < int(first):
            raise _no_rank_error(text, part)
        numbers.update(range(int(first), int(last or first) + 1))
    return tuple(sorted(numbers))


def _no_rank_error(text: str, part: str) -> OptionError:
    problem = f"ranks {text[:MAX_SHOWN_OPTION_CHARS]}: {part.strip()[:MAX_SHOWN_OPTION_CHARS]!r} is not a rank"
    return OptionError(problem, hint="write 0,2 or 0-7")


def valid_rank(value: int | None) -> int | None:
    """Return *value* if it is a possible rank or number of ranks, else None.

    >>> valid_rank(3), valid_rank(3_000_000_000), valid_rank(-1), valid_rank(None)
    (3, None, None, None)
    """
    return value if value is not None and 0 <= value < MAX_RANKS else None


def missing_ranks(present: Collection[int], size: int, *, most: int) -> tuple[int, list[int]]:
    """Return how many of *size* ranks are not *present*, and the first *most* of those.

    >>> missing_ranks({0, 2, 9}, 5, most=2)
    (3, [1, 3])
    """
    valid = {rank for rank in present if 0 <= rank < size}
    # Lazy: a damaged size may be in the millions.
    missing = (rank for rank in range(size) if rank not in valid)
    return size - len(valid), list(islice(missing, most))


def unknown_rank_error(
    requested: Iterable[int], present: Iterable[int], *, where: str = ""
) -> InputError:
    """Return the error for *requested* ranks that are not present, with those that are.

    >>> str(unknown_rank_error([9], [0, 1]))
    'there is no rank 9 (ranks here: 0, 1)'
    >>> str(unknown_rank_error([9], [], where="run.store"))
    'run.store: there is no rank 9 (leave out --ranks to read every rank)'
    """
    available = listing(map(str, sorted(present)), most=8)
    text = f"there is no rank {listing(map(str, sorted(requested)), most=8)}"
    return InputError(
        f"{where}: {text}" if where else text,
        hint=f"ranks here: {available}" if available else "leave out --ranks to read every rank",
    )


MAX_FOLDER_DEPTH = 3
"""Levels of folders that are searched: RUN/HOST/RANK/trace.json is the deepest usual layout."""

_RANK_IN_NAME = (
    re.compile(r"(?<![a-z])rank[-_.=]?(\d{1,7})(?!\d)", re.IGNORECASE),
    re.compile(r"(?<![a-z])worker[-_.=]?(\d{1,7})(?!\d)", re.IGNORECASE),
)


class SourceRef(msgspec.Struct, frozen=True):
    """A file, exported folder or store to read, and its rank as far as known before reading."""

    path: str  # as it is shown and stored: of a URL without user, password and query
    reader: str  # "kineto", "perfetto", "nsight", "store" or one of ``file_type.RECORDINGS``
    rank: int | None = None  # None if only reading it can tell
    rank_from: str = "content"  # as in ``Source``
    world_size: int | None = None
    bytes: int = 0
    role: str | None = None  # of a run whose ranks have several processes
    # Where to read it, if it is not local; may hold secrets, so it is never shown or stored.
    url: str | None = None
    snapshots: "tuple[SourceRef, ...]" = ()  # memory snapshots that may be of the same process
    capture: "SourceRef | None" = None  # trace of the capture of the graphs that this one replays

    @property
    def name(self) -> str:
        """Last part of the path, for messages.

        >>> SourceRef("runs/a/rank0.json", "kineto").name
        'rank0.json'
        """
        return self.path.rstrip("/").rsplit("/", 1)[-1]


def rank_in_name(path: str) -> int | None:
    """Return the rank in the file's name, else in the names of its folders; None if there is none.

    >>> [rank_in_name(n) for n in ("rank3.json", "rank-34.Jul.json.gz", "rank_2/t.json", "worker7_step.json", "t.json")]
    [3, 34, 2, 7, None]
    """
    for part in reversed(path.replace("\\", "/").split("/")[-MAX_FOLDER_DEPTH:]):
        for pattern in _RANK_IN_NAME:
            if numbers := pattern.findall(part):
                return int(numbers[-1])
    return None


_POSITION_IN_NAME = re.compile(r"(?<![A-Za-z])(TP|DP|PP|EP)-(\d{1,6})(?!\d)")
"""Position of a server's process in each kind of parallelism, as in ``1716-TP-3-PP-0.trace.json.gz``."""


def number_by_position(refs: Sequence[SourceRef]) -> list[SourceRef]:
    """Return the sources; files that only name their positions in tensor and pipeline groups get ranks.

    Inference servers number their processes pipeline stage by pipeline stage. Data and expert ranks
    are those of the same processes, unless tensor ranks repeat.

    >>> names = [f"17-TP-{tp}-PP-{pp}.trace.json.gz" for pp in (0, 1) for tp in (0, 1)]
    >>> [ref.rank for ref in number_by_position([SourceRef(name, "kineto") for name in names])]
    [0, 1, 2, 3]
    >>> number_by_position([SourceRef("17-TP-1.trace.json.gz", "kineto")])[0].rank
    1
    """
    positions: dict[str, tuple[int, int, int]] = {}
    for ref in refs:
        named = {kind: int(number) for kind, number in _POSITION_IN_NAME.findall(ref.name)}
        if ref.rank is None and "TP" in named:
            positions[ref.path] = named.get("PP", 0), named.get("DP", 0), named["TP"]
    if not positions:
        return list(refs)
    numbers = {path: position[-1] for path, position in positions.items()}
    if len(set(numbers.values())) < len(numbers):
        in_order = sorted(set(positions.values()))
        if len(in_order) < len(positions):  # two files of one process: nothing tells them apart
            return list(refs)
        numbers = {path: in_order.index(position) for path, position in positions.items()}
    numbered = []
    for ref in refs:
        if ref.path in numbers:
            numbered.append(replace(ref, rank=numbers[ref.path], rank_from="name"))
        else:
            numbered.append(ref)
    return numbered


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
        hint = "put the rank into their names: rank0.json, rank1.json, …"
        raise InputError(
            f"{len(unknown)} files do not say their rank{file_listing(unknown)}", hint=hint
        )


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
    stems = [_name_stem(ref.name) for ref in refs]
    for names in (folders, stems):
        if not names or not all(names) or not _has_each_rank_once(names, refs):
            continue
        if len(set(names)) == processes > 1:
            return [
                msgspec.structs.replace(ref, role=name)
                for ref, name in zip(refs, names, strict=True)
            ]
    return None


def _name_stem(name: str) -> str:
    """Return a file's name without its rank and suffixes.

    >>> _name_stem("rollout_rank3.pt.trace.json.gz"), _name_stem("rank3.json")
    ('rollout', '')
    """
    for pattern in _RANK_IN_NAME:
        name = pattern.sub("", name)
    return re.sub(r"(\.(pt|trace|json|gz|sqlite))+$", "", name).strip("-_. ")


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


def file_listing(paths: Iterable[str], *, most: int = 4) -> str:
    """Return a list of paths for a message, with their common folder mentioned once.

    >>> file_listing(["runs/b/0.json", "runs/a/0.json"]), file_listing(["a.json"])
    (' in runs: a/0.json, b/0.json', ': a.json')
    """
    files = sorted(paths)
    is_remote = any("://" in path for path in files)
    folder = ""
    if "/" in files[0] and not is_remote:
        folder = os.path.commonpath([path.rpartition("/")[0] for path in files])
    if not folder:
        return f": {listing(files, most=most)}"
    in_folder = [path.removeprefix(folder).lstrip("/") for path in files]
    return f" in {folder}: {listing(in_folder, most=most)}"
