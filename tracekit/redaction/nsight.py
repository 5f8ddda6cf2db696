"""Redaction of an Nsight Systems sqlite export.

A new database is written, with the tables and columns that an analysis reads and nothing else: no
other table, view, trigger, comment or freed page. In columns of numbers only numbers stay; each
column of text has a function that reduces it. Tables and columns are listed in ``kept.toml``.
"""

import json
import re
import sqlite3
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from tracekit.errors import InputError
from tracekit.parsers.nsight import nccl
from tracekit.parsers.nsight.exports import refuse_unreadable
from tracekit.parsers.nsight.reader import open_export
from tracekit.redaction.fields import ANY, KEPT, SIZE, SMALL, is_version
from tracekit.redaction.names import NameRedactor

METADATA_TABLES = ("META_DATA_EXPORT", "EXPORT_META_DATA")
NUMBER_COLUMNS: dict[str, list[str]] = KEPT["nsight"]["numbers"]
"""Tables that stay, and their columns of numbers."""
TEXT_COLUMNS: dict[str, dict[str, str]] = KEPT["nsight"]["texts"]
"""Columns of text that stay, by table, and the SQL function that reduces each."""
STRING_COLUMNS: dict[str, list[str]] = KEPT["nsight"]["strings"]
"""SQL function by the columns that refer to StringIds; a string that no kept row refers to is
dropped."""
METADATA_NAMES = frozenset(("EXPORT_PRODUCT_VERSION", "EXPORT_SCHEMA_VERSION"))
PAYLOAD_LIMITS = {
    "communicator": ANY,
    "bytes": SIZE,
    "peer": SMALL,
    "ranks": SMALL,
    "own_rank": SMALL,
}
_PRODUCT_VERSION = re.compile(r"20\d\d\.\d{1,2}\.\d{1,2}(?:\.\d{1,4})?")
_LOST_EVENTS = re.compile(
    r"drop|lost|might have been|not all|incomplete|buffer|clock|timestamp|synchroni"
)
_EMITTED_NUMBERS = re.compile(
    r"((?:, seq = -?\d{1,10})?(?:, op_id = \d{1,10})?(?:, sizes = \[[\d, \[\]]*\])?)"
    r"(?:, input_op_ids = \[[-\d, ()]*\])?",
    re.ASCII,
)
"""What ``emit_nvtx`` writes behind an operator's name."""
_EMITTED_START = re.compile(r", (?:seq|op_id|sizes|input_op_ids) = ")
_LONG_NUMBER = re.compile(r"\d{11}")


def redact_nsight(
    source: Path, target: Path, names: NameRedactor, *, keep: Collection[str] = ()
) -> dict[str, int]:
    """Write the redacted report *source* to *target*.

    Return how much was dropped or replaced, by kind.
    """
    refuse_unreadable(source)
    target.unlink()  # sqlite creates the file itself
    replaced_before = names.replaced
    try:
        copy = sqlite3.connect(target.resolve().as_uri(), isolation_level=None, uri=True)
        try:
            for name, function in _sql_functions(
                names, nccl.payload_layouts(open_export(source)), keep
            ).items():
                copy.create_function(name, 1, function, deterministic=True)
            dropped = _copy_tables(copy, source)
        finally:
            copy.close()
    except sqlite3.Error as error:
        raise InputError(
            f"{source}: is not a readable sqlite file: {error}", hint="export the report again"
        ) from error
    return dropped | {"texts replaced": names.replaced - replaced_before}


def _copy_tables(copy: sqlite3.Connection, source: Path) -> dict[str, int]:
    copy.execute("ATTACH ? AS old", (f"{source.resolve().as_uri()}?mode=ro&immutable=1",))
    copy.execute("PRAGMA journal_mode = OFF")
    listed = [
        name
        for (name,) in copy.execute(
            "SELECT name FROM old.sqlite_master WHERE type IN ('table', 'view')"
        )
    ]
    tables = [name for name in listed if name in NUMBER_COLUMNS]
    copy.execute("BEGIN")
    for table in tables:
        _copy_table(copy, table)
    dropped_strings = _copy_strings(copy, tables) if "StringIds" in tables else 0
    copy.execute("COMMIT")
    return {"tables": len(listed) - len(tables), "strings": dropped_strings}


def _copy_table(copy: sqlite3.Connection, table: str) -> None:
    """Copy the listed columns of a table.

    Only the columns of StringIds are created, its rows come later.
    """
    present = [row[1] for row in copy.execute(f"PRAGMA old.table_info({table})")]
    if table == "StringIds":
        copy.execute("CREATE TABLE main.StringIds (id, value)")
        return
    values = {
        column: f"CASE WHEN typeof({column}) IN ('integer', 'real') THEN {column} END"
        for column in (f'"{name}"' for name in NUMBER_COLUMNS[table] if name in present)
    }
    values |= {
        f'"{column}"': f'{function}("{column}")'
        for column, function in TEXT_COLUMNS.get(table, {}).items()
        if column in present
    }
    if values:
        copy.execute(f"CREATE TABLE main.{table} ({', '.join(values)})")
        rows = " WHERE metadata_name(name) IS NOT NULL" if table in METADATA_TABLES else ""
        copy.execute(
            f"INSERT INTO main.{table} SELECT {', '.join(values.values())} FROM old.{table}{rows}"
        )


def _copy_strings(copy: sqlite3.Connection, tables: Iterable[str]) -> int:
    """Copy the strings that kept rows refer to; return how many were dropped."""
    for function, columns in STRING_COLUMNS.items():
        references = [
            f'SELECT "{row[1]}" FROM main.{table}'
            for table in tables
            for row in copy.execute(f"PRAGMA main.table_info({table})").fetchall()
            if row[1] in columns
        ]
        if references:
            copy.execute(
                f"INSERT INTO main.StringIds SELECT id, {function}(value) FROM old.StringIds"
                f" WHERE typeof(id) = 'integer' AND id IN ({' UNION '.join(references)})"
                " AND id NOT IN (SELECT id FROM main.StringIds)"
            )
    counts = [
        copy.execute(f"SELECT count(*) FROM {schema}.StringIds").fetchone()[0]
        for schema in ("old", "main")
    ]
    return int(counts[0] - counts[1])


def _sql_functions(
    names: NameRedactor, layout: nccl.Layouts, keep: Collection[str]
) -> dict[str, Callable[[Any], Any]]:
    """Return the functions that the copying statements call; each returns what stays of a value."""

    def of_text(function: Callable[[str], str | None]) -> Callable[[Any], Any]:
        return lambda value: function(value) if isinstance(value, str) else None

    def range_text(text: str) -> str:
        if "annotations" in keep:
            return names.redact_kept(text)
        start = _EMITTED_START.search(text)
        numbers = _EMITTED_NUMBERS.fullmatch(text, start.start()) if start else None
        if start is None or numbers is None or _LONG_NUMBER.search(numbers[1]):
            return names.redact(text)
        return names.redact(text[: start.start()]) + numbers[1]

    return {
        "code": of_text(names.redact_code),
        "words": of_text(names.redact),
        "range_text": of_text(range_text),
        "payload": of_text(payload_fields),
        "payload_bytes": lambda value: (
            payload_bytes(value, layout) if isinstance(value, bytes) else None
        ),
        "payload_field": of_text(lambda text: text if text in nccl.FIELDS else None),
        "diagnosis": of_text(
            lambda text: " ".join(sorted(set(_LOST_EVENTS.findall(text.lower())))) or "redacted"
        ),
        "metadata_name": of_text(lambda text: text if text in METADATA_NAMES else None),
        "version": of_text(
            lambda text: text if is_version(text) or _PRODUCT_VERSION.fullmatch(text) else None
        ),
    }


def payload_fields(text: str) -> str | None:
    """Return the fields of a JSON payload that an analysis reads; None if it has none.

    >>> payload_fields('{"Peer rank": 1, "token": "secret", "p": {"Rank": "0x2"}}')
    '{"Peer rank": 1, "Rank": 2}'
    >>> payload_fields('{"Rank": 4155551234}')
    """
    numbers: dict[str, int] = {}
    for name, number in nccl.payload_numbers(text):
        if abs(number) < PAYLOAD_LIMITS[nccl.FIELDS[name]]:
            numbers.setdefault(name, number)
    return json.dumps(numbers) if numbers else None


def payload_bytes(blob: bytes, layout: nccl.Layouts) -> bytes | None:
    """Return a binary payload with zeros for all bytes but the schema's id and the fields that an analysis reads."""
    fields = layout.get(int.from_bytes(blob[nccl.SCHEMA_ID], "little"))
    if not fields:
        return None
    kept = bytearray(len(blob))
    kept[nccl.SCHEMA_ID] = blob[nccl.SCHEMA_ID]
    for _, dtype, offset in fields:
        field_bytes = slice(
            nccl.HEADER_BYTES + offset, nccl.HEADER_BYTES + offset + np.dtype(dtype).itemsize
        )
        if offset >= 0 and field_bytes.stop <= len(blob):
            kept[field_bytes] = blob[field_bytes]
    return bytes(kept)
