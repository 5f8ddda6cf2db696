"""A Dask cluster as an executor."""

import contextlib
import importlib
from collections.abc import Iterator
from concurrent.futures import Executor
from typing import Any

from tracekit._version import requirement
from tracekit.errors import InputError, OptionError

CONNECT_S = 15
"""Seconds to wait for the scheduler."""


@contextlib.contextmanager
def cluster(address: str | None) -> Iterator[tuple[Executor | None, int | None]]:
    """Yield the executor of the Dask cluster at *address* and the number of its threads.

    Without an address both are None, which means processes on this machine.

    >>> with cluster(None) as (executor, workers):
    ...     executor, workers
    (None, None)
    """
    if address is None:
        yield None, None
        return
    try:
        connect: Any = importlib.import_module("distributed").Client
    except ImportError:
        raise OptionError(
            "--dask needs dask.distributed", hint=f"pip install '{requirement('dask')}'"
        ) from None
    try:
        client = connect(address, timeout=CONNECT_S, set_as_default=False)
    except (OSError, ValueError, TimeoutError) as error:
        reason = " ".join(str(error).split())[:120]
        raise InputError(
            f"--dask {address}: no scheduler answers ({reason})", hint="check the address"
        ) from error
    with client:
        threads = sum(client.nthreads().values())
        if not threads:
            raise InputError(
                f"--dask {address}: the cluster has no workers", hint="start: dask worker ADDRESS"
            )
        yield client.get_executor(pure=False), threads
