"""Layers without a name: the stretches of the host in which a forward, or a backward, launched one of them."""

from __future__ import annotations

from collections import Counter

import msgspec
import numpy as np
import numpy.typing as npt
import polars as pl

from tracekit.analysis.by.host import Host
from tracekit.classify.matmul import MATMUL_KERNELS
from tracekit.metrics.repetition import Layers, find_layers
from tracekit.reconstruct.kernels import prepare
from tracekit.reconstruct.segment import segment_steps

Ints = npt.NDArray[np.int64]

FORWARD = ("forward",)
BACKWARD = ("dgrad", "wgrad", "backward", "recompute")
MESSAGES = ("pp_comm", "comm")
"""What may carry a micro-batch's output to the next stage."""
LEAST_FORWARD = 0.5
"""Share of the forwards' kernels that must be in forwards with the same number of layers."""
FEW = 4
"""Kernels of one call up to which the operator says what they are; a compiled graph launches all of them in one."""
_NORM = r"(?i)norm"


class Repeated(msgspec.Struct, frozen=True, eq=False):
    """Where layers were launched: ``tid, start_ns, end_ns, layer, stage``, forwards and backwards apart."""

    forward: pl.DataFrame
    backward: pl.DataFrame
    kernels: pl.DataFrame
    """The kernels that repeat, with their layers: ``id, layer, stage``."""
    layers: int | None
    """Layers of a forward; None where forwards do not repeat, or not alike."""
    spare: int = 0
    """Kernels by which the places where layers begin may be off."""


FRAMES = pl.Schema(
    {"tid": pl.Int64(), "start_ns": pl.Int64(), "end_ns": pl.Int64(), "layer": pl.Int64(), "stage": pl.Int64()}
)
KERNELS_OF = pl.Schema({"id": pl.Int64(), "layer": pl.Int64(), "stage": pl.Int64()})
_NOTHING = Repeated(FRAMES.to_frame(), FRAMES.to_frame(), KERNELS_OF.to_frame(), None)


def repeated_layers(labelled: pl.DataFrame, host: Host) -> Repeated:
    """Return the layers of a rank's forwards, and of backwards that repeat as often, in reverse.

    A forward is one micro-batch's, as the pipeline's reconstruction cuts them. All must have the same number of layers.
    A layer begins where the host began the operator of its first kernel.
    """
    chunks = _chunks(labelled)
    if chunks.is_empty():
        return _NOTHING
    found = {part: _per_sequence(_sequences(chunks, part)) for part in ("F", "B")}
    counts = Counter(layers.count for _, layers in found["F"].values() if layers is not None)
    if len(counts) != 1:
        return _NOTHING
    count = next(iter(counts))
    held = sum(len(rows) for rows, layers in found["F"].values() if layers is not None)
    if held < LEAST_FORWARD * sum(len(rows) for rows, _ in found["F"].values()):
        return _NOTHING
    forward = _frames(found["F"], count, host, reverse=False)
    backward = _frames(found["B"], count, host, reverse=True)
    spare = max((layers.spare for _, layers in found["F"].values() if layers is not None), default=0)
    own = [_kernels(found[part], count, reverse=part == "B") for part in ("F", "B")]
    return Repeated(forward, backward, pl.concat(own), count, spare)


def _kernels(found: dict[int, tuple[pl.DataFrame, Layers | None]], count: int, *, reverse: bool) -> pl.DataFrame:
    """Return the kernels that repeat, each with its layer: a graph launches all of them at one moment."""
    parts = [KERNELS_OF.to_frame()]
    for rows, layers in found.values():
        if layers is None or layers.count != count:
            continue
        mine = rows[layers.first : layers.first + layers.period * count]
        number = np.arange(len(mine)) // layers.period
        stage = pl.lit(rows["stage"].drop_nulls().first(), pl.Int64)
        layer = pl.Series(count - 1 - number if reverse else number)
        parts.append(mine.select("id", layer=layer, stage=stage).cast(KERNELS_OF))
    return pl.concat(parts)


def _chunks(labelled: pl.DataFrame) -> pl.DataFrame:
    """Return the compute of forwards and backwards in launch order, with the chunk each kernel belongs to.

    None where launches of messages were lost: they part one micro-batch's forward from the next.
    """
    columns = (
        "id",
        "name",
        "op",
        "op_id",
        "host_ns",
        "launch_tid",
        "label",
        "stage",
        "chunk",
        "part",
        "turn",
        "number",
    )
    rows = prepare(labelled)
    message = rows["label"].cast(pl.String).is_in(MESSAGES)
    rows = rows.with_columns(turn=message.cum_sum().cast(pl.Int64))
    if (message & rows["launch_ns"].is_null()).any():
        rows = rows.clear()
    rows = rows.filter(pl.col("launch_ns").is_not_null())
    if rows["step"].null_count() == rows.height:
        rows = rows.with_columns(step=pl.lit(0, pl.Int64))
    before, parts = 0, []
    for _, at, cut in segment_steps(rows):
        step = rows[at]
        ops = pl.Series([op if op in ("F", "B") else "" for op in cut.op] + [""], dtype=pl.String)
        inside = step.with_columns(chunk=pl.Series(cut.chunk) + before, part=ops.gather(cut.chunk % len(ops)))
        parts.append(inside.filter(pl.Series(cut.chunk >= 0)).select(columns))
        before += len(cut.op)
    if not parts:
        return pl.DataFrame(schema=dict.fromkeys(columns, pl.Null))
    text = [pl.col(c).cast(pl.String) for c in ("name", "op", "label")]
    return pl.concat(parts).with_columns(text)


def _sequences(chunks: pl.DataFrame, part: str) -> list[pl.DataFrame]:
    labels = FORWARD if part == "F" else BACKWARD
    rows = chunks.filter((pl.col("part") == part) & pl.col("label").is_in(labels))
    own = pl.col("op").is_not_null() & (pl.len().over("op_id") <= FEW) & pl.col("op_id").is_not_null()
    token = pl.when(own).then(pl.col("op")).otherwise(pl.col("name"))
    rows = rows.with_columns(token=token.cast(pl.Categorical()).to_physical().cast(pl.Int64))
    if part == "F":  # without sequence numbers several micro-batches may be taken for one: messages part them
        turn = pl.when(pl.col("number").is_null().all().over("chunk")).then("turn").otherwise(0)
        rows = rows.with_columns(chunk=pl.struct("chunk", turn).rank("dense").cast(pl.Int64))
    return rows.sort("chunk", "host_ns", maintain_order=True).partition_by("chunk", maintain_order=True)


def _per_sequence(sequences: list[pl.DataFrame]) -> dict[int, tuple[pl.DataFrame, Layers | None]]:
    """Return each chunk with its layers; chunks that launched the same kernels are looked at once."""
    known: dict[bytes, Layers | None] = {}
    found: dict[int, tuple[pl.DataFrame, Layers | None]] = {}
    for rows in sequences:
        tokens = rows["token"].to_numpy()
        key = tokens.tobytes()
        if key not in known:
            heavy = rows["name"].str.contains(MATMUL_KERNELS).to_numpy()
            norm = rows["name"].str.contains(_NORM) | rows["op"].fill_null("").str.contains(_NORM)
            known[key] = find_layers(tokens, heavy, norm.to_numpy())
        found[int(rows["chunk"][0])] = rows, known[key]
    return found


def _frames(
    found: dict[int, tuple[pl.DataFrame, Layers | None]], count: int, host: Host, *, reverse: bool
) -> pl.DataFrame:
    parts = []
    for rows, layers in found.values():
        if layers is None or layers.count != count:
            continue
        at = rows["host_ns"].to_numpy()
        edges = layers.first + layers.period * np.arange(count + 1)
        first = rows[np.minimum(edges, len(at) - 1)]
        before = np.append(0, at)[edges]  # the last launch before each edge
        begin = host.begun(first["op_id"].fill_null(-1).to_numpy(), first["host_ns"].to_numpy(), before)
        begin, end = begin[:-1], np.append(begin[1:-1], begin[-1] if edges[-1] < len(at) else at[-1] + 1)
        if (begin >= end).any():  # one launch for all of them, as of a graph: no moment tells them apart
            continue
        number = np.arange(count)
        stage = rows["stage"].drop_nulls()
        parts.append(
            pl.DataFrame(
                {
                    "tid": first["launch_tid"].fill_null(-1).to_numpy()[:-1],
                    "start_ns": begin,
                    "end_ns": end,
                    "layer": number[::-1] if reverse else number,
                },
                schema={name: FRAMES[name] for name in ("tid", "start_ns", "end_ns", "layer")},
            ).with_columns(stage=pl.lit(stage[0] if len(stage) else None, pl.Int64))
        )
    return pl.concat(parts) if parts else FRAMES.to_frame()
