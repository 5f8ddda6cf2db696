"""Peak rates of GPUs: dense tensor-core TFLOP/s by GPU and type, and bandwidth of the link to the host.

The figures come from data sheets. They are data: ``peaks.toml``, or the file named by
``TRACEKIT_PEAKS``, which comes first. A part of a GPU (MIG, or processes that share one) shows
fewer multiprocessors than the whole: its peak is that share.
"""

import os
import re
import tomllib
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Annotated

import msgspec

from tracekit.errors import InputError, OptionError

PEAKS_VARIABLE = "TRACEKIT_PEAKS"
"""Environment variable with the path of a file of peaks."""
BUILT_IN_PEAKS = Path(__file__).with_name("peaks.toml")


class Gpu(msgspec.Struct, frozen=True):
    """One GPU model: a pattern of its name, its multiprocessors, and TFLOP/s by type.

    >>> find_gpu("NVIDIA H200").multiprocessors
    132
    """

    pattern: str
    multiprocessors: int
    tflop_s: Mapping[str, float]
    source: str = ""
    host_link_gb_s: float | None = None
    """Bandwidth of the link to the host in one direction; None if unknown."""
    memory_gb_s: float | None = None
    """Bandwidth of its memory; None if unknown."""

    def __post_init__(self) -> None:
        re.compile(self.pattern)  # raises re.error for a bad pattern


class _Link(msgspec.Struct, frozen=True):
    """One kind of link: where it leads (``in node``, ``across nodes``), and its peak."""

    where: str
    gb_s: Annotated[float, msgspec.Meta(gt=0)]


class _PeaksFile(msgspec.Struct, frozen=True):
    """A file of peaks."""

    gpu: tuple[Gpu, ...] = ()
    link: tuple[_Link, ...] = ()


def peak_tflop_s(device: str, dtype: str, *, multiprocessors: int | None = None) -> float | None:
    """Return the peak of a GPU for a type, in TFLOP/s; None if unknown.

    Args:
        device: Name of the GPU.
        dtype: "bf16", "fp8", …
        multiprocessors: Multiprocessors that the process may use; None if all, or unknown.

    >>> peak_tflop_s("NVIDIA H200", "bf16"), peak_tflop_s("NVIDIA H200", "bf16", multiprocessors=33)
    (989.4, 247.35)
    >>> peak_tflop_s("Abacus", "bf16") is None
    True

    """
    gpu = find_gpu(device)
    if gpu is None or dtype not in gpu.tflop_s:
        return None
    share = min(1.0, multiprocessors / gpu.multiprocessors) if multiprocessors else 1.0
    return gpu.tflop_s[dtype] * share


def link_gb_s(where: str) -> float | None:
    """Return the peak of a link (``in node``, ``across nodes``) in GB/s, from the user's file.

    None if not given.
    """
    links = _read_peaks(os.environ.get(PEAKS_VARIABLE, "")).link
    return next((link.gb_s for link in links if link.where == where), None)


def host_link_gb_s(device: str) -> float | None:
    """Return the bandwidth between *device* and its host in one direction, in GB/s.

    None if unknown.

    >>> host_link_gb_s("NVIDIA H200"), host_link_gb_s("NVIDIA GH200 480GB"), host_link_gb_s("NVIDIA GB200")
    (63.0, 450.0, None)
    """
    gpu = find_gpu(device)
    return None if gpu is None else gpu.host_link_gb_s


def find_gpu(device: str) -> Gpu | None:
    """Return the first GPU model whose pattern is found in a device's name; None if there is none.

    >>> find_gpu("NVIDIA A100-SXM4-80GB").multiprocessors
    108
    """
    gpus = (*_read_peaks(os.environ.get(PEAKS_VARIABLE, "")).gpu, *_read_peaks(BUILT_IN_PEAKS).gpu)
    return next((gpu for gpu in gpus if re.search(gpu.pattern, device)), None)


def check_gpu(device: str) -> None:
    """Raise if no peaks are known for a GPU's name.

    >>> check_gpu("H100")
    """
    if find_gpu(device) is None:
        hint = f"name a model such as H100, A100 or MI300X, or give its peaks in the file of {PEAKS_VARIABLE}"
        raise OptionError(f"no peak rates are known for the GPU {device!r}", hint=hint)


@lru_cache
def _read_peaks(path: str | Path) -> _PeaksFile:
    """Return the peaks of a file; none without a path."""
    if not path:
        return _PeaksFile()
    try:
        peaks = msgspec.convert(
            tomllib.loads(Path(path).read_text(encoding="utf-8")), _PeaksFile, strict=False
        )
        if not peaks.gpu and not peaks.link:
            raise ValueError("it has neither GPUs nor links")
    except (OSError, ValueError, re.error) as error:
        hint = "write [[gpu]] with pattern, multiprocessors and tflop_s = { bf16 = 989.4 }, "
        hint += '[[link]] with where = "in node" and gb_s = 450'
        raise InputError(f"{PEAKS_VARIABLE}={path}: cannot be used: {error}", hint=hint) from error
    return peaks
