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


_WRAPPER = re.compile(r"\bgpu_kernel_impl(?:_nocast)?<")
_LAYOUT_ARGUMENTS = re.compile(
    r", (?:array<char\*, \d+ul>|TrivialOffsetCalculator<[^<>]*>|memory::(?:Load|Store)With(?:out)?Cast(?:<\d+>)?)"
)
"""Arguments of templates that say where tensors lie, not what a kernel computes."""


def short_kernel(name: str) -> str:
    """Return the name of a kernel without return type, name spaces, parameters and what only wraps its function.

    >>> short_kernel("void at::native::elementwise_kernel<4, at::native::CUDAFunctor_add<c10::BFloat16>>(int)")
    'elementwise_kernel<4, CUDAFunctor_add<BFloat16>>'
    >>> copy = "at::native::direct_copy_kernel_cuda(at::TensorIteratorBase&)::{lambda()#3}::operator()() const"
    >>> short_kernel(f"void at::native::elementwise_kernel<4, at::native::gpu_kernel_impl_nocast<{copy}>(int)>(int)")
    'elementwise_kernel<4, direct_copy_kernel_cuda>'
    >>> short_kernel("Memcpy DtoH (Device -> Pinned)")
    'Memcpy DtoH (Device -> Pinned)'
    >>> short_kernel("ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"), short_kernel("0F3")
    ('nccl SendRecv', '0F3')
    """
    bare = _LAMBDAS.sub("", _NAMESPACES.sub("", _NCCL.sub("nccl ", name.removeprefix("void "))))
    bare = _without_parameters(bare.replace("::operator()", ""))
    return _LAYOUT_ARGUMENTS.sub("", _without_wrapper(bare)).replace(" >", ">") or name


def _without_parameters(name: str) -> str:
    """Return the name without the pairs of brackets that follow a name or a template: a remark follows a space.

    >>> _without_parameters("f<g(int, h()), (MODE)1>(float) (remark)")
    'f<g, (MODE)1> (remark)'
    """
    kept: list[str] = []
    depth = 0  # of the brackets that are left out
    for character in name:
        if depth or (character == "(" and kept and (kept[-1].isalnum() or kept[-1] in "_>")):
            depth += (character == "(") - (character == ")")
        else:
            kept.append(character)
    return name if depth else "".join(kept)


def _without_wrapper(name: str) -> str:
    """Return the name with what ``gpu_kernel_impl`` wraps in its place.

    >>> _without_wrapper("elementwise_kernel<4, gpu_kernel_impl_nocast<add<float> > >")
    'elementwise_kernel<4, add<float> >'
    """
    match = _WRAPPER.search(name)
    if match is None:
        return name
    depth = 1
    for end in range(match.end(), len(name)):
        depth += (name[end] == "<") - (name[end] == ">")
        if depth == 0:
            return f"{name[: match.start()]}{name[match.end() : end].rstrip()}{name[end + 1 :]}"
    return name


def shape_words(shapes: str) -> str:
    """Return the sizes of the first two operands of a product.

    >>> shape_words("[[1024,2048],[2048,6144],[]]")
    '1024×2048 · 2048×6144'
    """
    operands = [sizes for sizes in parse_list(shapes) if isinstance(sizes, list) and len(sizes) > 1]
    return " · ".join("×".join(map(str, sizes)) for sizes in operands[:2])
