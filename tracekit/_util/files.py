"""Outputs are written beside their place and renamed, so that a failure never leaves half a file."""

from __future__ import annotations

import contextlib
import ctypes
import glob
import os
import shutil
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
    sweep(target)
    try:
        handle, name = tempfile.mkstemp(prefix=part_prefix(target), suffix=target.suffix, dir=target.parent)
    except OSError as error:
        raise unwritable(error, target) from error
    os.close(handle)
    part = Path(name)
    try:
        with being_built(part):
            yield part
        part.chmod(0o666 & ~_umask())
        part.replace(target)
    except OSError as error:
        raise unwritable(error, target) from error
    finally:
        part.unlink(missing_ok=True)


def part_prefix(target: Path) -> str:
    """Return how the hidden name begins under which *target* is built."""
    return f".{target.name[:40]}.tracekit-"


@contextlib.contextmanager
def being_built(part: Path) -> Iterator[None]:
    """Lock a file or folder that is being built, for as long as this process lives: ``sweep`` leaves it alone."""
    try:
        handle = os.open(part, os.O_RDONLY)
    except OSError:  # folders are not opened everywhere
        yield
        return
    try:
        _lock(handle)
        yield
    finally:
        os.close(handle)


def sweep(target: Path) -> None:
    """Remove what processes that were killed left of *target* beside it; what somebody still builds stays."""
    for left in target.parent.glob(f"{glob.escape(part_prefix(target))}*"):
        with contextlib.suppress(OSError):
            handle = os.open(left, os.O_RDONLY)
            try:
                if _lock(handle):
                    shutil.rmtree(left, ignore_errors=True) if left.is_dir() else left.unlink(missing_ok=True)
            finally:
                os.close(handle)


def exchange(one: Path, other: Path) -> bool:
    """Let two folders change places at once, so that neither place is ever empty; False where the system cannot."""
    try:
        rename = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError):
        return False
    here, swap = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    return bool(rename(here, os.fsencode(one.absolute()), here, os.fsencode(other.absolute()), swap) == 0)


def _lock(handle: int) -> bool:
    """Take a lock that ends with the process; False where another has it, or there are none here."""
    try:
        import fcntl
    except ImportError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def check_target(path: str | os.PathLike[str]) -> Path:
    """Return where a file is to be written, or raise before any work is done for nothing.

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
