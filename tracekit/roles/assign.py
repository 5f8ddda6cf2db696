"""Roles and ranks of sources, where ranks have several processes.

The caller may name the roles. Otherwise folders or file names tell them, and where they do not, the
content does: what a process works on is its role. A rank that neither a file's content nor its name
tells is found by the bytes that pass from one process to the other through the host, else by the
GPU's number, else by order.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import polars as pl
from msgspec.structs import replace

from tracekit.errors import InputError, Notice, OptionError
from tracekit.metrics.process_phases import find_decode_steps, find_stretches
from tracekit.parsers.kineto.recording_window import recording_window
from tracekit.parsers.source_refs import (
    SourceRef,
    check_single_run,
    file_listing,
    roles_by_name,
    several_runs_error,
)
from tracekit.roles.processes import Process, kind_of_role, share_a_process
from tracekit.schema import PYTORCH_READERS, RankEvents
from tracekit.store.sources import OneRole, Paths, Sources, find, read_ref, separate_captures
from tracekit.weight_updates.transfers import RELOAD_EVENTS, reload_events


def find_roles(
    paths: Paths | OneRole, *, ranks: Collection[int] | None = None, rank: int | None = None
) -> Sources:
    """Return the sources at *paths*, each with its rank and, if ranks have several processes, its role.

    >>> [ref.role for ref in find_roles({"a": "sample_traces/reload", "b": "sample_traces/1f1b"}, ranks=[0])[0]]
    ['a', 'b']
    """
    if isinstance(paths, OneRole):
        sources, notices = find_roles(paths.paths, ranks=ranks, rank=rank)
        return _keep_role(sources, paths.role), notices
    if isinstance(paths, Mapping):
        all_refs: list[SourceRef] = []
        all_notices: list[Notice] = []
        for role, path in paths.items():
            sources, notices = find(path, ranks=ranks, rank=rank)
            all_refs += [replace(ref, role=role) for ref in sources]
            all_notices += notices
        return _with_ranks(all_refs, all_notices)
    sources, notices = find(paths, ranks=ranks, rank=rank)
    refs = list(sources)
    if not any(ref.role for ref in refs):
        try:
            check_single_run(refs)
        except InputError:
            if (replays := separate_captures(refs)) is not None:
                check_single_run(replays)
                return tuple(replays), notices
            named = roles_by_name(refs)
            if named is not None:
                check_recorded_together(named)
            else:
                named = _roles_by_content(refs)
            if named is None:
                raise
            refs = named
        else:
            return sources, notices
    return _with_ranks(refs, list(notices))


def _keep_role(sources: Sequence[SourceRef], role: str) -> tuple[SourceRef, ...]:
    """Return the sources of one role; raise if there are none."""
    kept = tuple(ref for ref in sources if ref.role == role)
    if not kept:
        names = sorted({ref.role for ref in sources if ref.role is not None})
        hint = "ranks have one process each: leave --role out"
        if names:
            hint = f"there are: {', '.join(names)}"
        raise OptionError(f"--role {role}: there is no such role", hint=hint)
    return kept


def check_recorded_together(refs: Sequence[SourceRef]) -> None:
    """Raise if folders that look like roles are several runs, recorded one after the other.

    Nothing is parsed for it.

    The smallest trace of each role is looked at first, the others only if those were not recorded
    at the same time. Where a trace does not say when it was recorded, nothing is decided here.
    """
    if any(ref.url is not None or ref.reader not in PYTORCH_READERS for ref in refs):
        return
    by_role: dict[str | None, list[SourceRef]] = {}
    for ref in sorted(refs, key=lambda ref: ref.bytes):
        by_role.setdefault(ref.role, []).append(ref)
    smallest = [members[0] for members in by_role.values()]
    if _follow_each_other(smallest) and _follow_each_other(refs):
        raise several_runs_error(sorted({str(Path(ref.path).parent) for ref in refs}))


def _follow_each_other(refs: Sequence[SourceRef]) -> bool:
    """Return whether the recording of some role begins after that of another has ended.

    False if any is unknown.
    """
    windows: dict[str | None, tuple[int, int]] = {}
    for ref in refs:
        window = recording_window(ref.path)
        if window is None:
            return False
        first_ns, last_ns = windows.get(ref.role, window)
        windows[ref.role] = (min(first_ns, window[0]), max(last_ns, window[1]))
    ordered = sorted(windows.values())
    return any(next_window[0] >= window[1] for window, next_window in pairwise(ordered))


def _with_ranks(refs: list[SourceRef], notices: list[Notice]) -> Sources:
    """Return the sources of all roles, each with its rank; raise if a role is no run of its own."""
    if any(ref.rank is None and ref.reader in PYTORCH_READERS for ref in refs):
        refs, guessed = _find_ranks(refs)
        notices += guessed
    for role in dict.fromkeys(ref.role for ref in refs):
        check_single_run([ref for ref in refs if ref.role == role])
    order = sorted(
        refs, key=lambda ref: (ref.role or "", ref.rank is None, ref.rank or 0, ref.path)
    )
    return tuple(order), tuple(notices)


def _roles_by_content(refs: Sequence[SourceRef]) -> list[SourceRef] | None:
    """Return the sources with roles by the kind of their work; None if they all do the same.

    Folders that each hold one kind of work name the roles, else the kinds do.
    """
    if len(refs) < 2 or any(ref.reader not in PYTORCH_READERS for ref in refs):
        return None
    contents = [_Content.of(ref) for ref in refs]
    kinds = [content.kind for content in contents]
    is_one_kind = len(set(kinds)) < 2
    if is_one_kind or share_a_process(content.part.source for content in contents):
        return None
    folders = [Path(ref.path).parent.name for ref in refs]
    # Every folder holds one kind of work, and every kind is in one folder.
    pairs = set(zip(folders, kinds, strict=True))
    folders_name_kinds = len(pairs) == len(set(folders)) == len(set(kinds))
    names = folders if folders_name_kinds else kinds
    return [replace(ref, role=name) for ref, name in zip(refs, names, strict=True)]


@dataclass(frozen=True, eq=False)
class _Content:
    """A source that was read to find its role or rank."""

    ref: SourceRef
    part: RankEvents
    kind: str

    @classmethod
    def of(cls, ref: SourceRef) -> _Content:
        from tracekit.classify import classify

        part = read_ref(ref)[0]
        labelled = classify(part.events)
        stretches = find_stretches(labelled)
        transfers = reload_events(labelled)
        process = Process(
            role="",
            rank=part.source.rank,
            stretches=stretches,
            transfers=RELOAD_EVENTS.to_frame() if transfers is None else transfers,
            decode_steps=find_decode_steps(part.events),
            shapes_recorded=bool(part.source.record_shapes),
        )
        return cls(ref, part, kind_of_role([process]))

    def copied_bytes(self, direction: str) -> Counter[int]:
        """Return how often each number of bytes was copied between host and device in this direction (``DtoH``)."""
        copies = self.part.events.filter(
            pl.col("name").cast(pl.String).str.contains(direction), kind="memcpy"
        )
        return Counter(copies["bytes"].drop_nulls().to_list())

    @property
    def device(self) -> int | None:
        """The GPU's number, if it used one."""
        devices = self.part.events.filter(pl.col("kind") == "kernel")["device"].unique()
        return devices.item() if len(devices) == 1 else None


def _find_ranks(refs: Sequence[SourceRef]) -> tuple[list[SourceRef], list[Notice]]:
    """Return the sources with the ranks of those that do not tell theirs, and notices about guesses."""
    rank_of_path: dict[str, int] = {}
    rank_from: dict[str, str] = {}
    notices = []
    for role in dict.fromkeys(ref.role for ref in refs):
        unranked = [ref for ref in refs if ref.role == role and ref.rank is None]
        if not unranked:
            continue
        others = [ref for ref in refs if ref.role != role and ref.rank is not None]
        ranks = _numbers_in_names(unranked) or _match_content(unranked, others)
        how = "matched"
        if ranks is None:
            ranks = _ranks_in_order(unranked, others)
            how = "order"
            notices.append(Notice("role-order", values={"role": role}))
        rank_of_path |= ranks
        rank_from |= dict.fromkeys(ranks, how)
    numbered = []
    for ref in refs:
        if ref.path in rank_of_path:
            numbered.append(
                replace(ref, rank=rank_of_path[ref.path], rank_from=rank_from[ref.path])
            )
        else:
            numbered.append(ref)
    return numbered, notices


def _ranks_in_order(unranked: Sequence[SourceRef], others: Sequence[SourceRef]) -> dict[str, int]:
    """Return by path the ranks of the other roles, in the order of paths.

    Raise if there are more or fewer.
    """
    other_ranks = sorted({ref.rank for ref in others if ref.rank is not None})
    paths = sorted(ref.path for ref in unranked)
    if len(other_ranks) != len(paths):
        problem = f"{len(paths)} files do not say their rank{file_listing([ref.path for ref in unranked])}"
        raise InputError(problem, hint="put the rank into their names: rank0.json, rank1.json, …")
    return dict(zip(paths, other_ranks, strict=True))


def _numbers_in_names(refs: Sequence[SourceRef]) -> dict[str, int] | None:
    """Return the ranks 0, 1, … that the names differ by; None if they differ by anything else.

    >>> _numbers_in_names([SourceRef("gen0.json", "kineto"), SourceRef("gen1.json", "kineto")])
    {'gen0.json': 0, 'gen1.json': 1}
    """
    names_without_numbers = {re.sub(r"\d+", "#", ref.name) for ref in refs}
    if len(names_without_numbers) > 1:
        return None
    numbers_of_names = [re.findall(r"\d+", ref.name) for ref in refs]
    ranks = None
    for digits in zip(*numbers_of_names, strict=True):
        numbers = [int(number) for number in digits]
        if len(set(numbers)) == 1:
            continue
        if ranks is not None or sorted(numbers) != list(range(len(refs))):
            return None
        ranks = numbers
    if ranks is None:
        return None
    return {ref.path: rank for ref, rank in zip(refs, ranks, strict=True)}


def _match_content(
    members: Sequence[SourceRef], others: Sequence[SourceRef]
) -> dict[str, int] | None:
    """Return the ranks of *members* by what they share with one process of another role alone.

    None if unclear.
    """
    contents = [_Content.of(ref) for ref in members]
    ranked = {ref.rank: _Content.of(ref) for ref in others if ref.rank is not None}
    measures: tuple[Callable[[_Content, _Content], int], ...] = (_passed_copies, _same_device)
    for measure in measures:
        ranks: dict[str, int] = {}
        for content in contents:
            rank = _best_match(content, ranked, measure)
            if rank is not None:
                ranks[content.ref.path] = rank
        if len(ranks) == len(set(ranks.values())) == len(members):
            return ranks
    return None


def _best_match(
    content: _Content, ranked: Mapping[int, _Content], measure: Callable[[_Content, _Content], int]
) -> int | None:
    """Return the rank that shares most with *content*; None if none or several do."""
    scores = {rank: measure(content, other) for rank, other in ranked.items()}
    best = max(scores.values(), default=0)
    matching = [rank for rank, score in scores.items() if score == best]
    return matching[0] if best and len(matching) == 1 else None


def _passed_copies(first: _Content, second: _Content) -> int:
    """Return how many copies from one device to the host have as many bytes as copies to the other's device."""
    forth = first.copied_bytes("DtoH") & second.copied_bytes("HtoD")
    back = second.copied_bytes("DtoH") & first.copied_bytes("HtoD")
    return forth.total() + back.total()


def _same_device(first: _Content, second: _Content) -> int:
    return int(first.device is not None and first.device == second.device)
