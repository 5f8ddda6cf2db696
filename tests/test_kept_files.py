"""What is kept for later processes: found whole and for its key, or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from tracekit._util import kept

KEY = kept.digest([b"made of this"])


@pytest.fixture
def files(tmp_path):
    return [tmp_path / "first" / "one.json", tmp_path / "second" / "one.json"]


def test_it_is_found_again_under_its_key(files):
    assert list(kept.found(files, KEY)) == []
    assert kept.keep(files, KEY, b"content")
    assert [file.exists() for file in files] == [True, False]
    assert list(kept.found(files, KEY)) == [b"content"]
    assert list(kept.found(files, kept.digest([b"made of that"]))) == []


@pytest.mark.parametrize(
    "damage", [lambda b: b[:-1], lambda b: b + b"x", lambda b: b[:40] + b"?" + b[41:], lambda _: b""]
)
def test_a_file_that_is_not_whole_is_none(files, damage):
    kept.keep(files, KEY, b"some content")
    files[0].write_bytes(damage(files[0].read_bytes()))
    assert list(kept.found(files, KEY)) == []
    kept.keep(files[1:], KEY, b"some content")
    assert list(kept.found(files, KEY)) == [b"some content"]


def test_where_the_first_cannot_be_written_the_next_is(files, tmp_path):
    (tmp_path / "first").write_text("a file where a folder should be")
    assert kept.keep(files, KEY, b"content")
    assert files[1].exists()
    assert not kept.keep(files[:1], KEY, b"content")


def test_parts_do_not_run_into_each_other():
    assert kept.digest([b"ab", b"c"]) != kept.digest([b"a", b"bc"])


def test_places_follow_what_the_user_says(tmp_path, monkeypatch):
    beside = Path("package")
    monkeypatch.setenv(kept.FOLDER, str(tmp_path))
    assert list(kept.places("x", beside)) == [tmp_path / "x"]
    monkeypatch.delenv(kept.FOLDER)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert list(kept.places("x", beside)) == [beside / "__pycache__" / "x", tmp_path / "tracekit" / "x"]
