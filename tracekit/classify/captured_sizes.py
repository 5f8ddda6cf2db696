"""Sizes of captured tensors against the thread blocks of replayed kernels, to tell a capture of another batch size.

The same model at another batch size often has the same kernels in the same order. How many blocks a
kernel starts is recorded with it, and for some kernels it follows from the shapes: one block per
row of a norm or a softmax, a fixed number of elements per block of an elementwise kernel.
"""

import math
import re
from collections import Counter
from collections.abc import Callable, Sequence

from tracekit._util.shapes import is_shape, parse_list

MIN_SAME_SIZE_SHARE = 0.9
"""Minimum share of the launches of one kind of kernel that have the blocks their shapes ask for."""


def _rows(shape: Sequence[int], _: re.Match[str]) -> int:
    """Return the number of rows of a tensor, whose last dimension is one row."""
    return math.prod(shape[:-1])


def _element_blocks(shape: Sequence[int], template: re.Match[str]) -> int:
    """Return the blocks for all elements of a tensor, with threads and elements per thread from the template."""
    return -(-math.prod(shape) // (int(template[1]) * int(template[2])))


_BLOCKS_OF_KERNELS: tuple[
    tuple[re.Pattern[str], Callable[[Sequence[int], re.Match[str]], int]], ...
] = (
    (re.compile(r"\b(vectorized_layer_norm_kernel|layer_norm_grad_input_kernel)"), _rows),
    (re.compile(r"\bcunn_SoftMax(Forward|Backward)"), _rows),
    (re.compile(r"\bvllm::(fused_add_)?rms_norm_kernel"), _rows),
    (re.compile(r"\bat::native::elementwise_kernel<(\d+), (\d+),"), _element_blocks),
)
"""Kernels whose blocks follow from the largest input's shape, by name."""


def find_other_size(
    launches: Sequence[tuple[str, str | None, int | None]],
) -> tuple[int, int] | None:
    """Return the blocks that captured shapes ask for and those that were replayed, if these differ.

    None if not.

    Args:
        launches: Name of the kernel, shapes of the captured operator and blocks of the replayed
            kernel, of each launch.

    >>> find_other_size([("vectorized_layer_norm_kernel<float>", "[[16,512,64],[64]]", 4096)])
    (8192, 4096)
    """
    for pattern, count_blocks in _BLOCKS_OF_KERNELS:
        pairs = []
        for name, shapes, blocks in launches:
            template = pattern.search(name)
            shape = None if shapes is None else _largest_shape(shapes)
            if template is not None and shape and blocks is not None:
                pairs.append((count_blocks(shape, template), blocks))
        differing = Counter(pair for pair in pairs if pair[0] != pair[1])
        if len(pairs) - differing.total() < MIN_SAME_SIZE_SHARE * len(pairs):
            return differing.most_common(1)[0][0]
    return None


def _largest_shape(shapes: str) -> list[int] | None:
    """Return the shape of the largest input; None if no input is a tensor with dimensions."""
    inputs = [shape for shape in parse_list(shapes) if shape]
    tensors = [shape for shape in inputs if is_shape(shape)]
    return max(tensors, key=math.prod, default=None)
