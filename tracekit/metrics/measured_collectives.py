"""Times of collectives that were measured elsewhere: what GPUs of a kind reach together.

A data sheet says what a link carries; a collective on it takes longer. ``collective_times.toml`` has
measured times by GPU, operation, type, number of GPUs and bytes. They hold for GPUs of one machine that
each serve one rank: ``find_common_gpu`` tells where the recording shows that.
"""

import re
import tomllib
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path

import msgspec
import numpy as np

from tracekit._util.arrays import AnyInts, Floats
from tracekit.classify.collectives import normalize_call
from tracekit.metrics.peaks import find_gpu
from tracekit.schema import Source

MEASURED_TIMES = Path(__file__).with_name("collective_times.toml")


class MeasuredGpu(msgspec.Struct, frozen=True):
    """GPU model on which collectives were measured."""

    name: str
    pattern: str
    link_gb_s: float
    """Bandwidth of its links to other GPUs in one direction, from its data sheet."""
    source: str


class Curve(msgspec.Struct, frozen=True):
    """Times of one operation, by size."""

    gpu: str
    operation: str
    ranks: int
    us: tuple[float, ...]
    """Time in µs of each size; each size is twice the one before it."""
    dtype: str | None = None
    """Type of the elements; None if the operation only moves bytes."""


class _MeasuredTimes(msgspec.Struct, frozen=True):
    """The file of measured times."""

    first_bytes: int
    measured_as: dict[str, str]
    """Type that was measured, by types whose sums take as long."""
    gpu: tuple[MeasuredGpu, ...]
    curve: tuple[Curve, ...]


class RankGpu(msgspec.Struct, frozen=True):
    """GPU of one rank."""

    model: MeasuredGpu
    number: int
    """Number of the GPU among those of its machine that the process sees."""


@lru_cache(maxsize=1)
def read_measured_times() -> _MeasuredTimes:
    """Return the measured times that ship with tracekit."""
    text = MEASURED_TIMES.read_text(encoding="utf-8")
    return msgspec.convert(tomllib.loads(text), _MeasuredTimes, strict=False)


def find_rank_gpu(source: Source, number: int | None) -> RankGpu | None:
    """Return the GPU of a rank; None if it is not known, was not measured, or the rank has a part of it.

    Args:
        source: Origin of the rank's events.
        number: Number of the GPU that its events ran on; None if there are several.
    """
    names = set(source.devices)
    if number is None or len(names) != 1:
        return None
    device = names.pop()
    gpu = find_gpu(device)
    used = source.multiprocessors
    if gpu is not None and used is not None and used < gpu.multiprocessors:
        return None
    for model in read_measured_times().gpu:
        if re.search(model.pattern, device):
            return RankGpu(model, number)
    return None


def find_common_gpu(
    gpus: Mapping[int, RankGpu],
    recorded_ranks: Iterable[int],
    *,
    group_size: int,
    in_node: bool | None,
) -> MeasuredGpu | None:
    """Return the GPU model of a group whose ranks each have a GPU of their own on one machine.

    Launchers number the ranks of a machine in the order of its GPUs, so rank − GPU number is the same
    for all ranks of one machine, and differs between machines and between ranks that share a GPU.

    Args:
        gpus: GPU of each rank, as far as it is known.
        recorded_ranks: Ranks of the group that have a trace.
        group_size: Number of ranks in the group.
        in_node: Whether the group is on one machine, if the layout says so.

    Returns:
        None if the ranks are on several machines, share a GPU or have GPUs of several models, or if
        the recording does not tell.

    """
    ranks = sorted(set(recorded_ranks))
    members = [gpus[rank] for rank in ranks if rank in gpus]
    if in_node is False or not ranks or len(members) < len(ranks):
        return None
    models = {gpu.model for gpu in members}
    if len(models) > 1:
        return None
    if in_node:
        is_known = len({gpu.number for gpu in members}) == len(members)
    else:
        offsets = {rank - gpu.number for rank, gpu in zip(ranks, members, strict=True)}
        is_known = len(offsets) == 1 and len(ranks) == group_size
    return models.pop() if is_known else None


def measured_ns(
    what: str, sizes: AnyInts, *, gpu: str, ranks: int, dtype: str | None
) -> Floats | None:
    """Return the measured times of an operation in ns, between measured sizes by straight lines.

    Args:
        what: The operation, in any spelling.
        sizes: Bytes of each operation: the larger of its input and output.
        gpu: Name of the GPU model (``MeasuredGpu.name``).
        ranks: Number of GPUs.
        dtype: Type of the elements; it matters to operations that reduce.

    Returns:
        NaN outside of the measured sizes; None if the operation was not measured.

    >>> measured_ns("_allgather_base", [1 << 29, 1 << 30], gpu="H100 SXM", ranks=8, dtype=None).tolist()
    [1398640.0, nan]

    """
    times = read_measured_times()
    is_uneven = what.lower().endswith("v")
    is_batch = "coalesced" in what.lower()
    operation = None if is_uneven or is_batch else normalize_call(what)
    measured_dtype = times.measured_as.get(dtype or "", dtype)
    for curve in times.curve:
        has_type = curve.dtype is None or curve.dtype == measured_dtype
        if (curve.gpu, curve.operation, curve.ranks) == (gpu, operation, ranks) and has_type:
            measured_sizes = times.first_bytes * 2.0 ** np.arange(len(curve.us))
            curve_ns = np.array(curve.us) * 1e3
            return np.interp(sizes, measured_sizes, curve_ns, left=np.nan, right=np.nan)
    return None
