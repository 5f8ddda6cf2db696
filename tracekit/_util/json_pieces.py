"""JSON text piece by piece: a document of a thousand ranks is long, and neither its text nor its data is held whole."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import islice
from typing import Any

AT_ONCE = 32
"""Items of a list in one piece."""


def json_pieces(value: Any, *, depth: int = 0) -> Iterator[str]:
    """Yield the text of plain data, a line for each value, as ``json.dumps(value, indent=1)`` lays it out.

    An iterator, also among the values of an object, stands for a list: its items are made when they are written.

    >>> "".join(json_pieces({"ranks": iter([{"rank": 0}, []]), "total": 3})) == json.dumps(
    ...     {"ranks": [{"rank": 0}, []], "total": 3}, indent=1)
    True
    """
    if isinstance(value, Iterator):
        yield from _list(value, depth)
    elif _unmade(value):
        yield from _object(value, depth)
    else:
        yield _text(value, depth)


def _unmade(value: Any) -> bool:
    return isinstance(value, dict) and any(isinstance(item, Iterator) or _unmade(item) for item in value.values())


def _list(items: Iterator[Any], depth: int) -> Iterator[str]:
    any_yet = False
    while some := list(islice(items, AT_ONCE)):
        yield "," if any_yet else "["
        yield _text(some, depth)[1 : -len(_line(depth)) - 1]  # between its brackets
        any_yet = True
    yield f"{_line(depth)}]" if any_yet else "[]"


def _object(value: dict[str, Any], depth: int) -> Iterator[str]:
    for at, (name, item) in enumerate(value.items()):
        yield f"{',' if at else '{'}{_line(depth + 1)}{_text(name, 0)}: "
        yield from json_pieces(item, depth=depth + 1)
    yield f"{_line(depth)}}}"


def _text(value: Any, depth: int) -> str:
    """Return plain data as text, so deep inside of other data; no line of JSON ends inside of a text."""
    return json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False).replace("\n", _line(depth))


def _line(depth: int) -> str:
    return "\n" + " " * depth
