"""Where in the model every GPU event belongs: the frame its launch lies in, or its forward's through autograd."""

from __future__ import annotations

import msgspec
import numpy as np
import numpy.typing as npt
import polars as pl

from tracekit.analysis.by.frames import Frames, layer_number, layer_ranges
from tracekit.analysis.by.host import NO_MAKERS, Host, Makers
from tracekit.analysis.by.modules import module_layers
from tracekit.analysis.by.repeated import BACKWARD, FRAMES, Repeated, repeated_layers
from tracekit.schema import COMPUTE_LABELS

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

STACK, NAMED, REPETITION = "module stack", "annotation", "repetition"
"""What may say where an event belongs."""
NOWHERE = -2
ALIKE = 0.99
"""Share of the other's time that module calls must place to be preferred to named ranges: they know more."""


class Places(msgspec.Struct, frozen=True, eq=False):
    """Of every GPU event its frame (-1: in none, ``NOWHERE``: not known), of every frame its layer and path."""

    row: Ints
    frames: Frames
    layer: Ints  # of every frame
    stage: Ints  # of every frame, -1 where not known
    evidence: str
    spare: int = 0


def places(events: pl.DataFrame, kept: pl.DataFrame, modules: pl.DataFrame) -> Places | None:
    """Return where the events of *kept* belong, by the best evidence there is; None where there is none.

    *modules* are the recorded calls of modules. Names and calls that place no forward work in a layer are no evidence.
    """
    host = Host.of(events)
    makers = host.makers
    found = [p for p in (_by_stack(modules, kept, makers), _by_name(events, kept, makers)) if p is not None]
    placed = [_placed_ns(p, kept) for p in found]
    most = max(placed, default=0)
    if most:
        return found[0] if placed[0] >= ALIKE * most else found[1]
    return _by_repetition(kept, host)


def module_places(events: pl.DataFrame, kept: pl.DataFrame, modules: pl.DataFrame) -> Places | None:
    """Return the innermost module call of every event; None where no calls were recorded."""
    return _by_stack(modules, kept, Host.of(events).makers, layers=False)


def _by_stack(modules: pl.DataFrame, kept: pl.DataFrame, makers: Makers, *, layers: bool = True) -> Places | None:
    frames = Frames.of(modules)
    if not len(frames):
        return None
    layer = module_layers(frames) if layers else np.full(len(frames), -1, np.int64)
    if layers and layer.max() < 1:  # one layer is none
        return None
    row = _locate(frames, kept, makers, np.ones(len(kept), np.bool_))
    return Places(row, frames, layer, np.full(len(frames), -1, np.int64), STACK)


def _by_name(events: pl.DataFrame, kept: pl.DataFrame, makers: Makers) -> Places | None:
    frames = Frames.of(layer_ranges(events))
    numbers = [layer_number(name) for name in frames.name]
    if len(set(numbers)) < 2:
        return None
    layer = np.array([-1 if number is None else number for number in numbers], np.int64)[frames.code]
    row = _locate(frames, kept, makers, np.ones(len(kept), np.bool_))
    return Places(row, frames, layer, np.full(len(frames), -1, np.int64), NAMED)


def _by_repetition(kept: pl.DataFrame, host: Host) -> Places | None:
    found = repeated_layers(kept, host)
    if found.layers is None:
        return None
    label, engine = kept["label"].cast(pl.String), _by_engine(kept)
    mine = (label == "forward").to_numpy() | ~label.is_in((*COMPUTE_LABELS, "other")).to_numpy()
    named = found.forward.with_columns(name=pl.format("layer {}", "layer"))
    frames = Frames.of(named)
    row = _locate(frames, kept, host.makers, mine & ~engine)
    back = found.backward.with_columns(name=pl.format("layer {}", "layer"))
    behind = Frames.of(back)
    if len(behind):
        later = _locate(behind, kept, NO_MAKERS, engine & (row == NOWHERE))
        row = np.where(later >= 0, later + len(frames), row)
    table = pl.concat([_sorted(found.forward), _sorted(found.backward)])
    return _by_event(kept, row, table, found)


def _by_event(kept: pl.DataFrame, row: Ints, table: pl.DataFrame, found: Repeated) -> Places:
    """Return the places with the kernels that repeat where the repetition has them, all others by their frame.

    Without sequence numbers a backward's kernels are known by repetition alone; with them, the numbers are surer.
    """
    layer, stage = (np.append(table[c].fill_null(-1).to_numpy(), -1) for c in ("layer", "stage"))
    around = pl.DataFrame(
        {"id": kept["id"], "row": row, "layer": layer[np.maximum(row, -1)], "stage": stage[np.maximum(row, -1)]}
    )
    own = found.kernels.unique("id").rename({"layer": "own", "stage": "own_stage"})
    both = around.join(own, on="id", how="left", maintain_order="left")
    forward = kept["label"].cast(pl.String) == "forward"
    use = pl.col("own").is_not_null() & (pl.lit(forward) | (pl.col("row") == NOWHERE))
    settled = both.select(
        layer=pl.when(use).then("own").when(pl.col("row") >= 0).then("layer"),
        stage=pl.when(use).then(pl.col("own_stage").fill_null(-1)).when(pl.col("row") >= 0).then("stage"),
    )
    places = settled.drop_nulls().unique(maintain_order=True).with_row_index("place")
    at = settled.join(places, on=["layer", "stage"], how="left", maintain_order="left")["place"]
    nothing = np.zeros(len(places), np.int64)
    named = tuple(f"layer {number}" for number in places["layer"].to_list())
    frames = Frames(nothing, nothing, nothing, named, np.arange(len(places)))
    kept_row = at.cast(pl.Int64).fill_null(-1).to_numpy()
    kept_row = np.where((kept_row < 0) & (row == NOWHERE), NOWHERE, kept_row)
    return Places(kept_row, frames, places["layer"].to_numpy(), places["stage"].to_numpy(), REPETITION, found.spare)


def _sorted(table: pl.DataFrame) -> pl.DataFrame:
    """Return frames in the order that ``Frames.of`` gives them."""
    return table.select(FRAMES.names()).sort("tid", "start_ns", -pl.col("end_ns"), maintain_order=True)


def _locate(frames: Frames, kept: pl.DataFrame, makers: Makers, direct: Bools) -> Ints:
    """Return the frame of every event: around its launch where *direct* allows, else around its forward's operator.

    A gradient is added to those before it right after the node that made it: it belongs where that node does.
    """
    tid = kept["launch_tid"].fill_null(-1).to_numpy()
    at = kept["launch_ns"].fill_null(-1).to_numpy()
    around = frames.around(tid, at)
    # What the engine runs has its place in the forward: that no frame is around its launch says nothing.
    told = (around >= 0) | ((at >= 0) & ~_by_engine(kept))
    row = np.where(direct & told, around, NOWHERE)
    row = np.where(row >= 0, row, np.maximum(row, _by_sequence(frames, kept, makers)))
    return _with_accumulation(kept, row, tid, at)


def _by_engine(kept: pl.DataFrame) -> Bools:
    backward = kept["label"].cast(pl.String).is_in(BACKWARD) | (kept["pass"].cast(pl.String) == "backward").fill_null(
        False
    )
    return (backward | kept["node"].is_not_null()).to_numpy()


def _by_sequence(frames: Frames, kept: pl.DataFrame, makers: Makers) -> Ints:
    if not len(makers.sequence):
        return np.full(len(kept), NOWHERE, np.int64)
    table = pl.DataFrame(
        {"sequence": makers.sequence, "tid": makers.tid, "frame": frames.around(makers.tid, makers.at)}
    )
    # Threads count for themselves: a number that two of them used says nothing.
    unique = table.group_by("sequence").agg(pl.col("frame").last(), threads=pl.col("tid").n_unique())
    unique = unique.filter(pl.col("threads") == 1)
    asked = kept.select(sequence=pl.col("autograd_sequence"))
    found = asked.join(unique, on="sequence", how="left", maintain_order="left")
    return found["frame"].fill_null(NOWHERE).to_numpy()


def _with_accumulation(kept: pl.DataFrame, row: Ints, tid: Ints, at: Ints) -> Ints:
    node = kept["node"].cast(pl.String)
    adds = node.str.starts_with("AccumulateGrad").fill_null(False).to_numpy()
    engine = np.flatnonzero(node.is_not_null().to_numpy())
    if not adds.any():
        return row
    order = engine[np.lexsort((at[engine], tid[engine]))]
    known = pl.DataFrame({"tid": tid[order], "row": row[order]}).select(
        pl.when(pl.col("row") > NOWHERE).then("row").forward_fill().over("tid")
    )
    filled = row.copy()
    filled[order] = np.where(adds[order] & (row[order] < 0), known["row"].fill_null(NOWHERE).to_numpy(), row[order])
    return filled


def _placed_ns(found: Places, kept: pl.DataFrame) -> int:
    """Return the time of forward work that lies in layers."""
    inside = np.where(found.row >= 0, np.append(found.layer, -1)[found.row], -1) >= 0
    forward = (kept["label"].cast(pl.String) == "forward").to_numpy()
    ns = (kept["end_ns"] - kept["start_ns"]).to_numpy()
    return int(ns[inside & forward].sum())
