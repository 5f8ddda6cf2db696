"""Peak rates of GPUs: dense tensor-core TFLOP/s by GPU and type, and the link to the host, from data sheets.

The figures are data (``peaks.toml``, or the file that ``TRACEKIT_PEAKS`` names, read before it). A part of a GPU (MIG,
or processes that share one) shows fewer multiprocessors than the whole: its peak is that share.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec

from tracekit.errors import InputError

VARIABLE = "TRACEKIT_PEAKS"


class Gpu(msgspec.Struct, frozen=True):
    """One model: a pattern of its name, its multiprocessors, and TFLOP/s by type.

    >>> find_gpu("NVIDIA H200").multiprocessors
    132
    """

    pattern: str
    multiprocessors: int
    tflop_s: Mapping[str, float]
    source: str = ""
    host_link_gb_s: float | None = None
    """What the link to the host carries in one direction; None where it is not known."""


def peak_tflop_s(device: str, dtype: str, *, multiprocessors: int | None = None) -> float | None:
    """Return the peak of *device* for a type, in TFLOP/s; None where it is not known.

    *multiprocessors* is how many this process may use, where the trace says.

    >>> peak_tflop_s("NVIDIA H200", "bf16"), peak_tflop_s("NVIDIA H200", "bf16", multiprocessors=33)
    (989.4, 247.35)
    >>> peak_tflop_s("Abacus", "bf16") is None
    True
    """
    gpu = find_gpu(device)
    whole = None if gpu is None else gpu.tflop_s.get(dtype)
    if gpu is None or whole is None:
        return None
    return whole * (min(1.0, multiprocessors / gpu.multiprocessors) if multiprocessors else 1.0)


def link_gb_s(where: str) -> float | None:
    """Return the peak of a link (``in node``, ``across nodes``) in GB/s, from the user's file; None without one."""
    return _own_links(os.environ.get(VARIABLE, "")).get(where)


def host_link_gb_s(device: str) -> float | None:
    """Return what the link between *device* and its host carries in one direction, in GB/s; None where unknown.

    >>> host_link_gb_s("NVIDIA H200"), host_link_gb_s("NVIDIA GH200 480GB"), host_link_gb_s("NVIDIA GB200")
    (63.0, 450.0, None)
    """
    gpu = find_gpu(device)
    return None if gpu is None else gpu.host_link_gb_s


def find_gpu(device: str) -> Gpu | None:
    """Return the first GPU whose pattern is in a device's name.

    >>> find_gpu("NVIDIA A100-SXM4-80GB").multiprocessors
    108
    """
    known = (*_own(os.environ.get(VARIABLE, "")), *_built_in())
    return next((gpu for gpu in known if re.search(gpu.pattern, device)), None)


@lru_cache
def _built_in() -> tuple[Gpu, ...]:
    file = Path(__file__).with_name("peaks.toml")
    return _gpus(tomllib.loads(file.read_text(encoding="utf-8")))


@lru_cache
def _own_links(path: str) -> dict[str, float]:
    data = _read(path) if path else {}
    try:
        return {str(entry["where"]): float(entry["gb_s"]) for entry in data.get("link", ()) if float(entry["gb_s"]) > 0}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _unusable(path, error) from error


@lru_cache
def _own(path: str) -> tuple[Gpu, ...]:
    """Return the GPUs of the user's file; none without one."""
    if not path:
        return ()
    data = _read(path)
    try:
        return _gpus(data) if "gpu" in data or "link" not in data else ()
    except (ValueError, KeyError, TypeError, re.error) as error:
        raise _unusable(path, error) from error


def _read(path: str) -> dict[str, Any]:
    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise _unusable(path, error) from error


def _unusable(path: str, error: Exception) -> InputError:
    hint = 'write [[gpu]] with pattern, multiprocessors and tflop_s = { bf16 = 989.4 }, [[link]] with where = "in node"'
    return InputError(f"{VARIABLE}={path}: cannot be used: {error}", hint=f"{hint} and gb_s = 450")


def _gpus(data: Mapping[str, Any]) -> tuple[Gpu, ...]:
    gpus = []
    for entry in data["gpu"]:
        re.compile(entry["pattern"])
        rates = {str(dtype): float(rate) for dtype, rate in entry["tflop_s"].items()}
        link = None if entry.get("host_link_gb_s") is None else float(entry["host_link_gb_s"])
        gpus.append(Gpu(entry["pattern"], int(entry["multiprocessors"]), rates, str(entry.get("source", "")), link))
    return tuple(gpus)
