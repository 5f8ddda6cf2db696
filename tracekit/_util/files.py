"""Outputs are written beside their place and renamed, so that a failure never leaves half a file."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tracekit._util.faults import unwritable
from tracekit.errors import OutputError


@contextlib.contextmanager
def atomic_write(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary path in the same folder; on success it takes *path*'s place, on failure it is removed.

    >>> import tempfile, pathlib
    >>> target = pathlib.Path(tempfile.mkdtemp()) / "x.txt"
    >>> with atomic_write(target) as part:
    ...     _ = part.write_text("done")
    >>> target.read_text()
    'done'
    """
    target = check_target(path)
    try:
        handle, name = tempfile.mkstemp(prefix=f".{target.name[:40]}.", suffix=target.suffix, dir=target.parent)
    except OSError as error:
        raise unwritable(error, target) from error
    os.close(handle)
    part = Path(name)
    try:
        yield part
        part.chmod(0o666 & ~_umask())
        part.replace(target)
    except OSError as error:
        raise unwritable(error, target) from error
    finally:
        part.unlink(missing_ok=True)


def check_target(path: str | os.PathLike[str]) -> Path:
    """Return where a file is to be written, or say at once that it cannot be, before work is done for nothing.

    >>> check_target("/nowhere/x.txt")
    Traceback (most recent call last):
    tracekit.errors.OutputError: /nowhere/x.txt: there is no folder /nowhere (create it first)
    """
    target = Path(path)
    if not target.parent.is_dir():
        raise OutputError(f"{target}: there is no folder {target.parent}", hint="create it first")
    if target.is_dir():
        raise OutputError(f"{target}: is a folder", hint="name a file")
    if not os.access(target.parent, os.W_OK):
        raise OutputError(f"{target}: cannot be written: no permission in {target.parent}", hint="choose another place")
    return target


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
