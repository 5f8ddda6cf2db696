"""Folders that cannot be written and files that go away while they are read: one line, and nothing lying around."""

from __future__ import annotations

import ctypes
import errno
import gzip
import os
import shutil
import stat
import subprocess
import sys
import time

import pytest

import tracekit
from tracekit.errors import InputError
from tracekit.parsers.kineto.stream import Stream
from tracekit.report.notices import notice_sentence
from tracekit.run import watch as watching

SOON_S = 120
DROP_FROM_BOUNDING_SET, MAY_WRITE_ANYWHERE = 24, 1

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        sys.platform != "linux", reason="takes a right from the superuser, as Linux does it"
    ),
]


def as_anyone():
    """Take from the superuser, who may run the tests, the right to write where the mode forbids it."""
    if os.geteuid() == 0:
        ctypes.CDLL(None).prctl(DROP_FROM_BOUNDING_SET, MAY_WRITE_ANYWHERE, 0, 0, 0)


def run(*words, **environment):
    return subprocess.run(
        [sys.executable, "-m", "tracekit", *map(str, words)],
        capture_output=True,
        text=True,
        timeout=SOON_S,
        check=False,
        preexec_fn=as_anyone,
        env={**os.environ, **environment},
    )


@pytest.fixture
def locked(tmp_path, samples):
    """A folder with a trace in it that nobody may write to."""
    folder = tmp_path / "locked"
    folder.mkdir()
    shutil.copy(samples / "reload/rank0.pt.trace.json.gz", folder)
    folder.chmod(stat.S_IRUSR | stat.S_IXUSR)
    probe = subprocess.run(
        ["/bin/sh", "-c", f": > {folder}/x"], capture_output=True, check=False, preexec_fn=as_anyone
    )
    if probe.returncode == 0:
        folder.chmod(stat.S_IRWXU)
        pytest.skip("this machine lets the superuser write everywhere")
    yield folder
    folder.chmod(stat.S_IRWXU)


@pytest.mark.parametrize(
    "words",
    [
        ["ingest", "{}", "-o", "{}/store"],
        pytest.param(["export", "{}", "-o", "{}/out.json"], marks=pytest.mark.nightly),
        pytest.param(["redact", "{}", "-o", "{}/out"], marks=pytest.mark.nightly),
        pytest.param(["analyze", "{}", "-o", "{}/out.html"], marks=pytest.mark.nightly),
    ],
    ids=lambda words: words[0],
)
def test_a_folder_that_cannot_be_written_is_one_line(locked, words):
    done = run(*(word.format(locked) for word in words))
    assert done.returncode == 2, done.stderr
    assert done.stderr.count("\n") == 1
    assert "permission" in done.stderr.lower()
    assert [path.name for path in locked.iterdir()] == ["rank0.pt.trace.json.gz"]


@pytest.mark.nightly
def test_a_folder_that_cannot_be_written_can_be_read(locked):
    done = run("analyze", locked, "--json", "--schedule", "none")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == tracekit.analyze(locked, schedule="none").to_json().strip()


class GoesAway:
    """A file on a network whose server forgets it after the first bytes."""

    def __init__(self, file):
        self.file, self._reads = file, 0

    def __getattr__(self, name):
        return getattr(self.file, name)

    def _gone(self):
        self._reads += 1
        if self._reads > 1:
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

    def read(self, size):
        self._gone()
        return self.file.read(min(size, 1000))

    def readinto(self, view):
        self._gone()
        return self.file.readinto(view)


@pytest.fixture
def four(tmp_path, samples):
    def make(*, packed):
        for rank in range(4):
            raw = (samples / f"reload/rank{rank}.pt.trace.json.gz").read_bytes()
            name = f"rank{rank}.json.gz" if packed else f"rank{rank}.json"
            (tmp_path / name).write_bytes(raw if packed else gzip.decompress(raw))
        return tmp_path

    return make


@pytest.mark.parametrize(
    "packed",
    [True, pytest.param(False, marks=pytest.mark.nightly)],
    ids=["packed", "plain"],
)
def test_a_file_that_goes_away_while_it_is_read_is_left_out_and_named(four, packed, monkeypatch):
    folder, restart = four(packed=packed), Stream.restart

    def vanish(self, **how):
        if "rank2" in self.name and not isinstance(self.file, GoesAway):
            self.file = GoesAway(self.file)
        restart(self, **how)

    monkeypatch.setattr(Stream, "restart", vanish)
    result = tracekit.analyze(folder, schedule="none")
    assert [one.rank for one in result.ranks] == [0, 1, 3]
    (message,) = [
        notice_sentence(notice) for notice in result.notices if notice.code == "rank-failed"
    ]
    assert "rank2" in message
    assert "stale file handle" in message
    assert "\n" not in message


class Slow:
    """A file on a network that hands out a few bytes at a time, each after a while."""

    def __init__(self, file):
        self.file = file
        self.waits = 0

    def __getattr__(self, name):
        return getattr(self.file, name)

    def _wait(self):
        self.waits += 1
        time.sleep(0.001)

    def read(self, size=-1):
        self._wait()
        return self.file.read(size if size < 0 else min(size, 700))

    def readinto(self, view):
        self._wait()
        return self.file.readinto(memoryview(view)[:700])


@pytest.mark.nightly
@pytest.mark.parametrize("packed", [True, False], ids=["packed", "plain"])
def test_a_slow_file_gives_the_same_events(four, packed, monkeypatch):
    folder, restart, slow = four(packed=packed), Stream.restart, []
    expected = tracekit.load(folder, ranks=[2]).rank(2).events

    def slow_down(self, **how):
        if not isinstance(self.file, Slow):
            self.file = Slow(self.file)
            slow.append(self.file)
        restart(self, **how)

    monkeypatch.setattr(Stream, "restart", slow_down)
    assert tracekit.load(folder, ranks=[2]).rank(2).events.equals(expected)
    assert sum(file.waits for file in slow) > 10


def test_a_file_that_shrinks_while_it_is_read_is_cut_and_says_so(four, monkeypatch):
    folder, restart = four(packed=False), Stream.restart_file

    def shrink(self, _):
        restart(self, read_bytes=1000)
        if "rank2" in self.name:
            os.truncate(self.name, 40_000)

    monkeypatch.setattr(Stream, "restart_file", shrink)
    got = tracekit.load(folder, ranks=[2]).rank(2)
    assert 0 < got.events.height < 280
    assert "truncated" in {notice.code for notice in got.source.notices}


@pytest.fixture
def watched(tmp_path, samples, monkeypatch):
    """A folder with the recording of two ranks."""
    monkeypatch.setattr(watching, "SETTLED_S", 0.0)
    folder = tmp_path / "watched"
    folder.mkdir()
    for rank in (0, 1):
        shutil.copy(samples / f"reload/rank{rank}.pt.trace.json.gz", folder)
    return folder


def test_a_recording_that_goes_away_while_it_is_watched_does_not_end_the_watch(
    watched, monkeypatch
):
    real_stamp = watching.file_stamp
    first = sorted(watched.glob("*.gz"))[0]
    calls = []

    def stamp_of_what_goes_away(file):
        calls.append(file)
        if len(calls) == 1:
            first.rename(first.with_suffix(".gone"))
        elif len(calls) == 2:
            first.with_suffix(".gone").rename(first)
        return real_stamp(file)

    monkeypatch.setattr(watching, "file_stamp", stamp_of_what_goes_away)
    *_, recording = watching.watch(watched, every_s=0, idle_s=0.5)
    assert len(recording.files) == 2
    assert recording.analysis is not None
    assert recording.modified_s > 0


def test_a_watched_folder_that_goes_away_is_one_line(watched, monkeypatch):
    monkeypatch.setattr(watching.time, "sleep", lambda _: shutil.rmtree(watched))
    with pytest.raises(InputError, match="the folder is gone"):
        list(watching.watch(watched, idle_s=60))
