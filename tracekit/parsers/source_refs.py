"""References to sources before they are read, and what the names of files tell."""

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

import msgspec
from msgspec.structs import replace

from tracekit._util.text import listing

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


_LAST_NUMBER = re.compile(r"(\d{1,7})(?:\.(?:json|pickle|pkl|gz))*$", re.IGNORECASE)


def last_number_in_name(path: str) -> int | None:
    """Return the number that a file's name ends in, before its suffixes; None if it ends otherwise.

    >>> last_number_in_name("dumps/nccl_trace_rank_node02_5"), last_number_in_name("node-7_12.json.gz")
    (5, 12)
    >>> last_number_in_name("run3/dump") is None
    True
    """
    match = _LAST_NUMBER.search(path.replace("\\", "/").rpartition("/")[2])
    return int(match[1]) if match else None


def name_before_number(path: str) -> str:
    """Return a file's name before the number that it ends in: what the dumps of one host have in common.

    >>> name_before_number("dumps/nccl_trace_rank_node02_5.json")
    'nccl_trace_rank_node02_'
    """
    return _LAST_NUMBER.sub("", path.replace("\\", "/").rpartition("/")[2])


Key = TypeVar("Key")
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
        position = positions_in_name(ref.name)
        if ref.rank is None and position is not None:
            positions[ref.path] = position
    numbers = ranks_by_position(positions)
    numbered = []
    for ref in refs:
        if ref.path in numbers:
            numbered.append(replace(ref, rank=numbers[ref.path], rank_from="name"))
        else:
            numbered.append(ref)
    return numbered


def positions_in_name(name: str) -> tuple[int, int, int] | None:
    """Return the positions in pipeline, data and tensor groups that a name tells; None without the last.

    >>> positions_in_name("1716-TP-3-PP-1.trace.json.gz"), positions_in_name("DP-1")
    ((1, 0, 3), None)
    """
    named = {kind: int(number) for kind, number in _POSITION_IN_NAME.findall(name)}
    return (named.get("PP", 0), named.get("DP", 0), named["TP"]) if "TP" in named else None


def ranks_by_position(positions: Mapping[Key, tuple[int, int, int]]) -> dict[Key, int]:
    """Return the rank of each process by its position; empty if two processes have the same.

    >>> ranks_by_position({"a": (0, 0, 1), "b": (0, 0, 0)})
    {'a': 1, 'b': 0}
    """
    numbers = {key: position[-1] for key, position in positions.items()}
    if len(set(numbers.values())) == len(numbers):
        return numbers
    in_order = sorted(set(positions.values()))
    if len(in_order) < len(positions):  # nothing tells them apart
        return {}
    return {key: in_order.index(position) for key, position in positions.items()}


def name_stem(name: str) -> str:
    """Return a file's name without its rank and suffixes.

    >>> name_stem("rollout_rank3.pt.trace.json.gz"), name_stem("rank3.json")
    ('rollout', '')
    """
    for pattern in _RANK_IN_NAME:
        name = pattern.sub("", name)
    return re.sub(r"(\.(pt|trace|json|gz|sqlite))+$", "", name).strip("-_. ")


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
