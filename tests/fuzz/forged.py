"""Stores whose tables somebody changed and sealed again: a result, or an error in one line."""

from __future__ import annotations

import io
import json
import random
import shutil
import zipfile
from functools import cache
from pathlib import Path
from typing import Any

import polars as pl

import tracekit
from tests.fuzz.others import one_line
from tests.stores import seal
from tracekit.analysis.persistence import FILE as TABLES_FILE
from tracekit.errors import InternalError, TracekitError
from tracekit.pipeline.schedules import generate
from tracekit.store.files import MANIFEST
from tracekit.synthetic import Recipe, write_run

TABLES = ("events", "labelled", "measured")
NUMBERS = (-(2**63), -(2**62), -(2**53), -1, 0, 1, 2, 7, 2**31, 2**53, 2**61, 2**62, 2**63 - 1)
TEXTS = ("", "x", "[0,1,2]", "[[2,512],[", "é" * 50, "send:2,recv:0", "9" * 30, "\x1b[2J\n")
TYPES = (pl.String, pl.Int8, pl.Int32, pl.UInt64, pl.Float64, pl.Boolean, pl.Binary, pl.Null)
VALUES = (None, True, "", "x", -1, 0, 1, 2**31, 2**62, 2**63 - 1, 2**70, 0.5, -1e300, [], {}, [[]])


def make(choose: random.Random) -> bytes:
    """Return which table of which rank is changed and how, as JSON."""
    changes = []
    for _ in range(choose.randrange(1, 4)):
        change = {
            "table": choose.choice(TABLES),
            "rank": choose.randrange(2),
            "kind": choose.choice(
                ("cells", "cells", "cells", "cells", "column", "rows", "document")
            ),
            "which": choose.random(),
            "column": choose.random(),
            "value": choose.random(),
            "more": choose.random(),
        }
        changes.append(change)
    return json.dumps(changes).encode()


@cache
def _sound_store(folder: Path) -> Path:
    """Write the store of a small run of two pipeline stages and return its path."""
    recipe = Recipe(generate("1f1b", pp=2, microbatches=3), steps=2)
    write_run(recipe, folder / "run")
    return tracekit.ingest(folder / "run", folder / "sound", workers=1).path


def _pick(options: Any, share: float) -> Any:
    """Return the option that a share from 0 to 1 selects."""
    return options[int(share * len(options))]


def _change_cells(table: pl.DataFrame, change: dict[str, Any]) -> pl.DataFrame:
    """Return the table with another value in every row of a column, or in every n-th."""
    name = _pick(table.columns, change["column"])
    dtype = table.schema[name]
    if dtype.is_integer():
        value = _pick(NUMBERS, change["value"])
    elif dtype.is_float():
        value = _pick((float("nan"), float("inf"), -1e300, 0.0), change["value"])
    elif dtype == pl.Boolean:
        value = change["value"] < 0.5
    elif isinstance(dtype, pl.Enum):
        value = _pick(dtype.categories.to_list(), change["value"])
    else:
        value = _pick(TEXTS, change["value"])
    every = _pick((1, 2, 7, 10**9), change["more"])
    is_changed = pl.int_range(pl.len()) % every == 0
    try:
        literal = pl.lit(value, dtype) if change["value"] > 0.1 else pl.lit(None, dtype)
        return table.with_columns(pl.when(is_changed).then(literal).otherwise(name).alias(name))
    except (pl.exceptions.PolarsError, OverflowError, TypeError):
        return table


def _change_column(table: pl.DataFrame, change: dict[str, Any]) -> pl.DataFrame:
    """Return the table without a column, or with a column of another type or name."""
    name = _pick(table.columns, change["column"])
    if change["value"] < 0.3:
        return table.drop(name)
    if change["value"] < 0.5:
        return table.rename({name: "renamed"})
    try:
        return table.cast({name: _pick(TYPES, change["more"])}, strict=False)
    except pl.exceptions.PolarsError:
        return table


def _change_rows(table: pl.DataFrame, change: dict[str, Any]) -> pl.DataFrame:
    """Return the table empty, cut, doubled, reversed or in another order."""
    by_kind = {
        "empty": table.clear,
        "cut": lambda: table.head(int(table.height * change["more"])),
        "doubled": lambda: pl.concat([table, table]),
        "reversed": table.reverse,
        "shuffled": lambda: table.sample(fraction=1, shuffle=True, seed=int(change["more"] * 99)),
    }
    return by_kind[_pick(list(by_kind), change["value"])]()


def _changed(table: pl.DataFrame, change: dict[str, Any]) -> pl.DataFrame:
    if not table.width:
        return table
    by_kind = {"cells": _change_cells, "column": _change_column, "rows": _change_rows}
    return by_kind.get(change["kind"], _change_cells)(table, change)


def _change_measured(file: Path, change: dict[str, Any]) -> None:
    """Change one measured table of a rank, or a value beside the tables."""
    with zipfile.ZipFile(file) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    if change["kind"] == "document":
        document = json.loads(members["tables.json"])
        _change_value(document["tables"], change)
        members["tables.json"] = json.dumps(document).encode()
    else:
        name = _pick([name for name in members if name != "tables.json"], change["which"])
        changed = _changed(pl.read_ipc_stream(members[name]), change)
        buffer = io.BytesIO()
        changed.write_ipc_stream(buffer)
        members[name] = buffer.getvalue()
    with zipfile.ZipFile(file, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)


def _change_value(document: Any, change: dict[str, Any]) -> None:
    """Replace one value somewhere in a document."""
    places: list[tuple[Any, Any]] = []
    pending = [document]
    while pending:
        node = pending.pop()
        keys = list(node) if isinstance(node, dict) else list(range(len(node)))
        for key in keys:
            places.append((node, key))
            if isinstance(node[key], dict | list):
                pending.append(node[key])
    node, key = _pick(places, change["which"])
    node[key] = _pick(VALUES, change["value"])


def forge(store: Path, change: dict[str, Any]) -> None:
    """Change a store as *change* says, and make its checksums fit."""
    folder = store / f"rank={change['rank']}"
    if change["table"] == "measured":
        _change_measured(folder / TABLES_FILE, change)
    elif change["kind"] == "document":
        manifest = json.loads((store / MANIFEST).read_text())
        _change_value(manifest, change)
        (store / MANIFEST).write_text(json.dumps(manifest))
    else:
        file = folder / f"{change['table']}.parquet"
        _changed(pl.read_parquet(file), change).write_parquet(file)
        # The measured tables are from before: without them the changed events are measured.
        (folder / TABLES_FILE).unlink(missing_ok=True)
    seal(store)


def check(raw: bytes, folder: Path) -> None:
    """Forge a copy of a sound store, and analyze it."""
    forged = folder / "forged"
    shutil.rmtree(forged, ignore_errors=True)
    shutil.copytree(_sound_store(folder), forged)
    try:
        for change in json.loads(raw):
            forge(forged, change)
    except (KeyError, TypeError, ValueError, OSError, AttributeError):
        return  # an earlier change left nothing to change
    try:
        tracekit.analyze(forged, workers=1).to_json()
    except TracekitError as error:
        if isinstance(error, InternalError):
            raise AssertionError("a fault of tracekit's own") from error
        one_line(error)
