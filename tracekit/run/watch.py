"""The ``watch`` call: recordings in a folder, each analysed once its files are complete."""

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from tracekit._util.arguments import checked_path
from tracekit.errors import InputError, TracekitError
from tracekit.parsers.source_refs import rank_in_name
from tracekit.results import AnalysisResult
from tracekit.run.analyze import analyze

SETTLED_S = 2.0
"""Seconds without a change after which a file counts as complete."""
WATCHED_PATTERNS = ("*.pt.trace.json", "*.pt.trace.json.gz", "*.json", "*.json.gz", "*.sqlite")


@dataclass(frozen=True, eq=False)
class WatchedRecording:
    """One recording: its files, and its analysis or the error that prevented it."""

    name: str
    files: tuple[Path, ...]
    analysis: AnalysisResult | None = None
    error: TracekitError | None = None
    read_again: bool = False
    """Whether it was read before, and a file has changed since."""
    modified_s: float = 0.0
    """When the last of its files was written, in seconds since 1970."""


def watch(
    folder: str | Path,
    *,
    every_s: float = 2.0,
    idle_s: float | None = None,
    timeline: bool = False,
) -> Iterator[WatchedRecording]:
    """Yield the recordings in *folder* and its subfolders as they become complete, and again if their files change.

    Files of the same rank in one folder are successive recordings, ordered by time.

    Args:
        folder: Folder that traces are written to.
        every_s: Seconds between two looks at the folder.
        idle_s: Seconds without a new recording after which to stop; by default never.
        timeline: Keep single events of each recording, for the timeline of a page.

    >>> [recording.name for recording in watch("sample_traces/steps", idle_s=0)]
    ['a', 'b', 'straggler']

    """
    root = checked_path(folder, "folder")
    if not root.is_dir():
        raise InputError(
            "there is no such folder", path=root, hint="name the folder that traces land in"
        )
    stamps_read: dict[tuple[Path, ...], list[_Stamp]] = {}
    clock = _QuietTimes()
    last_new_s = time.monotonic()
    while True:
        for recording, stamps in _stamped_recordings(root, clock):
            last_stamps = stamps_read.get(recording.files)
            if stamps != last_stamps:
                stamps_read[recording.files] = stamps
                yield _analyzed(
                    replace(recording, read_again=last_stamps is not None),
                    timeline=timeline,
                )
                last_new_s = time.monotonic()
        if idle_s is not None and time.monotonic() - last_new_s >= idle_s:
            return
        time.sleep(every_s)


def _stamped_recordings(
    root: Path, clock: "_QuietTimes"
) -> "list[tuple[WatchedRecording, list[_Stamp]]]":
    """Return the recordings whose files are all complete, with the files' stamps.

    None if a file goes away meanwhile: the next look finds what is there then.
    """
    try:
        stamped = []
        for recording in _complete_recordings(root, clock):
            stamps = [file_stamp(file) for file in recording.files]
            modified_s = max(map(_modified_s, recording.files))
            stamped.append((replace(recording, modified_s=modified_s), stamps))
    except OSError as error:
        if not root.is_dir():
            raise InputError(
                "the folder is gone", path=root, hint="name the folder that traces land in"
            ) from error
        return []
    return stamped


def _analyzed(recording: WatchedRecording, *, timeline: bool) -> WatchedRecording:
    files = [str(file) for file in recording.files]
    try:
        analysis = analyze(files, timeline=timeline, workers=1)
    except TracekitError as error:
        return replace(recording, error=error)
    return replace(recording, analysis=analysis)


_Stamp = tuple[int, int]
"""Size of a file and time of its last change in ns: a file whose stamp is the same has not
changed."""


def file_stamp(file: Path) -> _Stamp:
    """Return size and time of the last change of a file."""
    status = file.stat()
    return status.st_size, status.st_mtime_ns


class _QuietTimes:
    """For how long files have not changed.

    Of a file from the future since when it was first seen as it is.
    """

    def __init__(self) -> None:
        self._first_seen: dict[Path, tuple[_Stamp, float]] = {}

    def quiet_s(self, file: Path) -> float:
        """Return the seconds since the last change of *file*."""
        now_s = time.time()
        modified_s = _modified_s(file)
        if modified_s <= now_s:
            return now_s - modified_s
        stamp = file_stamp(file)
        last_stamp, since_s = self._first_seen.get(file, (None, 0.0))
        if stamp != last_stamp:
            self._first_seen[file] = stamp, now_s
            return 0.0
        return now_s - since_s


def _complete_recordings(root: Path, clock: _QuietTimes) -> list[WatchedRecording]:
    """Return the recordings whose files are all complete, oldest first."""
    folders = [root]
    for path in sorted(root.iterdir()):
        if path.is_dir() and not path.name.startswith("."):
            folders.append(path)
    recordings = []
    for folder in folders:
        recordings.extend(_recordings_in(folder, root, clock))
    return sorted(
        recordings, key=lambda recording: (max(map(_modified_s, recording.files)), recording.name)
    )


def _recordings_in(folder: Path, root: Path, clock: _QuietTimes) -> list[WatchedRecording]:
    files_by_rank: dict[int | None, list[Path]] = {}
    matching: set[Path] = set()
    for pattern in WATCHED_PATTERNS:
        matching.update(folder.glob(pattern))
    for file in sorted(matching):
        if file.is_file() and file.name != "truth.json" and not file.name.startswith("."):
            files_by_rank.setdefault(rank_in_name(file.name), []).append(file)
    if not files_by_rank:
        return []
    for files in files_by_rank.values():
        files.sort(key=lambda file: (_modified_s(file), file.name))
    name = folder.relative_to(root).as_posix() if folder != root else folder.name
    count = max(map(len, files_by_rank.values()))
    recordings = []
    for i in range(count):
        files_of_recording = tuple(files[i] for files in files_by_rank.values() if i < len(files))
        unsettled = any(clock.quiet_s(file) < SETTLED_S for file in files_of_recording)
        # Some ranks of the last of several recordings may not have been written yet.
        incomplete = count > 1 and i == count - 1 and len(files_of_recording) < len(files_by_rank)
        if not unsettled and not incomplete:
            recordings.append(
                WatchedRecording(f"{name} #{i + 1}" if count > 1 else name, files_of_recording)
            )
    return recordings


def _modified_s(file: Path) -> float:
    return file.stat().st_mtime
