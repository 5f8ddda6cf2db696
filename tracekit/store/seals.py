"""Whether bytes are still those that were written: a digest for each file, and a seal on what lists them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

SEAL = "digest"
"""Key of a document's own digest, over all its other keys."""


def digest(file: Path) -> str:
    """Return what a file's bytes hash to."""
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def same_digest(file: Path, expected: str | None) -> bool:
    """Return whether a file hashes to *expected*; a file that has not changed since is not read twice."""
    seen = file.stat()
    return expected is not None and _digest(file, seen.st_ino, seen.st_mtime_ns, seen.st_size) == expected


@lru_cache(maxsize=4096)
def _digest(file: Path, *_: int) -> str:
    return digest(file)


def sealed(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return a document with its digest.

    >>> check_seal(sealed({"ranks": [1, 2]}))
    >>> check_seal(sealed({"ranks": [1, 2]}) | {"ranks": [1, 3]})
    Traceback (most recent call last):
    ValueError: its content is not what was written
    """
    return {**document, SEAL: _hash(document)}


def check_seal(document: Mapping[str, Any]) -> None:
    """Raise ``ValueError`` where a document is not the one that was sealed."""
    if document.get(SEAL) != _hash({key: value for key, value in document.items() if key != SEAL}):
        raise ValueError("its content is not what was written")


def _hash(document: Mapping[str, Any]) -> str:
    text = json.dumps(document, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
