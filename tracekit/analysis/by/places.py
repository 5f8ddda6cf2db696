"""Positions of GPU events in the model.

An event belongs to the frame around its launch. Work of the backward pass is launched by autograd's engine, outside of
such frames: it belongs to the frame of the forward operator that created its autograd node.
"""

from __future__ import annotations

import msgspec
import numpy as np
import numpy.typing as npt
import polars as pl

from tracekit.analysis.by.frames import Frames, layer_number, layer_ranges, sort_frames
from tracekit.analysis.by.host import NO_CREATORS, Host, NodeCreators
from tracekit.analysis.by.modules import module_layers
from tracekit.analysis.by.repeated import BACKWARD_LABELS, LAYER_FRAMES, RepeatedLayers, repeated_layers
from tracekit.schema import COMPUTE_LABELS

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

BY_MODULE_STACK, BY_NAME, BY_REPETITION = "module stack", "annotation", "repetition"
"""Kinds of evidence for a position."""
OUTSIDE_FRAMES = -1
"""Stands for a frame: the event is known to be in none."""
UNKNOWN_FRAME = -2
"""Stands for a frame: it is not known in which frame the event is."""
MIN_STACK_TO_NAME_RATIO = 0.99
"""Time that module calls place, over the time that named ranges place, from which module calls are preferred."""


class Places(msgspec.Struct, frozen=True, eq=False):
    """The frame of every GPU event, and the layer and stage of every frame."""

    frame: Ints
    """By event; ``OUTSIDE_FRAMES`` or ``UNKNOWN_FRAME`` if negative."""
    frames: Frames
    layer: Ints
    """By frame; -1 outside of layers."""
    stage: Ints
    """By frame; -1 if not known."""
    evidence: str
    spare: int = 0
    """Kernels by which the starts of layers that were found by repetition may be off."""


def places(events: pl.DataFrame, gpu_events: pl.DataFrame, modules: pl.DataFrame) -> Places | None:
    """Return the positions of GPU events by layer, from the best evidence; None without any.

    Evidence that places no forward work in a layer does not count.

    Args:
        events: All events of the rank.
        gpu_events: Its labelled GPU events.
        modules: Its calls of modules.

    """
    host = Host.of(events)
    candidates = [
        candidate
        for candidate in (
            _by_module_stack(modules, gpu_events, host.creators),
            _by_name(events, gpu_events, host.creators),
        )
        if candidate is not None
    ]
    placed_ns = [_placed_forward_ns(candidate, gpu_events) for candidate in candidates]
    if max(placed_ns, default=0) == 0:
        return _by_repetition(gpu_events, host)
    prefer_first = placed_ns[0] >= MIN_STACK_TO_NAME_RATIO * max(placed_ns)
    return candidates[0] if prefer_first else candidates[1]


def module_places(events: pl.DataFrame, gpu_events: pl.DataFrame, modules: pl.DataFrame) -> Places | None:
    """Return the innermost module call of every GPU event; None if no calls were recorded."""
    return _by_module_stack(modules, gpu_events, Host.of(events).creators, layers=False)


def _placed_forward_ns(candidate: Places, gpu_events: pl.DataFrame) -> int:
    """Return the time of forward work that lies in layers."""
    in_layer = np.where(candidate.frame >= 0, np.append(candidate.layer, -1)[candidate.frame], -1) >= 0
    is_forward = (gpu_events["label"].cast(pl.String) == "forward").to_numpy()
    durations_ns = (gpu_events["end_ns"] - gpu_events["start_ns"]).to_numpy()
    return int(durations_ns[in_layer & is_forward].sum())


def _by_module_stack(
    modules: pl.DataFrame, gpu_events: pl.DataFrame, creators: NodeCreators, *, layers: bool = True
) -> Places | None:
    frames = Frames.of(modules)
    if not len(frames):
        return None
    no_number = np.full(len(frames), -1, np.int64)
    layer = module_layers(frames) if layers else no_number
    if layers and layer.max() < 1:  # a model of one layer has no layers to tell apart
        return None
    return Places(_frames_of_events(frames, gpu_events, creators), frames, layer, no_number, BY_MODULE_STACK)


def _by_name(events: pl.DataFrame, gpu_events: pl.DataFrame, creators: NodeCreators) -> Places | None:
    frames = Frames.of(layer_ranges(events))
    numbers = [layer_number(name) for name in frames.names]
    if len(set(numbers)) < 2:
        return None
    layer = np.array([-1 if number is None else number for number in numbers], np.int64)[frames.name_index]
    frame = _frames_of_events(frames, gpu_events, creators)
    return Places(frame, frames, layer, np.full(len(frames), -1, np.int64), BY_NAME)


def _by_repetition(gpu_events: pl.DataFrame, host: Host) -> Places | None:
    """Place events by layers that repeat: forward work by its launch or its node, backward work by its launch."""
    repeated = repeated_layers(gpu_events, host)
    if repeated.layers is None:
        return None
    label, by_engine = gpu_events["label"].cast(pl.String), _is_by_engine(gpu_events)
    may_be_forward = ((label == "forward") | ~label.is_in((*COMPUTE_LABELS, "other"))).to_numpy()
    forward_frames = Frames.of(repeated.forward.with_columns(name=pl.format("layer {}", "layer")))
    frame = _frames_of_events(forward_frames, gpu_events, host.creators, by_launch=may_be_forward & ~by_engine)
    backward_frames = Frames.of(repeated.backward.with_columns(name=pl.format("layer {}", "layer")))
    if len(backward_frames):
        by_launch = by_engine & (frame == UNKNOWN_FRAME)
        backward_frame = _frames_of_events(backward_frames, gpu_events, NO_CREATORS, by_launch=by_launch)
        # Backward frames come after the forward frames in the table of both.
        frame = np.where(backward_frame >= 0, backward_frame + len(forward_frames), frame)
    both = pl.concat([sort_frames(part.select(LAYER_FRAMES.names())) for part in (repeated.forward, repeated.backward)])
    return _by_kernel(gpu_events, frame, both, repeated)


def _by_kernel(gpu_events: pl.DataFrame, frame: Ints, frames: pl.DataFrame, repeated: RepeatedLayers) -> Places:
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
    has_frame = pl.col("frame") >= 0
    position = both.select(
        layer=pl.when(use_repetition).then("repeated_layer").when(has_frame).then("layer"),
        stage=pl.when(use_repetition).then(pl.col("repeated_stage").fill_null(-1)).when(has_frame).then("stage"),
    )
    # Distinct positions become frames without times: only their names, layers and stages are used.
    distinct = position.drop_nulls().unique(maintain_order=True).with_row_index("frame")
    index = position.join(distinct, on=["layer", "stage"], how="left", maintain_order="left")["frame"].cast(pl.Int64)
    new_frame = index.fill_null(OUTSIDE_FRAMES).to_numpy()
    new_frame = np.where((new_frame < 0) & (frame == UNKNOWN_FRAME), UNKNOWN_FRAME, new_frame)
    names = tuple(f"layer {number}" for number in distinct["layer"].to_list())
    no_time = np.zeros(len(distinct), np.int64)
    return Places(
        frame=new_frame,
        frames=Frames(no_time, no_time, no_time, names, np.arange(len(distinct))),
        layer=distinct["layer"].to_numpy(),
        stage=distinct["stage"].to_numpy(),
        evidence=BY_REPETITION,
        spare=repeated.spare,
    )


def _frames_of_events(
    frames: Frames, gpu_events: pl.DataFrame, creators: NodeCreators, *, by_launch: Bools | None = None
) -> Ints:
    """Return the frame of every GPU event: around its launch, else around the forward operator of its autograd node.

    *by_launch* limits the events that are placed by their launch; by default all may be.
    """
    tid = gpu_events["launch_tid"].fill_null(-1).to_numpy()
    launch_ns = gpu_events["launch_ns"].fill_null(-1).to_numpy()
    around_launch = frames.around(tid, launch_ns)
    # Work of autograd's engine belongs to the forward: that no frame is around its launch does not mean it is outside.
    is_decided = (around_launch >= 0) | ((launch_ns >= 0) & ~_is_by_engine(gpu_events))
    if by_launch is not None:
        is_decided &= by_launch
    frame = np.where(is_decided, around_launch, UNKNOWN_FRAME)
    frame = np.where(frame >= 0, frame, np.maximum(frame, _frames_by_sequence(frames, gpu_events, creators)))
    return _with_accumulation(gpu_events, frame, tid, launch_ns)


def _is_by_engine(gpu_events: pl.DataFrame) -> Bools:
    """Return which events autograd's engine launched."""
    is_backward_label = gpu_events["label"].cast(pl.String).is_in(BACKWARD_LABELS)
    is_backward_pass = (gpu_events["pass"].cast(pl.String) == "backward").fill_null(False)
    return (is_backward_label | is_backward_pass | gpu_events["node"].is_not_null()).to_numpy()


def _frames_by_sequence(frames: Frames, gpu_events: pl.DataFrame, creators: NodeCreators) -> Ints:
    """Return the frame of the operator that created each event's autograd node, found by sequence number."""
    if not len(creators.sequence):
        return np.full(len(gpu_events), UNKNOWN_FRAME, np.int64)
    table = pl.DataFrame(
        {
            "sequence": creators.sequence,
            "tid": creators.tid,
            "frame": frames.around(creators.tid, creators.start_ns),
        }
    )
    # Every thread has its own sequence numbers: a number that two threads used is ambiguous.
    by_sequence = table.group_by("sequence").agg(pl.col("frame").last(), threads=pl.col("tid").n_unique())
    unambiguous = by_sequence.filter(pl.col("threads") == 1)
    sequences = gpu_events.select(sequence=pl.col("autograd_sequence"))
    frame = sequences.join(unambiguous, on="sequence", how="left", maintain_order="left")["frame"]
    return frame.fill_null(UNKNOWN_FRAME).to_numpy()


def _with_accumulation(gpu_events: pl.DataFrame, frame: Ints, tid: Ints, launch_ns: Ints) -> Ints:
    """Return the frames with gradient accumulation in the frame of the node before it on its thread.

    A gradient is accumulated right after the node that computed it, and has no sequence number of its own.
    """
    node = gpu_events["node"].cast(pl.String)
    accumulates = node.str.starts_with("AccumulateGrad").fill_null(False).to_numpy()
    if not accumulates.any():
        return frame
    by_engine = np.flatnonzero(node.is_not_null().to_numpy())
    order = by_engine[np.lexsort((launch_ns[by_engine], tid[by_engine]))]
    # In launch order on each thread, the last frame that is known.
    last_known = pl.DataFrame({"tid": tid[order], "frame": frame[order]}).select(
        pl.when(pl.col("frame") > UNKNOWN_FRAME).then("frame").forward_fill().over("tid")
    )["frame"]
    is_open = accumulates[order] & (frame[order] < 0)
    filled = frame.copy()
    filled[order] = np.where(is_open, last_known.fill_null(UNKNOWN_FRAME).to_numpy(), frame[order])
    return filled
