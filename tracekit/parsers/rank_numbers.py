"""Numbers of ranks: those that a caller chooses, those that are possible, those that are missing."""

from collections.abc import Collection, Iterable
from itertools import islice

from tracekit._util.text import listing
from tracekit.errors import InputError, OptionError

MAX_RANKS = 10_000_000
"""Upper limit of ranks in a run: a larger number in a file is damage, in a command a typing
error."""
MAX_DIGITS = 18
"""Longest number that is read: Python refuses to read very long ones."""
MAX_SHOWN_OPTION_CHARS = 100
"""Characters of an option that a message repeats."""
RankChoice = str | Collection[int]
"""Ranks to read: their numbers, or text such as ``0,4-6``."""


def chosen_ranks(ranks: RankChoice | None) -> tuple[int, ...] | None:
    """Return the numbers of ranks: a collection of them, or numbers and spans, separated by commas.

    >>> chosen_ranks("0,4-6"), chosen_ranks([2, 1]), chosen_ranks(None)
    ((0, 4, 5, 6), (1, 2), None)
    """
    if ranks is None:
        return None
    if isinstance(ranks, str):
        return _numbers_in_text(ranks)
    if not isinstance(ranks, Iterable) or not all(isinstance(rank, int) for rank in ranks):
        raise _no_rank_error(str(ranks), str(ranks))
    return tuple(sorted(ranks))


def _numbers_in_text(text: str) -> tuple[int, ...]:
    numbers: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise _no_rank_error(text, part)
        if max(len(first), len(last)) > MAX_DIGITS or int(last or first) >= MAX_RANKS:
            number = (last or first)[:MAX_SHOWN_OPTION_CHARS]
            problem = f"ranks {text[:MAX_SHOWN_OPTION_CHARS]}: {number} is more than any run has"
            raise OptionError(problem, hint="write 0,2 or 0-7")
        if dash and int(last) < int(first):
            raise _no_rank_error(text, part)
        numbers.update(range(int(first), int(last or first) + 1))
    return tuple(sorted(numbers))


def _no_rank_error(text: str, part: str) -> OptionError:
    problem = f"ranks {text[:MAX_SHOWN_OPTION_CHARS]}: {part.strip()[:MAX_SHOWN_OPTION_CHARS]!r} is not a rank"
    return OptionError(problem, hint="write 0,2 or 0-7")


def valid_rank(value: int | None) -> int | None:
    """Return *value* if it is a possible rank or number of ranks, else None.

    >>> valid_rank(3), valid_rank(3_000_000_000), valid_rank(-1), valid_rank(None)
    (3, None, None, None)
    """
    return value if value is not None and 0 <= value < MAX_RANKS else None


def missing_ranks(present: Collection[int], size: int, *, most: int) -> tuple[int, list[int]]:
    """Return how many of *size* ranks are not *present*, and the first *most* of those.

    >>> missing_ranks({0, 2, 9}, 5, most=2)
    (3, [1, 3])
    """
    valid = {rank for rank in present if 0 <= rank < size}
    # Lazy: a damaged size may be in the millions.
    missing = (rank for rank in range(size) if rank not in valid)
    return size - len(valid), list(islice(missing, most))


def unknown_rank_error(
    requested: Iterable[int], present: Iterable[int], *, where: str = ""
) -> InputError:
    """Return the error for *requested* ranks that are not present, with those that are.

    >>> str(unknown_rank_error([9], [0, 1]))
    'there is no rank 9 (ranks here: 0, 1)'
    >>> str(unknown_rank_error([9], [], where="run.store"))
    'run.store: there is no rank 9 (leave out --ranks to read every rank)'
    """
    available = listing(map(str, sorted(present)), most=8)
    text = f"there is no rank {listing(map(str, sorted(requested)), most=8)}"
    return InputError(
        f"{where}: {text}" if where else text,
        hint=f"ranks here: {available}" if available else "leave out --ranks to read every rank",
    )
