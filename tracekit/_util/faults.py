"""What the machine refused, in words: a full disk, a missing permission, no memory left."""

from __future__ import annotations

import errno
import re

from tracekit.errors import InputError, InternalError, OutputError, TracekitError

_ROOM = "make room, or choose another place"
_WAY = "check the permissions there, or choose another place"
REFUSED: dict[int, tuple[str, str]] = {
    errno.ENOSPC: ("the disk is full", _ROOM),
    errno.EDQUOT: ("the disk quota is used up", _ROOM),
    errno.EFBIG: ("the file may not grow this large", _ROOM),
    errno.EROFS: ("the file system is read-only", "choose another place"),
    errno.EACCES: ("permission denied", _WAY),
    errno.EPERM: ("permission denied", _WAY),
    errno.ENOMEM: ("memory ran out", "use fewer workers (--workers 1), or fewer ranks (--ranks)"),
    errno.EMFILE: ("too many files are open", "raise the limit: ulimit -n"),
    errno.EIO: ("the disk or network failed", "try again, or copy the files first"),
    errno.ESTALE: ("the file went away on its server", "try again, or copy the files first"),
}
"""The system's answers that people can do something about."""
_OS_ERROR = re.compile(r"os error (\d+)")


def refused(error: BaseException) -> tuple[str, str] | None:
    """Return why the system refused and what to do next; None where *error* is about something else.

    Libraries wrap the system's answer in errors of their own, with its number in their text.

    >>> refused(OSError(errno.ENOSPC, "No space left on device"))
    ('the disk is full', 'make room, or choose another place')
    >>> refused(RuntimeError("IO error: Permission denied (os error 13): /x"))[0]
    'permission denied'
    >>> refused(ValueError("no number"))
    """
    if isinstance(error, MemoryError):
        return REFUSED[errno.ENOMEM]
    number = error.errno if isinstance(error, OSError) else None
    if number is None and (match := _OS_ERROR.search(str(error))):
        number = int(match.group(1))
    return REFUSED.get(number or 0)


def unwritable(error: BaseException, where: object) -> OutputError:
    """Return the error of a result that could not be written to *where*.

    >>> unwritable(OSError(errno.ENOSPC, "No space left on device"), "out.json").message
    'out.json: cannot be written: the disk is full'
    """
    reason, hint = refused(error) or (_first_line(error), "choose another place")
    return OutputError(f"{where}: cannot be written: {reason}", hint=hint)


def unreadable(error: BaseException, where: object, *, hint: str) -> InputError:
    """Return the error of an input that could not be read; *hint* counts where the system gave no reason.

    >>> unreadable(OSError(errno.EACCES, "Permission denied"), "a.json", hint="check the path").message
    'a.json: cannot be read: permission denied'
    """
    reason, better = refused(error) or (_first_line(error), hint)
    return InputError(f"{where}: cannot be read: {reason}", hint=better)


def as_tracekit_error(error: BaseException) -> TracekitError:
    """Return any error as one of ours, in one line: what the system refused, or else a fault in tracekit.

    >>> as_tracekit_error(MemoryError()).message
    'memory ran out'
    >>> as_tracekit_error(ZeroDivisionError("division by zero")).message
    'a fault in tracekit: ZeroDivisionError: division by zero'
    """
    if isinstance(error, TracekitError):
        return error
    why = refused(error)
    if why is None and isinstance(error, OSError):
        why = (error.strerror or str(error) or type(error).__name__).lower(), ""
    if why is None:
        return InternalError.of(error)
    where = getattr(error, "filename", None)
    return InputError(f"{where}: {why[0]}" if where else why[0], hint=why[1])


def _first_line(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower()
    return str(error).strip().split("\n", maxsplit=1)[0] or type(error).__name__
