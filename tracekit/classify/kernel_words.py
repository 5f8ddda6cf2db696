"""Words that the names of operators and kernels share: what a kernel computes, without a table of kernels.

``aten::gelu_backward`` launches ``GeluBackwardCUDAKernelImpl``, ``aten::cat`` launches
``CatArrayBatchedCopy``. Words that are in most names of either kind say nothing.
"""

import re
from collections.abc import Iterable

from tracekit.classify.names import OPERATORS

MIN_WORD_LETTERS = 3
"""Letters from which on a word counts: shorter ones are types and template arguments."""
COMMON_WORDS = frozenset(
    (
        "aten",
        "native",
        "void",
        "kernel",
        "cuda",
        "hip",
        "impl",
        "functor",
        "forward",
        "backward",
        "launch",
        "const",
    )
)
_PRODUCT_WORD = "product"
"""Word for all names of matrix products, which have few words in common."""
_CASE_CHANGE = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
"""Place between two words of a name such as ``GeluCUDAKernel``."""
_PRODUCT_KERNEL = re.compile(r"(?i)gemm|gemv|nvjet|cijk_|matmul|splitk|xmma")
_PRODUCT_OP = re.compile(OPERATORS["graph_product"])


def words_of(name: str) -> frozenset[str]:
    """Return the words of a name, in lower case.

    >>> sorted(words_of("GeluBackwardCUDAKernelImpl"))
    ['gelu']
    """
    spaced = _CASE_CHANGE.sub(" ", name)
    words = re.findall(r"[a-z]+", spaced.lower())
    return frozenset(word for word in words if len(word) >= MIN_WORD_LETTERS) - COMMON_WORDS


def find_related(ops: Iterable[str], kernels: Iterable[str]) -> set[tuple[str, str]]:
    """Return the pairs of operator and kernel whose names share a word.

    >>> find_related(["aten::gelu", "aten::mm"], ["GeluCUDAKernelImpl", "nvjet_sm90_tst"]) == {
    ...     ("aten::gelu", "GeluCUDAKernelImpl"), ("aten::mm", "nvjet_sm90_tst")}
    True
    """
    kernel_words = {}
    for kernel in kernels:
        product = {_PRODUCT_WORD} if _PRODUCT_KERNEL.search(kernel) else set()
        kernel_words[kernel] = words_of(kernel) | product
    related = set()
    for op in ops:
        product = {_PRODUCT_WORD} if _PRODUCT_OP.search(op) else set()
        op_words = words_of(op.rsplit("::", maxsplit=1)[-1]) | product
        for kernel, words in kernel_words.items():
            if op_words & words:
                related.add((op, kernel))
    return related
