"""Archive of all ranks for Perfetto: their own files, a manifest with the clock offsets, and tracks of the results.

Perfetto 58 and newer open the archive as one trace on one clock. Files of ranks keep their bytes,
but gzip is undone: Perfetto relates no clocks of compressed members. Each rank is a machine of its
own, because processes of several ranks may have the same number, and GPUs are numbered like
processes.
"""

import io
import re
import tarfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

import msgspec
import numpy as np
from msgspec import UNSET

from tracekit._version import __version__
from tracekit.align.clocks import Clocks
from tracekit.documents.perfetto_manifest import (
    ClockRelation,
    Manifest,
    ManifestDocument,
    ManifestFile,
    ManifestMachine,
    ReferenceClock,
)
from tracekit.documents.store_manifest import StoreEntry
from tracekit.errors import InputError, OptionError
from tracekit.parsers import remote
from tracekit.parsers.kineto.stream import Stream
from tracekit.parsers.source_refs import SourceRef
from tracekit.schema import PYTORCH_READERS
from tracekit.store.files import content_key

MANIFEST_NAME = "perfetto_manifest.json"
RESULTS_NAME = "tracekit.json"
"""Name of the trace with tracekit's results; it comes behind the ranks' names, so that these are
read first."""
MEMBER_SUFFIXES = {"kineto": ".json", "perfetto": ".pftrace"}
CLOCK_NAMES = {"kineto": None, "perfetto": "BOOTTIME"}
"""Clock of a file's times, by its reader; None if the format has no clock."""
MAX_MEMBER_BYTES = 8**11 - 1
"""Largest file that a tar header can describe: eleven octal digits, 8 GB."""
MAX_ROLE_LENGTH = 60
"""Characters of a role in a member's name: Perfetto reads names of up to 99."""
_UNUSUAL_CHARACTERS = re.compile(r"[^\w.-]", re.ASCII)
_ARCHIVE_READ_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class RankFile:
    """File of one rank in the archive."""

    name: str
    """Its path in the archive."""
    machine: str
    rank: int
    reader: str
    trace: SourceRef
    """The trace that was named; what a store says about its origin is not opened."""
    key: str
    """``content_key`` of the trace when it was analysed."""
    base_ns: int
    """Added to the file's own times for nanoseconds since 1970."""
    middle_ns: int
    """Middle of its recording on the rank's clock."""

    @property
    def clock(self) -> str | None:
        """Name of the clock of its times."""
        return CLOCK_NAMES[self.reader]


def describe_rank_file(
    entry: StoreEntry, role: str | None, traces: Mapping[str, tuple[SourceRef, str]]
) -> RankFile:
    """Return the file of a rank.

    *traces* has the traces that were named, and their ``content_key``, by path. Raise if the rank
    is of none of them, if Perfetto cannot read it or it is not known where its clock starts.
    """
    source = entry.source
    if source.reader not in PYTORCH_READERS:
        problem = f"rank {entry.rank}: an archive holds the ranks' own files, and Perfetto reads none of Nsight Systems"
        raise OptionError(problem, hint="write -o FILE.json.gz")
    if source.clock_base_ns is None:
        problem = f"{source.path}: the store does not say where this rank's clock starts"
        raise InputError(problem, hint="export from the traces, or ingest them again")
    trace, key = traces.get(source.path, (None, ""))
    if trace is None or trace.rank not in (None, entry.rank):
        raise no_rank_file_error(f"rank {entry.rank}")
    prefix = "" if role is None else f"{_UNUSUAL_CHARACTERS.sub('-', role)[:MAX_ROLE_LENGTH]}-"
    return RankFile(
        name=f"{prefix}rank{entry.rank}{MEMBER_SUFFIXES[source.reader]}",
        machine=f"rank {entry.rank}" if role is None else f"{role} rank {entry.rank}",
        rank=entry.rank,
        reader=source.reader,
        trace=trace,
        key=key,
        base_ns=source.clock_base_ns,
        middle_ns=((entry.start_ns or 0) + (entry.end_ns or 0)) // 2,
    )


def no_rank_file_error(where: str) -> OptionError:
    """Return the error about a rank of a store, whose own file was not named."""
    problem = f"{where}: an archive holds the ranks' own files, and a store has none"
    return OptionError(
        problem, hint="name the traces instead of the store, or write -o FILE.json.gz"
    )


def name_apart(files: list[RankFile]) -> list[RankFile]:
    """Return the files with a name each: roles may differ in characters alone that names do not hold.

    Names that differ in capitals are alike where the archive is unpacked on some machines.
    """
    named = []
    taken: set[str] = set()
    for file in files:
        stem, suffix = file.name.rsplit(".", 1)
        name = file.name
        number = 1
        while name.lower() in taken:
            number += 1
            name = f"{stem}-{number}.{suffix}"
        taken.add(name.lower())
        named.append(replace(file, name=name))
    return named


def clock_correction_ns(clocks: Clocks, rank: int, time_ns: int) -> int:
    """Return what to add to a rank's time for the common clock.

    With drift, what it is at that time.

    >>> clock_correction_ns(Clocks.recorded([0]), 0, 10**18)
    0
    """
    return int(clocks.to_common(rank, np.array([time_ns]))[0]) - time_ns


def make_manifest(
    files: list[RankFile], clocks: Clocks, *, results_base_ns: int, attributes: dict[str, str | int]
) -> ManifestDocument:
    """Return the manifest: every file's clock related to the first file's, and the trace of results behind them.

    Args:
        files: Files of ranks; times of the first are the archive's.
        clocks: Clocks of the ranks.
        results_base_ns: Time on the common clock that is 0 in the trace of results.
        attributes: What else is known of the archive.
    """
    first = files[0]
    # What a file's time is, plus this, is its time on the common clock.
    to_common = {}
    for file in files:
        correction_ns = clock_correction_ns(clocks, file.rank, file.middle_ns)
        to_common[file.name] = file.base_ns + correction_ns
    reference = ReferenceClock(first.name, UNSET if first.clock is None else first.clock)
    entries = [ManifestFile(path=first.name, machine=ManifestMachine(first.machine))]
    for file in files[1:]:
        relation = ClockRelation(
            clock=UNSET if file.clock is None else file.clock,
            sync_to=reference,
            offset_ns=to_common[file.name] - to_common[first.name],
        )
        entries.append(
            ManifestFile(path=file.name, machine=ManifestMachine(file.machine), clocks=relation)
        )
    relation = ClockRelation(sync_to=reference, offset_ns=results_base_ns - to_common[first.name])
    entries.append(
        ManifestFile(path=RESULTS_NAME, machine=ManifestMachine("tracekit"), clocks=relation)
    )
    manifest = Manifest(
        files=tuple(entries), attributes={"tracekit.version": __version__, **attributes}
    )
    return ManifestDocument(manifest)


class ArchiveWriter:
    """Writer of a tar archive whose bytes depend on its contents alone."""

    def __init__(self, file: BinaryIO) -> None:
        self._tar = tarfile.open(fileobj=file, mode="w", format=tarfile.USTAR_FORMAT)  # noqa: SIM115

    def add_bytes(self, name: str, content: bytes) -> None:
        """Add a member."""
        self._tar.addfile(_member(name, len(content)), io.BytesIO(content))

    def add_path(self, name: str, path: Path) -> None:
        """Add a member that is a file of this machine."""
        with path.open("rb") as file:
            self._tar.addfile(_member(name, path.stat().st_size), file)

    def add_trace(self, file: RankFile) -> None:
        """Add the trace of a rank, inflated if it is compressed."""
        shown = file.trace.path
        if content_key(file.trace) != file.key:
            problem = f"{shown}: changed while it was exported"
            raise InputError(problem, hint="export it again when it is complete")
        with remote.fetch_to_local(file.trace.url or shown) as local:
            with _open_trace(file, local) as stream:
                size = 0
                while data := stream.read(_ARCHIVE_READ_BYTES):
                    size += len(data)
            if size > MAX_MEMBER_BYTES:
                problem = f"{shown}: has more than 8 GB, which an archive cannot hold"
                raise InputError(problem, hint="leave this rank out with --ranks")
            with _open_trace(file, local) as stream:
                self._tar.addfile(_member(file.name, size), stream)

    def close(self) -> None:
        """Write the end of the archive."""
        self._tar.close()


@contextmanager
def _open_trace(file: RankFile, local: str) -> Iterator[Stream]:
    """Open a rank's trace; the error for one that is gone names its rank."""
    try:
        stream = Stream(local)
    except InputError as error:
        problem = f"the trace of rank {file.rank} cannot be read: {error.message}"
        raise InputError(
            problem, hint="an archive holds the ranks' own files: put them back"
        ) from error
    with stream:
        yield stream


def _member(name: str, size: int) -> tarfile.TarInfo:
    """Return the header of a member, without owner and time."""
    member = tarfile.TarInfo(name)
    member.size = size
    return member


def manifest_bytes(document: ManifestDocument) -> bytes:
    """Return the manifest as JSON; it must begin with its key, by which Perfetto knows it."""
    return msgspec.json.format(msgspec.json.encode(document), indent=1) + b"\n"
