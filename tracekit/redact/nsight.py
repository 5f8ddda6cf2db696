"""An Nsight Systems sqlite export copied table by table: only what is known to be harmless is copied.

Reports embed the environment, the command line and the program's output, in tables and in strings. The copy is a
new database, so that nothing deleted lingers in free pages.
"""

from __future__ import annotations

import re
import sqlite3
from pathlib import Path

from tracekit.errors import InputError
from tracekit.parsers.nsight.sqlite import refuse_unfinished
from tracekit.redact.text import Scrubber

KEPT_TABLES = re.compile(
    r"CUPTI_ACTIVITY_KIND_(?!OPENACC)\w+|NVTX_\w+|StringIds|ThreadNames|PROCESSES|ENUM_\w+|ANALYSIS_DETAILS"
    r"|TARGET_INFO_(GPU|CUDA_DEVICE|CUDA_STREAM|CUDA_CONTEXT_INFO|CUDA_NULL_STREAM|SESSION_START_TIME)"
    r"|META_DATA_(EXPORT|CAPTURE)|EXPORT_META_DATA|DIAGNOSTIC_EVENT|PROFILER_OVERHEAD|CUDA_GRAPH\w*"
)
METADATA = re.compile(r"META_DATA")
METADATA_ROWS = "name LIKE '%VERSION%' OR name LIKE '%PRODUCT%' OR name = 'CAPTURE_EVENT_TYPE'"
"""What of the metadata is kept: who exported, in which format, and what was traced."""
BLANKED = {
    "PROCESSES": {"name": "process"},
    "DIAGNOSTIC_EVENT": {"text": "redacted"},
    "TARGET_INFO_GPU": {"uuid": "", "busLocation": "", "ctxswDevPath": "", "ctrlDevPath": ""},
}
"""Columns that identify a machine or tell what ran on it, and what stands there instead."""
STRING_COLUMNS = frozenset(("demangledName", "shortName", "mangledName", "nameId", "textId", "jsonTextId"))
"""Columns that point into StringIds: a string that nothing kept points at goes."""


def rewrite(source: Path, target: Path, scrubber: Scrubber) -> dict[str, int]:
    """Copy the report at *source* without what is sensitive to *target*; return how much went, by kind."""
    refuse_unfinished(source)
    target.unlink()  # sqlite makes its own file
    try:
        copy = sqlite3.connect(target.resolve().as_uri(), isolation_level=None, uri=True)
        try:
            return _copy(copy, source, scrubber)
        finally:
            copy.close()
    except sqlite3.Error as error:
        raise InputError(f"{source}: is not a readable sqlite file: {error}", hint="export the report again") from error


def _copy(copy: sqlite3.Connection, source: Path, scrubber: Scrubber) -> dict[str, int]:
    copy.create_function("scrub", 1, lambda text: scrubber(text) if isinstance(text, str) else text)
    copy.execute("ATTACH ? AS old", (f"{source.resolve().as_uri()}?mode=ro&immutable=1",))
    copy.execute("PRAGMA journal_mode = OFF")
    tables = copy.execute("SELECT name, sql FROM old.sqlite_master WHERE type = 'table' AND sql IS NOT NULL").fetchall()
    kept = [(name, sql) for name, sql in tables if KEPT_TABLES.fullmatch(name)]
    copy.execute("BEGIN")
    for name, sql in kept:
        copy.execute(sql)
        if name != "StringIds":
            _copy_table(copy, name)
    strings = _copy_strings(copy, [name for name, _ in kept])
    copy.execute("COMMIT")
    return {
        "tables": len(tables) - len(kept),
        "strings": strings,
        "texts replaced": scrubber.replaced,
    }


def _copy_table(copy: sqlite3.Connection, name: str) -> None:
    blanks = BLANKED.get(name, {})
    columns = [(row[1], str(row[2]).upper()) for row in copy.execute(f'PRAGMA old.table_info("{name}")')]
    values, fills = [], []
    for column, kind in columns:
        if column in blanks:
            values.append("?")
            fills.append(blanks[column])
        elif "TEXT" in kind and not name.startswith("ENUM_"):
            values.append(f'scrub("{column}")')
        else:
            values.append(f'"{column}"')
    where = f" WHERE {METADATA_ROWS}" if METADATA.search(name) else ""
    copy.execute(f'INSERT INTO main."{name}" SELECT {", ".join(values)} FROM old."{name}"{where}', fills)


def _copy_strings(copy: sqlite3.Connection, tables: list[str]) -> int:
    """Copy the strings that kept rows point at; return how many went."""
    if "StringIds" not in tables:
        return 0
    uses = []
    for table in tables:
        for row in copy.execute(f'PRAGMA main.table_info("{table}")'):
            if row[1] in STRING_COLUMNS:
                uses.append(f'SELECT "{row[1]}" FROM main."{table}"')
    total = copy.execute("SELECT count(*) FROM old.StringIds").fetchone()[0]
    if uses:
        used = " UNION ".join(uses)
        copy.execute(f"INSERT INTO main.StringIds SELECT id, scrub(value) FROM old.StringIds WHERE id IN ({used})")
    kept = copy.execute("SELECT count(*) FROM main.StringIds").fetchone()[0]
    return int(total - kept)
