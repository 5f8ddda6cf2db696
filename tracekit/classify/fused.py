"""Which operators a compiled kernel was fused from: inductor joins them in the kernel's name by underscores."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path

_KERNEL = re.compile(r"^triton_(poi|red|per|tem|for|mix|spl)_fused_(.+?)(?:_(\d+))?$")
_KINDS = {
    "poi": "pointwise",
    "red": "reduction",
    "per": "reduction in one block",
    "tem": "template",
    "for": "foreach",
    "mix": "mixed-order reduction",
    "spl": "split scan",
}
_LONGEST = 7
"""Words of the longest name."""


def fused_operators(kernel: str, known: Iterable[str] = ()) -> tuple[str, tuple[str, ...]] | None:
    """Return what kind of kernel inductor made, and the operators it was fused from; None of any other kernel.

    *known* are more operators' names, such as the trace's own. Words that belong to no known name stay together.

    >>> fused_operators("triton_per_fused__unsafe_view_add_native_layer_norm_native_layer_norm_backward_view_6")
    ('reduction in one block', ('_unsafe_view', 'add', 'native_layer_norm', 'native_layer_norm_backward', 'view'))
    >>> fused_operators("triton_poi_fused_add_my_own_op_mul_0")
    ('pointwise', ('add', 'my_own_op', 'mul'))
    >>> fused_operators("nvjet_hsh_128x128") is None
    True
    """
    found = _KERNEL.match(kernel)
    if found is None:
        return None
    names = _operators() | frozenset(known)
    words = _words(found[2])
    operators: list[str] = []
    strange: list[str] = []
    at = 0
    while at < len(words):
        taken = _longest(words, at, names)
        if taken and strange:
            operators.append("_".join(strange))
            strange = []
        if taken:
            operators.append("_".join(words[at : at + taken]))
        else:
            strange.append(words[at])
        at += taken or 1
    if strange:
        operators.append("_".join(strange))
    return _KINDS[found[1]], tuple(operators)


@cache
def _operators() -> frozenset[str]:
    """Operators that end up in fused kernels; a word behind each may make it a backward."""
    return frozenset(Path(__file__).with_name("operators.txt").read_text(encoding="utf-8").split())


def _words(text: str) -> list[str]:
    """Split at underscores; one that begins a name stays with its first word."""
    return re.findall(r"(?:^|(?<=_))_*[^_]+", text)


def _longest(words: list[str], at: int, names: frozenset[str]) -> int:
    """Return how many words from *at* on make the longest known name, 0 where none does."""
    for count in range(min(_LONGEST, len(words) - at), 0, -1):
        name = "_".join(words[at : at + count])
        if name in names or (count > 1 and name.endswith("_backward") and name.removesuffix("_backward") in names):
            return count
    return 0
