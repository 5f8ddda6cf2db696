"""Kernels as people call them."""

from __future__ import annotations

import re

_SPACES = re.compile(r"\b(?:at::native|at|c10|cutlass|std|cuda|thrust)::|\(anonymous namespace\)::")
"""What says where code lives, not what it does."""
_NCCL = re.compile("^ncclDevKernel_")
_LAMBDAS = re.compile(r"::\{lambda\([^{}]*\)#\d+\}(?:::operator\(\)\([^()]*\) const)?")
"""Functions without a name, numbered by the compiler."""


def short_kernel(name: str) -> str:
    """Return a kernel's name without its return type, name spaces and parameters: what tells it apart stays.

    >>> short_kernel("void at::native::elementwise_kernel<4, at::native::CUDAFunctor_add<c10::BFloat16>>(int)")
    'elementwise_kernel<4, CUDAFunctor_add<BFloat16>>'
    >>> short_kernel("Memcpy DtoH (Device -> Pinned)")
    'Memcpy DtoH (Device -> Pinned)'
    >>> short_kernel("ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"), short_kernel("0F3")
    ('nccl SendRecv', '0F3')
    """
    bare = _LAMBDAS.sub("", _SPACES.sub("", _NCCL.sub("nccl ", name.removeprefix("void "))))
    return _without_parameters(bare) or name


def _without_parameters(name: str) -> str:
    """Cut the last pair of brackets that nothing but the name's end follows."""
    if not name.endswith(")"):
        return name
    depth = 0
    for at in range(len(name) - 1, -1, -1):
        depth += (name[at] == ")") - (name[at] == "(")
        if depth == 0:
            called = at and (name[at - 1].isalnum() or name[at - 1] in "_>")  # else it is a remark, not parameters
            return name[:at] if called else name
    return name
