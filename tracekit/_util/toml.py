"""Tables that ship with tracekit, written for people: parsed once on a machine, and as JSON from then on.

Parsing them is 15 ms of every process that labels something.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tracekit._util import kept


def shipped_tables(name: str, texts: Sequence[str], beside: Path) -> list[dict[str, Any]]:
    """Return the tables of texts in TOML, which hold no dates; what was parsed is kept under *name*.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     shipped_tables("example.json", ["peak = 989.4"], Path(folder))
    [{'peak': 989.4}]
    """
    key = kept.digest(text.encode() for text in texts)
    files = list(kept.places(name, beside))
    for data in kept.found(files, key):
        tables: list[dict[str, Any]] = json.loads(data)
        return tables
    import tomllib

    tables = [tomllib.loads(text) for text in texts]
    kept.keep(files, key, json.dumps(tables).encode())
    return tables
