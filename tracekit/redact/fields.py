"""Keys of a PyTorch trace that stay in a redacted copy, and the values that may stand under them.

The keys are listed in ``kept.toml``; one that is not is dropped with its value. Numbers stay under
listed keys if they are in range for that key, so that a phone or card number cannot pass for a rank
or an id.
"""

import json
import re
import tomllib
from pathlib import Path
from typing import Any

from tracekit.parsers.kineto.vocabulary import CATEGORIES as READ_CATEGORIES

KEEP_OPTIONS = ("annotations", "arguments", "frames", "header", "metadata")
"""What ``--keep`` accepts: texts of ranges, all arguments, Python frames and stacks, header
entries, and events without a duration such as names of processes and threads."""

KEPT = tomllib.loads(Path(__file__).with_name("kept.toml").read_text(encoding="utf-8"))
"""Keys, tables and columns that stay."""
_KINETO_KEYS = KEPT["kineto"]
KEPT_CATEGORIES = frozenset((*READ_CATEGORIES, *_KINETO_KEYS["categories"]))
GPU_CATEGORIES = frozenset(_KINETO_KEYS["gpu_categories"])
KEPT_PHASES = frozenset("XsftBE")
"""Complete events, flows, and pairs of begin and end. Other phases hold names of processes, threads
and hosts."""
ALLOCATOR_EVENT = "[memory]"
"""Name of the allocator's events, the only instants that stay."""
STACK_KEYS = frozenset(_KINETO_KEYS["stacks"])
EVENT_NUMBERS = frozenset(("pid", "tid", "ts", "dur", "id"))
EVENT_IDS = frozenset(("pid", "tid", "id"))
"""Those of them that are numbers of something, of which 32 bits hold all that there can be."""
ARGUMENT_TEXTS = frozenset(_KINETO_KEYS["argument_texts"])
INPUT_VALUES = frozenset(_KINETO_KEYS["input_values"])
GROUP_TEXTS = frozenset(_KINETO_KEYS["group_texts"])
HEADER_VERSIONS = frozenset(_KINETO_KEYS["header_versions"])
FRACTIONS = frozenset(_KINETO_KEYS["fractions"])
"""Arguments whose numbers may have a fraction."""

SMALL = 10**6
ID = 1 << 32
SIZE = 10**12
ANY = 1 << 64
"""Upper bounds of ranks, devices and launch settings; of ids; of bytes and elements; of what 64
bits hold."""
LIMITS = {"small": SMALL, "id": ID, "size": SIZE, "hip_version": 100_000_000}
"""Upper bounds by their names in ``kept.toml``."""
MAX_NUMBER_AS_TEXT = 10**9
"""Bound of numbers written as text: one with ten digits is more likely a phone number."""


def number_limits(section: str) -> dict[str, int]:
    """Return the upper bound of each key of numbers in one section of a trace.

    >>> number_limits("groups")
    {'pg_size': 1000000, 'ranks': 1000000}
    """
    limit_of_key: dict[str, int] = {}
    for limit, keys in _KINETO_KEYS["numbers"][section].items():
        limit_of_key |= dict.fromkeys(keys, LIMITS[limit])
    return limit_of_key


ARGUMENT_NUMBERS = number_limits("arguments")
HEADER_NUMBERS = number_limits("header")
DEVICE_NUMBERS = number_limits("devices")
DISTRIBUTED_NUMBERS = number_limits("distributed")
GROUP_NUMBERS = number_limits("groups")

MAX_VERSION_DIGITS = 6
_VERSION_TEXT = re.compile(
    r"\d{1,3}(?:\.\d{1,3}){1,2}(?:a0|rc\d)?(?:\+(?:cu\d{2,3}|rocm\d\.\d|cpu))?|\d{4,5}", re.ASCII
)
MAX_FRACTION_DIGITS = 6
"""Digits behind the point of a time in µs or of a rate; more tell nothing, and may be a phone or
card number."""
_JSON_NUMBER = re.compile(
    rf"-?\d{{1,20}}(?:\.(?:0+|\d{{1,{MAX_FRACTION_DIGITS}}}))?(?:[eE][-+]?\d{{1,3}})?", re.ASCII
)
_FRACTION = re.compile(rf"(-?\d+\.\d{{{MAX_FRACTION_DIGITS}}})\d+", re.ASCII)
_NUMBER_LIST = re.compile(r"\[[-\d\s,.\[\]]*\]", re.ASCII)


class NumberText(str):
    """A JSON number as it is spelled in the file, so that it is written unchanged."""

    __slots__ = ()


def is_number(value: Any, limit: int, *, fractions: bool = False) -> bool:
    """Return whether *value* is a number below *limit*, or lists of such numbers, also as text.

    Null counts. A number with a fraction counts only with *fractions*, up to some digits.

    >>> is_number([["1", 2], []], 10), is_number("[0, 1]", 10), is_number("5-1", 10), is_number(41555, 1000)
    (True, True, False, False)
    >>> is_number("2.5", 10), is_number("2.5", 10, fractions=True), is_number("2.4155551234", 10, fractions=True)
    (False, True, False)
    """
    if value is None or isinstance(value, bool | int):
        return value is None or abs(value) < limit
    if isinstance(value, list):
        return all(is_number(item, limit, fractions=fractions) for item in value)
    if not isinstance(value, str):
        return False
    if not isinstance(value, NumberText):
        if _NUMBER_LIST.fullmatch(value):
            return is_number(_parse_numbers(value), limit, fractions=fractions)
        limit = min(limit, MAX_NUMBER_AS_TEXT)
    return _is_number_text(value, limit, fractions=fractions)


def _parse_numbers(text: str) -> Any:
    """Return the lists of numbers that *text* spells; an empty object, which is no number, if it spells none."""
    try:
        return json.loads(text, parse_float=NumberText, parse_int=NumberText)
    except (ValueError, RecursionError):
        return {}


def _is_number_text(text: str, limit: int, *, fractions: bool) -> bool:
    """Return whether *text* spells a number below *limit*, a whole one unless *fractions* are allowed."""
    if not _JSON_NUMBER.fullmatch(text):
        return False
    number = float(text)
    return abs(number) < limit and (fractions or number.is_integer())


def bounded_time(value: Any) -> Any:
    """Return a time as the file spells it, with at most ``MAX_FRACTION_DIGITS`` behind the point.

    >>> bounded_time(NumberText("17.123")), bounded_time(NumberText("17.1234155551234"))
    ('17.123', '17.123415')
    """
    if not isinstance(value, NumberText):
        return value
    shortened = _FRACTION.fullmatch(value)
    return NumberText(shortened[1]) if shortened else value


def is_event_number(value: Any) -> bool:
    """Return whether *value* is a time or an id of an event.

    Files of 2021 write ids of threads as text.
    """
    if isinstance(value, NumberText) or value is None:
        return True
    return isinstance(value, str) and value.isascii() and value.isdecimal() and int(value[:20]) < ID


def is_base_time(value: Any) -> bool:
    """Return whether *value* can be the start of a profiler's clock: 0, or nanoseconds since 1970 from 2001 on."""
    return (
        is_number(value, ANY)
        and not isinstance(value, list)
        and (value == "0" or float(value or 0) >= 10**18)
    )


def is_version(value: Any) -> bool:
    """Return whether *value* is a release such as 2.9.0+cu128: two or three numbers with at most six digits.

    >>> is_version("2.9.0+cu128"), is_version("2.9.0+acme"), is_version("10.1.2.3"), is_version("415.555.1234")
    (True, False, False, False)
    """
    if not isinstance(value, str) or not _VERSION_TEXT.fullmatch(value):
        return False
    return sum(map(str.isdecimal, value.partition("+")[0])) <= MAX_VERSION_DIGITS
