"""Position of GPU events in the model: the module calls around them, and their layer.

An event belongs to the call of an ``nn.Module`` around its launch. The backward is launched by autograd's engine,
outside of such calls: it belongs to the call of the forward operator that created its node. Layers are told by module
calls, else by ranges with a layer's number.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import polars as pl

from tracekit._util.arrays import Bools, Ints, group_rows, take_or_missing
from tracekit._util.categories import CategoryColumn
from tracekit.classify.autograd import Autograd
from tracekit.classify.host_ranges import GpuEvents, Launches
from tracekit.classify.model_frames import Frames, layer_ranges, module_frames, number_layers
from tracekit.classify.module_layers import MIN_COMPUTE_SHARE, module_layers

BY_MODULE_STACK, BY_NAME = "module stack", "annotation"
"""Evidence for a position: calls of modules, or named ranges."""
UNKNOWN_FRAME = -2
"""Stands for a frame: it is not known in which one an event is; -1 if it is known to be in none."""
MIN_STACK_TO_NAME_RATIO = 0.99
"""Time that module calls put into layers, over that of named ranges, from which module calls are preferred."""


class Positions(NamedTuple):
    """Of every GPU event: the module calls around it, and its layer."""

    path: CategoryColumn  # names of the calls, outermost first; null outside of calls and where nothing tells
    layer: Ints  # -1 outside of layers and where nothing tells
    layer_from: CategoryColumn  # "module stack" or "annotation", also for events known to be outside; else null


def find_positions(
    events: pl.DataFrame, gpu: GpuEvents, launches: Launches, autograd: Autograd, *, is_forward: Bools, by_engine: Bools
) -> Positions:
    """Return the position of every GPU event of one rank.

    Args:
        events: All events of the rank.
        gpu: Its GPU events.
        launches: Launch of each GPU event.
        autograd: Nodes among the host ranges.
        is_forward: Mask of GPU events that compute the forward.
        by_engine: Mask of GPU events that autograd's engine launched, beside those of its nodes.
    """
    forward_ns = np.where(is_forward, gpu.int64("end_ns") - gpu.int64("start_ns"), 0)
    calls, ranges = Frames.of(module_frames(events)), Frames.of(layer_ranges(events))
    creators = node_creators(autograd) if len(calls) or len(ranges) else pl.DataFrame()
    placement = Placement(
        launches.tid,
        launches.start_ns,
        by_engine | (autograd.node_row >= 0),
        autograd.node,
        autograd.sequence,
        creators,
    )
    call, named_range = placement.frames(calls), placement.frames(ranges)
    own_ns = np.bincount(call[call >= 0], forward_ns[call >= 0], len(calls)).astype(np.int64)
    candidates = [
        (BY_MODULE_STACK, call, module_layers(calls, own_ns)),
        (BY_NAME, named_range, number_layers(ranges.names)[ranges.name_index]),
    ]
    layers = [take_or_missing(of_frame, np.maximum(frame, -1)) for _, frame, of_frame in candidates]
    placed_ns = [int(forward_ns[layer >= 0].sum()) for layer in layers]
    best = int(placed_ns[0] < MIN_STACK_TO_NAME_RATIO * placed_ns[1])
    source, frame, _ = candidates[best]
    if not placed_ns[best] or placed_ns[best] < MIN_COMPUTE_SHARE * forward_ns.sum() or layers[best].max() < 1:
        nothing = np.full(len(call), -1, np.int64)
        return Positions(_paths(calls, call), nothing, CategoryColumn.constant(None, len(call)))
    layer_from = CategoryColumn.choose(len(call), [(source, frame != UNKNOWN_FRAME)])
    return Positions(_paths(calls, call), layers[best], layer_from)


def _paths(frames: Frames, frame: Ints) -> CategoryColumn:
    """Return the names around every event; each distinct path is composed once."""
    inside = np.flatnonzero(frame >= 0)
    code, first = group_rows(frames.path_hash[frame[inside]])
    texts = tuple(frames.path(int(row)) for row in frame[inside[first]])
    return CategoryColumn(texts, code).spread(inside, len(frame))


class Placement(NamedTuple):
    """What places GPU events in frames of host time; all columns but the last have one row per event."""

    tid: Ints
    launch_ns: Ints  # -1 where unknown
    by_engine: Bools  # autograd's engine launched it
    node: CategoryColumn  # autograd node that launched it
    sequence: Ints  # autograd sequence number, -1 where none
    creators: pl.DataFrame  # ``sequence, tid, start_ns`` of the operators that created nodes, by start

    def frames(self, frames: Frames, *, by_launch: Bools | None = None, by_sequence: bool = True) -> Ints:
        """Return the frame of every GPU event: around its launch, else around the forward operator of its node.

        Args:
            frames: Frames of host time.
            by_launch: Events that may be placed by their launch; by default all.
            by_sequence: Whether other events may be placed by their node.
        """
        if not len(frames):
            return np.full(len(self.tid), UNKNOWN_FRAME, np.int64)
        around_launch = frames.around(self.tid, self.launch_ns)
        # Work of autograd's engine belongs to the forward: no frame around its launch does not mean it is outside.
        is_decided = (around_launch >= 0) | ((self.launch_ns >= 0) & ~self.by_engine)
        is_decided &= True if by_launch is None else by_launch
        frame = np.where(is_decided, around_launch, UNKNOWN_FRAME)
        if by_sequence:
            frame = np.where(frame >= 0, frame, np.maximum(frame, self._frames_by_sequence(frames)))
        return self._with_accumulation(frame)

    def _frames_by_sequence(self, frames: Frames) -> Ints:
        """Return the frame of the operator that created each event's autograd node, found by sequence number."""
        around_creator = frames.around(self.creators["tid"].to_numpy(), self.creators["start_ns"].to_numpy())
        # Every thread has its own sequence numbers: a number that two threads used is ambiguous.
        by_sequence = (
            self.creators.with_columns(frame=around_creator)
            .group_by("sequence")
            .agg(pl.col("frame").last(), threads=pl.col("tid").n_unique())
            .filter(pl.col("threads") == 1)
        )
        sequences = pl.DataFrame({"sequence": self.sequence})
        frame = sequences.join(by_sequence, on="sequence", how="left", maintain_order="left")["frame"]
        return frame.fill_null(UNKNOWN_FRAME).to_numpy()

    def _with_accumulation(self, frame: Ints) -> Ints:
        """Return the frames with gradient accumulation in the frame of the node before it on its thread.

        A gradient is accumulated right after the node that computed it, and has no sequence number of its own.
        """
        accumulates = self.node.any_of("AccumulateGrad")
        if not accumulates.any():
            return frame
        by_node = np.flatnonzero(self.node.present)
        order = by_node[np.lexsort((self.launch_ns[by_node], self.tid[by_node]))]
        # In launch order on each thread, the last frame that is known.
        last_known = pl.DataFrame({"tid": self.tid[order], "frame": frame[order]}).select(
            pl.when(pl.col("frame") > UNKNOWN_FRAME).then("frame").forward_fill().over("tid")
        )["frame"]
        is_open = accumulates[order] & (frame[order] < 0)
        filled = frame.copy()
        filled[order] = np.where(is_open, last_known.fill_null(UNKNOWN_FRAME).to_numpy(), frame[order])
        return filled


def node_creators(autograd: Autograd) -> pl.DataFrame:
    """Return ``sequence, tid, start_ns`` of the forward operators that created nodes of autograd's graph, by start."""
    ranges, differentiable = autograd.ranges, autograd.differentiable
    rows = np.unique(differentiable[differentiable >= 0])
    rows = rows[np.argsort(ranges.start(rows), kind="stable")]
    tid = ranges.column("tid", rows).fill_null(-1).cast(pl.Int64)
    return pl.DataFrame({"sequence": ranges.sequence[rows], "tid": tid, "start_ns": ranges.start(rows)})
