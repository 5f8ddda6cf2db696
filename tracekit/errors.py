"""Every error a user can meet: one small tree, each with a hint.

    TracekitError            base: what went wrong, where, and what to do next
    ├── InputError           the input cannot be used (path, format, damage, mixed runs)
    ├── OptionError          the words of the command or call are wrong
    ├── RuleError            a rules file is wrong (points at the line)
    ├── ScheduleError        a schedule cannot be built or simulated
    │   └── DeadlockError    ops that wait for each other
    └── OutputError          a result could not be written

The command line prints ``message`` and ``hint`` on one line each and exits with code 2.
"""

from __future__ import annotations

from dataclasses import dataclass


class TracekitError(Exception):
    """What went wrong and where, with a hint for what to do next.

    >>> raise TracekitError("rank2.json.gz: ends inside event 48211", hint="re-record this rank")
    Traceback (most recent call last):
    tracekit.errors.TracekitError: rank2.json.gz: ends inside event 48211 (re-record this rank)
    """

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
    """The input cannot be used."""


class OptionError(TracekitError):
    """The words of the command or call are wrong."""


class RuleError(TracekitError):
    """A rules file is wrong."""


class ScheduleError(TracekitError):
    """A schedule cannot be built or simulated."""


class DeadlockError(ScheduleError):
    """Ops of a schedule wait for each other."""


class OutputError(TracekitError):
    """A result could not be written."""


@dataclass(frozen=True, slots=True)
class Notice:
    """A warning that travels with the result: a stable code for scripts, a sentence for people.

    >>> Notice("no-shapes", "input shapes were not recorded").code
    'no-shapes'
    """

    code: str
    message: str
