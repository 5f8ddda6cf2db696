"""Modules that a library imports and this process may never use: they run when something of them is asked for."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import LazyLoader
from types import ModuleType


class _Finder:
    """Finds the modules that are put off, ahead of those who would run them at once."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = frozenset(names)

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Return where a module is and that it is to run late; None for those of others."""
        spec = PathFinder.find_spec(name, path, target) if name in self.names else None
        if spec is not None and spec.loader is not None:
            spec.loader = LazyLoader(spec.loader)
        return spec


def put_off(names: Sequence[str]) -> None:
    """Let modules of these names run at their first use, not where they are imported.

    >>> put_off(["this"])
    >>> import this
    >>> len(this.s) > 800  # which runs it
    The Zen of Python, by Tim Peters
    ...
    True
    """
    sys.meta_path.insert(0, _Finder(names))
