"""Layers without names, found by repetition: every layer of a forward launches the same sequence of kernels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import msgspec
import numpy as np
import numpy.typing as npt
import polars as pl

from tracekit.analysis.by.host import Host
from tracekit.classify.matmul import MATMUL_KERNELS
from tracekit.classify.product_shapes import product_dims
from tracekit.metrics.repetition import Layers, find_layers
from tracekit.reconstruct.kernels import prepare
from tracekit.reconstruct.segment import segment_steps

Ints = npt.NDArray[np.int64]

FORWARD_LABELS = ("forward",)
BACKWARD_LABELS = ("dgrad", "wgrad", "backward", "recompute")
MESSAGE_LABELS = ("pp_comm", "comm")
"""Labels of work that may carry a micro-batch's output to the next stage."""
MIN_FORWARD_SHARE = 0.5
"""Share of the forwards' kernels that must lie in forwards whose layers were found."""
MAX_KERNELS_PER_OPERATOR = 4
"""Kernels of one operator up to which they are identified by the operator; compiled graphs launch all in one."""
_NORM = r"(?i)norm"
_PLAIN_PRODUCTS = ("aten::mm", "aten::addmm", "aten::_scaled_mm")
"""Operators that multiply activations by a weight."""

LAYER_FRAMES = pl.Schema(
    {"tid": pl.Int64(), "start_ns": pl.Int64(), "end_ns": pl.Int64(), "layer": pl.Int64(), "stage": pl.Int64()}
)
"""Stretches of host time in which one layer was launched."""
LAYER_KERNELS = pl.Schema({"id": pl.Int64(), "layer": pl.Int64(), "stage": pl.Int64()})
_CHUNK_COLUMNS = ("id", "name", "op", "op_id", "shapes", "host_ns", "launch_tid", "label", "stage", "chunk", "part",
                  "turn", "number")  # fmt: skip


class RepeatedLayers(msgspec.Struct, frozen=True, eq=False):
    """Layers of a rank's forwards and backwards."""

    forward: pl.DataFrame
    """``LAYER_FRAMES`` of the forwards."""
    backward: pl.DataFrame
    """``LAYER_FRAMES`` of the backwards."""
    kernels: pl.DataFrame
    """``LAYER_KERNELS``: the kernels that repeat, with their layers."""
    layers: int | None
    """Layers of a forward; None if forwards do not repeat, or have different numbers of layers."""
    spare: int = 0
    """Kernels by which the starts of layers may be off."""


_NO_LAYERS = RepeatedLayers(LAYER_FRAMES.to_frame(), LAYER_FRAMES.to_frame(), LAYER_KERNELS.to_frame(), None)


class _Chunk(msgspec.Struct, frozen=True, eq=False):
    """The kernels of one forward or backward of a micro-batch, in launch order, and the layers among them."""

    kernels: pl.DataFrame
    layers: Layers | None

    @property
    def stage(self) -> int | None:
        stages = self.kernels["stage"].drop_nulls()
        return int(stages[0]) if len(stages) else None


def repeated_layers(labelled: pl.DataFrame, host: Host) -> RepeatedLayers:
    """Return the layers of a rank's forwards, and of the backwards that have as many, in reverse.

    Forwards and backwards of micro-batches are cut as in the reconstruction of the pipeline. All forwards must have the
    same number of layers. A layer starts where the host started the operator of its first kernel.
    """
    kernels = _compute_kernels(labelled)
    if kernels.is_empty():
        return _NO_LAYERS
    forwards, backwards = (_chunks_with_layers(kernels, kind, host.sync_ns) for kind in ("F", "B"))
    repeating = [chunk for chunk in forwards if chunk.layers is not None]
    counts = Counter(chunk.layers.count for chunk in repeating if chunk.layers is not None)
    if len(counts) != 1:
        return _NO_LAYERS
    (count,) = counts
    repeating_kernels = sum(len(chunk.kernels) for chunk in repeating)
    if repeating_kernels < MIN_FORWARD_SHARE * sum(len(chunk.kernels) for chunk in forwards):
        return _NO_LAYERS
    return RepeatedLayers(
        forward=_layer_frames(forwards, count, host, reverse=False),
        backward=_layer_frames(backwards, count, host, reverse=True),
        kernels=pl.concat(
            [_layer_kernels(forwards, count, reverse=False), _layer_kernels(backwards, count, reverse=True)]
        ),
        layers=count,
        spare=max((chunk.layers.spare for chunk in repeating if chunk.layers is not None), default=0),
    )


def _compute_kernels(labelled: pl.DataFrame) -> pl.DataFrame:
    """Return the kernels of forwards and backwards in launch order, with the number and kind (F, B) of their chunk.

    Empty if launches of messages were lost, because messages separate the forwards of two micro-batches.
    """
    rows = prepare(labelled)
    is_message = rows["label"].cast(pl.String).is_in(MESSAGE_LABELS)
    rows = rows.with_columns(turn=is_message.cum_sum().cast(pl.Int64))
    if (is_message & rows["launch_ns"].is_null()).any():
        rows = rows.clear()
    rows = rows.filter(pl.col("launch_ns").is_not_null())
    if rows["step"].null_count() == rows.height:
        rows = rows.with_columns(step=pl.lit(0, pl.Int64))
    chunks_before, parts = 0, []
    for _, row_numbers, cut in segment_steps(rows):
        # Kind of each chunk; other kinds than F and B, and kernels in no chunk (-1, the last entry), are empty.
        kinds = pl.Series([op if op in ("F", "B") else "" for op in cut.op] + [""], dtype=pl.String)
        kernels = rows[row_numbers].with_columns(
            chunk=pl.Series(cut.chunk) + chunks_before, part=kinds.gather(cut.chunk % len(kinds))
        )
        parts.append(kernels.filter(pl.Series(cut.chunk >= 0)).select(_CHUNK_COLUMNS))
        chunks_before += len(cut.op)
    if not parts:
        return pl.DataFrame(schema=dict.fromkeys(_CHUNK_COLUMNS, pl.Null))
    return pl.concat(parts).with_columns(pl.col("name", "op", "label").cast(pl.String))


def _chunks_with_layers(kernels: pl.DataFrame, kind: str, sync_ns: Ints) -> list[_Chunk]:
    """Return the chunks of a kind with their layers; chunks that launched the same kernels are searched once.

    Where the host waits for the GPU before each repetition (*sync_ns*), these are whole passes.
    """
    layers_of_tokens: dict[bytes, Layers | None] = {}
    chunks = []
    for chunk in _split_chunks(kernels, kind):
        tokens = chunk["token"].to_numpy()
        key = tokens.tobytes()
        if key not in layers_of_tokens:
            is_product = chunk["name"].str.contains(MATMUL_KERNELS).to_numpy()
            is_norm = chunk["name"].str.contains(_NORM) | chunk["op"].fill_null("").str.contains(_NORM)
            layers = find_layers(tokens, is_product, is_norm.to_numpy())
            if kind == "F" and layers and not _is_chained(chunk[layers.first : layers.first + layers.period]):
                layers = None
            layers_of_tokens[key] = layers
        layers = layers_of_tokens[key]
        if layers is not None and kind == "F":
            first_kernels = layers.first + layers.period * np.arange(1, layers.count)
            # Waits of the host before the last kernel of each repetition, and before the first of the next.
            waits = np.searchsorted(sync_ns, chunk["host_ns"].to_numpy()[np.stack([first_kernels - 1, first_kernels])])
            layers = None if (waits[0] < waits[1]).all() else layers
        chunks.append(_Chunk(chunk, layers))
    return chunks


def _is_chained(layer: pl.DataFrame) -> bool:
    """Return whether kernels that repeat can follow each other as layers: a product returns to the first one's width.

    A whole model that runs several times ends in another width than it begins with. True where shapes do not tell.
    """
    shapes = layer.filter(pl.col("op").is_in(_PLAIN_PRODUCTS))["shapes"].cast(pl.String).drop_nulls()
    widths = [(inner, columns) for _, inner, columns, _ in map(product_dims, shapes) if inner]
    return not widths or widths[0][0] in {columns for _, columns in widths}


def _split_chunks(kernels: pl.DataFrame, kind: str) -> list[pl.DataFrame]:
    """Return the kernels of each chunk of a kind, with a ``token`` that is equal for equal kernels."""
    labels = FORWARD_LABELS if kind == "F" else BACKWARD_LABELS
    rows = kernels.filter((pl.col("part") == kind) & pl.col("label").is_in(labels))
    # A kernel is identified by its operator, unless that launches many: then by its own name.
    few_kernels = (pl.len().over("op_id") <= MAX_KERNELS_PER_OPERATOR) & pl.col("op_id").is_not_null()
    token = pl.when(pl.col("op").is_not_null() & few_kernels).then(pl.col("op")).otherwise(pl.col("name"))
    rows = rows.with_columns(token=token.cast(pl.Categorical()).to_physical().cast(pl.Int64))
    if kind == "F":
        # Without sequence numbers several micro-batches may be one chunk: the messages between them separate them.
        turn = pl.when(pl.col("number").is_null().all().over("chunk")).then("turn").otherwise(0)
        rows = rows.with_columns(chunk=pl.struct("chunk", turn).rank("dense").cast(pl.Int64))
    return rows.sort("chunk", "host_ns", maintain_order=True).partition_by("chunk", maintain_order=True)


def _layer_kernels(chunks: Sequence[_Chunk], count: int, *, reverse: bool) -> pl.DataFrame:
    """Return ``LAYER_KERNELS`` of the chunks with *count* layers; backwards run them in reverse order."""
    parts = [LAYER_KERNELS.to_frame()]
    for chunk in chunks:
        layers = chunk.layers
        if layers is None or layers.count != count:
            continue
        kernels = chunk.kernels[layers.first : layers.first + layers.period * count]
        number = np.arange(len(kernels)) // layers.period
        layer = pl.Series(count - 1 - number if reverse else number)
        parts.append(kernels.select("id", layer=layer, stage=pl.lit(chunk.stage, pl.Int64)).cast(LAYER_KERNELS))
    return pl.concat(parts)


def _layer_frames(chunks: Sequence[_Chunk], count: int, host: Host, *, reverse: bool) -> pl.DataFrame:
    """Return ``LAYER_FRAMES`` of the chunks with *count* layers; backwards run them in reverse order."""
    parts = [LAYER_FRAMES.to_frame()]
    for chunk in chunks:
        layers = chunk.layers
        if layers is None or layers.count != count:
            continue
        host_ns = chunk.kernels["host_ns"].to_numpy()
        # First kernel of each layer, and the kernel after the last layer, which may not exist.
        edges = layers.first + layers.period * np.arange(count + 1)
        edge_kernels = chunk.kernels[np.minimum(edges, len(host_ns) - 1)]
        launch_before_ns = np.append(0, host_ns)[edges]
        edge_ns = host.outermost_start_ns(
            edge_kernels["op_id"].fill_null(-1).to_numpy(), edge_kernels["host_ns"].to_numpy(), launch_before_ns
        )
        if edges[-1] >= len(host_ns):
            edge_ns[-1] = host_ns[-1] + 1
        start_ns, end_ns = edge_ns[:-1], edge_ns[1:]
        if (start_ns >= end_ns).any():  # one launch of all layers, as of a graph: no time separates them
            continue
        layer = np.arange(count)
        frames = pl.DataFrame(
            {
                "tid": edge_kernels["launch_tid"].fill_null(-1).to_numpy()[:-1],
                "start_ns": start_ns,
                "end_ns": end_ns,
                "layer": layer[::-1] if reverse else layer,
            }
        )
        parts.append(frames.with_columns(stage=pl.lit(chunk.stage, pl.Int64)).cast(LAYER_FRAMES))
    return pl.concat(parts)
