"""Exceptions of tracekit, each with a hint, and notices.

    TracekitError            base: what went wrong, where, and what to do next
    ├── InputError           the input cannot be used (path, format, damage, mixed runs)
    ├── OptionError          the words of the command or call are wrong
    ├── RuleError            a rules file is wrong (points at the line)
    ├── ScheduleError        a schedule cannot be built or simulated
    │   └── DeadlockError    ops that wait for each other
    ├── OutputError          a result could not be written
    ├── MachineError         memory ran out, or a worker process died
    └── InternalError        a fault of tracekit's own

The command line prints ``message`` and ``hint`` on one line, below it what ``quote`` holds, and
exits with the class's ``exit_code``: 2, or 70 where the fault is tracekit's own.
"""

from __future__ import annotations

import os
from functools import partial
from typing import Literal, Self

import msgspec

NoticeValue = str | int | float | bool | tuple[str | int | tuple[int, ...], ...] | None
"""A figure, a name or a list of these in a notice."""
NoticeValues = dict[str, NoticeValue]
Severity = Literal["warning", "note"]


class Notice(msgspec.Struct, frozen=True, eq=False):
    """A warning that travels with the result, as a sentence and as data; it is made where something is lost.

    >>> notice = Notice("partial-step", "step 7 holds only 12 GPU events", values={"step": 7, "events": 12})
    >>> notice == msgspec.structs.replace(notice, message="")
    True
    """

    code: str
    """What it is about; a code keeps its meaning."""
    message: str = ""
    """The sentence for people: made of the other fields, which decide, and read by no code. It names the
    ranks; of what one rank alone records, they are put before it where ranks are joined
    (``_util.notices.merge_notices``). Empty in a file of an older version."""
    ranks: tuple[int, ...] = ()
    """Ranks that it is about; empty if that is the run, or all of its ranks alike."""
    labels: tuple[str, ...] = ()
    """Labels that it is about."""
    values: NoticeValues = {}
    """Figures and names in the sentence, by what they are; ``case`` tells apart what a code can
    mean."""
    varies: bool = False
    """Whether the values are those of the first rank alone, and other ranks have other values."""
    severity: Severity = "warning"
    """Whether it says how far to trust figures and what to do (warning), or changes none or asks for nothing
    (note)."""

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Notice):
            return NotImplemented
        return self._key() == other._key() and self.values == other.values

    def __hash__(self) -> int:
        return hash((self._key(), frozenset(self.values.items())))

    def _key(self) -> tuple[object, ...]:
        """Return all fields but the values, and the sentence that is made of them."""
        return self.code, self.ranks, self.labels, self.varies


class TracekitError(Exception):
    """Base of all errors: what went wrong and where, with a hint for what to do next.

    >>> raise TracekitError("ends inside event 48211", path="rank2.json.gz", hint="re-record this rank")
    Traceback (most recent call last):
    tracekit.errors.TracekitError: rank2.json.gz: ends inside event 48211 (re-record this rank)
    """

    exit_code = 2
    """Exit status of the command line."""

    def __init__(
        self,
        problem: str,
        *,
        path: str | os.PathLike[str] = "",
        hint: str = "",
        quote: tuple[str, ...] = (),
        notice: Notice | None = None,
    ) -> None:
        self.problem = problem
        self.path = os.fspath(path)
        """File or folder that it is about, which the message begins with; empty if it is about none, or names it."""
        self.message = f"{self.path}: {problem}" if self.path else problem
        self.hint = hint
        self.notice = notice
        """More about it, which the command line adds in a sentence."""
        self.quote = quote
        """Lines below the message that show the place: what was written, and a caret."""
        super().__init__(self.message)

    def __str__(self) -> str:
        text = f"{self.message} ({self.hint})" if self.hint else self.message
        return "\n  ".join([text, *self.quote])

    def __reduce__(self) -> tuple[object, ...]:
        # Errors cross process boundaries; the default would lose the keyword-only arguments.
        make = partial(
            type(self), path=self.path, hint=self.hint, quote=self.quote, notice=self.notice
        )
        return make, (self.problem,)

    def copy(self, *, path: str, more: str = "") -> Self:
        """Return the same error about the file at *path*, with *more* behind its problem.

        >>> InputError("is damaged", path="/work/run.json", hint="record again").copy(path="run.json").message
        'run.json: is damaged'
        """
        error = type(self)(
            f"{self.problem}{more}", path=path, hint=self.hint, quote=self.quote, notice=self.notice
        )
        error.__cause__ = self.__cause__
        return error


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


class MachineError(TracekitError):
    """Memory ran out, or a worker process died: nothing is wrong with the input, so no part of it is left out."""


class InternalError(TracekitError):
    """A fault in tracekit itself, not in its input."""

    exit_code = 70

    @classmethod
    def of(cls, error: BaseException) -> InternalError:
        """Describe an unexpected error in one line, with the line of tracekit that raised it.

        >>> InternalError.of(KeyError("x")).message
        "a fault in tracekit: KeyError: 'x'"
        """
        text = " ".join(str(error).split())[:_MAX_TEXT_CHARS]
        fault = f"{type(error).__name__}: {text}" if text else type(error).__name__
        message = f"a fault in tracekit: {fault}{_raising_line(error)}"
        internal = cls(message, hint=f"please report it; {DEBUG}=1 shows where")
        internal.__cause__ = error  # keeps the traceback for debugging within this process
        return internal


DEBUG = "TRACEKIT_DEBUG"
"""Environment variable: if set, an internal error is shown with its traceback."""
QUIET = "TRACEKIT_QUIET"
"""Environment variable: if set, notices and progress are not printed (``--quiet``)."""
_MAX_TEXT_CHARS = 300
"""Length at which the text of an unexpected error is cut."""


def is_quiet() -> bool:
    """Return whether notices and progress are not wanted."""
    return bool(os.environ.get(QUIET))


def _raising_line(error: BaseException) -> str:
    """Return " (module, line N)" for the innermost frame of this package in the traceback.

    "" if there is none.
    """
    location, frame = "", error.__traceback__
    while frame is not None:
        module = str(frame.tb_frame.f_globals.get("__name__", ""))
        if module.split(".", maxsplit=1)[0] == __name__.split(".")[0]:
            location = f" ({module}, line {frame.tb_lineno})"
        frame = frame.tb_next
    return location
