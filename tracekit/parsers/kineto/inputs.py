"""Concrete inputs and strides of operators: what is kept of them.

The profiler writes every input that is no tensor as text. Numbers, booleans and short lists of them are kept; any other
text, which may be whatever a program passes to an operator, becomes null.
"""

import json
import math
import re
from typing import Any

from tracekit._util.shapes import MAX_ELEMENTS, parse_list
from tracekit.parsers.kineto.vocabulary import UNASKED_OPERATORS

MAX_LIST_LENGTH = 16
"""Values of a list input, and strides or tensors of one input, up to which they are kept."""
MAX_CONCRETE_INTEGER = 10**9
"""Larger integers are no sizes, strides or flags; ends of slices and random seeds are."""
SIGNIFICANT_DIGITS = 6
"""Digits kept of a number with a fraction; the profiler writes 0.9 as 0.90000000000000002."""

_NUMBER = re.compile(r"-?\d{1,20}(\.\d{0,40})?([eE][-+]?\d{1,3})?", re.ASCII)
_BOOLEANS = {"True": True, "False": False, "true": True, "false": False}


def is_asked(name: str) -> bool:
    """Return whether concrete inputs and strides are kept of an operator, as the scanner decides.

    >>> is_asked("aten::cat"), is_asked("aten::view"), is_asked("MmBackward0")
    (True, False, False)
    """
    return "::" in name and name not in UNASKED_OPERATORS and not name.startswith("torch::")


def keep_concrete_inputs(text: str) -> str | None:
    """Return the values of an operator's inputs as a JSON list; null for tensors and whatever is not kept.

    None if the text is not a list.

    >>> keep_concrete_inputs('["","[3, 3]","1e-05","True","relu"]')
    '[null,[3,3],1e-05,true,null]'
    """
    inputs = parse_list(text)
    if not inputs and text != "[]":
        return None
    return json.dumps([concrete_value(value) for value in inputs], separators=(",", ":"))


def concrete_value(value: Any) -> Any:
    """Return a number, a boolean or a short list of them, as the profiler writes it in text or as JSON; else None.

    >>> concrete_value("[True, 2.]"), concrete_value("-1"), concrete_value("mean")
    ([True, 2], -1, None)
    """
    if isinstance(value, str) and value.startswith("[") and value.endswith("]"):
        value = value[1:-1].split(",") if value != "[]" else []
    if isinstance(value, list):
        if len(value) > MAX_LIST_LENGTH:
            return None
        scalars = [_scalar(item) for item in value]
        return None if None in scalars else scalars
    return _scalar(value)


def _scalar(value: Any) -> bool | float | None:
    """Return a number or boolean; None for anything else."""
    if isinstance(value, bool):
        return value
    text = str(value).strip()
    if text in _BOOLEANS:
        return _BOOLEANS[text]
    if not _NUMBER.fullmatch(text):
        return None
    number = float(text)
    if text.lstrip("-").isdecimal():
        return int(text) if abs(number) < MAX_CONCRETE_INTEGER else None
    if not math.isfinite(number):
        return None
    rounded = float(f"{number:.{SIGNIFICANT_DIGITS}g}")
    return int(rounded) if rounded.is_integer() and abs(rounded) < MAX_CONCRETE_INTEGER else rounded


def keep_strides(text: str) -> str | None:
    """Return the strides of an operator's inputs as a JSON list; null for inputs of more tensors than are kept.

    None if the text is not a list.

    >>> keep_strides("[[512,1],[],[[8,1],[1]]]"), keep_strides('["x"]')
    ('[[512,1],[],[[8,1],[1]]]', '[null]')
    """
    inputs = parse_list(text)
    if not inputs and text != "[]":
        return None
    return json.dumps(
        [value if _are_strides(value) else None for value in inputs], separators=(",", ":")
    )


def _are_strides(value: Any, *, of_list: bool = False) -> bool:
    """Return whether *value* is the strides of a tensor or, unless they stand in a list, of a short list of tensors."""
    if not isinstance(value, list) or len(value) > MAX_LIST_LENGTH:
        return False
    if all(type(stride) is int and abs(stride) < MAX_ELEMENTS for stride in value):
        return True
    return not of_list and all(_are_strides(strides, of_list=True) for strides in value)
