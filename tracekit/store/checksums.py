"""Checksums that tell whether files are still those that were written.

Every file of a store has a checksum in its rank's entry. JSON documents (entries, the manifest) carry a checksum of
their own content under ``CHECKSUM_KEY``.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from tracekit.documents.coding import to_plain

CHECKSUM_KEY = "digest"
"""Key of a document's checksum, computed over all its other keys."""


def file_checksum(file: Path) -> str:
    """Return the SHA-256 of a file's bytes, in hexadecimal."""
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def matches_checksum(file: Path, expected: str | None) -> bool:
    """Return whether a file has the checksum *expected*; False if none is expected."""
    status = file.stat()
    return expected is not None and (
        _cached_checksum(file, status.st_ino, status.st_mtime_ns, status.st_size) == expected
    )


@lru_cache(maxsize=4096)
def _cached_checksum(file: Path, *_: int) -> str:
    """Return a file's checksum. Its inode, time and size are in the cache's key: a changed file is read again."""
    return file_checksum(file)


def with_checksum(document: Any) -> dict[str, Any]:
    """Return a document as plain data with its checksum added.

    >>> verify_document(with_checksum({"ranks": [1, 2]}))
    >>> verify_document(with_checksum({"ranks": [1, 2]}) | {"ranks": [1, 3]})
    Traceback (most recent call last):
    ValueError: its content is not what was written
    """
    content = to_plain(document)
    return {**content, CHECKSUM_KEY: _document_checksum(content)}


def verify_document(document: Mapping[str, Any]) -> None:
    """Raise ``ValueError`` if a document does not match the checksum in it."""
    content = {key: value for key, value in document.items() if key != CHECKSUM_KEY}
    if document.get(CHECKSUM_KEY) != _document_checksum(content):
        raise ValueError("its content is not what was written")


def _document_checksum(document: Mapping[str, Any]) -> str:
    text = json.dumps(document, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
