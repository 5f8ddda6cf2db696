"""Measured tables of a store whose checksums fit: those that tracekit did not write are not used."""

from __future__ import annotations

import io
import json
import shutil
import zipfile

import polars as pl
import pytest

import tracekit
from tests.kept import measured_tables
from tests.stores import seal
from tracekit.analysis.persistence import (
    FILE,
    as_one_row,
    read_stream,
    read_tables,
    read_tables_of_ranks,
    table_of_row,
)
from tracekit.analysis.table_checks import (
    check_values,
    named_tables,
    read_table_columns,
)
from tracekit.pipeline.schedules import generate
from tracekit.rooms import ROOM_MEASURES
from tracekit.run.load import load
from tracekit.schema import EVENTS, LABELLED, RankEvents, Source
from tracekit.synthetic import Recipe, write_run


def test_the_columns_of_the_tables_are_those_that_are_measured_now():
    """Run ci/table_columns.py when a table gets a column."""
    nothing = RankEvents(EVENTS.to_frame(), Source("", "kineto", 0, "option"))
    no_events = LABELLED.to_frame()
    tables = dict(named_tables(measured_tables(nothing, labelled=no_events, lost=no_events)))
    columns = read_table_columns()
    measured = {name for name in tables if not name.startswith("by_step.")}
    assert measured == columns.keys()
    for name, table in tables.items():
        assert table.schema == columns[name.replace("by_step.", "window.")], name


@pytest.mark.parametrize(("sample", "count"), [("memory", 11), ("reload", 1)])
def test_the_columns_of_what_side_rooms_measure_are_those_that_they_state(samples, sample, count):
    tables = dict(named_tables(measured_tables(load(samples / sample, ranks=[0]).rank(0))))
    of_rooms = {name: table for name, table in tables.items() if name.startswith("of_rooms.")}
    stated = {}
    for room in ROOM_MEASURES:
        stated |= room.table_columns()
    assert len(of_rooms) == count
    assert {name: table.schema for name, table in of_rooms.items()}.items() <= stated.items()


def test_a_store_whose_rooms_are_others_is_measured_again(run):
    store, _ = run
    assert read_tables(store / "rank=0", rooms=ROOM_MEASURES) is not None
    assert read_tables(store / "rank=0", rooms=ROOM_MEASURES[:1]) is None


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Return a store of a small pipeline, and its analysis."""
    folder = tmp_path_factory.mktemp("forged")
    write_run(Recipe(generate("1f1b", pp=2, microbatches=2), steps=2), folder / "traces")
    store = tracekit.ingest(folder / "traces", folder / "store", workers=1).path
    return store, tracekit.analyze(store, workers=1).to_dict()


def forge(store, table, change):
    """Change a measured table of rank 0, or the values beside them, and seal the store again."""
    file = store / "rank=0" / FILE
    with zipfile.ZipFile(file) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    if table is None:
        document = json.loads(members["tables.json"])
        change(document["tables"])
        members["tables.json"] = json.dumps(document).encode()
    else:
        small = pl.read_ipc_stream(members["tables.arrows"])
        name = next(
            name for name in (*members, *small.columns) if f"{name}.".startswith(f"{table}.")
        )
        if name in members:
            forged = change(pl.read_ipc_stream(members[name]))
        else:
            forged = small.with_columns(as_one_row({name: change(table_of_row(small, name))}))
        buffer = io.BytesIO()
        forged.write_ipc_stream(buffer)
        members[name if name in members else "tables.arrows"] = buffer.getvalue()
    with zipfile.ZipFile(file, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    seal(store)


@pytest.fixture
def forged(run):
    """Return a function that forges a table of the store; the store is sound again afterwards."""
    store, _ = run
    sound = (store / "rank=0" / FILE).read_bytes()
    yield lambda table, change: forge(store, table, change)
    (store / "rank=0" / FILE).write_bytes(sound)
    seal(store)


def first_row(column, value):
    """Return a change of a table: another value in the first row of a column."""

    def change(table):
        is_first = pl.int_range(pl.len()) == 0
        literal = pl.lit(value, table.schema[column])
        return table.with_columns(pl.when(is_first).then(literal).otherwise(column).alias(column))

    return change


def put_memory(line):
    """Return a change of the values beside the tables: memory over time as in *line*."""
    figures = {
        "rank": 0,
        "device": 0,
        "peak_bytes": 5,
        "first_bytes": 0,
        "by_phase": {},
        "line": line,
        **dict.fromkeys(("capacity_bytes", "reserved_bytes", "base_bytes", "chunk_bytes")),
        **dict.fromkeys(("chunks", "ideal_chunks", "contents")),
    }
    return lambda fields: fields.update(
        of_rooms={
            "memory": {"figures": figures, "chunks": None, "contents": None},
            "weight_transfers": None,
        }
    )


FORGERIES = {
    "memory at more times than sizes": (
        None,
        put_memory({"at_ns": [1, 2], "allocated": [5], "reserved": [5]}),
    ),
    "a column is missing": ("phases", lambda table: table.drop("compute_ns")),
    "a column has another type": ("operations", lambda table: table.cast({"bytes": pl.String})),
    "a column without any value": (
        "lateness.steps",
        lambda table: table.with_columns(host_late_ns=pl.lit(None, pl.Null)),
    ),
    "a column has another name": ("copies", lambda table: table.rename({"ns": "renamed"})),
    "a step that is not there": ("phases", lambda table: table.with_columns(part=pl.lit(7))),
    "a time beyond all clocks": (
        "operations",
        lambda table: table.with_columns(end_ns=pl.lit(2**63 - 1)),
    ),
    "an end before the start": (
        "timeline",
        lambda table: table.with_columns(end_ns=pl.col("start_ns") - 1),
    ),
    "durations whose sum overflows": (
        "window.labels",
        lambda table: table.with_columns(ns=pl.lit(2**62)),
    ),
    "no ranks": ("operations", lambda table: table.with_columns(rank=pl.lit(None, pl.Int32))),
    "a word of nobody": ("pipeline.chunks", lambda table: table.with_columns(op=pl.lit("X"))),
    "intervals in another order": ("window.covered", lambda table: table.reverse()),
    "an infinite time": ("kernels", first_row("ns", float("inf"))),
    "a count that is no number": ("kernels", first_row("count", float("nan"))),
    "a mean that no 64 bits hold": ("kernels", first_row("ns", 1e300)),
    "an event beyond all numbers": ("window.exposed", first_row("id", 2**63 - 1)),
    "an event before the first": ("by_step.exposed", first_row("id", -5)),
    "hidden time of labels that did not run": ("window.labels", lambda table: table.clear()),
    "hidden time of compute": ("window.hidden", first_row("label", "forward")),
    "time hidden by nothing": ("by_step.hidden", first_row("by", None)),
    "time hidden by communication": ("window.hidden", first_row("by", "dp_comm")),
    "causes of time that is not exposed": ("window.exposed", first_row("label", "cp_comm")),
    "a second step of the whole window": ("window.exposed", first_row("part", 1)),
    "two steps of the same number": ("steps", lambda table: table.with_columns(step=pl.lit(7))),
    "a number beyond 64 bits": (None, lambda fields: fields.update(inside_launch_ns=2**63)),
    "a number in place of a large table": (None, lambda fields: fields.update(graph_host_work=7)),
    "another table in place of a large one": (
        None,
        lambda fields: fields.update(graph_host_work=fields["graph_events"]),
    ),
    "budgets of other steps": (None, lambda fields: fields["by_step"].update(weak=[1, 2, 3])),
}


@pytest.mark.parametrize("case", FORGERIES)
def test_forged_tables_are_not_read(run, forged, case):
    """Nor are those of the other rank, with which they are checked, refused."""
    store, _ = run
    folders = [store / "rank=0", store / "rank=1", store / "nowhere"]
    assert [
        tables is not None for tables in read_tables_of_ranks(folders, rooms=ROOM_MEASURES)
    ] == [True, True, False]
    forged(*FORGERIES[case])
    assert [
        tables is not None for tables in read_tables_of_ranks(folders, rooms=ROOM_MEASURES)
    ] == [False, True, False]


@pytest.mark.parametrize("value", [7, None, [7], "text"])
def test_what_is_no_table_is_not_read(run, forged, value):
    store, _ = run

    def without_rows(stream):
        return stream.with_columns(pl.lit(value).alias(stream.columns[0]))

    forged("tables.arrows", without_rows)
    assert read_tables(store / "rank=0", rooms=ROOM_MEASURES) is None


def test_tables_as_an_older_version_wrote_them_are_measured_again(run, tmp_path):
    """Each table had a stream of its own."""
    store, answer = run
    shutil.copytree(store, tmp_path / "store")
    file = tmp_path / "store" / "rank=0" / FILE
    with zipfile.ZipFile(file) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    small = pl.read_ipc_stream(members.pop("tables.arrows"))
    for name in small.columns:
        buffer = io.BytesIO()
        table_of_row(small, name).write_ipc_stream(buffer, compression="zstd")
        members[f"{name}.arrows"] = buffer.getvalue()
    with zipfile.ZipFile(file, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    seal(tmp_path / "store")
    assert read_tables(file.parent, rooms=ROOM_MEASURES) is None
    document = tracekit.analyze(tmp_path / "store", workers=1).to_dict()
    document["source"]["paths"] = answer["source"]["paths"]
    assert document == answer


@pytest.mark.parametrize(
    "forgery",
    [FORGERIES["an infinite time"], (None, lambda fields: fields["source"].update(rank=5))],
    ids=["not read", "of another rank"],
)
def test_forged_tables_are_measured_again(run, forged, forgery):
    store, answer = run
    forged(*forgery)
    assert tracekit.analyze(store, workers=1).to_dict() == answer


def test_compressed_tables_are_not_unpacked(run, tmp_path):
    store, _ = run
    with (
        zipfile.ZipFile(store / "rank=0" / FILE) as sound,
        zipfile.ZipFile(tmp_path / FILE, "w", zipfile.ZIP_DEFLATED) as packed,
    ):
        for name in sound.namelist():
            packed.writestr(name, sound.read(name))
    assert read_tables(tmp_path, rooms=ROOM_MEASURES) is None


def test_a_table_that_unpacks_to_gigabytes_is_not_unpacked(run, tmp_path):
    store, _ = run
    rows = pl.DataFrame({"part": pl.repeat(0, 5_000_000, dtype=pl.Int64, eager=True)})
    bomb = io.BytesIO()
    rows.write_ipc_stream(bomb, compression="zstd")
    assert len(bomb.getvalue()) < 100_000
    with (
        zipfile.ZipFile(store / "rank=0" / FILE) as sound,
        zipfile.ZipFile(tmp_path / FILE, "w") as forged_file,
    ):
        names = sound.namelist()
        for name in names:
            is_first_table = name == names[1]
            forged_file.writestr(name, bomb.getvalue() if is_first_table else sound.read(name))
        with pytest.raises(ValueError, match="unpacks to 40,"):
            read_stream(forged_file, names[1].removesuffix(".arrows"))
    assert read_tables(tmp_path, rooms=ROOM_MEASURES) is None


def test_tables_that_nobody_forged_are_used(run):
    store, _ = run
    assert read_tables(store / "rank=0", rooms=ROOM_MEASURES) is not None


def test_a_part_is_a_number_of_a_step():
    table = pl.DataFrame({"part": [0, 1]})
    check_values(table, table.schema, name="phases", parts=2)
    with pytest.raises(ValueError, match="a step that is not there"):
        check_values(table, table.schema, name="phases", parts=1)
