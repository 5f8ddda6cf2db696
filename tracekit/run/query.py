"""SQL over the tables of a store, with DuckDB; read-only."""

import importlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import polars as pl

from tracekit._util.arguments import checked_path, checked_text
from tracekit._util.text import terminal
from tracekit._version import requirement
from tracekit.errors import InputError, OptionError
from tracekit.late.store import checked_collectives_file
from tracekit.schema import COLLECTIVES, EVENTS, LABELLED, RUN_TABLE
from tracekit.store.files import Store, holds_recordings, open_store

QUERY_TABLES = {
    "events": "every event of every rank, columns as in tracekit.schema.EVENTS, and duration_ns and group_name; of "
    "several roles also role",
    "labelled": "GPU events with label, pass, module and evidence, columns as in tracekit.schema.LABELLED, and "
    "duration_ns, group_name and pass_name",
    "collectives": "dumps and logs of the whole run, columns as in tracekit.schema.COLLECTIVES; empty without any",
    "ranks": "one row per rank: rank, rows, start_ns, end_ns, path, reader, world_size, device",
    "budgets": "where the time of each rank and step went, columns of the analysis' table budget",
    "cells": "pipeline cells beside their ideal, columns of the analysis' table cells; empty without a pipeline",
    "findings": "what costs time: number, code, text, advice, cost_ns, share, saves_ns, certain, ranks, steps",
}
"""Tables that SQL can name, and their contents."""
ADDED_COLUMNS = {
    "events": {
        "duration_ns": "end_ns - start_ns",
        "group_name": '"group"',
    },
    "labelled": {
        "duration_ns": "end_ns - start_ns",
        "group_name": '"group"',
        "pass_name": '"pass"',
    },
}
"""Columns that the tables have beside the stored ones, by their SQL: ``group`` is a word of SQL."""
TABLES_OF_ANALYSIS = ("budgets", "cells", "findings")
"""Tables that are those of the store's analysis, which is made only if one of them is named."""
FINDING_ROWS = pl.Schema(
    {
        "number": pl.Int64(),
        "code": pl.String(),
        "text": pl.String(),
        "advice": pl.String(),
        "cost_ns": pl.Int64(),
        "share": pl.Float64(),
        "saves_ns": pl.Int64(),
        "certain": pl.String(),
        "ranks": pl.List(pl.Int64()),
        "steps": pl.List(pl.Int64()),
    }
)


def query(store: str | Path, sql: str) -> pl.DataFrame:
    """Run *sql* over a store's tables (``QUERY_TABLES``), or over the table ``runs`` of a file, and return its rows.

    Files outside the store cannot be read.

    >>> import tempfile
    >>> from tracekit import ingest
    >>> store = ingest("sample_traces/reload", tempfile.mkdtemp() + "/store", ranks=[0, 1])
    >>> query(store.path, "select rank, count(*) from labelled where label = 'reload' group by 1 order by 1").rows()
    [(0, 8), (1, 8)]
    """
    sql = checked_text(sql, "sql")
    # What is no store, or damaged, is refused before DuckDB is there, which names what it leaves behind when it
    # was loaded for nothing.
    path = checked_path(store, "store")
    if path.is_file():
        return _answer(sql, {"runs": read_runs(path).to_arrow()})
    opened_store = open_store(store)
    tables = _tables(opened_store)
    if any(_names_table(sql, name) for name in TABLES_OF_ANALYSIS):
        tables |= _tables_of_analysis(opened_store)
    return _answer(sql, tables)


def read_runs(path: Path) -> pl.DataFrame:
    """Return a table of runs (``schema.RUN_TABLE``), which ``watch`` wrote."""
    hint = "name a store, or a file that tracekit watch -o FILE.parquet wrote"
    try:
        table = pl.read_parquet(path)
    except (OSError, pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
        raise InputError("is no table of runs", path=path, hint=hint) from error
    if table.schema != RUN_TABLE:
        raise InputError("has other columns than a table of runs", path=path, hint=hint)
    return table


def _answer(sql: str, tables: Mapping[str, Any]) -> pl.DataFrame:
    """Return the rows that *sql* selects from *tables*."""
    try:
        duckdb: Any = importlib.import_module("duckdb")
    except ImportError:
        raise OptionError(
            "query needs DuckDB", hint=f"pip install '{requirement('sql')}'"
        ) from None
    connection = duckdb.connect(":memory:")
    try:
        for name, table in tables.items():
            if name not in ADDED_COLUMNS:
                connection.register(name, table)
                continue
            connection.register(f"stored_{name}", table)
            columns = ["*"]
            for column, expression in ADDED_COLUMNS[name].items():
                columns.append(f"{expression} AS {column}")
            connection.execute(
                f"CREATE VIEW {name} AS SELECT {', '.join(columns)} FROM stored_{name}"
            )
        connection.execute("SET enable_external_access = false")
        connection.execute("SET lock_configuration = true")
        answer: pl.DataFrame = connection.sql(sql).pl()
    except duckdb.Error as error:
        reason = str(error).strip().splitlines()[0]
        hint = f"tables: {', '.join(tables)}"
        if isinstance(error, duckdb.BinderException):
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
    named = [name for name in tables if _names_table(sql, name)]
    descriptions = []
    for name in named or tables:
        columns = [*tables[name].schema.names, *ADDED_COLUMNS.get(name, ())]
        descriptions.append(f"columns of {name}: {', '.join(columns)}")
    return "; ".join(descriptions)


def _names_table(sql: str, name: str) -> bool:
    """Return whether *sql* may read a table.

    >>> _names_table("select text from Findings", "findings"), _names_table("select 1", "findings")
    (True, False)
    """
    return re.search(rf"\b{name}\b", sql, re.IGNORECASE) is not None


def _tables_of_analysis(store: Store) -> dict[str, Any]:
    """Return the tables of the store's analysis by their name in SQL."""
    from tracekit.pipeline.against_ideal.comparison import CELLS_WITH_IDEAL
    from tracekit.run.analyze import analyze

    analysis = analyze(store.path)
    findings = []
    for number, finding in enumerate(analysis.findings, start=1):
        row = {name: getattr(finding, name) for name in FINDING_ROWS if name != "number"}
        findings.append({**row, "number": number})
    cells = analysis.tables["cells"] if "cells" in analysis.tables else CELLS_WITH_IDEAL.to_frame()
    return {
        "budgets": analysis.tables["budget"].to_arrow(),
        "cells": cells.to_arrow(),
        "findings": pl.DataFrame(findings, schema=FINDING_ROWS).to_arrow(),
    }


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
