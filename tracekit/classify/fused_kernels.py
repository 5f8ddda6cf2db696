"""Operators that a compiled kernel was fused from: inductor joins them in the kernel's name by underscores."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path

_FUSED_KERNEL = re.compile(r"^triton_(poi|red|per|tem|for|mix|spl)_fused_(.+?)(?:_(\d+))?$")
_KERNEL_KINDS = {
    "poi": "pointwise",
    "red": "reduction",
    "per": "reduction in one block",
    "tem": "template",
    "for": "foreach",
    "mix": "mixed-order reduction",
    "spl": "split scan",
}
_MAX_WORDS_OF_OPERATOR = 7


def fused_operators(kernel: str, more_operators: Iterable[str] = ()) -> tuple[str, tuple[str, ...]] | None:
    """Return the kind of a kernel that inductor compiled, and the operators it was fused from; None for other kernels.

    Args:
        kernel: Name of the kernel.
        more_operators: Names of operators beside those in ``operators.txt``, such as the trace's own. Words that are
            part of no operator's name stay together.

    >>> fused_operators("triton_per_fused__unsafe_view_add_native_layer_norm_native_layer_norm_backward_view_6")
    ('reduction in one block', ('_unsafe_view', 'add', 'native_layer_norm', 'native_layer_norm_backward', 'view'))
    >>> fused_operators("triton_poi_fused_add_my_own_op_mul_0")
    ('pointwise', ('add', 'my_own_op', 'mul'))
    >>> fused_operators("nvjet_hsh_128x128") is None
    True
    """
    match = _FUSED_KERNEL.match(kernel)
    if match is None:
        return None
    names = _listed_operators() | frozenset(more_operators)
    words = re.findall(r"(?:^|(?<=_))_*[^_]+", match[2])  # an underscore that begins a name stays with its first word
    operators: list[str] = []
    unknown_words: list[str] = []
    start = 0
    while start < len(words):
        length = _longest_operator(words[start:], names)
        if not length:
            unknown_words.append(words[start])
            start += 1
            continue
        if unknown_words:
            operators.append("_".join(unknown_words))
            unknown_words = []
        operators.append("_".join(words[start : start + length]))
        start += length
    if unknown_words:
        operators.append("_".join(unknown_words))
    return _KERNEL_KINDS[match[1]], tuple(operators)


@cache
def _listed_operators() -> frozenset[str]:
    """Read the operators that occur in fused kernels; each may also occur with ``_backward`` behind it."""
    return frozenset(Path(__file__).with_name("operators.txt").read_text(encoding="utf-8").split())


def _longest_operator(words: list[str], names: frozenset[str]) -> int:
    """Return how many of the first *words* form the longest name of an operator; 0 if none does."""
    for count in range(min(_MAX_WORDS_OF_OPERATOR, len(words)), 0, -1):
        name = "_".join(words[:count])
        if name in names or (count > 1 and name.endswith("_backward") and name.removesuffix("_backward") in names):
            return count
    return 0
