"""How a result reaches what writes and draws it, though that stands in a room above its own.

``tracekit/__init__.py`` runs before every other module and says which function does what (``wire``). A result asks for
it by that word (``above``), on first use. So no room imports from one above it, and none knows its name.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any

_HOMES: dict[str, str] = {}


def wire(homes: Mapping[str, str]) -> None:
    """Say which function, as ``module:name``, does what a word stands for."""
    _HOMES.update(homes)


def above(what: str) -> Callable[..., Any]:
    """Return the function that does *what*.

    >>> above("write_analysis").__module__
    'tracekit.report.write'
    """
    module, _, name = _HOMES[what].partition(":")
    found: Callable[..., Any] = getattr(importlib.import_module(module), name)
    return found
