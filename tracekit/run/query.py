"""SQL over the tables of a store, with DuckDB; read-only."""

import importlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import polars as pl

from tracekit._util.arguments import checked_text
from tracekit._util.text import terminal
from tracekit.errors import InputError, OptionError
from tracekit.late.store import checked_collectives_file
from tracekit.schema import COLLECTIVES, EVENTS, LABELLED
from tracekit.store.files import Store, holds_recordings, open_store

QUERY_TABLES = {
    "events": "every event of every rank, columns as in tracekit.schema.EVENTS; of several roles also role",
    "labelled": "GPU events with label, pass, module and evidence, columns as in tracekit.schema.LABELLED",
    "collectives": "dumps and logs of the whole run, columns as in tracekit.schema.COLLECTIVES; empty without any",
    "ranks": "one row per rank: rank, rows, start_ns, end_ns, path, reader, world_size, device",
}
"""Tables that SQL can name, and their contents."""


def query(store: str | Path, sql: str) -> pl.DataFrame:
    """Run *sql* over a store's tables (``QUERY_TABLES``) and return its rows.

    Files outside the store cannot be read.

    >>> import tempfile
    >>> from tracekit import ingest
    >>> store = ingest("sample_traces/reload", tempfile.mkdtemp() + "/store", ranks=[0, 1])
    >>> query(store.path, "select rank, count(*) from labelled where label = 'reload' group by 1 order by 1").rows()
    [(0, 8), (1, 8)]
    """
    try:
        duckdb: Any = importlib.import_module("duckdb")
    except ImportError:
        raise OptionError("query needs DuckDB", hint="pip install 'tracekit-ml[sql]'") from None
    sql = checked_text(sql, "sql")
    tables = _tables(open_store(store))  # a damaged store is refused before DuckDB starts
    connection = duckdb.connect(":memory:")
    try:
        for name, table in tables.items():
            connection.register(name, table)
        connection.execute("SET enable_external_access = false")
        connection.execute("SET lock_configuration = true")
        answer: pl.DataFrame = connection.sql(sql).pl()
    except duckdb.Error as error:
        reason = str(error).strip().splitlines()[0]
        hint = f"tables: {', '.join(QUERY_TABLES)}"
        if isinstance(error, duckdb.BinderException) and "column" in reason:
            hint = _columns_named(sql, tables)
        raise InputError(f"query: {reason}", hint=hint) from error
    except pl.exceptions.PolarsError as error:
        reason = str(error).strip().splitlines()[0]
        raise InputError(f"query: a column cannot be read: {reason}", hint=_CAST_IT) from error
    except AttributeError as error:  # DuckDB returns None for a statement without rows
        raise InputError("query: this statement returns no rows", hint="write a SELECT") from error
    finally:
        connection.close()
    for name, dtype in answer.schema.items():
        if "Binary" in str(dtype) or "Object" in str(dtype):  # also inside of lists
            raise InputError(f"query: the column {terminal(name)} holds bytes", hint=_CAST_IT)
    return answer


def _columns_named(sql: str, tables: Mapping[str, Any]) -> str:
    """Return the columns of the tables that *sql* names; of all if it names none."""
    named = [name for name in QUERY_TABLES if re.search(rf"\b{name}\b", sql, re.IGNORECASE)]
    columns = [
        f"columns of {name}: {', '.join(tables[name].schema.names)}"
        for name in named or QUERY_TABLES
    ]
    return "; ".join(columns)


_CAST_IT = "cast it to another type, for instance with ::VARCHAR"


def _tables(store: Store) -> dict[str, Any]:
    """Return the tables by name: datasets that are scanned when used, and the list of ranks.

    The tables of several roles are together, with a column ``role``.
    """
    arrow: Any = importlib.import_module("pyarrow")
    datasets: Any = importlib.import_module("pyarrow.dataset")
    by_role = (
        datasets.partitioning(arrow.schema([("role", arrow.string())]), flavor="hive")
        if store.roles
        else None
    )
    stores = list(store.roles.values()) or [store]
    base = str(store.path)
    tables: dict[str, Any] = {"ranks": _ranks_table(store)}
    tables["collectives"] = COLLECTIVES.to_frame().to_arrow()
    if holds_recordings(store.path):
        tables["collectives"] = datasets.dataset(
            [str(checked_collectives_file(store.path))], format="parquet"
        )
    schemas = {"events": EVENTS, "labelled": LABELLED}
    for name, schema in schemas.items():
        tables[name] = schema.to_frame().to_arrow()
        # Arrow does not verify checksums, and would answer from a damaged file.
        files = []
        for of_role in stores:
            files += [str(of_role.checked_file(entry.rank, name)) for entry in of_role.entries]
        if files:
            tables[name] = datasets.dataset(
                files, format="parquet", partitioning=by_role, partition_base_dir=base
            )
    return tables


def _ranks_table(store: Store) -> Any:
    """Return the list of ranks, with their roles if there are several."""
    rows = []
    for entry in store.entries:
        rows.append(
            {
                "rank": entry.rank,
                **({"role": entry.source.role} if entry.source.role is not None else {}),
                "rows": entry.rows,
                "start_ns": entry.start_ns,
                "end_ns": entry.end_ns,
                "path": entry.source.path,
                "reader": entry.source.reader,
                "world_size": entry.source.world_size,
                "device": next(iter(entry.source.devices), None),
            }
        )
    schema = dict.fromkeys(("rank", "rows", "start_ns", "end_ns"), pl.Int64) | {
        "path": pl.String,
        "reader": pl.String,
    }
    return pl.DataFrame(rows, schema=None if rows else schema, infer_schema_length=None).to_arrow()
