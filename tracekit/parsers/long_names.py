"""Names that no compiler or program writes: they are shortened when they are read.

What is done once per event with its name would otherwise take time in proportion to the name's
length times the number of events.
"""

import hashlib

import polars as pl

from tracekit._util.text import counted
from tracekit.errors import Notice

MAX_NAME_CHARS = 16_384
"""Characters of a name, or of a text that many events refer to. The longest names of kernels that
compilers write are below 10,000."""


def shorten_name(name: str) -> str:
    """Return a name of at most ``MAX_NAME_CHARS`` as it is; of a longer one its start and a digest of all of it.

    Two long names that differ stay different.

    >>> shorten_name("gemm"), len(shorten_name("k" * 30_000)), shorten_name("k" * 30_000)[-17:]
    ('gemm', 16401, '…d3dfd3535cef6a06')
    """
    if len(name) <= MAX_NAME_CHARS:
        return name
    digest = hashlib.blake2b(name.encode(errors="replace"), digest_size=8)
    return f"{name[:MAX_NAME_CHARS]}…{digest.hexdigest()}"


def shorten_names(names: pl.Series) -> tuple[pl.Series, set[str]]:
    """Return a column of strings with long ones shortened, and what the long ones became."""
    long_names = names.filter((names.str.len_chars() > MAX_NAME_CHARS).fill_null(False)).unique()
    if not len(long_names):
        return names, set()
    shortened = {name: shorten_name(name) for name in long_names}
    return names.replace(shortened), set(shortened.values())


def long_name_notice(count: int) -> Notice:
    """Return the notice that says how many names were shortened."""
    return Notice(
        "bad-text",
        (f"{counted(count, 'name')} longer than {MAX_NAME_CHARS:,} characters shortened"),
        values={"case": "too_long", "count": count, "limit": MAX_NAME_CHARS},
        severity="note",
    )
