"""New recordings in a folder as they land: each analysed once, its steps compared with the first one's."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tracekit.analysis import Analysis
from tracekit.errors import InputError, TracekitError
from tracekit.parsers.refs import rank_in_name
from tracekit.run.analyze import analyze

SETTLED_S = 2.0
"""A file that has not changed for so long is whole."""
PATTERNS = ("*.pt.trace.json", "*.pt.trace.json.gz", "*.json", "*.json.gz", "*.sqlite")


@dataclass(frozen=True, eq=False)
class Landed:
    """One recording: its files, and its analysis or why there is none."""

    name: str
    files: tuple[Path, ...]
    analysis: Analysis | None = None
    error: TracekitError | None = None


def watch(folder: str | Path, *, every_s: float = 2.0, idle_s: float | None = None) -> Iterator[Landed]:
    """Yield recordings in *folder* (and the folders in it) as they become whole; stop after *idle_s* without one.

    Files of one rank that lie in one folder are recordings one after another, by time.

    >>> [landed.name for landed in watch("sample_traces/steps", idle_s=0)]
    ['a', 'b', 'straggler']
    """
    root = Path(folder)
    if not root.is_dir():
        raise InputError(f"{root}: there is no such folder", hint="name the folder that traces land in")
    seen: set[tuple[str, ...]] = set()
    last = time.monotonic()
    while True:
        for landed in _whole(root, time.time()):
            key = tuple(str(file) for file in landed.files)
            if key in seen:
                continue
            seen.add(key)
            last = time.monotonic()
            yield _analysed(landed)
        if idle_s is not None and time.monotonic() - last >= idle_s:
            return
        time.sleep(every_s)


def _analysed(landed: Landed) -> Landed:
    try:
        return Landed(landed.name, landed.files, analysis=analyze([str(file) for file in landed.files], workers=1))
    except TracekitError as error:
        return Landed(landed.name, landed.files, error=error)


def _whole(root: Path, now_s: float) -> list[Landed]:
    """Return the recordings whose files have all settled, the oldest first."""
    folders = [root, *sorted(path for path in root.iterdir() if path.is_dir() and not path.name.startswith("."))]
    landed = [one for folder in folders for one in _in_folder(folder, root, now_s)]
    return sorted(landed, key=lambda one: (max(file.stat().st_mtime for file in one.files), one.name))


def _in_folder(folder: Path, root: Path, now_s: float) -> list[Landed]:
    by_rank: dict[int | None, list[Path]] = {}
    for file in sorted({file for pattern in PATTERNS for file in folder.glob(pattern) if file.is_file()}):
        if file.name != "truth.json" and not file.name.startswith("."):
            by_rank.setdefault(rank_in_name(file.name), []).append(file)
    if not by_rank:
        return []
    for files in by_rank.values():
        files.sort(key=lambda file: (file.stat().st_mtime, file.name))
    rounds = max(map(len, by_rank.values()))
    landed = []
    for n in range(rounds):
        here = tuple(each[n] for each in by_rank.values() if n < len(each))
        unsettled = any(now_s - file.stat().st_mtime < SETTLED_S for file in here)
        incomplete = len(here) < len(by_rank) and n == rounds - 1 and rounds > 1
        if unsettled or incomplete:
            continue
        name = folder.relative_to(root).as_posix() if folder != root else folder.name
        landed.append(Landed(f"{name} #{n + 1}" if rounds > 1 else name, here))
    return landed
