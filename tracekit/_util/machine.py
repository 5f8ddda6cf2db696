"""What this machine, or the container on it, lets a process have."""

from __future__ import annotations

import contextlib
import ctypes
import os
from pathlib import Path

SYSTEM = Path("/proc")
"""Where Linux says what the machine is."""
WORKER_BYTES = 300 << 20
"""Memory that is set aside for a process of ours, beside what it reads; it takes less."""


def cores() -> int:
    """Cores this process may use.

    >>> cores() >= 1
    True
    """
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def give_back_memory(*, worth: bool = True) -> None:
    """Return to the system what was freed: the C library keeps it otherwise, and the peak grows by it.

    Not where that is not *worth* its time: of what is needed again at once, the system has to make every page anew.

    >>> give_back_memory()
    """
    if not worth:
        return
    with contextlib.suppress(OSError, AttributeError):  # only glibc has it
        ctypes.CDLL(None).malloc_trim(0)


def available_memory() -> int:
    """Bytes this process can still take without swapping: what the machine has left, or what its container allows.

    >>> available_memory() > 0
    True
    """
    bounds = [_container_memory(), _limited_memory()]
    with contextlib.suppress(OSError, ValueError, IndexError):
        lines = (SYSTEM / "meminfo").read_text(encoding="ascii").splitlines()
        bounds.append(next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable")))
    if len(bounds) == 2:
        with contextlib.suppress(OSError, ValueError, AttributeError):
            bounds.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2)
    known = [bound for bound in bounds if bound is not None]
    return max(1, min(known)) if known else 4 << 30


def _limited_memory() -> int | None:
    """What the shell's limit (``ulimit -v``) leaves of this process's addresses."""
    try:
        import resource

        limit, _ = resource.getrlimit(resource.RLIMIT_AS)
        if limit == resource.RLIM_INFINITY:
            return None
        used = int((SYSTEM / "self/statm").read_text(encoding="ascii").split()[0]) * resource.getpagesize()
    except (ImportError, OSError, ValueError, IndexError):
        return None
    return limit - used


def _container_memory() -> int | None:
    for limit, used in (
        ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
        ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
    ):
        with contextlib.suppress(OSError, ValueError):
            return int(Path(limit).read_text(encoding="ascii")) - int(Path(used).read_text(encoding="ascii"))
    return None
