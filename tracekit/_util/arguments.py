"""Checks of arguments that Python callers pass, so that a wrong type ends in one line."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from tracekit.errors import OptionError

AnyPath = str | os.PathLike[str]


def checked_path(value: object, what: str) -> Path:
    """Return *value* as a path; *what* is for the error.

    >>> checked_path(None, "store")
    Traceback (most recent call last):
    tracekit.errors.OptionError: store: None is no path (give a str or a pathlib.Path)
    """
    if not isinstance(value, str | os.PathLike):
        raise _wrong(value, what, "no path", "give a str or a pathlib.Path")
    return Path(value)


def checked_paths(values: object, what: str) -> list[AnyPath]:
    """Return one path or several as a list; None is none.

    >>> checked_paths("a", "traces"), checked_paths(["a", "b"], "traces"), checked_paths(None, "traces")
    (['a'], ['a', 'b'], [])
    >>> checked_paths([5], "traces")
    Traceback (most recent call last):
    tracekit.errors.OptionError: traces: 5 is no path (give a str or a pathlib.Path)
    """
    if values is None:
        return []
    if isinstance(values, str | os.PathLike) or not isinstance(values, Iterable):
        values = [values]
    for value in values:
        checked_path(value, what)
    return list(values)


def checked_words(values: object, what: str) -> list[str]:
    """Return one text or several as a list.

    >>> checked_words("links x2", "changes"), checked_words((), "changes")
    (['links x2'], [])
    >>> checked_words([5], "changes")
    Traceback (most recent call last):
    tracekit.errors.OptionError: changes: 5 is no text (give a str)
    """
    if isinstance(values, str) or not isinstance(values, Iterable):
        values = [values]
    return [checked_text(value, what) for value in values]


def checked_text(value: object, what: str) -> str:
    """Return *value*, which must be a text.

    >>> checked_text(5, "layout")
    Traceback (most recent call last):
    tracekit.errors.OptionError: layout: 5 is no text (give a str)
    """
    if not isinstance(value, str):
        raise _wrong(value, what, "no text", "give a str")
    return value


def checked_type(value: object, kind: type, what: str, hint: str) -> None:
    """Raise OptionError if *value* is not of a type.

    >>> checked_type(5, str, "name", "give a str")
    Traceback (most recent call last):
    tracekit.errors.OptionError: name: 5 is no str (give a str)
    """
    if not isinstance(value, kind):
        raise _wrong(value, what, f"no {kind.__name__}", hint)


def _wrong(value: object, what: str, is_not: str, hint: str) -> OptionError:
    shown = repr(value)
    return OptionError(f"{what}: {shown[:100]} is {is_not}", hint=hint)
