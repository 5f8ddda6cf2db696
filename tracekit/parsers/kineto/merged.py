"""Files into which the traces of several ranks were merged, divided into these ranks by process.

SGLang's merger puts a label in front of each process id: ``"[TP00-DP01] 4711"``. The labels become
part of a number while the file is read, and are taken off the table of events again. Others give
each rank process ids of its own and name the processes after the ranks (``RANK 3 - GPU``).
"""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

import polars as pl
from msgspec.structs import replace

from tracekit._loops import warn_if_uncompiled
from tracekit.errors import InputError
from tracekit.parsers.file_type import LABELLED_PROCESS, MERGED_HINT, MERGED_WHAT
from tracekit.parsers.kineto.reader import ScannedFile, rank_of_file, scan_file
from tracekit.parsers.kineto.stream import Stream
from tracekit.parsers.kineto.table import DEVICE_KINDS
from tracekit.parsers.rank_numbers import valid_rank
from tracekit.parsers.source_refs import positions_in_name, ranks_by_position
from tracekit.schema import EVENTS, RankEvents

_LABEL_SHIFT = 40
"""Bits of a process id; the number of its label stands above them."""
_MERGED_BLOCK_BYTES = 1 << 20
_MAX_ID_BYTES = 96
"""Longest process id with its label and key."""
_MAX_NAME_BYTES = 1000
"""Longest event that names a process, on each side of the word ``process_name``."""
_RANK_OF_NAME = re.compile(r"rank[ _#-]{0,2}(\d{1,7})\b", re.IGNORECASE)
_LABEL_OF_POSITION = re.compile(r"([A-Z])(\d)")
UNRANKED = "events of no rank"
"""Key of ``Source.skipped``: events of a merged file whose process is of no rank."""


def read_ranks(
    source: str | Path | BinaryIO, *, stacks: bool = False, lenient: bool = True
) -> list[RankEvents]:
    """Read a file into which the traces of several ranks were merged; return them by rank.

    Raises:
        InputError: The ranks of its processes cannot be told.

    >>> import io
    >>> call = '{"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 1, "dur": 2, "pid": "[TP0%d] 7"}'
    >>> text = '{"traceEvents": [' + call % 0 + ", " + call % 1 + "]}"
    >>> [rank.events.select("rank", "pid").row(0) for rank in read_ranks(io.BytesIO(text.encode()))]
    [(0, 7), (1, 7)]
    """
    warn_if_uncompiled()
    with LabelledStream(source) as stream:
        file = scan_file(stream, stacks=stacks, lenient=lenient)
        rank_of_process = stream.ranks() if stream.labels else _named_processes(stream)
    pids = _processes(file.events)
    working = _processes(
        file.events.filter(pl.col("kind").is_in([*DEVICE_KINDS, "cpu_op", "runtime", "driver"]))
    )
    if stream.labels:
        rank_of_pid = {pid: rank_of_process.get(pid >> _LABEL_SHIFT) for pid in pids}
    else:
        rank_of_pid = {pid: rank_of_process.get(pid) for pid in pids}
    ranks = sorted({rank for rank in rank_of_pid.values() if rank is not None})
    if not ranks or any(rank_of_pid[pid] is None for pid in working):
        raise InputError(MERGED_WHAT, path=file.name, hint=MERGED_HINT)
    parts = []
    for rank in ranks:
        own_pids = [pid for pid, rank_of_own in rank_of_pid.items() if rank_of_own == rank]
        parts.append(_rank_of(file, rank, own_pids, ranks=ranks))
    return parts


def _processes(events: pl.DataFrame) -> list[int]:
    pids: list[int] = events["pid"].drop_nulls().unique().sort().to_list()
    return pids


def _rank_of(file: ScannedFile, rank: int, pids: list[int], *, ranks: list[int]) -> RankEvents:
    """Return the rank with the events of some processes."""
    is_own = pl.col("pid").is_in(pids)
    events = file.events.filter(is_own)
    # Annotations on a GPU say it by the process alone, which was given another number.
    device_of_pid = (
        events.filter(pl.col("kind") == "kernel")
        .drop_nulls(["pid", "device"])
        .unique("pid", keep="first", maintain_order=True)
        .select("pid", of_kernels="device")
    )
    plain_pid = pl.col("pid") & ((1 << _LABEL_SHIFT) - 1)
    device = pl.coalesce("of_kernels", "device", plain_pid.cast(pl.Int32, strict=False))
    is_annotation = pl.col("kind") == "gpu_annotation"
    is_gpu = pl.col("kind").is_in(DEVICE_KINDS)
    own_device = pl.coalesce("device", pl.when(is_gpu).then(plain_pid.cast(pl.Int32, strict=False)))
    events = events.join(device_of_pid, on="pid", how="left", maintain_order="left").with_columns(
        device=pl.when(is_annotation).then(device).otherwise(own_device), pid=plain_pid
    )
    memory = file.memory.filter(is_own).with_columns(pid=plain_pid)
    # The header is that of one rank, with its own groups; its GPUs are listed once per rank.
    header = replace(
        file.header,
        groups=file.header.groups if rank == file.own_rank else (),
        devices=file.header.devices[: max(1, len(file.header.devices) // len(ranks))],
        skipped=_with_unranked(file),
    )
    whole = ScannedFile(file.name, events, memory, rank, header)
    return rank_of_file(
        whole, events.select(EVENTS.names()), memory, number=rank, rank_from="content"
    )


def _with_unranked(file: ScannedFile) -> Mapping[str, int]:
    unranked = file.events["pid"].null_count()
    return {**file.header.skipped, UNRANKED: unranked} if unranked else file.header.skipped


class LabelledStream(Stream):
    """The bytes of a trace, with each labelled process id as one number that holds the label's."""

    def restart(self) -> None:
        """Go back to the first byte."""
        super().restart()
        self.labels: dict[bytes, int] = {}
        """Number of each label, from 1."""
        self._held = b""
        """Read, and perhaps the beginning of a process id."""
        self._ready = b""

    def ranks(self) -> dict[int, int]:
        """Return the rank of each label by its number; empty if labels do not tell the ranks."""
        positions = {}
        for label, number in self.labels.items():
            as_in_names = _LABEL_OF_POSITION.sub(r"\1-\2", label.decode("ascii", "replace"))
            positions[number] = positions_in_name(as_in_names)
        known = {number: position for number, position in positions.items() if position is not None}
        return ranks_by_position(known) if len(known) == len(positions) else {}

    def fill(self, view: memoryview) -> int:
        """Fill *view* as far as the data goes; return how many bytes were written to it."""
        filled = 0
        while filled < len(view) and (self._ready or self._prepare()):
            taken = self._ready[: len(view) - filled]
            view[filled : filled + len(taken)] = taken
            filled += len(taken)
            self._ready = self._ready[len(taken) :]
        return filled

    def _prepare(self) -> bool:
        """Read a block; return whether there was one."""
        block = bytearray(_MERGED_BLOCK_BYTES)
        text = self._held + block[: super().fill(memoryview(block))]
        is_last = len(text) == len(self._held)
        cut = len(text) if is_last else max(0, len(text) - _MAX_ID_BYTES)
        # What begins before the cut ends before it as well.
        begins = text.rfind(b'"pid"', max(0, cut - _MAX_ID_BYTES), cut + 4)
        if not is_last and begins >= 0:
            cut = begins
        self._ready = LABELLED_PROCESS.sub(self._number, text[:cut])
        self._held = text[cut:]
        return bool(self._ready) or not is_last

    def _number(self, match: re.Match[bytes]) -> bytes:
        number = self.labels.setdefault(match[1], len(self.labels) + 1)
        return b'"pid": %d' % ((number << _LABEL_SHIFT) + int(match[2]))


def _named_processes(stream: Stream) -> dict[int, int]:
    """Return the rank of each process whose name says one, from a second look at the file."""
    stream.restart()
    ranks: dict[int, int] = {}
    held = b""
    while block := stream.read(_MERGED_BLOCK_BYTES):
        text = held + block
        for match in re.finditer(b'"process_name"', text):
            first = max(0, match.start() - _MAX_NAME_BYTES)
            event = _event_around(
                text[first : match.end() + _MAX_NAME_BYTES], match.start() - first
            )
            if event is not None:
                ranks[event[0]] = event[1]
        held = text[-2 * _MAX_NAME_BYTES :]
    return ranks


def _event_around(text: bytes, position: int) -> tuple[int, int] | None:
    """Return the process and the rank of the event at *position*; None if it does not name a rank."""
    outer = text.rfind(b"{", 0, position)
    starts = [outer, text.rfind(b"{", 0, outer)] if outer > 0 else [outer]
    for start in starts:
        if start < 0:
            continue
        try:
            event, _ = json.JSONDecoder(strict=False).raw_decode(
                text[start:].decode("utf-8", "replace")
            )
        except (ValueError, RecursionError):
            continue
        if isinstance(event, dict) and event.get("name") == "process_name":
            return _rank_of_process(event)
    return None


def _rank_of_process(event: Mapping[str, object]) -> tuple[int, int] | None:
    """Return a process and its rank, from the event that names it.

    >>> _rank_of_process({"name": "process_name", "pid": 40, "args": {"name": "RANK 3 - GPU"}})
    (40, 3)
    """
    args = event.get("args")
    pid = event.get("pid")
    if not isinstance(args, dict) or not isinstance(pid, int):
        return None
    match = _RANK_OF_NAME.match(str(args.get("name", "")))
    rank = valid_rank(int(match[1])) if match else None
    return None if rank is None else (pid, rank)
