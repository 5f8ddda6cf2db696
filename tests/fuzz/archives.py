"""Archives of ranks with odd roles, numbers and files: read back, every member is a plain file of its own name."""

from __future__ import annotations

import gzip
import io
import json
import random
import tarfile
from pathlib import Path

from tests.fuzz.others import one_line
from tracekit.align.clocks import Clocks
from tracekit.documents.store_manifest import StoreEntry
from tracekit.errors import TracekitError
from tracekit.parsers.source_refs import SourceRef
from tracekit.report.perfetto.archive import (
    MANIFEST_NAME,
    RESULTS_NAME,
    ArchiveWriter,
    describe_rank_file,
    make_manifest,
    manifest_bytes,
    name_apart,
)
from tracekit.schema import Source
from tracekit.store.files import content_key

ROLES = (
    *(None, None, "trainer", "rollout 1", "rollout-1", "rollout_1", "..", ".", "", "/etc", "a/b"),
    *("../../x", "C:\\x", "é" * 40, "x" * 99, "x" * 98 + "y", "\n", "-", "con", "tracekit"),
    *("perfetto_manifest.json", "a\0b", "\u202e", "Rollout-1", "x" * 59 + "/", "x" * 59 + "-"),
)
RANKS = (0, 1, 2, 7, 10**6, 2**31 - 1)
TIMES = (None, 0, 1, 10**18, 2**62)
BASES = (0, 1, 1_700_000_000_000_000_000, 2**61, -1)
MAX_NAME_CHARS = 99
"""Characters of a member's name that Perfetto reads."""


def make(choose: random.Random) -> bytes:
    """Return the files of some ranks as JSON: role, rank, reader, times, and content."""
    files = []
    for _ in range(choose.randrange(1, 6)):
        content = choose.choice(("{}", "", '{"traceEvents": []}', "x" * choose.randrange(3000)))
        times = [choose.choice(TIMES), choose.choice(TIMES), choose.choice(BASES)]
        reader = choose.choice(("kineto", "kineto", "perfetto", "nsight"))
        packed = choose.random() < 0.3
        files.append([choose.choice(ROLES), choose.choice(RANKS), reader, times, content, packed])
    return json.dumps(files).encode()


def check(raw: bytes, folder: Path) -> None:
    """Write an archive and read it back."""
    files = []
    contents: list[bytes] = []
    seen = set()
    target = io.BytesIO()
    try:
        for number, (role, rank, reader, times, content, packed) in enumerate(json.loads(raw)):
            if (role, rank) in seen:
                continue  # a store has each rank of a role once
            seen.add((role, rank))
            path = folder / f"source{number}"
            data = content.encode()
            path.write_bytes(gzip.compress(data) if packed else data)
            start_ns, end_ns, base_ns = times
            source = Source(str(path), reader, rank, "name", clock_base_ns=base_ns)
            entry = StoreEntry(rank, 0, 0, start_ns, end_ns, source)
            trace = SourceRef(str(path), reader, rank)
            traces = {str(path): (trace, content_key(trace))}
            file = describe_rank_file(entry, role, traces)
            files.append(file)
            contents.append(data)
        files = name_apart(files)
        clocks = Clocks.recorded([file.rank for file in files])
        manifest = make_manifest(files, clocks, results_base_ns=0, attributes={})
        archive = ArchiveWriter(target)
        archive.add_bytes(MANIFEST_NAME, manifest_bytes(manifest))
        for file in files:
            archive.add_trace(file)
        archive.add_bytes(RESULTS_NAME, b"{}")
        archive.close()
    except TracekitError as error:
        one_line(error)
        return
    target.seek(0)
    with tarfile.open(fileobj=target) as read_back:
        members = read_back.getmembers()
        names = [member.name for member in members]
        assert len({name.lower() for name in names}) == len(names), f"a name twice: {names}"
        content_of = {file.name: data for file, data in zip(files, contents, strict=True)}
        assert names[0] == MANIFEST_NAME
        for member in members:
            assert member.isfile(), f"{member.name} is no file"
            assert "/" not in member.name, f"{member.name} is in a folder"
            assert "\\" not in member.name, f"{member.name} is in a folder on Windows"
            assert member.name.isascii(), f"{member.name} is not ASCII"
            assert len(member.name) <= MAX_NAME_CHARS, f"{member.name} is too long"
            opened = read_back.extractfile(member)
            assert opened is not None
            if member.name in content_of:
                assert opened.read() == content_of[member.name], f"{member.name} has other bytes"
        listed = json.loads(read_back.extractfile(MANIFEST_NAME).read())  # type: ignore[union-attr]
    text = json.dumps(listed)
    for name in names[1:]:
        assert json.dumps(name) in text, f"{name} is not in the manifest"
