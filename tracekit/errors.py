"""Every error a user can meet: one small tree, each with a hint.

    TracekitError            base: what went wrong, where, and what to do next
    ├── InputError           the input cannot be used (path, format, damage, mixed runs)
    ├── OptionError          the words of the command or call are wrong
    ├── RuleError            a rules file is wrong (points at the line)
    ├── ScheduleError        a schedule cannot be built or simulated
    │   └── DeadlockError    ops that wait for each other
    ├── OutputError          a result could not be written
    └── InternalError        a fault of tracekit's own

The command line prints ``message`` and ``hint`` on one line and exits with the class's ``exit_code``: 2, or 70 where
the fault is tracekit's own.
"""

from __future__ import annotations

import msgspec


class TracekitError(Exception):
    """What went wrong and where, with a hint for what to do next.

    >>> raise TracekitError("rank2.json.gz: ends inside event 48211", hint="re-record this rank")
    Traceback (most recent call last):
    tracekit.errors.TracekitError: rank2.json.gz: ends inside event 48211 (re-record this rank)
    """

    exit_code = 2
    """What the command line exits with."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message

    def __reduce__(self) -> tuple[object, ...]:
        # Errors cross process boundaries; the default would lose the keyword-only hint.
        return (_rebuild, (type(self), self.message, self.hint))


def _rebuild(kind: type[TracekitError], message: str, hint: str) -> TracekitError:
    return kind(message, hint=hint)


class InputError(TracekitError):
    """The input cannot be used.

    >>> InputError("run.json: holds no analysis", hint="write it with analyze -o FILE.json").exit_code
    2
    """


class OptionError(TracekitError):
    """The command's or call's arguments are wrong."""


class RuleError(TracekitError):
    """A rules file is wrong."""


class ScheduleError(TracekitError):
    """A schedule cannot be built or simulated."""


class DeadlockError(ScheduleError):
    """Ops of a schedule wait for each other."""


class OutputError(TracekitError):
    """A result could not be written."""


class InternalError(TracekitError):
    """A fault in tracekit itself, not in its input."""

    exit_code = 70

    @classmethod
    def of(cls, error: BaseException) -> InternalError:
        """Return *error* in one line, with the place in tracekit that it came from.

        >>> InternalError.of(KeyError("x")).message
        "a fault in tracekit: KeyError: 'x'"
        """
        text = " ".join(str(error).split())[:MOST_TEXT]
        fault = f"{type(error).__name__}: {text}" if text else type(error).__name__
        made = cls(f"a fault in tracekit: {fault}{_place(error)}", hint=f"please report it; {DEBUG}=1 shows where")
        made.__cause__ = error  # within this process, whoever debugs still sees where it came from
        return made


DEBUG = "TRACEKIT_DEBUG"
"""Environment variable: set, a fault of ours is shown with its traceback."""
MOST_TEXT = 300


def _place(error: BaseException) -> str:
    """Name the innermost line of the package that *error* passed through."""
    place, at = "", error.__traceback__
    while at is not None:
        module = str(at.tb_frame.f_globals.get("__name__", ""))
        if module.split(".", maxsplit=1)[0] == __name__.split(".")[0]:
            place = f" ({module}, line {at.tb_lineno})"
        at = at.tb_next
    return place


class Notice(msgspec.Struct, frozen=True):
    """A warning that travels with the result: a stable code for scripts, a sentence for people.

    >>> Notice("no-shapes", "input shapes were not recorded").code
    'no-shapes'
    """

    code: str
    message: str
