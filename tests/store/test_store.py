"""The store reads back what was written: same rows, same types, same sources; never half of it."""

from __future__ import annotations

import json
import os
from dataclasses import replace

import msgspec
import numpy as np
import polars as pl
import pyarrow.parquet as pq
import pytest
from msgspec import structs

import tracekit
from tests.reference import read
from tests.stores import reseal, write_store
from tracekit.errors import InputError, MachineError, Notice, OutputError, TracekitError
from tracekit.schema import (
    EVENTS,
    LABELLED,
    LATEST_NS,
    MEMORY,
    ProcessGroup,
    RankEvents,
    Source,
    conform,
)
from tracekit.store.checks import MAX_TOTAL, check_size, check_table
from tracekit.store.files import MANIFEST, is_store, open_store, read_entry, write_rank
from tracekit.store.writer import StoreWriter, replace_store


def source(rank):
    return Source(
        path=f"rank{rank}.json",
        reader="kineto",
        rank=rank,
        rank_from="content",
        world_size=2,
        devices=("GPU",),
        versions={"nccl": "2.28.9"},
        groups=(ProcessGroup("1", None, (0, 1)), ProcessGroup("2", "tp", ())),
        counts={"kernel": 3},
        notices=(Notice("truncated", values={"case": "list", "cut_event": False}),),
    )


@pytest.fixture(scope="module")
def ranks(samples):
    return [
        RankEvents(read(samples / f"reload/rank{r}.pt.trace.json.gz"), source(r)) for r in (0, 1)
    ]


@pytest.fixture
def store(tmp_path, ranks):
    return write_store(tmp_path / "store", ranks)


def test_events_and_sources_come_back_identical(store, ranks):
    for rank in ranks:
        back = store.rank(rank.source.rank)
        assert back.source == rank.source
        assert back.events.schema == EVENTS
        assert back.events.equals(rank.events)


def test_labelled_events_come_back_identical(tmp_path, ranks):
    labelled = [
        conform(r.events.with_columns(label=pl.lit("other"), confidence=pl.lit(0.5)), LABELLED)
        for r in ranks
    ]
    store = write_store(tmp_path / "store", ranks, labelled=labelled, labelled_by="me")
    assert store.labelled_by == "me"
    assert store.labelled(1).equals(labelled[1])
    assert store.labelled(1).schema == LABELLED


def test_a_rank_is_scanned_without_reading_it_all(store, ranks):
    kernels = store.scan(1).filter(pl.col("kind") == "kernel").select("name").collect()
    assert kernels.height == (ranks[1].events["kind"] == "kernel").sum() > 0


def test_the_dataset_is_plain_hive_partitioned_parquet(store, ranks):
    every = pl.scan_parquet(store.path / "**/events.parquet", hive_partitioning=True).collect()
    assert every.height == sum(r.events.height for r in ranks)
    assert sorted(every["rank"].unique()) == [0, 1]
    metadata = pl.read_parquet_metadata(store.path / "rank=1/events.parquet")
    assert msgspec.json.decode(metadata["tracekit.source"], type=Source) == ranks[1].source


COLUMN_VALUES = {
    pl.Int64: [-(2**63), 2**63 - 1, None, 0, -1],
    pl.Int32: [-(2**31), 2**31 - 1, None, 0, -1],
    pl.Float32: [0.5, None, float("nan"), float("inf"), -0.0],
    pl.Categorical: ["gemm", "", None, "\N{SNOWMAN} é", "gemm"],
}
"""Five values of each column type but Enum, which lists its own."""


CHECKED_VALUES = {
    "rank": [0] * 5,
    "id": [0, 1, 2, 3, 2**32 - 1],
    "kind": ["kernel"] * 5,
    "start_ns": [1 - LATEST_NS, 0, 1, 2, LATEST_NS - 1],
    "end_ns": [1 - LATEST_NS, 0, 10**9, 2, LATEST_NS - 1],
    "at_ns": [1 - LATEST_NS, 0, 1, 2, LATEST_NS - 1],
    "launch_ns": [1 - LATEST_NS, None, 1, 2, LATEST_NS - 1],
    "label": ["forward"] * 5,
}
"""Values of the columns that are checked when a table is read."""


def enum_values(dtype):
    return [dtype.categories[0], None, dtype.categories[-1], None, None]


def table_of(schema, rows):
    """Return a table of *rows* rows in which every column holds extreme values and nulls, as far as it may."""
    columns = {
        name: enum_values(dtype) if dtype == pl.Enum else COLUMN_VALUES[dtype.base_type()]
        for name, dtype in schema.items()
    }
    columns |= {name: values for name, values in CHECKED_VALUES.items() if name in schema}
    five_rows = pl.DataFrame(columns, schema)
    return five_rows[np.arange(rows) % 5]


@pytest.mark.parametrize("rows", [1, 5, 300_000], ids=["one row", "five rows", "two row groups"])
def test_every_column_type_is_read_back_as_it_was_written(tmp_path, rows):
    events = table_of(EVENTS, rows)
    # Their writer is the same.
    labelled, memory = (table_of(schema, min(rows, 5)) for schema in (LABELLED, MEMORY))
    store = write_store(
        tmp_path / "store", [RankEvents(events, source(0), memory)], labelled=[labelled]
    )
    for written, read_back in (
        (events, store.rank(0).events),
        (labelled, store.labelled(0)),
        (memory, store.rank(0).memory),
    ):
        assert read_back.schema == written.schema
        assert read_back.equals(written)


MINIMAL = ("rank", "id", "kind", "start_ns", "end_ns")


@pytest.mark.parametrize("rows", [0, 7])
def test_columns_without_a_value_are_read_back(tmp_path, rows):
    checked = {name: ([0] * rows if name != "kind" else ["kernel"] * rows) for name in MINIMAL}
    events = conform(pl.DataFrame(checked), EVENTS)
    labelled = conform(events.with_columns(label=pl.lit("forward")), LABELLED)
    store = write_store(tmp_path / "store", [RankEvents(events, source(0))], labelled=[labelled])
    assert store.rank(0).events.equals(events)
    assert store.labelled(0).equals(labelled)


def test_arrow_reads_the_same_values(tmp_path):
    events = table_of(EVENTS, 5)
    store = write_store(tmp_path / "store", [RankEvents(events, source(0))])
    table = pq.read_table(store.path / "rank=0/events.parquet", partitioning=None)
    assert pl.DataFrame(table).cast(EVENTS).equals(events)


def test_a_store_of_an_older_format_is_refused_in_one_line(run_command, tmp_path, ranks):
    path = write_store(tmp_path / "store", ranks[:1]).path
    manifest = json.loads((path / MANIFEST).read_text())
    (path / MANIFEST).write_text(json.dumps(manifest | {"format": "tracekit.store/2"}))
    done = run_command("analyze", path)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "its format is 'tracekit.store/2', not tracekit.store/3" in done.stderr
    assert "ingest" in done.stderr


@pytest.mark.parametrize(
    "words",
    [
        ["export", "{store}", "-o", "{store}.json"],
        ["query", "{store}", "select count(*) from events"],
    ],
)
def test_a_damaged_file_is_one_line_and_exit_code_2(run_command, tmp_path, ranks, words):
    pytest.importorskip("duckdb")
    path = write_store(tmp_path / "store", ranks[:1]).path
    file = path / "rank=0/events.parquet"
    file.write_bytes(flipped(file.read_bytes(), 0.5))
    done = run_command(*(word.format(store=path) for word in words))
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "events.parquet: is damaged" in done.stderr


def interrupted_build(path, ranks):
    with replace_store(path) as folder:
        StoreWriter(
            folder, entries={0: write_rank(folder, ranks[0], LABELLED.to_frame())}, complete=True
        ).write()
        raise KeyboardInterrupt


def test_an_interrupted_build_leaves_nothing(tmp_path, ranks):
    with pytest.raises(KeyboardInterrupt):
        interrupted_build(tmp_path / "store", ranks)
    assert list(tmp_path.iterdir()) == []


def test_an_interrupted_rebuild_leaves_the_old_store(tmp_path, store, ranks):
    with pytest.raises(KeyboardInterrupt):
        interrupted_build(store.path, ranks)
    assert open_store(store.path).ranks == (0, 1)
    assert [p.name for p in tmp_path.iterdir()] == ["store"]


def test_a_store_is_replaced_whole(tmp_path, store, ranks):
    assert write_store(store.path, ranks[:1]).ranks == (0,)
    assert sorted(p.name for p in store.path.iterdir()) == ["rank=0", MANIFEST]
    assert [p.name for p in tmp_path.iterdir()] == ["store"]


def test_the_store_of_another_run_is_replaced_only_when_asked(tmp_path, samples):
    target = tmp_path / "store"
    first, second = samples / "compile", samples / "recompute"
    tracekit.ingest(first, target)
    with pytest.raises(OutputError, match=r"holds the store of another run .*compile.*--overwrite"):
        tracekit.ingest(second, target)
    assert "compile" in open_store(target).entries[0].source.path
    tracekit.ingest(target, tmp_path / "copy")
    for source, store in ((first, target), (target, tmp_path / "copy")):
        with pytest.raises(OutputError, match=r"holds a store already \(--resume .*--overwrite"):
            tracekit.ingest(source, store)  # the same run again
        tracekit.ingest(source, store, resume=True)
        tracekit.ingest(source, store, overwrite=True)
    tracekit.ingest(second, target, overwrite=True)
    assert "recompute" in open_store(target).entries[0].source.path


def test_a_damaged_store_may_be_replaced(tmp_path, samples):
    target = tmp_path / "store"
    target.mkdir()
    (target / MANIFEST).write_text("{")
    with pytest.raises(OutputError, match="holds a store already"):
        tracekit.ingest(samples / "compile", target)
    tracekit.ingest(samples / "compile", target, overwrite=True)
    assert len(open_store(target).entries) == 1


def test_other_peoples_files_are_not_replaced(tmp_path, ranks):
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(OutputError, match="holds other files"):
        write_store(tmp_path, ranks)
    with pytest.raises(OutputError, match="is a file"):
        write_store(tmp_path / "thesis.tex", ranks)
    with pytest.raises(OutputError, match="there is no folder"):
        write_store(tmp_path / "no/where", ranks)
    assert (tmp_path / "thesis.tex").read_text() == "years of work"


def test_one_rank_twice_is_an_error(tmp_path, ranks):
    with pytest.raises(InputError, match="rank 0 was found twice"):
        write_store(
            tmp_path / "s",
            [ranks[0], replace(ranks[1], source=structs.replace(ranks[1].source, rank=0))],
        )
    assert list(tmp_path.iterdir()) == []


def test_damage_is_one_line(store):
    with pytest.raises(InputError, match="there is no rank 7"):
        store.rank(7)
    file = store.path / "rank=1/events.parquet"
    file.write_bytes(file.read_bytes()[:1000])
    with pytest.raises(InputError, match=r"events\.parquet: is damaged"):
        store.rank(1)
    (store.path / "rank=0/events.parquet").unlink()
    with pytest.raises(InputError, match="cannot be read"):
        store.rank(0)
    EVENTS.to_frame().write_parquet(file)
    with pytest.raises(InputError, match="is damaged"):
        store.rank(1)


def test_a_folder_without_or_with_another_manifest_is_no_store(tmp_path, store):
    assert is_store(store.path)
    assert is_store(store.path / MANIFEST)
    assert not is_store(tmp_path)
    with pytest.raises(InputError, match="is not a store"):
        open_store(tmp_path)
    manifest = json.loads((store.path / MANIFEST).read_text())
    (store.path / MANIFEST).write_text(json.dumps(manifest | {"format": "tracekit.store/9"}))
    with pytest.raises(
        InputError, match=r"its format is 'tracekit\.store/9', not tracekit\.store/3"
    ):
        open_store(store.path)
    (store.path / MANIFEST).write_text('{"format": "tracekit.store/3"')
    with pytest.raises(InputError, match="is not complete JSON"):
        open_store(store.path)


def flipped(raw, share):
    """The same bytes with one bit turned over, *place* of the way through."""
    changed = bytearray(raw)
    bit = int(share * (len(raw) * 8 - 1))
    changed[bit // 8] ^= 1 << (bit % 8)
    return bytes(changed)


@pytest.mark.parametrize("name", ["events.parquet", "labelled.parquet"])
def test_every_flipped_bit_is_found_before_it_is_read(tmp_path, ranks, name):
    labelled = [conform(ranks[0].events.with_columns(label=pl.lit("other")), LABELLED)]
    store = write_store(tmp_path / "store", ranks[:1], labelled=labelled)
    file = store.path / "rank=0" / name
    raw = file.read_bytes()
    read_back = store.rank if name == "events.parquet" else store.labelled
    for number in range(88):
        file.write_bytes(flipped(raw, number / 87))
        with pytest.raises(
            InputError, match="is damaged: its bytes are not those that were written"
        ):
            read_back(0)
    file.write_bytes(raw)
    assert read_back(0) is not None


def test_a_flipped_bit_in_what_lists_the_files_is_found(store):
    manifest, entry = store.path / MANIFEST, store.path / "rank=1/entry.json"
    raw, one = manifest.read_bytes(), entry.read_bytes()
    blank = {byte for byte in range(len(raw)) if raw[byte : byte + 1].isspace()}
    for number in range(88):
        byte = int(number / 87 * (len(raw) * 8 - 1)) // 8
        if byte in blank:
            continue
        manifest.write_bytes(flipped(raw, number / 87))
        with pytest.raises(InputError, match=f"{MANIFEST}: "):
            open_store(store.path)
    assert read_entry(entry.parent) is not None
    entry.write_bytes(one.replace(b'"rows": ', b'"rows": 1'))
    assert read_entry(entry.parent) is None


def test_damaged_tables_are_measured_again_from_the_labels(samples, tmp_path):
    path = tmp_path / "store"
    tracekit.ingest(samples / "reload", path, ranks=[0])
    whole = tracekit.analyze(path, schedule="none").to_dict()
    file = path / "rank=0/tables.zip"
    raw = file.read_bytes()
    for share in (0.1, 0.5, 0.9):
        file.write_bytes(flipped(raw, share))
        assert tracekit.analyze(path, schedule="none").to_dict() == whole


FORGERIES = {
    "a time beyond all clocks": (
        lambda events: events.with_columns(end_ns=pl.lit(2**63 - 1)),
        "no clock shows",
    ),
    "times of which the difference overflows": (
        lambda events: events.with_columns(start_ns=pl.lit(-LATEST_NS), end_ns=pl.lit(LATEST_NS)),
        "no clock shows",
    ),
    "durations of which the sum overflows": (
        lambda events: events.with_columns(end_ns=pl.col("start_ns") + MAX_TOTAL // 100),
        "37 years and more",
    ),
    "an event that ends before it starts": (
        lambda events: events.with_columns(end_ns=pl.col("start_ns") - 1),
        "ends",
    ),
    "no times": (lambda events: events.drop("start_ns"), "start_ns has rows without a value"),
    "no kinds": (lambda events: events.drop("kind"), "kind has rows without a value"),
    "no ranks": (
        lambda events: events.with_columns(rank=pl.lit(None, pl.Int32)),
        "rank has rows without a value",
    ),
    "some rows without a rank": (
        lambda events: events.with_columns(
            rank=pl.when(pl.int_range(pl.len()) % 2 == 0).then("rank")
        ),
        "rank has rows without a value",
    ),
    "an event with a negative number": (
        lambda events: events.with_columns(id=pl.lit(-1, pl.Int64)),
        "numbers that no event has",
    ),
    "texts as times": (lambda events: events.with_columns(start_ns=pl.lit("soon")), "conversion"),
    "lists as times": (lambda events: events.with_columns(start_ns=pl.lit([1, 2])), "lists"),
    "a text that many rows repeat": (
        lambda events: (
            pl.concat([events] * -(-40_000 // len(events)))
            .head(40_000)
            .with_columns(name=pl.lit("x" * 1000))
        ),
        "texts are 40,000,000 bytes long together",
    ),
    "another rank": (lambda events: events.with_columns(rank=pl.lit(7, pl.Int32)), "another rank"),
    "fewer rows than listed": (lambda events: events.head(3), "3 rows, and"),
    "more rows than any memory holds": (lambda events: events, "rows take"),
}


@pytest.mark.parametrize("case", FORGERIES)
def test_a_forged_table_with_a_fitting_checksum_is_one_line(tmp_path, monkeypatch, ranks, case):
    forge, message = FORGERIES[case]
    path = write_store(tmp_path / "store", ranks).path
    if case == "more rows than any memory holds":
        monkeypatch.setattr(
            "tracekit.store.checks.available_memory", lambda: 100 * ranks[0].events.height
        )
    reseal(path, 0, "events", forge(ranks[0].events))
    with pytest.raises(TracekitError, match=message) as raised:
        open_store(path).rank(0)
    assert raised.value.exit_code == 2
    assert "\n" not in raised.value.message


@pytest.mark.parametrize(("rows", "is_read"), [(31, True), (32, False), (64, False)])
def test_events_of_a_table_take_less_than_36_years_together(rows, is_read):
    each_ns = 2**55  # 1.14 years
    events = pl.DataFrame({"rank": [0] * rows, "start_ns": [0] * rows, "end_ns": [each_ns] * rows})
    if is_read:
        check_table(events, rank=0, rows=rows)
    else:
        with pytest.raises(ValueError, match="years and more"):
            check_table(events, rank=0, rows=rows)


@pytest.mark.parametrize(("number", "is_read"), [(2**32 - 1, True), (2**32, False)])
def test_a_rank_has_at_most_4_billion_events(number, is_read):
    events = pl.DataFrame({"rank": [0], "id": [number]})
    if is_read:
        check_table(events, rank=0, rows=1)
    else:
        with pytest.raises(ValueError, match="no event has"):
            check_table(events, rank=0, rows=1)


@pytest.mark.parametrize(
    ("time_ns", "is_read"),
    [(2**62 - 1, True), (2**62, False), (1 - 2**62, True), (-(2**62), False)],
)
def test_a_clock_shows_times_of_62_bits(time_ns, is_read):
    snapshots = pl.DataFrame({"rank": [0], "at_ns": [time_ns]})
    if is_read:
        check_table(snapshots, rank=0, rows=1)
    else:
        with pytest.raises(ValueError, match="at_ns has times that no clock shows"):
            check_table(snapshots, rank=0, rows=1)


@pytest.mark.parametrize(("available", "fits"), [(37 * 100, True), (37 * 100 - 1, False)])
def test_a_text_takes_at_least_16_bytes_beside_numbers_of_their_own_size(
    monkeypatch, available, fits
):
    monkeypatch.setattr("tracekit.store.checks.available_memory", lambda: available)
    sizes = {"time": 8, "rank": 4, "flag": 1, "text": 16, "part": 8}
    types = [pl.Int64(), pl.Int32(), pl.Boolean(), pl.String(), pl.Float64()]
    schema = pl.Schema(dict(zip(sizes, types, strict=True)))
    assert sum(sizes.values()) == 37
    if fits:
        check_size(100, schema)
    else:
        with pytest.raises(MachineError, match="100 rows take"):
            check_size(100, schema)


def test_a_launch_that_no_clock_shows_is_one_line(tmp_path, ranks):
    labelled = conform(ranks[0].events.with_columns(label=pl.lit("forward")), LABELLED)
    path = write_store(tmp_path / "store", ranks[:1], labelled=[labelled]).path
    reseal(path, 0, "labelled", labelled.with_columns(launch_ns=pl.lit(2**63 - 1)))
    with pytest.raises(InputError, match="launch_ns has times that no clock shows"):
        open_store(path).labelled(0)


def test_tables_of_which_half_the_memory_holds_every_row_are_read(tmp_path, monkeypatch, ranks):
    store = write_store(tmp_path / "store", ranks)
    monkeypatch.setattr(
        "tracekit.store.checks.available_memory", lambda: 400 * ranks[0].events.height
    )
    assert store.rank(0).events.equals(ranks[0].events)


def test_a_file_that_shrinks_after_it_was_read_changes_nothing(tmp_path, ranks):
    store = write_store(tmp_path / "store", ranks)
    events = store.scan(0)
    # Of a mapped file the missing pages would end the process.
    os.truncate(store.path / "rank=0/events.parquet", 100)
    assert events.collect().equals(ranks[0].events)
    with pytest.raises(InputError, match="its bytes are not those that were written"):
        store.rank(0)
