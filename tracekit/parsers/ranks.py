"""Ranks that were asked for and are not there: one sentence, whoever says it."""

from __future__ import annotations

from collections.abc import Iterable

from tracekit._util.text import listing
from tracekit.errors import InputError


def unknown_rank(asked: Iterable[int], held: Iterable[int], *, where: str = "") -> InputError:
    """Return the error for ranks that are not there, with the ranks that are.

    >>> str(unknown_rank([9], [0, 1]))
    'there is no rank 9 (ranks here: 0, 1)'
    >>> str(unknown_rank([9], [], where="run.store"))
    'run.store: there is no rank 9 (leave out --ranks to read every rank)'
    """
    known = listing(map(str, sorted(held)), most=8)
    text = f"there is no rank {listing(map(str, sorted(asked)), most=8)}"
    return InputError(
        f"{where}: {text}" if where else text,
        hint=f"ranks here: {known}" if known else "leave out --ranks to read every rank",
    )
