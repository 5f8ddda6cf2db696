"""Work on whole parameters outside the engine: gradients that the caller adds up, weights that it copies.

An optimizer with weights of its own keeps gradients and weights in another type: after every backward it adds the
gradients to its own, and after its step it copies the weights back. Both run on tensors of the parameters' sizes, which
may be views of one flat buffer.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from tracekit._util.arrays import Bools
from tracekit._util.shapes import is_shape, parse_list
from tracekit.classify.autograd import Autograd
from tracekit.classify.ranges import Launches, Ranges

_SUMS = r"^aten::(add_|_foreach_add_)$"
_COPIES = r"^aten::copy_$"


def parameter_work(ranges: Ranges, launches: Launches, autograd: Autograd) -> tuple[Bools, Bools]:
    """Events that add to, and that copy, tensors of a parameter's size, launched outside the engine."""
    grads = ranges.accumulating
    sizes = {size for text in ranges.text("shapes", grads).values if (size := _size(text))}
    none = np.zeros(len(launches.op), np.bool_)
    if not sizes:
        return none, none
    outside = (launches.op >= 0) & (autograd.node_row < 0)
    return _of(ranges, launches, outside, _SUMS, sizes), _of(ranges, launches, outside, _COPIES, sizes)


def _of(ranges: Ranges, launches: Launches, outside: Bools, names: str, sizes: set[int]) -> Bools:
    out = np.zeros(len(outside), np.bool_)
    rows = np.flatnonzero(outside & launches.op_name.matches(names))
    out[rows] = ranges.text("shapes", launches.op[rows]).map(lambda v: _size(v) in sizes)
    return out


def _size(shapes: str) -> int:
    """How many numbers the first tensor holds, of a list of tensors its first; 0 where there is none.

    >>> _size("[[8,2],[8,2],[]]"), _size("[[[4],[8,2]],[]]"), _size("[]")
    (16, 4, 0)
    """
    shape: Any = parse_list(shapes)
    while isinstance(shape, list) and shape and isinstance(shape[0], list):
        shape = shape[0]
    return prod(shape) if shape and is_shape(shape) else 0
