"""Redaction of an Nsight Systems sqlite export.

A new database is written, with the tables and columns that an analysis reads and nothing else: no
other table, view, trigger, comment or freed page. In columns of numbers only integers stay that can
be what the column holds; each column of text has a function that reduces it. Tables and columns are
listed in ``kept.toml``.
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
from tracekit.parsers.nsight.exports import NSIGHT_SQLITE, SqliteExport
from tracekit.parsers.nsight.reader import open_export
from tracekit.parsers.sqlite_tables import refuse_unreadable
from tracekit.redact.fields import ANY, ID, KEPT, SIZE, SMALL, is_version
from tracekit.redact.names import NameRedactor

METADATA_TABLES = ("META_DATA_EXPORT", "EXPORT_META_DATA")
KEPT_NUMBER_COLUMNS: dict[str, dict[str, list[str]]] = KEPT["nsight"]["numbers"]
"""Tables that stay, and their columns of numbers by kind."""
MAX_KEPT_TIME_NS = 10**15
"""Times count from the start of the session, which takes less than eleven days."""
MIN_CLOCK_NS = 10**18
MAX_CLOCK_NS = 4 * 10**18
"""Clock when a session began, in ns since 1970: from 2001 to 2096."""
PID_BITS = 24
MACHINE_SHIFT = 48
"""A packed id has the thread in its lower 24 bits, the process in the next, and above them what
tells machines apart."""
NUMBER_KINDS = {
    "time": f"abs({{0}}) < {MAX_KEPT_TIME_NS}",
    "clock": f"{{0}} BETWEEN {MIN_CLOCK_NS} AND {MAX_CLOCK_NS}",
    "small": f"abs({{0}}) < {SMALL}",
    "size": f"abs({{0}}) < {SIZE}",
    "pid": f"{{0}} BETWEEN 0 AND {(1 << PID_BITS) - 1}",
    "schema": f"{{0}} BETWEEN 0 AND {ID - 1}",
    "id": "1",
    "process": "1",
}
"""Condition that an integer must meet to stay, by the kind of its column, in SQL."""
_REPLACED_KINDS = {
    "id": f"CASE WHEN {{0}} BETWEEN 0 AND {ID - 1} THEN {{0}} ELSE number({{0}}) END",
    "process": f"({{0}} & {(1 << MACHINE_SHIFT) - 1}) | (machine({{0}} >> {MACHINE_SHIFT}) << {MACHINE_SHIFT})",
}
"""What an integer becomes, in SQL, in columns of kinds where it may become another."""
KEPT_TEXT_COLUMNS: dict[str, dict[str, str]] = KEPT["nsight"]["texts"]
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
_DIGITS = re.compile(r"\d+")


def redact_nsight(
    source: Path, target: Path, names: NameRedactor, *, keep: Collection[str] = ()
) -> dict[str, int]:
    """Write the redacted report *source* to *target*.

    Return how much was dropped or replaced, by kind.
    """
    refuse_unreadable(source, NSIGHT_SQLITE)
    target.unlink()  # sqlite creates the file itself
    replaced_before = names.replaced
    try:
        copy = sqlite3.connect(target.resolve().as_uri(), isolation_level=None, uri=True)
        try:
            export = open_export(source)
            assert isinstance(export, SqliteExport), "other exports are refused before"
            for table in export.tables & KEPT_NUMBER_COLUMNS.keys():
                export.check_size(table)
            layouts = nccl.payload_layouts(export)
            for name, function in _sql_functions(names, layouts, keep).items():
                copy.create_function(name, 1, function, deterministic=True)
            dropped = _copy_tables(copy, source, has_words=names.has_user_words)
        finally:
            copy.close()
    except sqlite3.Error as error:
        raise InputError(
            f"is not a readable sqlite file: {error}", path=source, hint="export the report again"
        ) from error
    return dropped | {"texts replaced": names.replaced - replaced_before}


def _copy_tables(copy: sqlite3.Connection, source: Path, *, has_words: bool) -> dict[str, int]:
    copy.execute("ATTACH ? AS old", (f"{source.resolve().as_uri()}?mode=ro&immutable=1",))
    copy.execute("PRAGMA journal_mode = OFF")
    listed = [
        name
        for (name,) in copy.execute(
            "SELECT name FROM old.sqlite_master WHERE type IN ('table', 'view')"
        )
    ]
    tables = [name for name in listed if name in KEPT_NUMBER_COLUMNS]
    machines = _number_machines(copy, tables)
    copy.create_function("machine", 1, machines.get, deterministic=True)
    copy.execute("BEGIN")
    for table in tables:
        _copy_table(copy, table, has_words=has_words)
    dropped_strings = _copy_strings(copy, tables) if "StringIds" in tables else 0
    copy.execute("COMMIT")
    return {"tables": len(listed) - len(tables), "strings": dropped_strings}


def _columns(copy: sqlite3.Connection, schema: str, table: str) -> list[str]:
    return [row[1] for row in copy.execute(f"PRAGMA {schema}.table_info({table})").fetchall()]


def _number_machines(copy: sqlite3.Connection, tables: Iterable[str]) -> dict[int, int]:
    """Return a number from 1 for each machine in packed ids, in their order: ranks are numbered by it."""
    machines: set[int] = set()
    for table in tables:
        present = _columns(copy, "old", table)
        for column in KEPT_NUMBER_COLUMNS[table].get("process", ()):
            if column in present:
                distinct = copy.execute(
                    f'SELECT DISTINCT "{column}" >> {MACHINE_SHIFT} FROM old.{table}'
                    f" WHERE typeof(\"{column}\") = 'integer'"
                )
                machines |= {machine for (machine,) in distinct}
    return {machine: number for number, machine in enumerate(sorted(machines), start=1)}


def _number_in_sql(column: str, kind: str, *, has_words: bool) -> str:
    """Return the SQL for what stays of a column of numbers; null where a number is none of its kind."""
    name = f'"{column}"'
    # Exporters write integers; a fraction is no time, id or size.
    conditions = [f"typeof({name}) = 'integer'", NUMBER_KINDS[kind].format(name)]
    if has_words:
        conditions.append(f"NOT user_word({name})")
    value = _REPLACED_KINDS.get(kind, "{0}").format(name)
    return f"CASE WHEN {' AND '.join(conditions)} THEN {value} END"


def _copy_table(copy: sqlite3.Connection, table: str, *, has_words: bool) -> None:
    """Copy the listed columns of a table.

    Only the columns of StringIds are created, its rows come later.
    """
    present = _columns(copy, "old", table)
    if table == "StringIds":
        copy.execute("CREATE TABLE main.StringIds (id, value)")
        return
    values = {}
    for kind, columns in KEPT_NUMBER_COLUMNS[table].items():
        for column in columns:
            if column in present:
                values[f'"{column}"'] = _number_in_sql(column, kind, has_words=has_words)
    values |= {
        f'"{column}"': f'{function}("{column}")'
        for column, function in KEPT_TEXT_COLUMNS.get(table, {}).items()
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
    new_id = _REPLACED_KINDS["id"].format("id")
    for function, columns in STRING_COLUMNS.items():
        references = [
            f'SELECT "{column}" FROM main.{table}'
            for table in tables
            for column in _columns(copy, "main", table)
            if column in columns
        ]
        if references:
            copy.execute(
                f"INSERT INTO main.StringIds SELECT {new_id}, {function}(value) FROM old.StringIds"
                f" WHERE typeof(id) = 'integer' AND {new_id} IN ({' UNION '.join(references)})"
                f" AND {new_id} NOT IN (SELECT id FROM main.StringIds)"
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
        if any(map(names.is_user_word, _DIGITS.findall(numbers[1]))):
            return names.redact(text)
        return names.redact(text[: start.start()]) + numbers[1]

    return {
        "code": of_text(names.redact_code),
        "words": of_text(names.redact),
        "range_text": of_text(range_text),
        "number": lambda value: names.number_pseudonym(str(value)),
        "user_word": lambda value: names.is_user_word(str(value)),
        "payload": of_text(lambda text: payload_fields(text, names)),
        "payload_bytes": lambda value: (
            payload_bytes(value, layout, names) if isinstance(value, bytes) else None
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


def payload_fields(text: str, names: NameRedactor) -> str | None:
    """Return the fields of a JSON payload that an analysis reads; None if it has none.

    >>> payload_fields('{"Peer rank": 1, "token": "secret", "p": {"Rank": "0x2"}}', NameRedactor())
    '{"Peer rank": 1, "Rank": 2}'
    >>> payload_fields('{"Rank": 4155551234}', NameRedactor())
    """
    numbers: dict[str, int] = {}
    for name, number in nccl.payload_numbers(text):
        is_in_range = abs(number) < PAYLOAD_LIMITS[nccl.FIELDS[name]]
        if is_in_range and not names.is_user_word(str(number)):
            numbers.setdefault(name, number)
    return json.dumps(numbers) if numbers else None


def payload_bytes(blob: bytes, layout: nccl.Layouts, names: NameRedactor) -> bytes | None:
    """Return a binary payload with zeros for all bytes but the schema's id and the fields that an analysis reads."""
    fields = layout.get(int.from_bytes(blob[nccl.SCHEMA_ID], "little"))
    if not fields:
        return None
    kept = bytearray(len(blob))
    kept[nccl.SCHEMA_ID] = blob[nccl.SCHEMA_ID]
    for column, dtype, offset in fields:
        start = nccl.HEADER_BYTES + offset
        field_bytes = slice(start, start + np.dtype(dtype).itemsize)
        if offset < 0 or field_bytes.stop > len(blob):
            continue
        number = int(np.frombuffer(blob[field_bytes], dtype)[0])
        if abs(number) < PAYLOAD_LIMITS[column] and not names.is_user_word(str(number)):
            kept[field_bytes] = blob[field_bytes]
    return bytes(kept)
