"""Tensors' shapes as traces spell them: read once, here, and believed only where they can be true."""

from __future__ import annotations

import json
from math import prod
from typing import Any

LONGEST_SIDE = 1 << 31
MOST_ELEMENTS = 1 << 62
"""No tensor is longer or larger: a shape that says so is damage, and its products would not fit into 64 bits."""


def parsed(text: str) -> list[Any]:
    """Return a list as the trace spells it; empty where it is not a list, or nested too deep to be true.

    >>> parsed("[[2,3],[]]"), parsed("[" * 100_000), parsed("7")
    ([[2, 3], []], [], [])
    """
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return []
    return value if isinstance(value, list) else []


def is_shape(value: Any) -> bool:
    """Return whether a value is a tensor's shape: a list of dimensions whose product 64 bits hold.

    >>> is_shape([2, 3]), is_shape([]), is_shape([10**40]), is_shape([2**30] * 3), is_shape([-1]), is_shape("x")
    (True, True, False, False, False, False)
    """
    if not isinstance(value, list) or any(type(n) is not int or not 0 <= n < LONGEST_SIDE for n in value):
        return False
    return prod(n or 1 for n in value) < MOST_ELEMENTS
