"""Families of kernels that multiply matrices, known by their names: data of ``packs/70-kernels.toml``."""

from __future__ import annotations

import re
import tomllib
from functools import cache

import msgspec

from tracekit.classify.rules import KERNEL_FAMILIES, shipped_packs


class KernelFamily(msgspec.Struct, frozen=True):
    """Kernels of one library."""

    family: str
    computes: str
    """``product`` or ``attention``."""
    pattern: str
    """Regular expression that is searched for in names, whatever their capitals."""
    source: str


@cache
def kernel_families() -> tuple[KernelFamily, ...]:
    """Return all families.

    >>> {family.computes for family in kernel_families()} == {"product", "attention"}
    True
    """
    entries = tomllib.loads(shipped_packs()[KERNEL_FAMILIES])["kernel"]
    return msgspec.convert(entries, tuple[KernelFamily, ...])


@cache
def kernel_pattern(computes: str) -> str:
    """Return one regular expression for all families that compute the same.

    >>> bool(re.search(kernel_pattern("attention"), "void ck_tile::kentry<FmhaFwdKernel<>>"))
    True
    """
    return "|".join(f"(?i:{family.pattern})" for family in kernel_families() if family.computes == computes)


def family_of(kernel: str) -> str | None:
    """Return the family of a kernel by its name; None if it is in none.

    >>> family_of("bmm_Bfloat16_MxE2m1MxE4m3_Fp32_t128x16x256u2"), family_of("relu")
    ('TensorRT-LLM batched product', None)
    """
    matches = (family.family for family in kernel_families() if re.search(f"(?i:{family.pattern})", kernel))
    return next(matches, None)
