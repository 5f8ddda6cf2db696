"""Redaction of a trace or a folder of traces."""

import os
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tracekit._util.arguments import checked_path
from tracekit._util.files import atomic_write, output_folder
from tracekit._util.text import did_you_mean
from tracekit.errors import InputError, OptionError, OutputError
from tracekit.parsers.discovery import discover
from tracekit.parsers.source_refs import SourceRef
from tracekit.redact.fields import KEEP_OPTIONS
from tracekit.redact.names import NameRedactor

StrPath = str | os.PathLike[str]
SQLITE_SUFFIX = ".sqlite"
_STEM = re.compile(r"\d+|\.(pt|trace|json|gz|sqlite)")
"""What does not tell the files of one role from those of another: numbers and suffixes."""


@dataclass(frozen=True, slots=True)
class Redacted:
    """A file that was written, and what was removed from it."""

    path: Path
    bytes: int
    dropped: dict[str, int]

    def summary(self) -> str:
        """Return what was removed, in words.

        >>> Redacted(Path("x"), 1, {"Python frames": 2142, "texts replaced": 1}).summary()
        '2,142 Python frames, 1 texts replaced'
        """
        return (
            ", ".join(f"{count:,} {what}" for what, count in self.dropped.items() if count)
            or "nothing was removed"
        )


def redact_each(
    path: StrPath, output: StrPath, *, words: Sequence[str] = (), keep: Collection[str] = ()
) -> Iterator[Redacted]:
    """Do as ``redact`` does, and yield each file once it is written: a folder can take minutes.

    >>> import tempfile
    >>> next(redact_each("sample_traces/reload", tempfile.mkdtemp())).path.name
    'rank0.pt.trace.json.gz'
    """
    source = checked_path(path, "path")
    target = checked_path(output, "output")
    for option in keep:
        if option not in KEEP_OPTIONS:
            hint = did_you_mean(option, KEEP_OPTIONS, otherwise=f"one of {', '.join(KEEP_OPTIONS)}")
            raise OptionError(f"--keep {option}: there is no such part", hint=hint)
    if source.exists() and target.exists() and source.resolve() == target.resolve():
        raise OptionError(
            "is the trace itself", path=target, hint="write the redacted trace somewhere else"
        )
    names = NameRedactor(words)  # one for all files: a group has the same pseudonym on every rank
    refs = discover(source, check=False).refs
    _check_readers(refs)
    # A file, or an export that is itself a folder.
    if len(refs) == 1 and Path(refs[0].path) == source:
        yield _redact_file(refs[0], target, names, keep)
        return
    if target.is_file():
        raise OutputError(
            f"is a file, and there are {len(refs)} traces", path=target, hint="name a folder"
        )
    with output_folder(target):
        if len({ref.rank for ref in refs}) < len(refs):
            yield from _redact_roles(refs, source, target, names, keep)
            return
        for ref in refs:
            yield _redact_file(ref, target / _output_name(ref), names, keep)


def _redact_roles(
    refs: Sequence[SourceRef],
    source: Path,
    target: Path,
    names: NameRedactor,
    keep: Collection[str],
) -> Iterator[Redacted]:
    """Redact the files of several processes per rank: each folder becomes role0, role1, …, and so do name stems."""
    keys = [
        (str(Path(ref.path).parent.relative_to(source)), _STEM.sub("", ref.name)) for ref in refs
    ]
    numbers = {key: number for number, key in enumerate(sorted(set(keys)))}
    for position, (ref, key) in enumerate(zip(refs, keys, strict=True)):
        folder = target / f"role{numbers[key]}"
        folder.mkdir(exist_ok=True)
        name = _output_name(ref) if ref.rank is not None else f"trace{position}.pt.trace.json.gz"
        yield _redact_file(ref, folder / name, names, keep)


def _redact_file(
    ref: SourceRef, target: Path, names: NameRedactor, keep: Collection[str]
) -> Redacted:
    source = Path(ref.path)
    if ref.reader == "kineto":
        from tracekit.redact.kineto import redact_kineto

        if not target.name.endswith((".json", ".json.gz")):
            raise OptionError(
                "a PyTorch trace is .json or .json.gz",
                path=target,
                hint="end the output's name with that",
            )
        with atomic_write(target) as part:
            dropped = redact_kineto(
                source, part, names, compress=target.name.endswith(".gz"), keep=keep
            )
    elif ref.reader == "nsight" and source.suffix == SQLITE_SUFFIX:
        from tracekit.redact.nsight import redact_nsight

        if target.suffix != SQLITE_SUFFIX:
            raise OptionError(
                "a redacted report is .sqlite", path=target, hint="end the output's name with that"
            )
        with atomic_write(target) as part:
            dropped = redact_nsight(source, part, names, keep=keep)
    else:
        raise _unredactable_error(ref)
    return Redacted(target, target.stat().st_size, dropped)


def _check_readers(refs: Sequence[SourceRef]) -> None:
    """Raise if one of the files cannot be redacted: nothing is written then."""
    for ref in refs:
        is_report = ref.reader == "nsight" and Path(ref.path).suffix == SQLITE_SUFFIX
        if ref.reader != "kineto" and not is_report:
            raise _unredactable_error(ref)


def _unredactable_error(ref: SourceRef) -> InputError:
    """Return the error about a file that cannot be redacted."""
    problems = {
        "perfetto": ("a Perfetto trace", "export the trace as JSON and redact that"),
        "store": ("a store", "redact the traces it came from"),
        "rocm": ("a recording of ROCm", "record with torch.profiler and redact that"),
    }
    what, hint = problems.get(
        ref.reader, ("this export", "nsys export --type=sqlite, then redact that")
    )
    return InputError(f"{what} cannot be redacted", path=ref.path, hint=hint)


def _output_name(ref: SourceRef) -> str:
    suffix = SQLITE_SUFFIX if ref.reader == "nsight" else ".pt.trace.json.gz"
    return f"rank{ref.rank}{suffix}" if ref.rank is not None else f"trace{suffix}"
