"""Errors of the operating system in plain words: a full disk, a missing permission, no memory left."""

import errno
import re

from tracekit.errors import InputError, InternalError, MachineError, OutputError, TracekitError

_FREE_SPACE = "make room, or choose another place"
_CHECK_PERMISSIONS = "check the permissions there, or choose another place"
_EXPLANATIONS: dict[int, tuple[str, str]] = {
    errno.ENOSPC: ("the disk is full", _FREE_SPACE),
    errno.EDQUOT: ("the disk quota is used up", _FREE_SPACE),
    errno.EFBIG: ("the file may not grow this large", _FREE_SPACE),
    errno.EROFS: ("the file system is read-only", "choose another place"),
    errno.EACCES: ("permission denied", _CHECK_PERMISSIONS),
    errno.EPERM: ("permission denied", _CHECK_PERMISSIONS),
    errno.ENOMEM: ("memory ran out", "use fewer workers (--workers 1), or fewer ranks (--ranks)"),
    errno.EMFILE: ("too many files are open", "raise the limit: ulimit -n"),
    errno.EBADF: ("it is closed", "open it (`> FILE`, `> /dev/null`), or write the result with -o"),
    errno.EIO: ("the disk or network failed", "try again, or copy the files first"),
    errno.ESTALE: ("the file went away on its server", "try again, or copy the files first"),
}
"""Reason and hint by error number, for the errors that a user can do something about."""
_NO_THREAD = "can't start new thread"
"""What Python says if there is no memory for another thread."""
_OS_ERROR = re.compile(r"os error (\d+)")


def explain_os_error(error: BaseException) -> tuple[str, str] | None:
    """Return reason and hint for an error of the operating system.

    None if *error* is about something else.

    Libraries wrap such errors in exceptions of their own, with the number in the text.

    >>> explain_os_error(OSError(errno.ENOSPC, "No space left on device"))
    ('the disk is full', 'make room, or choose another place')
    >>> explain_os_error(RuntimeError("IO error: Permission denied (os error 13): /x"))[0]
    'permission denied'
    >>> explain_os_error(RuntimeError("can't start new thread"))[0]
    'memory ran out'
    >>> explain_os_error(ValueError("no number"))
    """
    no_thread = isinstance(error, RuntimeError) and str(error) == _NO_THREAD
    if isinstance(error, MemoryError) or no_thread:
        return _EXPLANATIONS[errno.ENOMEM]
    number = error.errno if isinstance(error, OSError) else None
    if number is None and (match := _OS_ERROR.search(str(error))):
        number = int(match.group(1))
    return _EXPLANATIONS.get(number or 0)


def write_error(error: BaseException, path: object) -> OutputError:
    """Return the error for a result that could not be written to *path*.

    >>> write_error(OSError(errno.ENOSPC, "No space left on device"), "out.json").message
    'out.json: cannot be written: the disk is full'
    """
    reason, hint = explain_os_error(error) or (_first_line(error), "choose another place")
    return OutputError(f"cannot be written: {reason}", path=str(path), hint=hint)


def read_error(error: BaseException, path: object, *, hint: str) -> TracekitError:
    """Return the error for an input that could not be read.

    *hint* is used if the system gave no reason.

    >>> read_error(OSError(errno.EACCES, "Permission denied"), "a.json", hint="check the path").message
    'a.json: cannot be read: permission denied'
    """
    reason, hint = explanation = explain_os_error(error) or (_first_line(error), hint)
    kind = MachineError if explanation is _EXPLANATIONS[errno.ENOMEM] else InputError
    return kind(f"{path}: cannot be read: {reason}", hint=hint)


def as_tracekit_error(error: BaseException) -> TracekitError:
    """Return any error as a ``TracekitError`` of one line: a problem of the system, or else a fault in tracekit.

    >>> as_tracekit_error(MemoryError()).message
    'memory ran out'
    >>> as_tracekit_error(ZeroDivisionError("division by zero")).message
    'a fault in tracekit: ZeroDivisionError: division by zero'
    """
    if isinstance(error, TracekitError):
        return error
    explanation = explain_os_error(error)
    if explanation is None and isinstance(error, OSError):
        explanation = (error.strerror or str(error) or type(error).__name__).lower(), ""
    if explanation is None:
        return InternalError.of(error)
    reason, hint = explanation
    if explanation is _EXPLANATIONS[errno.ENOMEM]:
        return MachineError(reason, hint=hint)
    path = getattr(error, "filename", None)
    return InputError(f"{path}: {reason}" if path else reason, hint=hint)


def _first_line(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower()
    return str(error).strip().split("\n", maxsplit=1)[0] or type(error).__name__
