"""Regular expressions of classification rules: those that ship with tracekit, and those that users wrote.

A shipped pattern is a plain ``str`` and runs on Python's ``re``. A pattern from a user's rules file is a
``LinearPattern``: it runs on the regex engine of polars, whose time grows linearly with the text.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import polars as pl

Bools = npt.NDArray[np.bool_]

MAX_SEARCHED_CHARS = 8192
"""Characters of a name that shipped patterns look at. No compiler writes longer names; damaged files hold millions."""


class LinearPattern(str):
    """A user's regular expression, matched in time linear in the text.

    Python's engine backtracks: a pattern such as ``(a+)+$`` can keep it busy for ever. The engine of polars does not;
    in return it supports neither look-around nor back-references.

    >>> LinearPattern("^mine_").search_all(["mine_gemm", "other"]).tolist()
    [True, False]
    >>> LinearPattern("(?=x)").problem()
    'look-around, including look-ahead and look-behind, is not supported'
    """

    __slots__ = ()

    def problem(self) -> str:
        """Return why the pattern cannot be used; empty if it can."""
        try:
            self.search_all([""])
        except pl.exceptions.ComputeError as error:
            lines = str(error).splitlines()
            reasons = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
            return (reasons or lines)[0]
        return ""

    def search_all(self, texts: Sequence[str]) -> Bools:
        """Return for each text whether the pattern is found in it."""
        return pl.Series(texts, dtype=pl.String).str.contains(str(self)).to_numpy().astype(np.bool_)


def search_all(pattern: str, texts: Sequence[str]) -> Bools:
    """Return for each text whether *pattern* is found in it.

    >>> search_all("gemm$", ["my_gemm", "gemm_2"]).tolist()
    [True, False]
    """
    if isinstance(pattern, LinearPattern):
        return pattern.search_all(texts)
    return np.array([_is_found(pattern, text) for text in texts], np.bool_)


@lru_cache(maxsize=100_000)
def _is_found(pattern: str, text: str) -> bool:
    """Return whether a shipped pattern is found in a text; each name comes again on other ranks."""
    return _compile(pattern).search(text, 0, MAX_SEARCHED_CHARS) is not None


_compile = lru_cache(maxsize=None)(re.compile)
