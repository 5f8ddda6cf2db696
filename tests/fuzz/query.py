"""SQL over damaged stores: the answer of the sound store, or an error in one line."""

from __future__ import annotations

import json
import random
import shutil
from functools import cache
from pathlib import Path
from typing import Any

import polars as pl

from tests.fuzz.others import one_line
from tests.stores import write_store
from tracekit.errors import TracekitError
from tracekit.run.query import query
from tracekit.schema import EVENTS, LABELLED, RankEvents, Source, conform

FILES = (
    "tracekit-store.json",
    *(
        f"rank={rank}/{name}"
        for rank in (0, 1)
        for name in ("events.parquet", "labelled.parquet", "entry.json")
    ),
)
SQL = {
    "events": "select rank, count(*), sum(end_ns - start_ns), max(name) from events group by 1 order by 1",
    "labelled": "select rank, count(*), sum(end_ns - start_ns) from labelled group by 1 order by 1",
    "ranks": "select rank, rows, start_ns, end_ns from ranks order by rank",
}


def _rank(rank: int) -> tuple[RankEvents, pl.DataFrame]:
    rows = [
        {
            "rank": rank,
            "id": i,
            "kind": "kernel",
            "name": f"k{i % 7}",
            "start_ns": 10 * i,
            "end_ns": 10 * i + 5 + rank,
        }
        for i in range(100)
    ]
    events = conform(pl.DataFrame(rows), EVENTS)
    return RankEvents(events, Source(f"rank{rank}.json", "kineto", rank, "name")), conform(
        events, LABELLED
    )


def make(choose: random.Random) -> bytes:
    """Return the SQL's name and what to do to which files, as JSON."""
    changes = [
        (
            choose.choice(FILES),
            choose.choice("fffidcrom"),
            choose.random(),
            choose.randrange(256),
            choose.choice(FILES),
        )
        for _ in range(choose.randrange(1, 3))
    ]
    return json.dumps([choose.choice(list(SQL)), changes]).encode()


def _damage(file: Path, kind: str, share: float, value: int, other: Path) -> None:
    """Flip a bit, insert, delete or cut bytes, remove the file, or put another file (or a folder) in its place."""
    if not file.is_file():
        return
    data = bytearray(file.read_bytes())
    file.unlink()  # a new inode: what is cached of the old file does not hold
    i = int(share * (len(data) - 1))
    if kind == "r":
        return
    if kind == "m":
        file.mkdir()
        return
    if kind == "o":
        data = bytearray(other.read_bytes()) if other.is_file() else data
    elif kind == "f" and data:  # an earlier change may have left nothing
        data[i] ^= 1 << (value % 8)
    elif kind == "i":
        data.insert(i, value)
    elif kind == "d":
        del data[i : i + 1 + value % 50]
    elif kind == "c":
        del data[i:]
    file.write_bytes(data)


@cache
def _sound_answers(store: Path) -> dict[str, list[tuple[Any, ...]]]:
    """Write the sound store and return its answer to each query."""
    ranks, labelled = zip(*map(_rank, (0, 1)), strict=True)
    write_store(store, list(ranks), labelled=list(labelled))
    answers = {name: query(store, sql).rows() for name, sql in SQL.items()}
    assert all([row[0] for row in rows] == [0, 1] for rows in answers.values())
    return answers


def check(raw: bytes, folder: Path) -> None:
    """Damage a copy of the store and ask it."""
    name, changes = json.loads(raw)
    sound, damaged = folder / "sound", folder / "damaged"
    expected = _sound_answers(sound)[name]
    shutil.rmtree(damaged, ignore_errors=True)
    shutil.copytree(sound, damaged)
    for file, kind, share, value, other in changes:
        _damage(damaged / file, kind, share, value, damaged / other)
    try:
        answer = query(damaged, SQL[name]).rows()
    except TracekitError as error:
        one_line(error)
        return
    assert answer == expected, f"{answer} instead of {expected}"
