"""Where sqlite keeps a table and its columns, asked of sqlite itself."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Stored:
    """A table with rowids: the page at which it begins, and the places of its columns in a row.

    Of a column of ``numbers`` sqlite gives the integers as they are stored. ``key`` is another name of the rowid.
    """

    root: int
    places: Mapping[str, int]
    numbers: frozenset[str]
    key: str | None


def find_stored(connection: sqlite3.Connection, table: str) -> Stored | None:
    """Return where *table* is; None for one that is left to sqlite: a view, one without rowids, with computed columns.

    >>> connection = sqlite3.connect(":memory:")
    >>> _ = connection.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, text TEXT, end INT)")
    >>> find_stored(connection, "t")
    Stored(root=2, places={'id': 0, 'text': 1, 'end': 2}, numbers=frozenset({'end'}), key='id')
    >>> _ = connection.execute("CREATE VIEW v AS SELECT * FROM t")
    >>> find_stored(connection, "v")
    """
    try:
        kinds = connection.execute(f'PRAGMA main.table_list("{table}")').fetchall()  # none before sqlite 3.37
        found = connection.execute("SELECT rootpage FROM sqlite_master WHERE type = 'table' AND name = ?", [table])
        roots = [root for (root,) in found]
        columns = connection.execute(f'PRAGMA main.table_xinfo("{table}")').fetchall()
        indexes = connection.execute(f'PRAGMA main.index_list("{table}")').fetchall()
    except sqlite3.DatabaseError:
        return None
    plain = [(kind, without_rowids) for _, _, kind, _, without_rowids, _ in kinds] == [("table", 0)]
    computed = any(hidden for *_, hidden in columns)
    if not plain or computed or len(roots) != 1 or not isinstance(roots[0], int):
        return None
    keys = [(name, kind) for _, name, kind, _, _, key, _ in columns if key]
    indexed = any(origin == "pk" for _, _, _, origin, _ in indexes)
    return Stored(
        root=roots[0],
        places={name: place for place, name, *_ in columns},
        numbers=frozenset(name for _, name, kind, _, _, key, _ in columns if "INT" in kind.upper() and not key),
        # A key that has an index of its own is not the rowid, whatever it is called.
        key=keys[0][0] if len(keys) == 1 and keys[0][1].upper() == "INTEGER" and not indexed else None,
    )
