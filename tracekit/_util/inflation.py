"""Gzip files, inflated up to a limit that follows from their size: kilobytes can become gigabytes."""

import gzip
import io
import zlib

from tracekit.errors import InputError

GZIP = b"\x1f\x8b"
"""First bytes of a gzip file."""
MAX_INFLATION = 200
"""Most bytes that a byte of a compressed dump, log, snapshot or saved analysis may become. Real ones
become 5 to 40."""
MIN_INFLATED_LIMIT = 32 << 20
"""Bytes to which any of them may grow, however short."""


def inflated_limit(compressed_bytes: int) -> int:
    """Return how many bytes a gzip file of a dump, log, snapshot or saved analysis may inflate to.

    >>> inflated_limit(1000) == 32 << 20, inflated_limit(10_000_000)
    (True, 2000000000)
    """
    return max(MIN_INFLATED_LIMIT, MAX_INFLATION * compressed_bytes)


def inflation_error(name: str, compressed_bytes: int) -> InputError:
    """Return the error about a file that inflates to more than that."""
    problem = f"inflates to more than {inflated_limit(compressed_bytes):,} bytes"
    return InputError(problem, path=name, hint="if it is genuine, inflate it first (gunzip)")


def inflate_whole(data: bytes, name: str) -> bytes:
    """Return the content of a gzip file, of at most ``inflated_limit`` bytes.

    Raises:
        InputError: It is damaged, or inflates to more.

    >>> import gzip
    >>> inflate_whole(gzip.compress(b"hello"), "a.gz")
    b'hello'
    """
    limit = inflated_limit(len(data))
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(data)) as compressed:
            content = compressed.read(limit + 1)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise InputError("is a damaged gzip file", path=name, hint="copy it again") from error
    if len(content) > limit:
        raise inflation_error(name, len(data))
    return content
