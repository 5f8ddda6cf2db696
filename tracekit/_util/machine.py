"""Cores and memory that this process may use."""

import contextlib
import ctypes
import os
from pathlib import Path

from tracekit.errors import MachineError

SYSTEM = Path("/proc")
"""The folder in which Linux describes the machine."""
WORKER_BYTES = 300 << 20
"""Upper bound of the memory that a worker process takes before it reads anything."""


os.environ.setdefault("_RJEM_MALLOC_CONF", "dirty_decay_ms:200,muzzy_decay_ms:0")
"""Polars' allocator is to return freed memory soon, where it is imported after this module: by default it
would keep a tenth of the peak. At once would cost a quarter of the time that the system takes for
``analyze``, because most of it is needed again within milliseconds."""

MIN_ADDRESS_SPACE_BYTES = 1_300_000_000
"""Address space that commands need before they read anything. Below, libraries fail while they
start their threads, and end the process without a word: measured with two threads, commands end so
under limits of 1.15 GB and less, and run under 1.3 GB."""
SMALL_ADDRESS_SPACE_BYTES = 16_000_000_000
"""Address space up to which libraries get few threads: each reserves some, used or not."""
THREADS_IN_SMALL_ADDRESS_SPACE = {"POLARS_MAX_THREADS": "2", "OPENBLAS_NUM_THREADS": "1"}
"""Environment variables of the number of threads, which libraries read when they are imported."""


def check_address_space() -> None:
    """Raise ``MachineError`` if a limit (``ulimit -v``) leaves too little address space to run in.

    Under a small limit libraries that are imported from now on get few threads, unless the
    environment says how many.
    """
    limit = address_space_limit()
    if limit is None or limit > SMALL_ADDRESS_SPACE_BYTES:
        return
    if limit < MIN_ADDRESS_SPACE_BYTES:
        problem = f"the limit on memory is {limit / 1e9:.1f} GB of address space"
        needed = f"at least {MIN_ADDRESS_SPACE_BYTES / 1e9:.1f} GB are needed (ulimit -v)"
        raise MachineError(problem, hint=needed)
    for name, value in THREADS_IN_SMALL_ADDRESS_SPACE.items():
        os.environ.setdefault(name, value)


def address_space_limit() -> int | None:
    """Return the limit on the address space of this process in bytes; None without a limit."""
    try:
        import resource
    except ImportError:  # Windows has no such limits
        return None
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    return None if limit == resource.RLIM_INFINITY else limit


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
    limit = address_space_limit()
    if limit is None:
        return None
    try:
        pages = int((SYSTEM / "self/statm").read_text(encoding="ascii").split()[0])
    except (OSError, ValueError, IndexError):
        return None
    return limit - pages * os.sysconf("SC_PAGE_SIZE")


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
