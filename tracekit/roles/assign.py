"""Roles and ranks of sources, where ranks have several processes.

The caller may name the roles. Otherwise folders or file names tell them, and where they do not, the
content does: what a process works on is its role. A rank that neither a file's content nor its name
tells is found by the bytes that pass from one process to the other through the host, else by the
GPU's number, else by order.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path

import polars as pl
from msgspec.structs import replace

from tracekit.errors import InputError, Notice, OptionError
from tracekit.metrics.process_phases import find_decode_steps, find_stretches
from tracekit.parsers.discovery import Discovery
from tracekit.parsers.kineto.recording_window import recording_window
from tracekit.parsers.one_run import (
    check_single_run,
    roles_by_name,
    several_runs_error,
    unranked_files_error,
)
from tracekit.parsers.source_refs import SourceRef
from tracekit.roles.processes import Process, kind_of_role, share_a_process
from tracekit.roles.weight_updates.transfers import RELOAD_EVENTS, reload_events
from tracekit.schema import PYTORCH_READERS, RankEvents
from tracekit.store.sources import (
    OneRole,
    PathList,
    Paths,
    find,
    read_ref,
    separate_captures,
)


def find_roles(
    paths: Paths | OneRole, *, ranks: Collection[int] | None = None, rank: int | None = None
) -> Discovery:
    """Return the sources at *paths*, each with its rank and, if ranks have several processes, its role.

    >>> [ref.role for ref in find_roles({"a": "sample_traces/reload", "b": "sample_traces/1f1b"}, ranks=[0]).refs]
    ['a', 'b']
    """
    if isinstance(paths, OneRole):
        discovery = find_roles(paths.paths, ranks=ranks, rank=rank)
        return replace(discovery, refs=_keep_role(discovery.refs, paths.role))
    if isinstance(paths, Mapping):
        return _find_named_roles(paths, ranks=ranks, rank=rank)
    discovery = find(paths, ranks=ranks, rank=rank)
    if any(ref.role for ref in discovery.refs):
        return _with_ranks(discovery)
    try:
        check_single_run(discovery.refs)
    except InputError:
        replays = separate_captures(discovery.refs)
        if replays is not None:
            check_single_run(replays)
            return replace(discovery, refs=tuple(replays))
        refs_with_roles = roles_by_name(discovery.refs)
        if refs_with_roles is not None:
            check_recorded_together(refs_with_roles)
        else:
            refs_with_roles = _roles_by_content(discovery.refs)
        if refs_with_roles is None:
            raise
    else:
        return discovery
    return _with_ranks(replace(discovery, refs=tuple(refs_with_roles)))


def _find_named_roles(
    paths: Mapping[str, PathList], *, ranks: Collection[int] | None, rank: int | None
) -> Discovery:
    """Return the sources of the roles that the caller named, each with its rank and role."""
    refs: list[SourceRef] = []
    notices: list[Notice] = []
    for role, role_paths in paths.items():
        discovery = find(role_paths, ranks=ranks, rank=rank)
        refs += [replace(ref, role=role) for ref in discovery.refs]
        notices += discovery.notices
    return _with_ranks(Discovery(tuple(refs), tuple(notices)))


def group_by_role(refs: Iterable[SourceRef]) -> dict[str | None, list[SourceRef]]:
    """Return the sources of each role, in the order in which roles and sources come."""
    by_role: dict[str | None, list[SourceRef]] = {}
    for ref in refs:
        by_role.setdefault(ref.role, []).append(ref)
    return by_role


def _keep_role(sources: Sequence[SourceRef], role: str) -> tuple[SourceRef, ...]:
    """Return the sources of one role; raise if there are none."""
    by_role = group_by_role(sources)
    if role in by_role:
        return tuple(by_role[role])
    names = sorted(name for name in by_role if name is not None)
    hint = "ranks have one process each: leave --role out"
    if names:
        hint = f"there are: {', '.join(names)}"
    raise OptionError(f"--role {role}: there is no such role", hint=hint)


def check_recorded_together(refs: Sequence[SourceRef]) -> None:
    """Raise if folders that look like roles are several runs, recorded one after the other.

    Nothing is parsed for it.

    The smallest trace of each role is looked at first, the others only if those were not recorded
    at the same time. Where a trace does not say when it was recorded, nothing is decided here.
    """
    for ref in refs:
        if ref.url is not None or ref.reader not in PYTORCH_READERS:
            return
    smallest_first = sorted(refs, key=lambda ref: ref.bytes)
    smallest = [members[0] for members in group_by_role(smallest_first).values()]
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
    return any(start_ns >= end_ns for (_, end_ns), (start_ns, _) in pairwise(ordered))


def _with_ranks(discovery: Discovery) -> Discovery:
    """Return the sources of all roles, each with its rank; raise if a role is no run of its own."""
    refs = list(discovery.refs)
    notices = list(discovery.notices)
    if any(ref.rank is None and ref.reader in PYTORCH_READERS for ref in refs):
        refs, guessed = _find_ranks(refs)
        notices += guessed
    for refs_of_role in group_by_role(refs).values():
        check_single_run(refs_of_role)
    order = sorted(
        refs, key=lambda ref: (ref.role or "", ref.rank is None, ref.rank or 0, ref.path)
    )
    return replace(discovery, refs=tuple(order), notices=tuple(notices))


def _roles_by_content(refs: Sequence[SourceRef]) -> list[SourceRef] | None:
    """Return the sources with roles by the kind of their work; None if they all do the same.

    Folders that each hold one kind of work name the roles, else the kinds do.
    """
    if len(refs) < 2 or any(ref.reader not in PYTORCH_READERS for ref in refs):
        return None
    contents = [_Content.of(ref) for ref in refs]
    kinds = {content.kind for content in contents}
    if len(kinds) < 2 or share_a_process(content.part.source for content in contents):
        return None
    folders = {content.folder for content in contents}
    pairs = {(content.folder, content.kind) for content in contents}
    # Every folder holds one kind of work, and every kind is in one folder.
    folders_name_kinds = len(pairs) == len(folders) == len(kinds)
    refs_with_roles = []
    for content in contents:
        role = content.folder if folders_name_kinds else content.kind
        refs_with_roles.append(replace(content.ref, role=role))
    return refs_with_roles


@dataclass(frozen=True, eq=False)
class _Content:
    """A source that was read to find its role or rank."""

    ref: SourceRef
    part: RankEvents

    @classmethod
    def of(cls, ref: SourceRef) -> _Content:
        return cls(ref, read_ref(ref)[0])

    @cached_property
    def kind(self) -> str:
        """Kind of the process's work; its events are labelled only where this is asked for."""
        from tracekit.classify import classify

        labelled = classify(self.part.events)
        transfers = reload_events(labelled)
        process = Process(
            role="",
            rank=self.part.source.rank,
            stretches=find_stretches(labelled),
            transfers=RELOAD_EVENTS.to_frame() if transfers is None else transfers,
            decode_steps=find_decode_steps(self.part.events),
            shapes_recorded=bool(self.part.source.record_shapes),
        )
        return kind_of_role([process])

    def copied_bytes(self, direction: str) -> Counter[int]:
        """Return how often each number of bytes was copied between host and device in this direction (``DtoH``)."""
        copies = self.part.events.filter(
            pl.col("name").cast(pl.String).str.contains(direction), kind="memcpy"
        )
        return Counter(copies["bytes"].drop_nulls().to_list())

    @property
    def folder(self) -> str:
        """Name of the folder of the source."""
        return Path(self.ref.path).parent.name

    @property
    def device(self) -> int | None:
        """The GPU's number, if it used one."""
        devices = self.part.events.filter(pl.col("kind") == "kernel")["device"].unique()
        return devices.item() if len(devices) == 1 else None


def _find_ranks(refs: Sequence[SourceRef]) -> tuple[list[SourceRef], list[Notice]]:
    """Return the sources with the ranks of those that do not tell theirs, and notices about guesses."""
    ranked = [ref for ref in refs if ref.rank is not None]
    unranked = [ref for ref in refs if ref.rank is None]
    rank_of_path: dict[str, int] = {}
    rank_from: dict[str, str] = {}
    notices = []
    for role, members in group_by_role(unranked).items():
        others = [ref for ref in ranked if ref.role != role]
        ranks = _numbers_in_names(members) or _match_content(members, others)
        how = "matched"
        if ranks is None:
            ranks = _ranks_in_order(members, others)
            how = "order"
            notices.append(
                Notice(
                    "ranks-by-order",
                    (
                        f"the files of role {role} do not say their rank and "
                        "nothing ties them to the other roles: they are numbered "
                        "by name, so that figures of single ranks may be those of "
                        "another rank"
                    ),
                    values={"case": "role", "role": role},
                )
            )
        rank_of_path |= ranks
        rank_from |= dict.fromkeys(ranks, how)
    numbered = []
    for ref in refs:
        path = ref.path
        if path in rank_of_path:
            numbered.append(replace(ref, rank=rank_of_path[path], rank_from=rank_from[path]))
        else:
            numbered.append(ref)
    return numbered, notices


def _ranks_in_order(unranked: Sequence[SourceRef], others: Sequence[SourceRef]) -> dict[str, int]:
    """Return by path the ranks of the other roles, in the order of paths.

    Raise if there are more or fewer.
    """
    other_ranks = sorted({ref.rank for ref in others if ref.rank is not None})
    paths = [ref.path for ref in unranked]
    if len(other_ranks) != len(paths):
        raise unranked_files_error(paths)
    return dict(zip(sorted(paths), other_ranks, strict=True))


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
    paths = [ref.path for ref in refs]
    return dict(zip(paths, ranks, strict=True))


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
