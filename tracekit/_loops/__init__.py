"""Hot loops, written in Cython's pure Python mode and compiled when tracekit is built.

Each module is plain Python with C types as annotations. ``setup.py`` compiles every module listed
in ``MODULES``; where that was not possible the same files run uncompiled, with the same results,
about a hundred times slower; ``uncompiled`` then stands in for Cython, which only building needs.

Rules for code in this package: a loop reads and writes the arrays it is given, allocates nothing,
and returns an integer or nothing. Types of variables are inferred; one that holds the result of
``and``, ``or`` or ``max`` is declared, because Cython would infer a Python object. Constants are
copied to typed variables before a loop that needs them: a module's own are Python objects. Bounds
checks are on (see ``setup.py``) except in functions that switch them off and say why that is safe.

Every loop ends, whatever the arrays hold: it passes over its input a fixed number of times, or what it
follows descends (in row, in time) or is visited at most once. And every loop can be interrupted: it
calls ``let_interrupt`` every so many rows; the scanners of files are called block by block instead.
"""

from __future__ import annotations

import sys
from functools import cache
from importlib import import_module
from importlib.machinery import EXTENSION_SUFFIXES
from multiprocessing import parent_process

from tracekit._version import requirement

MODULES = (
    "tracekit._loops.autograd_nodes",
    "tracekit._loops.critical_path",
    "tracekit._loops.grouping",
    "tracekit._loops.interval_sets",
    "tracekit._loops.json_scanner",
    "tracekit._loops.nesting",
    "tracekit._loops.pickle_check",
    "tracekit._loops.packet_scanner",
)
"""Modules to compile."""


def is_compiled() -> bool:
    """Return whether all loops run as compiled code."""
    return all(
        str(import_module(module).__file__).endswith(tuple(EXTENSION_SUFFIXES))
        for module in MODULES
    )


def let_interrupt() -> None:
    """Let Ctrl-C take effect: Python handles signals only where it runs code of Python, which this is."""


@cache
def warn_if_uncompiled() -> None:
    """Say once on stderr that the loops run uncompiled, and what to install.

    Worker processes say nothing.
    """
    if parent_process() is None and not is_compiled():
        sys.stderr.write(
            "tracekit: runs uncompiled, about a hundred times slower; install a C compiler and Python's headers "
            f"(python3-dev), then: pip install --force-reinstall '{requirement()}'\n"
        )
