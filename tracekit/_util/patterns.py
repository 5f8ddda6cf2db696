"""Regular expressions of two kinds: our own, which are known to end, and those that somebody else wrote."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cache

import numpy as np
import numpy.typing as npt
import polars as pl

from tracekit._util.literals import lacks, needed

Bools = npt.NDArray[np.bool_]

LONGEST = 8192
"""Letters of a name that our own patterns look at; no compiler writes as many, and damage writes millions."""
REMEMBERED = 4096
"""Names for which the answer of each of our own patterns is kept: the same few come with every rank of a run."""


class Linear(str):
    """A pattern that somebody else wrote: the time it takes grows with the text it is tried on and no faster.

    Python's engine tries alternatives one by one, and a few letters such as ``(a+)+$`` keep it busy for ever; the
    engine of polars follows all of them at once. It knows neither look-around nor back-references.

    >>> Linear("^mine_").found_in(["mine_gemm", "other"]).tolist()
    [True, False]
    >>> Linear("(?=x)").problem()
    'look-around, including look-ahead and look-behind, is not supported'
    """

    __slots__ = ()

    def problem(self) -> str:
        """Return why it cannot be used; empty where it can."""
        try:
            self.found_in([""])
        except pl.exceptions.ComputeError as error:
            problems = [line.removeprefix("error: ") for line in str(error).splitlines() if line.startswith("error: ")]
            return (problems or str(error).splitlines())[0]
        return ""

    def found_in(self, values: Sequence[str]) -> Bools:
        """Return in which of the values it is found."""
        return pl.Series(values, dtype=pl.String).str.contains(str(self)).to_numpy().astype(np.bool_)


class Own(str):
    """A pattern that ships with tracekit: the tests compile all of them, so that a process need not."""

    __slots__ = ()


@cache
def finder(pattern: str) -> Callable[[str], bool]:
    """Return a test whether one of our own patterns is found; it is compiled when it is first tried."""
    known: dict[str, bool] = {}
    words = needed(pattern)

    def found(value: str) -> bool:
        answer = known.get(value)
        if answer is None:
            answer = not lacks(value.lower(), words) and re.compile(pattern).search(value, 0, LONGEST) is not None
            if len(known) < REMEMBERED and len(value) < LONGEST:
                known[value] = answer
        return answer

    return found
