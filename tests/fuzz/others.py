"""Reports, stores and rules nobody wrote: damage is an error in one line, or changes nothing."""

from __future__ import annotations

import contextlib
import json
import random
import sqlite3
from functools import cache
from pathlib import Path

import msgspec
import polars as pl

from tests.stores import write_store
from tracekit.classify import classify, load_rules
from tracekit.diffs.run_samples import DAMAGE_NOTICES
from tracekit.errors import InputError, RuleError, TracekitError
from tracekit.parsers import nsight
from tracekit.schema import EVENTS, LABELLED, RankEvents, Source, conform
from tracekit.store.files import open_store

SAMPLES = Path(__file__).parents[2] / "sample_traces"
READ_TABLES = (
    "CUPTI_ACTIVITY_KIND_KERNEL",
    "CUPTI_ACTIVITY_KIND_RUNTIME",
    "NVTX_EVENTS",
    "StringIds",
)
ID_ENDINGS = ("id", "pid", "tid", "name")
VALUES = (
    None,
    "",
    "abc",
    -1,
    0,
    1,
    2**31,
    2**62,
    2**63 - 1,
    -(2**63),
    0.5,
    1e300,
    b"",
    b"\xff" * 40,
    "9" * 40,
    "\x1b[2J",
)


def one_line(error: TracekitError) -> None:
    if "\n" in error.message:
        raise AssertionError(f"an error of several lines: {error.message}")


LAST_STRING = 400
"""Number of the last string of the report that is changed."""


@cache
def small_report(last_string: int | None = None) -> bytes:
    """A real report cut down to a few rows a table, with its strings up to a number, or with all."""
    small = sqlite3.connect(":memory:")
    with sqlite3.connect(SAMPLES / "nsys-1f1b/rank0.sqlite") as whole:
        whole.backup(small)
    whole.close()
    for (name,) in small.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
        if not name.startswith(("ENUM", "StringIds", "sqlite", "META", "TARGET")):
            small.execute(
                f'DELETE FROM "{name}" WHERE rowid > (SELECT min(rowid) + 30 FROM "{name}")'
            )
    if last_string is not None:
        small.execute("DELETE FROM StringIds WHERE id > ?", (last_string,))
    small.commit()
    small.execute("VACUUM")
    return small.serialize()


def make_nsight(choose: random.Random) -> bytes:
    """The report with cells, columns or tables changed, or bytes."""
    if choose.random() < 0.2:
        data = bytearray(small_report(LAST_STRING))
        for _ in range(choose.randrange(1, 30)):
            data[choose.randrange(len(data))] = choose.randrange(256)
        return bytes(data[: choose.randrange(len(data))] if choose.random() < 0.2 else data)
    made = sqlite3.connect(":memory:")
    made.deserialize(small_report(LAST_STRING))
    tables = [
        name for (name,) in made.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
    ]
    used = [
        t
        for t in tables
        if t.startswith(("CUPTI", "NVTX", "StringIds", "TARGET", "META", "PROC", "DIAG"))
    ]
    for _ in range(choose.randrange(1, 6)):
        table = choose.choice(used)
        columns = [row[1] for row in made.execute(f'PRAGMA table_info("{table}")')]
        kind = choose.randrange(16)
        try:
            if kind == 0:
                made.execute(f'DROP TABLE "{table}"')
                used.remove(table)
            elif kind == 1:
                made.execute(f'ALTER TABLE "{table}" DROP COLUMN "{choose.choice(columns)}"')
            elif kind == 2:
                made.execute(f'DELETE FROM "{table}"')
            elif kind == 3:
                made.execute(f'INSERT INTO "{table}" SELECT * FROM "{table}"')
            elif kind == 4:  # a view under the name of a table, which never ends
                made.execute(f'ALTER TABLE "{table}" RENAME TO "renamed {table}"')
                made.execute(
                    f'CREATE VIEW "{table}" AS WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) '
                    f'SELECT * FROM "renamed {table}", n'
                )
            elif kind < 8:  # ids that point nowhere, at each other, or are no numbers
                column = choose.choice(
                    [name for name in columns if name.lower().endswith(ID_ENDINGS)] or columns
                )
                value = choose.choice(
                    (
                        *VALUES,
                        "rowid",
                        "-rowid",
                        f"rowid % {choose.randrange(1, 9)}",
                        "rowid * 4294967296",
                    )
                )
                is_expression = isinstance(value, str) and "rowid" in value
                made.execute(f'UPDATE "{table}" SET "{column}" = {value if is_expression else "?"}',
                             () if is_expression else (value,))  # fmt: skip
            else:
                where = choose.choice(("", f" WHERE rowid % {choose.randrange(1, 5)} = 0"))
                made.execute(
                    f'UPDATE "{table}" SET "{choose.choice(columns)}" = ?{where}',
                    (choose.choice(VALUES),),
                )
        except sqlite3.Error:
            continue
    made.commit()
    return made.serialize()


def _count_kernels(path: Path) -> tuple[int | None, bool]:
    """Return the rows in the table of kernels (None if it cannot be read), and whether a view has a table's name."""
    with contextlib.closing(sqlite3.connect(path)) as report:
        try:
            views = [
                name
                for (name,) in report.execute("SELECT name FROM sqlite_master WHERE type = 'view'")
            ]
            if views:
                return None, any(name in READ_TABLES for name in views)
            return report.execute("SELECT count(*) FROM CUPTI_ACTIVITY_KIND_KERNEL").fetchone()[
                0
            ], False
        except (sqlite3.Error, UnicodeDecodeError):
            return None, False


def check_nsight(raw: bytes, folder: Path) -> None:
    """Read a report; raise if kernels are lost without a notice, or a view was read."""
    path = folder / "rank0.sqlite"
    path.write_bytes(raw)
    kernels, has_view = _count_kernels(path)
    try:
        parts = nsight.read(path)
    except InputError as error:
        one_line(error)
        return
    assert not has_view, "a view was read"
    read = sum(
        rank_events.events.filter(pl.col("kind") == "kernel").height for rank_events in parts
    )
    notices = {notice.code for rank_events in parts for notice in rank_events.source.notices}
    assert kernels in (None, read) or notices & DAMAGE_NOTICES, (
        f"{read} of {kernels} kernels were read without a notice"
    )
    for rank_events in parts:
        assert rank_events.events.schema == EVENTS
        assert (rank_events.events["end_ns"] >= rank_events.events["start_ns"]).all()
        msgspec.json.encode(rank_events.source)


@cache
def _store() -> tuple[RankEvents, pl.DataFrame]:
    rows = [
        {"id": i, "kind": "kernel", "name": f"k{i % 7}", "start_ns": 10 * i, "end_ns": 10 * i + 5}
        for i in range(300)
    ]
    events = conform(pl.DataFrame(rows), EVENTS)
    labelled = conform(events.with_columns(label=pl.lit("forward")), LABELLED)
    return RankEvents(events, Source("rank0.json", "kineto", 0, "name")), labelled


def make_store(choose: random.Random) -> bytes:
    """Which file, and what to do to it, as JSON."""
    name = choose.choice(
        (
            "tracekit-store.json",
            "rank=0/events.parquet",
            "rank=0/labelled.parquet",
            "rank=0/entry.json",
        )
    )
    changes = [
        (choose.random(), choose.choice("fidc"), choose.randrange(256))
        for _ in range(choose.randrange(1, 4))
    ]
    return json.dumps([name, changes]).encode()


def check_store(raw: bytes, folder: Path) -> None:
    name, changes = json.loads(raw)
    rank, labelled = _store()
    store_folder = folder / "store"
    if not store_folder.exists():
        write_store(store_folder, [rank], labelled=[labelled])
    whole = (store_folder / name).read_bytes()
    data = bytearray(whole)
    for share, kind, value in changes:
        offset = int(share * (len(data) - 1))
        if kind == "f":
            data[offset] ^= 1 << (value % 8)
        elif kind == "i":
            data.insert(offset, value)
        elif kind == "d":
            del data[offset : offset + 1 + value % 50]
        else:
            del data[offset:]
        data = data or bytearray(b" ")
    (store_folder / name).write_bytes(data)
    try:
        store = open_store(store_folder)
        events, labels = store.rank(0).events, store.labelled(0)
    except InputError as error:
        one_line(error)
        return
    finally:
        (store_folder / name).write_bytes(whole)  # the next input finds a sound store
    assert events.equals(rank.events), "other events were read"
    assert labels is not None
    assert labels.equals(labelled), "other labels were read"


PIECES = (
    *(
        "a",
        ".",
        "x*",
        "(a+)+",
        "[a-z]",
        "\\w+",
        "^",
        "$",
        "|",
        "(",
        ")",
        "{3}",
        "{1000}",
        "?",
        "(?i)",
        "(?=x)",
        "\\1",
        "[",
        "\\d",
    ),
    *(
        "nccl",
        "gemm",
        " ",
        "\\",
        "é",
        "(?P<n>a)",
        "(a|aa)*",
        "\\b",
        "(?:",
        "[[:alpha:]]",
        "\\p{L}",
        "(?<!a)",
        "*",
        "+",
    ),
)


def make_rules(choose: random.Random) -> bytes:
    pattern = "".join(choose.choice(PIECES) for _ in range(choose.randrange(1, 12)))
    label = choose.choice(("forward", "dgrad", "other", "nonsense"))
    column = choose.choice(("name", "name", "name", "op", "stream", "nonsense"))
    text = (
        f"[[rule]]\nname = \"mine\"\nlabel = \"{label}\"\nwhen = {{ {column} = '''{pattern}''' }}\n"
    )
    data = bytearray(text.encode())
    while choose.random() < 0.3:
        data[choose.randrange(len(data))] = choose.randrange(256)
    return bytes(data)


@cache
def _kernels() -> pl.DataFrame:
    names = [
        "a" * 3000 + "!",
        "x" * 3000,
        "ncclDevKernel_AllReduce",
        "void gemm<1>(a b c)",
        "é" * 500,
        "",
    ]
    rows = [
        {"id": i, "kind": "kernel", "name": n, "start_ns": i, "end_ns": i + 1}
        for i, n in enumerate(names)
    ]
    return conform(pl.DataFrame(rows), EVENTS)


def check_rules(raw: bytes, folder: Path) -> None:
    path = folder / "rules.toml"
    path.write_bytes(raw)
    try:
        book = load_rules(path)
    except RuleError as error:
        one_line(error)
        return
    assert classify(_kernels(), rules=book)["label"].null_count() == 0
