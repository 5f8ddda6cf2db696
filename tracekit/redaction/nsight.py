"""An Nsight Systems sqlite export copied table by table: numbers, and the few texts that an analysis reads.

Reports embed the environment, the command line and the program's output, in tables and in strings. The copy is a
new database, so that nothing deleted lingers in free pages.
"""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from tracekit.errors import InputError
from tracekit.parsers.nsight.payload import FIELDS
from tracekit.parsers.nsight.sqlite import refuse_unreadable
from tracekit.redaction.allowed import VERSION, is_number
from tracekit.redaction.text import Scrubber

KEPT_TABLES = re.compile(
    r"CUPTI_ACTIVITY_KIND_(?!OPENACC)\w+|NVTX_\w+|StringIds|PROCESSES|ENUM_\w+|ANALYSIS_DETAILS"
    r"|TARGET_INFO_(GPU|CUDA_DEVICE|CUDA_STREAM|CUDA_CONTEXT_INFO|CUDA_NULL_STREAM|SESSION_START_TIME)"
    r"|META_DATA_(EXPORT|CAPTURE)|EXPORT_META_DATA|DIAGNOSTIC_EVENT|PROFILER_OVERHEAD|CUDA_GRAPH\w*"
)
METADATA = re.compile(r"META_DATA")
METADATA_ROWS = (
    "(name GLOB 'EXPORT_*VERSION*' OR name GLOB 'EXPORT_PRODUCT_*' OR name GLOB 'CAPTURE_*VERSION*'"
    " OR name = 'CAPTURE_EVENT_TYPE')"
)
"""What of the metadata is kept: who exported, in which format, and what was traced."""
BLANKED = {
    "PROCESSES": {"name": "process"},
    "DIAGNOSTIC_EVENT": {"text": "redacted"},
    "TARGET_INFO_GPU": {"uuid": "", "busLocation": "", "ctxswDevPath": "", "ctrlDevPath": ""},
}
"""Columns that identify a machine or tell what ran on it, and what stands there instead."""
TEXTS = {
    ("NVTX_EVENTS", "text"): "free",
    ("NVTX_EVENTS", "jsonText"): "payload",
    ("NVTX_EVENTS", "binaryData"): "bytes_only",
    ("NVTX_PAYLOAD_SCHEMAS", "name"): "field",
    ("NVTX_PAYLOAD_SCHEMA_ENTRIES", "name"): "field",
    ("TARGET_INFO_GPU", "name"): "free",
}
"""Columns of text that an analysis reads, and the function that cuts them down; in all others only numbers stay."""
CODE_COLUMNS = frozenset(("demangledName", "shortName", "mangledName", "nameId"))
"""Columns that point into StringIds at the names that code has for itself."""
FREE_COLUMNS = frozenset(("textId",))
JSON_COLUMNS = frozenset(("jsonTextId",))
"""Columns that point into StringIds at ranges' texts and payloads; a string that nothing kept points at goes."""
_READABLE = re.compile(rb"[ -~]{8}")
"""Eight letters in a row are text; numbers rarely look so."""


def rewrite(source: Path, target: Path, scrubber: Scrubber, *, keep: Collection[str] = ()) -> dict[str, int]:
    """Copy the report at *source* without what is sensitive to *target*; return how much went, by kind."""
    refuse_unreadable(source)
    target.unlink()  # sqlite makes its own file
    try:
        copy = sqlite3.connect(target.resolve().as_uri(), isolation_level=None, uri=True)
        try:
            return _copy(copy, source, scrubber, keep)
        finally:
            copy.close()
    except sqlite3.Error as error:
        raise InputError(f"{source}: is not a readable sqlite file: {error}", hint="export the report again") from error


def _copy(copy: sqlite3.Connection, source: Path, scrubber: Scrubber, keep: Collection[str]) -> dict[str, int]:
    for name, function in _functions(scrubber, keep).items():
        copy.create_function(name, 1, function, deterministic=True)
    copy.execute("ATTACH ? AS old", (f"{source.resolve().as_uri()}?mode=ro&immutable=1",))
    copy.execute("PRAGMA journal_mode = OFF")
    listed = copy.execute("SELECT name FROM old.sqlite_master WHERE type IN ('table', 'view')").fetchall()
    kept = [name for (name,) in listed if KEPT_TABLES.fullmatch(name)]
    copy.execute("BEGIN")
    for name in kept:
        _copy_table(copy, name)
    strings = _copy_strings(copy, kept)
    copy.execute("COMMIT")
    return {
        "tables": len(listed) - len(kept),
        "strings": strings,
        "texts replaced": scrubber.replaced,
    }


def _functions(scrubber: Scrubber, keep: Collection[str]) -> dict[str, Callable[[Any], Any]]:
    """What the copying statements call: each returns what stays of a value."""

    def only_text(change: Callable[[str], str | None]) -> Callable[[Any], Any]:
        return lambda value: change(value) if isinstance(value, str) else None

    free = scrubber if "annotations" in keep else scrubber.free
    return {
        "code": only_text(scrubber),
        "free": only_text(free),
        "field": only_text(lambda text: text if text in FIELDS else scrubber.free(text)),
        "payload": only_text(payload_numbers),
        "version": lambda value: value if VERSION.fullmatch(str(value)) else only_text(scrubber.free)(value),
        "bytes_only": lambda value: value if isinstance(value, bytes) and not _READABLE.search(value) else None,
    }


def payload_numbers(text: str) -> str | None:
    """Return the fields of a JSON payload that an analysis reads, as far as they are numbers.

    >>> payload_numbers('{"Peer rank": 1, "token": "secret", "p": {"Rank": "2"}}')
    '{"Peer rank": 1, "Rank": "2"}'
    >>> payload_numbers('{"token": "secret"}')
    """
    try:
        todo: list[Any] = [json.loads(text)]
    except (ValueError, RecursionError):
        return None
    kept: dict[str, Any] = {}
    while todo:
        item = todo.pop()
        if isinstance(item, dict):
            for name, value in item.items():
                if name in FIELDS and is_number(value) and not isinstance(value, list):
                    kept.setdefault(name, value)
                else:
                    todo.append(value)
        elif isinstance(item, list):
            todo += item
    return json.dumps(kept) if kept else None


def _copy_table(copy: sqlite3.Connection, name: str) -> None:
    blanks = BLANKED.get(name, {})
    columns = [row[1] for row in copy.execute(f"PRAGMA old.table_info({_quoted(name)})")]
    # A definition of our own: the file's may hold comments and defaults.
    copy.execute(f"CREATE TABLE main.{_quoted(name)} ({', '.join(map(_quoted, columns))})")
    if name == "StringIds":
        return
    values, fills = [], []
    for column in columns:
        quoted = _quoted(column)
        if column in blanks:
            values.append("?")
            fills.append(blanks[column])
        elif (name, column) in TEXTS:
            values.append(f"{TEXTS[name, column]}({quoted})")
        elif METADATA.search(name):
            values.append(f"version({quoted})" if column == "value" else quoted)
        elif name.startswith("ENUM_"):
            values.append(f"CASE WHEN typeof({quoted}) = 'text' THEN code({quoted}) ELSE {quoted} END")
        else:
            values.append(f"CASE WHEN typeof({quoted}) IN ('integer', 'real') THEN {quoted} END")
    where = f" WHERE {METADATA_ROWS}" if METADATA.search(name) else ""
    insert = f"INSERT INTO main.{_quoted(name)} SELECT {', '.join(values)} FROM old.{_quoted(name)}{where}"
    copy.execute(insert, fills)


def _copy_strings(copy: sqlite3.Connection, tables: list[str]) -> int:
    """Copy the strings that kept rows point at; return how many went."""
    if "StringIds" not in tables:
        return 0
    total = copy.execute("SELECT count(*) FROM old.StringIds").fetchone()[0]
    done = "SELECT id FROM main.StringIds"
    for function, pointing in (("code", CODE_COLUMNS), ("free", FREE_COLUMNS), ("payload", JSON_COLUMNS)):
        uses = [
            f"SELECT {_quoted(row[1])} FROM main.{_quoted(table)}"
            for table in tables
            for row in copy.execute(f"PRAGMA main.table_info({_quoted(table)})").fetchall()
            if row[1] in pointing
        ]
        if uses:
            copy.execute(
                f"INSERT INTO main.StringIds (id, value) SELECT id, {function}(value) FROM old.StringIds"
                f" WHERE id IN ({' UNION '.join(uses)}) AND id NOT IN ({done})"
            )
    kept = copy.execute("SELECT count(*) FROM main.StringIds").fetchone()[0]
    return int(total - kept)


def _quoted(name: str) -> str:
    """Return a name as SQL wants it, whatever is in it."""
    return '"' + name.replace('"', '""') + '"'
