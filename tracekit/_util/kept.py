"""What is made once on a machine and kept for later processes: in files that say what they were made of."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from tracekit._util.files import atomic_write
from tracekit.errors import TracekitError

FOLDER = "TRACEKIT_CACHE_DIR"
"""Environment variable: the folder to keep things in, instead of beside the package or in the user's cache folder."""
_DIGEST = 32


def places(name: str, beside: Path) -> Iterator[Path]:
    """Yield where a file of this *name* may be: as the user says, in a folder of the package, or in the user's cache.

    >>> [place.as_posix() for place in places("packs.json", Path("tracekit/classify"))][0]
    'tracekit/classify/__pycache__/packs.json'
    """
    if chosen := os.environ.get(FOLDER):
        yield Path(chosen) / name
        return
    yield beside / "__pycache__" / name
    with contextlib.suppress(RuntimeError):  # no home
        yield Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tracekit" / name


def digest(parts: Iterable[bytes]) -> bytes:
    """Return what tells these parts, in this order, from all others."""
    return hashlib.sha256(b"".join(hashlib.sha256(part).digest() for part in parts)).digest()


def found(files: Iterable[Path], key: bytes) -> Iterator[bytes]:
    """Yield what is kept under a *key*, from each of the files that has it whole."""
    for file in files:
        with contextlib.suppress(OSError):
            kept = file.read_bytes()
            if kept[:_DIGEST] == hashlib.sha256(key + kept[_DIGEST:]).digest():
                yield kept[_DIGEST:]


def keep(files: Iterable[Path], key: bytes, data: bytes) -> bool:
    """Write to the first file that can be written; False where none can."""
    for file in files:
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            with atomic_write(file) as part:
                part.write_bytes(hashlib.sha256(key + data).digest() + data)
        except (OSError, TracekitError):
            continue
        return True
    return False
