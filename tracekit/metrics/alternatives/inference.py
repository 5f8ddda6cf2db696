"""Alternatives of programs that only run a model forward: what training needs and inference does not."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import polars as pl

from tracekit.metrics.alternatives.entry import NOTHING, Alternative, SitePrice
from tracekit.metrics.remedies.rows import RankWork, new_durations, without_events
from tracekit.metrics.sites import Inputs

TRAINING_INPUT = {"aten::native_batch_norm": 5, "aten::cudnn_batch_norm": 5, "aten::miopen_batch_norm": 5}
"""Batch norms, and their input that says whether they take statistics of the batch."""
DROPOUT = r"^aten::(native_dropout|_fused_dropout|bernoulli_|dropout)$"
INTEGER_TYPES = ("signed char", "unsigned char", "char", "int8_t", "uint8_t")
MIN_DEQUANTISED = 4
"""Weights that are dequantised in a step, from which it is a habit."""
MAX_ADAPTER_RANK = 256
"""Inner size of two products in a row up to which they are an adapter."""
MIN_ADAPTER_RATIO = 4
"""Sizes around an adapter over its inner size, at least."""
MIN_ADAPTERS = 4


class TrainingMode(Alternative, frozen=True, kw_only=True):
    """A model that only runs forward is in training mode: batch norms measure the batch, dropout draws."""

    change = "evaluation mode"
    rests_on = "batch norms take the statistics that they learned, and nothing is dropped"
    code = "training_mode"
    case = ""
    says = (
        "the model runs forward alone, but in training mode: {what} take {work_ns} of GPU time, and results differ "
        "from run to run or with the batch"
    )
    advises = "call `model.eval()` before it runs"
    caveat = "Monte Carlo dropout, and batch norms that adapt to the data, want this."

    def find(self, rank: RankWork) -> Iterator[pl.DataFrame]:
        if rank.events.select(pl.col("node").is_not_null().any()).item():
            return
        norms = [site["site"] for site in _sites_of(rank, TRAINING_INPUT) if _trains(site)]
        in_norm = rank.events.filter(pl.col("site").is_in(norms))
        calls = in_norm.filter(pl.col("elements").is_not_null())
        if not calls.is_empty():
            moved = calls["elements"] * calls["narrow_width"].fill_null(2) * 2
            durations = rank.speeds.memory_ns(moved.to_numpy().astype(np.float64))
            if durations is not None:
                names = ("low_ns", "likely_ns", "high_ns")
                columns = [pl.Series(name, values) for name, values in zip(names, durations, strict=True)]
                priced = calls.with_columns(*columns, group="call")
                yield new_durations(priced, self.change, what="batch norms", keeps_first=True)
            # Each norm counts its batches.
            counts = rank.events.filter(
                (pl.col("op") == "aten::add_") & pl.col("dtypes").str.starts_with('["long int"')
            )
            yield without_events(counts, self.change, what="batch norms")
        dropped = rank.events.filter(pl.col("op").str.contains(DROPOUT).fill_null(value=False))
        yield without_events(dropped, self.change, what="dropouts")


def _sites_of(rank: RankWork, operators: dict[str, int]) -> Iterator[dict[str, Any]]:
    return rank.sites.filter(pl.col("op").is_in(list(operators))).iter_rows(named=True)


def _trains(site: dict[str, Any]) -> bool:
    return Inputs.of(site).value(TRAINING_INPUT[site["op"]]) is True


class DequantisedWeights(Alternative, frozen=True, kw_only=True):
    """Weights of 8 bits are converted to a wider type in front of each product."""

    change = "dequantised once"
    rests_on = "weights of 8 bits are converted once, or by the kernel that multiplies by them"
    code = "dequantised"
    case = ""
    says = (
        "weights of 8 bits are converted and scaled in front of every product, {kernels_per_step} kernels a step: "
        "{work_ns} of GPU time, more memory than the product reads"
    )
    advises = (
        "use a product that takes them as they are (torchao's weight-only kernels with `torch.compile`, Marlin, "
        "`torch._weight_int8pack_mm`), or keep the converted weights where memory allows"
    )
    caveat = "Kept weights take twice the memory."

    def find(self, rank: RankWork) -> Iterator[pl.DataFrame]:
        converted: dict[str, int] = {}
        multiplied = _multiplied_sizes(rank)
        for site in rank.sites.filter(pl.col("op") == "aten::copy_").iter_rows(named=True):
            inputs = Inputs.of(site)
            types = (site["dtypes"] or "").strip("[]").replace('"', "").split(",")
            is_conversion = len(types) > 1 and types[1] in INTEGER_TYPES and types[0] not in INTEGER_TYPES
            size = inputs.size(0)
            if is_conversion and str(size) in multiplied:
                converted[str(size)] = converted.get(str(size), 0) + site["calls"]
        steps = max(rank.events["part"].n_unique(), 1)
        if sum(converted.values()) < MIN_DEQUANTISED * steps:
            return
        prices: dict[int, SitePrice] = {}
        for site in rank.sites.filter(pl.col("op").str.contains("^aten::(copy_|mul|sub|mul_|sub_)$")).iter_rows(named=True):
            if str(Inputs.of(site).size(0)) in converted and site["node"] is None:
                prices[site["site"]] = NOTHING
        yield self.of_sites(rank, prices)


def _multiplied_sizes(rank: RankWork) -> set[str]:
    """Return the sizes of matrices that products multiply by, also transposed."""
    sizes: set[str] = set()
    products = rank.sites.filter(pl.col("op").str.contains("^aten::(mm|addmm|bmm|matmul)$"))
    for site in products.iter_rows(named=True):
        for index in range(3):
            size = Inputs.of(site).size(index)
            if len(size) > 1:
                sizes |= {str(size), str(size[::-1])}
    return sizes


class UnmergedAdapters(Alternative, frozen=True, kw_only=True):
    """Adapters of low rank are computed beside the products of their weights."""

    change = "merged adapters"
    rests_on = "adapters are added to the weights before the model runs"
    code = "adapters"
    case = ""
    says = (
        "adapters of low rank run beside the weights that they change, {kernels_per_step} kernels a step: "
        "{work_ns} of GPU time"
    )
    advises = "merge them into the weights before inference (`merge_and_unload()` of PEFT)"
    caveat = "A server that changes adapters from request to request keeps them apart."

    def find(self, rank: RankWork) -> Iterator[pl.DataFrame]:
        if rank.events.select(pl.col("node").is_not_null().any()).item():
            return
        columns = ("row", "part", "stream", "start_ns", "op", "shapes", "ns")
        events = rank.events.select(columns).sort("part", "stream", "start_ns")
        found: list[int] = []
        rank_of = {shapes: _inner(shapes) for shapes in events["shapes"].unique().drop_nulls()}
        rows: list[int] = []
        result: list[int] | None = None
        down: list[int] | None = None
        for row, _, _, _, op, shapes, _ in events.iter_rows():
            is_product = op in ("aten::mm", "aten::addmm")
            sizes = rank_of.get(shapes)
            if is_product and sizes is not None:
                first, second = sizes
                narrows = second[1] <= MAX_ADAPTER_RANK and first[1] >= MIN_ADAPTER_RATIO * second[1]
                widens = down is not None and first[-1] == down[1] and second[1] >= MIN_ADAPTER_RATIO * second[0]
                if widens:
                    rows.append(row)
                    result = [first[0], second[1]]
                    down = None
                elif narrows:
                    rows, result, down = [row], None, second
                else:
                    rows, result, down = [], None, None
            elif result is not None and op in ("aten::mul", "aten::add", "aten::add_", "aten::mul_"):
                rows.append(row)
                if op.startswith("aten::add"):
                    found += rows
                    rows, result = [], None
        steps = max(rank.events["part"].n_unique(), 1)
        if len(found) >= MIN_ADAPTERS * 3 * steps:
            yield without_events(rank.events.filter(pl.col("row").is_in(found)), self.change)


def _inner(shapes: str) -> tuple[list[int], list[int]] | None:
    """Return the sizes of the two matrices of a product."""
    matrices = [size for size in Inputs.of({"shapes": shapes, "strides": None, "concrete": None}).sizes if len(size) == 2]
    return (matrices[-2], matrices[-1]) if len(matrices) >= 2 else None
