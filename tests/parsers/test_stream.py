"""Bytes of plain and gzipped files, whole and damaged."""

from __future__ import annotations

import gzip
import io

import numpy as np
import pytest

from tracekit.errors import InputError
from tracekit.parsers.kineto.stream import Stream

TEXT = b"".join(
    b'{"ph": "X", "ts": %d, "name": "kernel %d"},\n' % (k * 977, k % 89) for k in range(40_000)
)
PACKED = gzip.compress(TEXT)


@pytest.fixture(params=["object", "file"])
def opened(request, tmp_path):
    """Open bytes as a stream: from an object that is somebody else's, or from a file of our own."""

    def open_(raw):
        if request.param == "object":
            return Stream(io.BytesIO(raw))
        (tmp_path / "trace").write_bytes(raw)
        return Stream(tmp_path / "trace")

    return open_


@pytest.fixture
def read(opened):
    """All that a stream gives, in pieces of a size, and whether it was cut short."""

    def read_(raw, size=1 << 17):
        with opened(raw) as stream:
            pieces = list(iter(lambda: stream.read(size), b""))
            return b"".join(pieces), stream.cut_short

    return read_


@pytest.mark.parametrize("size", [1 << 12, 1 << 17, 1 << 23])
def test_all_bytes_come_out(read, size):
    assert read(TEXT, size) == (TEXT, False)
    assert read(PACKED, size) == (TEXT, False)


def test_members_one_after_the_other_are_one_file(read):
    halves = gzip.compress(TEXT[:500_000]) + gzip.compress(TEXT[500_000:])
    assert read(halves) == (TEXT, False)
    assert read(halves + b"\0" * 512) == (TEXT, False), "padding behind the last member is no data"
    assert read(halves + b"left by somebody") == (TEXT, False), "nor is anything else"


@pytest.mark.parametrize("share", [0.01, 0.3, 0.7, 0.999])
def test_of_a_file_that_ends_early_all_that_is_there_comes_out(read, share):
    got, cut = read(PACKED[: int(len(PACKED) * share)])
    assert cut
    assert TEXT.startswith(got)
    assert len(got) > len(TEXT) * share * 0.8


@pytest.mark.parametrize("seed", range(8))
def test_of_a_damaged_file_all_before_the_damage_comes_out(read, seed):
    chance = np.random.default_rng(seed)
    offset = int(chance.integers(len(PACKED) // 4, len(PACKED) - 100))
    spoilt = bytearray(PACKED)
    spoilt[offset : offset + 40] = chance.bytes(40)
    got, cut = read(bytes(spoilt))
    assert cut, "the sum at the end would tell, if nothing did before"
    sound, _ = read(PACKED[:offset])
    assert got[: len(sound) - 70_000] == sound[: len(sound) - 70_000], "but for what a bite holds"


def test_a_disk_that_fails_is_named(tmp_path, monkeypatch):
    class Failing:
        def seek(self, offset):
            return offset

        def read(self, _):
            raise OSError(5, "Input/output error")

    (tmp_path / "trace.gz").write_bytes(PACKED)
    with Stream(tmp_path / "trace.gz") as stream:
        assert stream.read(100) == TEXT[:100]
        with monkeypatch.context() as failing:
            failing.setattr(stream, "file", Failing())
            with pytest.raises(InputError, match=r"trace\.gz: input/output error"):
                stream.read(len(TEXT))


def test_reading_again_starts_from_the_first_byte(opened):
    spoilt = PACKED[:3000] + b"\0" * 40 + PACKED[3040:]
    with opened(spoilt) as stream:
        first = stream.read(2 * len(TEXT))
        assert stream.cut_short
        stream.restart()
        assert not stream.cut_short
        assert stream.read(2 * len(TEXT)) == first
