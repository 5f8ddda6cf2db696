"""Pickles of plain values, loaded without ever naming, importing or calling anything.

PyTorch's flight recorder and its memory snapshots are pickles of dicts, lists, tuples, texts and
numbers. A ``find_class`` that refuses is not enough for a file from elsewhere: Python's unpickler
sizes its memo by an index that the file claims, and hashes keys of any depth on the C stack, so
that a few bytes can fill the memory or end the process. So a pickle is first checked opcode by
opcode, and loaded only if it holds plain values within limits.
"""

from __future__ import annotations

import gc
import io
import pickle
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from tracekit._loops import pickle_check
from tracekit.errors import InputError

MAX_PICKLE_DEPTH = 64
"""Largest nesting of containers. A memory snapshot nests 7 deep."""
MAX_INTEGER_BYTES = 16
"""Longest integer. Addresses and nanoseconds take 9 bytes at most."""
MAX_EXPANDED_PER_BYTE = 64
"""Most values per byte of the file, a value that is shared counted wherever it appears.

Dumps and snapshots share texts and stack frames, and have 0.15 to 0.3 values per byte.
"""
MIN_EXPANDED_LIMIT = 100_000
"""Expanded values that any file may have, however short."""
MAX_PICKLE_BYTES = 2**31 - 2**20
"""Longest pickle: positions are numbers of 32 bits."""

_PROTOCOLS = range(2, 6)
_PROBLEMS = {
    pickle_check.CUT_OFF: "ends after {position:,} bytes inside the pickle: it was cut off",
    pickle_check.DAMAGED: "is damaged at byte {position:,}",
    pickle_check.CALLS: "names or calls a class or a function at byte {position:,}, which is never loaded",
    pickle_check.UNKNOWN_OPCODE: "has an opcode at byte {position:,} that plain values do not need",
    pickle_check.LONG_NUMBER: f"has a number of more than {MAX_INTEGER_BYTES} bytes at byte {{position:,}}",
    pickle_check.TOO_DEEP: f"nests values more than {MAX_PICKLE_DEPTH} deep at byte {{position:,}}",
    pickle_check.TOO_LARGE: "expands to an unreasonable number of values at byte {position:,}",
    pickle_check.CHANGES_SHARED: "changes a value that it uses elsewhere at byte {position:,}",
    pickle_check.CONTAINER_AS_KEY: "has a key that is no text, or too many that are numbers, at byte {position:,}",
}


def is_pickle(head: bytes) -> bool:
    """Return whether a file whose first bytes are *head* is a pickle of protocol 2 or later.

    >>> import pickle
    >>> is_pickle(pickle.dumps({"version": "2.10"})), is_pickle(b'{"version": "2.10"}')
    (True, False)
    """
    return len(head) > 1 and head[0] == 0x80 and head[1] in _PROTOCOLS


def load_plain_pickle(data: bytes, *, name: str) -> object:
    """Return the value of a pickle that holds dicts, lists, tuples, texts, bytes, numbers, booleans and None alone.

    Containers may be shared, and none holds itself.

    Args:
        data: The whole pickle.
        name: What to call it in an error.

    Raises:
        InputError: The pickle is damaged, names a class or function, or expands to an unreasonable
            size.

    >>> import pickle
    >>> load_plain_pickle(pickle.dumps({"ranks": (0, 1)}), name="fr_rank0.pickle")
    {'ranks': (0, 1)}
    """
    problem = _find_problem(data)
    if problem is None:
        try:
            with cycle_collection_paused():
                return _PlainUnpickler(io.BytesIO(data)).load()
        except (pickle.UnpicklingError, UnicodeDecodeError, ValueError, EOFError):
            problem = "is a damaged pickle"
    raise InputError(
        problem, path=name, hint="dump it again with PyTorch; other pickles are not read"
    )


def _find_problem(data: bytes) -> str | None:
    """Return why a pickle must not be loaded; None if it may."""
    size = len(data)
    if not is_pickle(data):
        return "is not a pickle of protocol 2 to 5"
    if size > MAX_PICKLE_BYTES:
        return f"is a pickle of {size:,} bytes, more than are read"
    # Memory of these arrays is used only as far as they are written: a small part of the size of
    # the data.
    stack = np.empty(size, np.int32)
    memo = np.empty(size, np.int32)
    kinds = np.empty(size, np.uint8)
    depths = np.empty(size, np.int32)
    expanded = np.empty(size, np.int64)
    shared = np.empty(size, np.uint8)
    position = np.zeros(1, np.int64)
    max_expanded = max(MIN_EXPANDED_LIMIT, MAX_EXPANDED_PER_BYTE * size)
    result = pickle_check.check_pickle(
        memoryview(data),
        MAX_PICKLE_DEPTH,
        MAX_INTEGER_BYTES,
        max_expanded,
        stack,
        memo,
        kinds,
        depths,
        expanded,
        shared,
        position,
    )
    if result == pickle_check.OK:
        return None
    return _PROBLEMS[result].format(position=int(position[0]))


@contextmanager
def cycle_collection_paused() -> Iterator[None]:
    """Keep Python from searching for cycles of objects: plain values have none.

    The search goes over all containers that are there, again and again while more are made: it was
    two fifths of the time that unpickling 60,000 events took.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


class _PlainUnpickler(pickle.Unpickler):
    """Unpickler that refuses every class, should the check ever let one through."""

    def find_class(self, module_name: str, global_name: str) -> object:
        raise pickle.UnpicklingError(f"{module_name}.{global_name}")

    def persistent_load(self, pid: object) -> object:
        raise pickle.UnpicklingError(str(pid))
