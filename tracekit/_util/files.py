"""Files: the start of an input, and atomic outputs, written under a temporary name beside the target, then renamed.

A failure never leaves half a file. A process that is killed leaves its temporary file behind; the
next one that writes the same target removes it. A lock, which ends with the process that holds it,
tells abandoned files from those in use.
"""

import contextlib
import glob
import os
import re
import secrets
import shutil
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from tracekit._util.os_errors import write_error
from tracekit.errors import OutputError


@contextlib.contextmanager
def atomic_write(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary path in the folder of *path*.

    Rename it to *path* on success, remove it on failure.

    >>> import tempfile, pathlib
    >>> target = pathlib.Path(tempfile.mkdtemp()) / "x.txt"
    >>> with atomic_write(target) as temporary:
    ...     _ = temporary.write_text("done")
    >>> target.read_text()
    'done'
    """
    target = check_output_path(path)
    remove_abandoned(target)
    temporary = target.with_name(f"{temporary_prefix(target)}{secrets.token_hex(8)}{target.suffix}")
    try:
        temporary.touch(exist_ok=False)
        with lock_temporary(temporary):
            yield temporary
        temporary.replace(target)
    except OSError as error:
        raise write_error(error, target) from error
    finally:
        temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def output_folder(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield the folder *path*, made if needed.

    If the block fails or is interrupted, what is new in it is removed.

    Half of a run's ranks would look like a run.
    """
    target = Path(path)
    existed = target.exists()
    try:
        target.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise write_error(error, target) from error
    old = set(target.iterdir())
    try:
        yield target
    except (Exception, KeyboardInterrupt):
        for entry in set(target.iterdir()) - old:
            entry.unlink()
        if not existed:
            target.rmdir()
        raise


def temporary_prefix(target: Path) -> str:
    """Return what the temporary names for *target* begin with."""
    return f".{target.name[:40]}.tracekit-"


@contextlib.contextmanager
def lock_temporary(temporary: Path) -> Iterator[None]:
    """Lock a temporary file or folder while it is written, so that ``remove_abandoned`` leaves it alone."""
    try:
        handle = os.open(temporary, os.O_RDONLY)
    except OSError:  # not every system opens folders
        yield
        return
    try:
        _try_lock(handle)
        yield
    finally:
        os.close(handle)


@contextlib.contextmanager
def is_locked_by_another(folder: Path) -> Iterator[bool]:
    """Yield whether another process has locked a folder; if not, keep it locked for the block.

    False where folders cannot be opened or the file system knows no locks.
    """
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError:
        yield False
        return
    try:
        yield _try_lock(handle) == "held by another"
    finally:
        os.close(handle)


def remove_abandoned(target: Path) -> None:
    """Remove the temporary files and folders for *target* whose process was killed."""
    for temporary in target.parent.glob(f"{glob.escape(temporary_prefix(target))}*"):
        with contextlib.suppress(OSError):
            handle = os.open(temporary, os.O_RDONLY)
            try:
                if _try_lock(handle) != "taken":
                    continue
                if temporary.is_dir():
                    shutil.rmtree(temporary, ignore_errors=True)
                else:
                    temporary.unlink(missing_ok=True)
            finally:
                os.close(handle)


def read_start(path: Path, max_bytes: int) -> bytes | None:
    """Return the first bytes of a file, decompressed if it is gzip; None if it cannot be read."""
    try:
        with path.open("rb") as file:
            start = file.read(max_bytes)
        return (
            zlib.decompressobj(31).decompress(start, max_bytes)
            if start[:2] == b"\x1f\x8b"
            else start
        )
    except (OSError, zlib.error):
        return None


def check_output_path(path: str | os.PathLike[str]) -> Path:
    """Return *path*, or raise if no file can be written there: called before the work whose result goes there.

    >>> check_output_path("/nowhere/x.txt")
    Traceback (most recent call last):
    tracekit.errors.OutputError: /nowhere/x.txt: there is no folder /nowhere (create it first)
    """
    target = Path(path)
    check_parent(target)
    if target.is_dir():
        raise OutputError("is a folder", path=target, hint="name a file")
    if not os.access(target.parent, os.W_OK):
        raise OutputError(
            f"cannot be written: no permission in {target.parent}",
            path=target,
            hint="choose another place",
        )
    return target


_SCHEME = re.compile(r"[a-z][a-z0-9+.-]+:")


def check_parent(target: Path) -> None:
    """Raise if *target* has no folder on this machine to stand in.

    >>> check_parent(Path("s3://bucket/run.store"))
    Traceback (most recent call last):
    tracekit.errors.OutputError: s3://bucket/run.store: results are written to folders of this machine, ...
    """
    if target.parent.is_dir():
        return
    for i, part in enumerate(target.parts):  # a URL of which Path has dropped a slash
        if _SCHEME.fullmatch(part):
            # An object store has no renaming, by which a result appears whole or not at all.
            raise OutputError(
                f"{part}//{'/'.join(target.parts[i + 1 :])}: results are written to folders of this machine, "
                "where they appear whole or not at all",
                hint="name a folder here, then copy it (aws s3 cp --recursive)",
            )
    raise OutputError(f"there is no folder {target.parent}", path=target, hint="create it first")


def _try_lock(handle: int) -> Literal["taken", "held by another", "not supported"]:
    """Take a lock that ends with the process; return what became of it."""
    try:
        import fcntl

        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return "held by another"
    except (ImportError, OSError):
        return "not supported"
    return "taken"
