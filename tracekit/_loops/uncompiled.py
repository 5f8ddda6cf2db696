"""Stand-in for the module ``cython`` where the loops run uncompiled and Cython is not installed.

It has the names that the loops use when they run as plain Python. Annotations are not evaluated, so
that most C types need no name here; the types below only stand as the first argument of ``cast``
and ``declare``.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

compiled = False
nogil = nullcontext()

int = "int"
Py_ssize_t = "Py_ssize_t"
longlong = "longlong"
ulonglong = "ulonglong"
double = "double"


def cast(c_type: str, value: Any) -> builtins.int:
    """Return *value* as an integer: every cast that runs uncompiled is to an integer type."""
    return builtins.int(value)


def declare(c_type: str, value: Any) -> Any:
    """Return *value*, the initial value of a typed variable."""
    return value


def fused_type(*c_types: str) -> tuple[str, ...]:
    """Return the types that a function is compiled for."""
    return c_types


def cfunc(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return *function*, which is a C function when compiled."""
    return function


def inline(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return *function*, which is inlined when compiled."""
    return function


def boundscheck(checked: bool) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator that leaves its function as it is: numpy checks every index."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        return function

    return decorate
