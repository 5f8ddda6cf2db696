"""Processes that compile the package's other native functions beside the first: the first command waits less.

They keep what they compile, as every process does, and say nothing. What they have not compiled when it is needed, the
process that started them compiles itself.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading

from tracekit._util.machine import cores

MOST = 3
"""Processes at most: one function takes a third of all the time."""

_running: list[subprocess.Popen[bytes]] = []
helping = threading.Event()
"""Set where this process is one of them."""


def start(besides: str) -> None:
    """Start them, where cores are there, for all functions but the one that this process compiles now."""
    count = 0 if _running else min(MOST, cores() - 1)
    for share in range(count):
        code = f"from tracekit._util import compilers; compilers.compile_share({share}, {count}, {besides!r})"
        with contextlib.suppress(OSError):
            _running.append(
                subprocess.Popen(
                    [sys.executable, "-c", code],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                )
            )


def compile_share(share: int, shares: int, besides: str) -> None:
    """Compile one of *shares* of the functions: what each of these processes does."""
    helping.set()
    from tracekit._util import native

    for function in [one for one in native.package_functions() if one.name != besides][share::shares]:
        function.load()
