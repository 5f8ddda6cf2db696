"""Cores and memory that this process may use."""

import contextlib
import ctypes
import os
from pathlib import Path

SYSTEM = Path("/proc")
"""The folder in which Linux describes the machine."""
WORKER_BYTES = 300 << 20
"""Upper bound of the memory that a worker process takes before it reads anything."""


def cores() -> int:
    """Return the number of cores this process may use.

    >>> cores() >= 1
    True
    """
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def give_back_memory(*, worth: bool = True) -> None:
    """Return freed memory to the system; otherwise the C library keeps it, and the peak grows.

    Pages that are needed again must then be mapped again, so that it is not *worth* the time for
    small data.

    >>> give_back_memory()
    """
    if not worth:
        return
    with contextlib.suppress(OSError, AttributeError):  # only glibc has it
        ctypes.CDLL(None).malloc_trim(0)


def available_memory() -> int:
    """Return the bytes this process can still take: what the machine has free, or its container or limit allows.

    >>> available_memory() > 0
    True
    """
    bounds = [_container_memory(), _limited_memory()]
    with contextlib.suppress(OSError, ValueError, IndexError):
        lines = (SYSTEM / "meminfo").read_text(encoding="ascii").splitlines()
        bounds.append(
            next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))
        )
    if len(bounds) == 2:
        with contextlib.suppress(OSError, ValueError, AttributeError):
            bounds.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2)
    limits = [bound for bound in bounds if bound is not None]
    return max(1, min(limits)) if limits else 4 << 30


def _limited_memory() -> int | None:
    """Return what the limit of the shell (``ulimit -v``) leaves of the address space.

    None without a limit.
    """
    try:
        import resource

        limit, _ = resource.getrlimit(resource.RLIMIT_AS)
        if limit == resource.RLIM_INFINITY:
            return None
        used = (
            int((SYSTEM / "self/statm").read_text(encoding="ascii").split()[0])
            * resource.getpagesize()
        )
    except (ImportError, OSError, ValueError, IndexError):
        return None
    return limit - used


def _container_memory() -> int | None:
    """Return what the container (cgroup 2 or 1) allows beyond what is in use.

    None without a limit.
    """
    for limit, used in (
        ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
        (
            "/sys/fs/cgroup/memory/memory.limit_in_bytes",
            "/sys/fs/cgroup/memory/memory.usage_in_bytes",
        ),
    ):
        with contextlib.suppress(OSError, ValueError):
            return int(Path(limit).read_text(encoding="ascii")) - int(
                Path(used).read_text(encoding="ascii")
            )
    return None
