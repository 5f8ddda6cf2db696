"""Where sqlite keeps a table and its columns, asked of sqlite itself."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping

from tracekit._util.records import dataclass


@dataclass(frozen=True, slots=True)
class Stored:
    """A table with rowids: the page at which it begins, and the places in a row of its columns of integers."""

    root: int
    places: Mapping[str, int]


def find_stored(connection: sqlite3.Connection, table: str) -> Stored | None:
    """Return where *table* is; None for one that is left to sqlite: a view, one without rowids, with computed columns.

    A column that is the table's key is not among ``places``: sqlite keeps it elsewhere in the row.

    >>> connection = sqlite3.connect(":memory:")
    >>> _ = connection.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, start INTEGER, text TEXT, end INT)")
    >>> find_stored(connection, "t")
    Stored(root=2, places={'start': 1, 'end': 3})
    >>> _ = connection.execute("CREATE VIEW v AS SELECT * FROM t")
    >>> find_stored(connection, "v")
    """
    try:
        kinds = connection.execute(f'PRAGMA main.table_list("{table}")').fetchall()  # none before sqlite 3.37
        found = connection.execute("SELECT rootpage FROM sqlite_master WHERE type = 'table' AND name = ?", [table])
        roots = [root for (root,) in found]
        columns = connection.execute(f'PRAGMA main.table_xinfo("{table}")').fetchall()
    except sqlite3.DatabaseError:
        return None
    plain = [(kind, without_rowids) for _, _, kind, _, without_rowids, _ in kinds] == [("table", 0)]
    computed = any(hidden for *_, hidden in columns)
    if not plain or computed or len(roots) != 1 or not isinstance(roots[0], int):
        return None
    places = {name: place for place, name, kind, _, _, key, _ in columns if "INT" in kind.upper() and not key}
    return Stored(roots[0], places)
