"""Words of the reports: those for causes, phases and kinds, read from ``words.toml``, and short names of kernels."""

import re
from collections.abc import Mapping
from pathlib import Path

import msgspec

from tracekit._util.shapes import parse_list


class Words(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Words by code word; the comments in ``words.toml`` say what each table holds."""

    exposure_causes: Mapping[str, str]
    exposure_meanings: Mapping[str, str]
    idle_causes: Mapping[str, str]
    host_activities: Mapping[str, str]
    path_holders: Mapping[str, str]
    by_titles: Mapping[str, str]
    by_meanings: Mapping[str, str]
    role_kinds: Mapping[str, str]
    phases: Mapping[str, str]
    update_causes: Mapping[str, str]
    update_remedies: Mapping[str, str]
    memory_categories: Mapping[str, str]
    memory_remedies: Mapping[str, str]
    memory_causes: Mapping[str, str]
    definitions: Mapping[str, str]
    schedule_definitions: Mapping[str, str]


WORDS = msgspec.toml.decode(Path(__file__).with_name("words.toml").read_bytes(), type=Words)
_NAMESPACES = re.compile(
    r"\b(?:at::native|at|c10|cutlass|std|cuda|thrust)::|\(anonymous namespace\)::"
)
"""Name spaces, which say nothing about what a kernel does."""
_NCCL = re.compile("^ncclDevKernel_")
_LAMBDAS = re.compile(r"::\{lambda\([^{}]*\)#\d+\}(?:::operator\(\)\([^()]*\) const)?")
"""Lambda functions, which the compiler numbers."""


def short_kernel(name: str) -> str:
    """Return the name of a kernel without return type, name spaces and parameters.

    >>> short_kernel("void at::native::elementwise_kernel<4, at::native::CUDAFunctor_add<c10::BFloat16>>(int)")
    'elementwise_kernel<4, CUDAFunctor_add<BFloat16>>'
    >>> short_kernel("Memcpy DtoH (Device -> Pinned)")
    'Memcpy DtoH (Device -> Pinned)'
    >>> short_kernel("ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"), short_kernel("0F3")
    ('nccl SendRecv', '0F3')
    """
    bare = _LAMBDAS.sub("", _NAMESPACES.sub("", _NCCL.sub("nccl ", name.removeprefix("void "))))
    return _without_parameters(bare) or name


def _without_parameters(name: str) -> str:
    """Return the name without the pair of brackets at its end, unless they hold a remark."""
    if not name.endswith(")"):
        return name
    depth = 0
    for i in range(len(name) - 1, -1, -1):
        depth += (name[i] == ")") - (name[i] == "(")
        if depth == 0:
            # Parameters follow the name directly; a remark follows a space.
            is_call = i > 0 and (name[i - 1].isalnum() or name[i - 1] in "_>")
            return name[:i] if is_call else name
    return name


def shape_words(shapes: str) -> str:
    """Return the sizes of the first two operands of a product.

    >>> shape_words("[[1024,2048],[2048,6144],[]]")
    '1024×2048 · 2048×6144'
    """
    operands = [sizes for sizes in parse_list(shapes) if isinstance(sizes, list) and len(sizes) > 1]
    return " · ".join("×".join(map(str, sizes)) for sizes in operands[:2])
