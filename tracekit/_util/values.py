"""Operations on values that may be unknown (None), and on mappings of them."""

from collections.abc import Iterable, Mapping
from typing import TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")


def without_none(values: Mapping[Key, Value | None]) -> dict[Key, Value]:
    """Return the entries whose value is known.

    >>> without_none({"step_ms": 10.0, "idle_ms": None})
    {'step_ms': 10.0}
    """
    return {key: value for key, value in values.items() if value is not None}


def first_that_holds(cases: Iterable[tuple[bool, Value]]) -> Value:
    """Return the result beside the first condition that holds, of a table of conditions and results.

    The last condition of the table must be True, so that one holds.

    >>> first_that_holds([(3 > 4, "more"), (3 == 4, "equal"), (True, "less")])
    'less'
    """
    for holds, result in cases:
        if holds:
            return result
    raise AssertionError("the last condition of a decision table must be True")


def sum_if_known(values: Iterable[float | None]) -> float | None:
    """Return the sum of *values*; None if one of them is unknown.

    >>> sum_if_known([1, 2]), sum_if_known([1, None])
    (3, None)
    """
    total: float = 0
    for value in values:
        if value is None:
            return None
        total += value
    return total


def invert_lists(names_by_key: Mapping[Key, Iterable[Value]]) -> dict[Value, Key]:
    """Return the key of each name.

    >>> invert_lists({"kernel": ["kernel", "gpu_op"], "memcpy": ["copy"]})
    {'kernel': 'kernel', 'gpu_op': 'kernel', 'copy': 'memcpy'}
    """
    key_of_name: dict[Value, Key] = {}
    for key, names in names_by_key.items():
        key_of_name |= dict.fromkeys(names, key)
    return key_of_name


def seeded_key(number: int) -> str:
    """Return the key that stands for a number of a file in a dict or set that grows with the file.

    The hash of an integer is the integer: a file could choose numbers that all fall on one place of
    a dict, which makes it quadratic. The hash of a text has a seed that no file knows.

    >>> seeded_key(7), seeded_key(-1)
    ('7', '-1')
    """
    return str(number)
