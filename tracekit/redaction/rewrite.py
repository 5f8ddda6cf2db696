"""From a trace, or a folder of traces, to copies that may leave the house."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

import msgspec

from tracekit._util.files import atomic_write
from tracekit._util.text import did_you_mean
from tracekit.errors import InputError, OptionError, OutputError
from tracekit.parsers.discovery import discover
from tracekit.parsers.refs import SourceRef
from tracekit.redaction.allowed import KEEPS
from tracekit.redaction.text import Scrubber, host_in_name

SQLITE_SUFFIX = ".sqlite"


class Redacted(msgspec.Struct, frozen=True):
    """One file that was written, and what was removed from it."""

    path: Path
    bytes: int
    dropped: dict[str, int]

    def summary(self) -> str:
        """Return what was removed, in words.

        >>> Redacted(Path("x"), 1, {"Python frames": 2142, "texts replaced": 1}).summary()
        '2,142 Python frames, 1 texts replaced'
        """
        return ", ".join(f"{count:,} {what}" for what, count in self.dropped.items() if count) or "nothing was removed"


def redact(
    path: str | os.PathLike[str],
    output: str | os.PathLike[str],
    *,
    words: Sequence[str] = (),
    keep: Collection[str] = (),
) -> tuple[Redacted, ...]:
    """Write the trace (or each trace of a folder) at *path* to *output*; return what was written, file by file.

    Reads PyTorch profiler traces (``.json``, ``.json.gz``) and Nsight Systems ``.sqlite``. *words* are replaced
    wherever they stand, however short. What an analysis reads stays and everything else goes, except what *keep* names:
    any of ``allowed.KEEPS``. Files of a folder are named after their rank, because names hold host names too.

    >>> import tempfile
    >>> [done.path.name for done in redact("sample_traces/reload", tempfile.mkdtemp())][:2]
    ['rank0.pt.trace.json.gz', 'rank1.pt.trace.json.gz']
    """
    return tuple(redact_each(path, output, words=words, keep=keep))


def redact_each(
    path: str | os.PathLike[str],
    output: str | os.PathLike[str],
    *,
    words: Sequence[str] = (),
    keep: Collection[str] = (),
) -> Iterator[Redacted]:
    """Do as ``redact`` does, yielding each file once it is written: a folder can take minutes.

    >>> import tempfile
    >>> next(redact_each("sample_traces/reload", tempfile.mkdtemp())).path.name
    'rank0.pt.trace.json.gz'
    """
    source, target = Path(path), Path(output)
    for one in keep:
        if one not in KEEPS:
            hint = did_you_mean(one, KEEPS, otherwise=f"one of {', '.join(KEEPS)}")
            raise OptionError(f"--keep {one}: there is no such part", hint=hint)
    if source.exists() and target.exists() and source.resolve() == target.resolve():
        raise OptionError(f"{target}: is the trace itself", hint="write the redacted trace somewhere else")
    sources = discover(source)
    if len(sources.refs) == 1 and Path(sources.refs[0].path) == source:  # a file, or an export that is itself a folder
        yield _redact_file(sources.refs[0], target, Scrubber(words), keep)
        return
    if target.is_file():
        raise OutputError(f"{target}: is a file, and there are {len(sources.refs)} traces", hint="name a folder")
    target.mkdir(exist_ok=True)
    scrubber = Scrubber(words)  # one for all, so that a group has the same name on every rank
    for ref in sources.refs:
        yield _redact_file(ref, target / _harmless_name(ref), scrubber, keep)


def _redact_file(ref: SourceRef, target: Path, run: Scrubber, keep: Collection[str]) -> Redacted:
    scrubber = run.with_names(host_in_name(ref.name))
    if ref.reader == "kineto":
        from tracekit.redaction.kineto import rewrite

        if not target.name.endswith((".json", ".json.gz")):
            raise OptionError(f"{target}: a PyTorch trace is .json or .json.gz", hint="end the output's name with that")
        with atomic_write(target) as part:
            dropped = rewrite(Path(ref.path), part, scrubber, compress=target.name.endswith(".gz"), keep=keep)
    elif ref.reader == "nsight" and ref.path.endswith(SQLITE_SUFFIX):
        from tracekit.redaction.nsight import rewrite as rewrite_sqlite

        if target.suffix != SQLITE_SUFFIX:
            raise OptionError(f"{target}: a redacted report is .sqlite", hint="end the output's name with that")
        with atomic_write(target) as part:
            dropped = rewrite_sqlite(Path(ref.path), part, scrubber, keep=keep)
    else:
        what = "a store" if ref.reader == "store" else "this export"
        hint = (
            "redact the traces it came from" if ref.reader == "store" else "nsys export --type=sqlite, then redact that"
        )
        raise InputError(f"{ref.path}: {what} cannot be redacted", hint=hint)
    return Redacted(target, target.stat().st_size, dropped)


def _harmless_name(ref: SourceRef) -> str:
    suffix = SQLITE_SUFFIX if ref.reader == "nsight" else ".pt.trace.json.gz"
    return f"rank{ref.rank}{suffix}" if ref.rank is not None else f"trace{suffix}"
