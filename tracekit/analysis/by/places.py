"""Layers of GPU events where neither module calls nor ranges name them: forwards that repeat the same kernels.

Work of the backward pass is launched by autograd's engine: it belongs to the layer of the forward operator that created
its node, else to the layer that its own repetition shows.
"""

from __future__ import annotations

import msgspec
import numpy as np
import numpy.typing as npt
import polars as pl

from tracekit._util.categories import CategoryColumn
from tracekit._util.columns import to_int64
from tracekit.analysis.by.host import Host
from tracekit.analysis.by.repeated import BACKWARD_LABELS, LAYER_FRAMES, RepeatedLayers, repeated_layers
from tracekit.classify.model_position import MIN_COMPUTE_SHARE, UNKNOWN_FRAME, Frames, Placement, sort_frames
from tracekit.schema import COMPUTE_LABELS

Ints = npt.NDArray[np.int64]


class RepeatedPositions(msgspec.Struct, frozen=True, eq=False):
    """Layer and stage of every GPU event."""

    layer: Ints
    """-1 where not known."""
    stage: Ints
    """-1 where not known."""
    spare: int
    """Kernels by which the starts of layers may be off."""


def repeated_positions(events: pl.DataFrame, gpu_events: pl.DataFrame) -> RepeatedPositions | None:
    """Return the layers of GPU events by repetition; None if there are none, or they hold too little of the forward.

    Forward work is placed by its launch or its node, backward work by its launch.
    """
    host = Host.of(events)
    repeated = repeated_layers(gpu_events, host)
    if repeated.layers is None:
        return None
    label, is_backward = gpu_events["label"].cast(pl.String), gpu_events["pass"].cast(pl.String) == "backward"
    may_be_forward = ((label == "forward") | ~label.is_in((*COMPUTE_LABELS, "other"))).to_numpy()
    by_engine = is_backward.fill_null(False) | label.is_in(BACKWARD_LABELS) | gpu_events["node"].is_not_null()
    placement = Placement(
        tid=to_int64(gpu_events["launch_tid"]),
        launch_ns=to_int64(gpu_events["launch_ns"]),
        by_engine=by_engine.to_numpy(),
        node=CategoryColumn.from_series(gpu_events["node"]),
        sequence=to_int64(gpu_events["autograd_sequence"]),
        creators=host.creators,
    )
    forward_frames = Frames.of(repeated.forward.with_columns(name=pl.format("layer {}", "layer")))
    frame = placement.frames(forward_frames, by_launch=may_be_forward & ~placement.by_engine)
    backward_frames = Frames.of(repeated.backward.with_columns(name=pl.format("layer {}", "layer")))
    if len(backward_frames):
        by_launch = placement.by_engine & (frame == UNKNOWN_FRAME)
        backward_frame = placement.frames(backward_frames, by_launch=by_launch, by_sequence=False)
        # Backward frames come after the forward frames in the table of both.
        frame = np.where(backward_frame >= 0, backward_frame + len(forward_frames), frame)
    both = pl.concat([sort_frames(part.select(LAYER_FRAMES.names())) for part in (repeated.forward, repeated.backward)])
    positions = _by_kernel(gpu_events, frame, both, repeated)
    forward_ns = np.where(label == "forward", gpu_events["end_ns"] - gpu_events["start_ns"], 0)
    return positions if forward_ns[positions.layer >= 0].sum() >= MIN_COMPUTE_SHARE * forward_ns.sum() else None


def _by_kernel(
    gpu_events: pl.DataFrame, frame: Ints, frames: pl.DataFrame, repeated: RepeatedLayers
) -> RepeatedPositions:
    """Place kernels that repeat by their position in the repetition, and all other events by their frame.

    For the backward, the frame is preferred: it rests on sequence numbers. Without these it is unknown, and a kernel's
    position in the repetition is all there is.
    """
    # Layer and stage of the frame of each event; the entry appended at the end is for events without a frame.
    layer, stage = (np.append(frames[name].fill_null(-1).to_numpy(), -1) for name in ("layer", "stage"))
    row = np.maximum(frame, -1)
    by_frame = pl.DataFrame({"id": gpu_events["id"], "frame": frame, "layer": layer[row], "stage": stage[row]})
    by_repetition = repeated.kernels.unique("id").rename({"layer": "repeated_layer", "stage": "repeated_stage"})
    both = by_frame.join(by_repetition, on="id", how="left", maintain_order="left")
    is_forward = pl.lit(gpu_events["label"].cast(pl.String) == "forward")
    use_repetition = pl.col("repeated_layer").is_not_null() & (is_forward | (pl.col("frame") == UNKNOWN_FRAME))
    position = both.select(
        pl.when(use_repetition).then(f"repeated_{name}").otherwise(name).fill_null(-1).alias(name)
        for name in ("layer", "stage")
    )
    return RepeatedPositions(position["layer"].to_numpy(), position["stage"].to_numpy(), repeated.spare)
