"""Peak rates of GPUs: dense tensor-core TFLOP/s by GPU and type, and bandwidth of the link to the host.

The figures come from data sheets. They are data: ``peaks.toml``, or the file named by ``TRACEKIT_PEAKS``, which comes
first. A part of a GPU (MIG, or processes that share one) shows fewer multiprocessors than the whole: its peak is that
share.
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

PEAKS_VARIABLE = "TRACEKIT_PEAKS"
"""Environment variable with the path of a file of peaks."""


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
    """Return the peak of a link (``in node``, ``across nodes``) in GB/s, from the user's file; None if not given."""
    return _user_links(os.environ.get(PEAKS_VARIABLE, "")).get(where)


def host_link_gb_s(device: str) -> float | None:
    """Return the bandwidth between *device* and its host in one direction, in GB/s; None if unknown.

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
    gpus = (*_user_gpus(os.environ.get(PEAKS_VARIABLE, "")), *_built_in_gpus())
    return next((gpu for gpu in gpus if re.search(gpu.pattern, device)), None)


@lru_cache
def _built_in_gpus() -> tuple[Gpu, ...]:
    file = Path(__file__).with_name("peaks.toml")
    return _parse_gpus(tomllib.loads(file.read_text(encoding="utf-8")))


@lru_cache
def _user_links(path: str) -> dict[str, float]:
    data = _read_toml(path) if path else {}
    try:
        return {str(entry["where"]): float(entry["gb_s"]) for entry in data.get("link", ()) if float(entry["gb_s"]) > 0}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _unusable_file(path, error) from error


@lru_cache
def _user_gpus(path: str) -> tuple[Gpu, ...]:
    """Return the GPUs of the user's file; none if there is no file."""
    if not path:
        return ()
    data = _read_toml(path)
    try:
        return _parse_gpus(data) if "gpu" in data or "link" not in data else ()
    except (ValueError, KeyError, TypeError, re.error) as error:
        raise _unusable_file(path, error) from error


def _read_toml(path: str) -> dict[str, Any]:
    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise _unusable_file(path, error) from error


def _unusable_file(path: str, error: Exception) -> InputError:
    hint = 'write [[gpu]] with pattern, multiprocessors and tflop_s = { bf16 = 989.4 }, [[link]] with where = "in node"'
    return InputError(f"{PEAKS_VARIABLE}={path}: cannot be used: {error}", hint=f"{hint} and gb_s = 450")


def _parse_gpus(data: Mapping[str, Any]) -> tuple[Gpu, ...]:
    gpus = []
    for entry in data["gpu"]:
        re.compile(entry["pattern"])  # raises re.error for a bad pattern
        rates = {str(dtype): float(rate) for dtype, rate in entry["tflop_s"].items()}
        link, memory = (
            None if entry.get(key) is None else float(entry[key]) for key in ("host_link_gb_s", "memory_gb_s")
        )
        source = str(entry.get("source", ""))
        gpus.append(Gpu(entry["pattern"], int(entry["multiprocessors"]), rates, source, link, memory))
    return tuple(gpus)
