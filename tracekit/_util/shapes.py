"""Tensor shapes as traces record them, and the check that a shape is plausible."""

import json
from math import prod
from typing import Any

MAX_DIMENSION = 1 << 31
"""Upper bound of one dimension of a tensor."""
MAX_ELEMENTS = 1 << 62
"""Upper bound of the elements of a tensor. A larger shape is damage, and its product would not fit
into 64 bits."""


def parse_list(text: str) -> list[Any]:
    """Return a JSON list; empty if the text is not a list, or nested too deeply.

    >>> parse_list("[[2,3],[]]"), parse_list("[" * 100_000), parse_list("7")
    ([[2, 3], []], [], [])
    """
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return []
    return value if isinstance(value, list) else []


def is_shape(value: Any) -> bool:
    """Return whether a value is a tensor's shape: a list of dimensions whose product fits into 64 bits.

    >>> is_shape([2, 3]), is_shape([]), is_shape([10**40]), is_shape([2**30] * 3), is_shape([-1]), is_shape("x")
    (True, True, False, False, False, False)
    """
    if not isinstance(value, list) or any(
        type(n) is not int or not 0 <= n < MAX_DIMENSION for n in value
    ):
        return False
    return prod(n or 1 for n in value) < MAX_ELEMENTS
