"""Position of GPU events in the model: the module calls around them, and their layer.

A frame is a range of host time: a call of an ``nn.Module``, a named range, or the stretch between
the hooks before and after a module's pass. An event belongs to the call of an ``nn.Module`` around
its launch. The backward is launched by autograd's engine, outside of such calls: it belongs to the
call of the forward operator that created its node. Layers are told by module calls, else by ranges
with a layer's number.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import polars as pl

from tracekit._loops.nesting import ANNOTATION
from tracekit._util.arrays import Bools, Int32s, Ints, find_sorted, take_or_missing
from tracekit._util.categories import CategoryColumn
from tracekit.classify.autograd import Autograd
from tracekit.classify.host_ranges import (
    GpuEvents,
    Launches,
    Nested,
    compose_paths,
    nearest_marked_ancestor,
    nest,
)

MODULE_PREFIX = "nn.Module: "
"""Prefix of a module call in the profiler's trace: ``nn.Module: Linear_3`` is the fourth module of
that class."""
LAYER_NUMBER = re.compile(
    r"(?:(?:layers?|blocks?)[\s._#:=\[(-]*|(?<![a-z])h[.\[])(\d{1,5})(?!\d)", re.IGNORECASE
)
"""A layer's number in a name: ``layer 3``, ``model.layers.3.mlp``, ``TransformerBlock_3``,
``transformer.h.3``."""
_HOOK = re.compile(r"(?:^|[^a-z])(pre|post)_(forward|backward) \((.+)\)$")
"""Hooks around a module's pass, as FSDP2 names them: ``FSDP::pre_forward (layers.3)`` …
``post_forward (layers.3)``."""
_MAX_NAME_LETTERS = 1000
"""Letters at the end of a name that are searched: names may be very long."""
_COLUMNS = ("tid", "start_ns", "end_ns", "name")


@dataclass(frozen=True, eq=False)
class Frames:
    """Ranges that nest on their threads, sorted by thread, start and, for equal starts, the longest first."""

    tid: Ints
    start_ns: Ints
    end_ns: Ints
    names: tuple[str, ...]
    """Distinct names."""
    name_index: Ints
    """Index of each frame's name in ``names``."""

    @classmethod
    def of(cls, table: pl.DataFrame) -> Frames:
        """Return the frames of a table with ``tid``, ``start_ns``, ``end_ns`` and ``name``.

        >>> rows = {"tid": [1, 1], "start_ns": [2, 0], "end_ns": [5, 9], "name": ["Linear_0", "Mlp_0"]}
        >>> frames = Frames.of(pl.DataFrame(rows))
        >>> frames.paths(np.array([0, 1])).strings()
        ['Mlp_0', 'Mlp_0 > Linear_0']
        """
        complete = table.select(_COLUMNS).drop_nulls().with_columns(pl.col("name").cast(pl.String))
        ordered = sort_frames(complete)
        names = CategoryColumn.from_series(ordered["name"])
        tid = ordered["tid"].cast(pl.Int64).to_numpy()
        start_ns = ordered["start_ns"].cast(pl.Int64).to_numpy()
        end_ns = ordered["end_ns"].cast(pl.Int64).to_numpy()
        return cls(tid, start_ns, end_ns, names.values, names.codes.astype(np.int64))

    def __len__(self) -> int:
        return len(self.start_ns)

    @cached_property
    def _nested(self) -> Nested:
        no_points = np.zeros(0, np.int64)
        return self._nest(no_points, no_points)

    @property
    def parent(self) -> Int32s:
        """The innermost frame around each frame; -1 if there is none."""
        return self._nested.ann_of

    def around(self, tid: Ints, time_ns: Ints) -> Ints:
        """Return the innermost frame around each point in time on a thread; -1 if there is none."""
        if not len(self):
            return np.full(len(time_ns), -1, np.int64)
        return self._nest(tid, time_ns).point_annotation

    def paths(self, frames: Ints) -> CategoryColumn:
        """Return the names from the outermost frame down to each of *frames*.

        Null for a negative one.
        """
        return compose_paths(
            CategoryColumn(self.names, self.name_index), self.parent, self._nested.path, frames
        )

    def _nest(self, tid: Ints, time_ns: Ints) -> Nested:
        """Nest the frames, and find the frames around points.

        Threads are numbered from 0, unknown ones are -1.
        """
        threads, frame_thread = np.unique(self.tid, return_inverse=True)
        return nest(
            thread=frame_thread,
            start=self.start_ns,
            end=self.end_ns,
            kind=np.full(len(self), ANNOTATION, np.int64),
            name=self.name_index,
            point_thread=find_sorted(tid, threads),
            point_time=time_ns,
        )


def sort_frames(table: pl.DataFrame) -> pl.DataFrame:
    """Return frames in the order of ``Frames``."""
    return table.sort("tid", "start_ns", -pl.col("end_ns"), maintain_order=True)


def module_frames(events: pl.DataFrame) -> pl.DataFrame:
    """Return the calls of modules among *events*, named by class and number such as ``Linear_3``."""
    python = events.lazy().filter(pl.col("kind") == "python").select(_COLUMNS).collect()
    names = python["name"].cast(pl.String)
    return python.with_columns(name=names.str.strip_prefix(MODULE_PREFIX)).filter(
        names.str.starts_with(MODULE_PREFIX)
    )


def layer_ranges(events: pl.DataFrame) -> pl.DataFrame:
    """Return named ranges with a layer's number, and the stretches between the two hooks of a pass through a layer.

    >>> rows = [("FSDP::pre_forward (layers.3)", 0, 2), ("FSDP::post_forward (layers.3)", 8, 9), ("data", 10, 11)]
    >>> events = pl.DataFrame([{"kind": "annotation", "tid": 1, "start_ns": s, "end_ns": e, "name": n}
    ...                        for n, s, e in rows])
    >>> layer_ranges(events).select("name", "start_ns", "end_ns").rows()[-1]
    ('layers.3', 0, 9)
    """
    ranges = events.lazy().filter(pl.col("kind") == "annotation").select(_COLUMNS).collect()
    ranges = ranges.with_columns(pl.col("name").cast(pl.String))
    distinct = ranges["name"].unique().drop_nulls().to_list()
    numbered = [name for name in distinct if layer_number(name) is not None]
    ranges = ranges.filter(pl.col("name").is_in(numbered))
    hook_names = []
    for name in numbered:
        match = _HOOK.search(name[-_MAX_NAME_LETTERS:])
        if match is not None:
            hook_names.append((name, *match.groups()))
    if not hook_names:
        return ranges
    hook_table = pl.DataFrame(
        hook_names, orient="row", schema=dict.fromkeys(("name", "side", "pass", "path"), pl.String)
    )
    hooks = ranges.join(hook_table, on="name").sort("start_ns")
    # Each hook before a pass is paired with the next hook after the same pass of the same module on
    # its thread.
    keys = ["tid", "pass", "path"]
    before = hooks.filter(pl.col("side") == "pre").select(*keys, "start_ns")
    after = hooks.filter(pl.col("side") == "post").select(*keys, "end_ns", after_ns="start_ns")
    passes = before.join_asof(
        after,
        left_on="start_ns",
        right_on="after_ns",
        by=keys,
        strategy="forward",
        check_sortedness=False,
    )
    passes = passes.drop_nulls("end_ns").rename({"path": "name"})
    return pl.concat([ranges, passes.select(_COLUMNS)])


def layer_number(name: str) -> tuple[str, int] | None:
    """Return the part of the model and the number of the layer in a name; None if there is none.

    Of several numbers the first is the layer's; those behind it count its parts.

    >>> [layer_number(name) for name in ("layer 3", "model.layers.12.mlp", "encoder.block.5.layer.1", "launch 5")]
    [('', 3), ('model', 12), ('encoder', 5), None]
    """
    match = LAYER_NUMBER.search(name, max(len(name) - _MAX_NAME_LETTERS, 0))
    if match is None:
        return None
    part = name[: match.start()].rpartition(".")[0]  # of "model.layers.3" this is "model"
    return re.split(r"[^\w.]", part)[-1].lower(), int(match[1])


def number_layers(names: tuple[str, ...]) -> Ints:
    """Return the number of the layer in each name, -1 where there is none.

    A second part's layers follow the first's.

    >>> number_layers(("encoder.block.0", "encoder.block.1", "decoder.block.0", "loss")).tolist()
    [0, 1, 2, -1]
    """
    layers = [layer_number(name) for name in names]
    numbered = [layer for layer in layers if layer is not None]
    parts = sorted({part for part, _ in numbered}, key=len)
    # "layers.3" and "model.layers.3" are one layer: a part is known by the shortest ending that
    # others share.
    short_name: dict[str, str] = {}
    for part in parts:  # the shortest first
        endings = (ending for ending in parts if part.endswith(ending))
        short_name[part] = next(endings)
    layer_count: dict[str, int] = {}  # in the order in which the parts come
    for part, number in numbered:
        short = short_name[part]
        layer_count[short] = max(layer_count.get(short, 0), number + 1)
    first_number: dict[str, int] = {}
    next_number = 0
    for short, count in layer_count.items():
        first_number[short] = next_number
        next_number += count
    numbers = np.full(len(names), -1, np.int64)
    for i, layer in enumerate(layers):
        if layer is not None:
            part, number = layer
            numbers[i] = first_number[short_name[part]] + number
    return numbers


MIN_COMPUTE_SHARE = 0.5
"""Share of the modules' time that layers must hold; else they are those of a part beside the model
proper."""
MIN_INNER_TIME_SHARE = 0.8
"""Share of the outer modules' time that inner ones must take to be the layers instead: blocks in a
stage do, experts in a layer do not."""
_INSTANCE_NUMBER = re.compile(r"_\d+$")


def module_layers(frames: Frames, own_ns: Ints) -> Ints:
    """Return the number of the layer that each module call is in; -1 outside of layers.

    Layers are modules of one class that the same module (or none) calls and that call modules
    themselves, and that hold most of the time. They are the outermost such class, unless one inside
    it takes nearly all of its time.

    Args:
        frames: Module calls.
        own_ns: GPU time launched in each call, without the calls inside it.

    >>> calls = [("Gpt_0", 0, 90), ("Embedding_0", 1, 5), ("Layer_0", 10, 40), ("Linear_0", 20, 30),
    ...          ("Layer_1", 40, 80), ("Linear_1", 50, 60)]
    >>> rows = [{"tid": 1, "start_ns": s, "end_ns": e, "name": n} for n, s, e in calls]
    >>> module_layers(Frames.of(pl.DataFrame(rows)), np.array([0, 1, 0, 8, 0, 8])).tolist()
    [-1, -1, 0, 0, 1, 1]
    """
    if not len(frames):
        return np.zeros(0, np.int64)
    layer_class = _layer_class(_module_classes(frames, own_ns), int(own_ns.sum()))
    if layer_class is None:
        return np.full(len(frames), -1, np.int64)
    layers = [name for name in frames.names if _class_of(name) == layer_class]
    # Layers are counted in the order of the numbers in their names: "Layer_7".
    number = {name: int(name[len(layer_class) + 1 :]) for name in layers}
    position = {value: layer for layer, value in enumerate(sorted(set(number.values())))}
    layer_of_name = np.full(len(frames.names), -1, np.int64)
    for i, name in enumerate(frames.names):
        if name in number:
            layer_of_name[i] = position[number[name]]
    layer = layer_of_name[frames.name_index]
    # A call of the class inside a call of the class is a part of that layer, not a layer.
    parent_is_layer = np.where(frames.parent >= 0, layer[frames.parent], -1) >= 0
    nearest_layer = nearest_marked_ancestor(frames.parent, (layer >= 0) & ~parent_is_layer)
    return np.where(nearest_layer >= 0, layer[nearest_layer], -1)


def _class_of(name: str) -> str:
    return _INSTANCE_NUMBER.sub("", name)


def _module_classes(frames: Frames, own_ns: Ints) -> pl.DataFrame:
    """Return the classes of the modules that were called, by depth, then most time first.

    Columns: ``name``; ``depth``, the smallest number of modules around a call; ``siblings``, the
    most modules of the class that one module calls; ``leaf``, whether most of its calls call no
    module; ``ns``, the host time in its calls; ``gpu_ns``, the GPU time launched in them.
    """
    parent = frames.parent
    depth = frame_depths(frames.parent)
    inclusive_ns = own_ns.copy()
    by_depth = np.argsort(depth, kind="stable")
    first_of_level = np.searchsorted(depth[by_depth], np.arange(1, depth.max(initial=0) + 1))
    levels = np.split(by_depth, first_of_level)[1:]
    for rows in reversed(levels):  # add the time of all calls of a level to their callers
        np.add.at(inclusive_ns, parent[rows], inclusive_ns[rows])
    calls_modules = np.zeros(len(frames), np.bool_)
    calls_modules[parent[parent >= 0]] = True
    class_of_name = []  # "" for a name without the number of an instance
    for name in frames.names:
        has_number = _INSTANCE_NUMBER.search(name) is not None
        class_of_name.append(_class_of(name) if has_number else "")
    class_name = pl.Series(class_of_name, dtype=pl.String).gather(frames.name_index)
    parent_class = class_name.gather(np.maximum(parent, 0)) if len(class_name) else class_name
    # Time inside a call of the same class is in that call's time already.
    is_recursive = (parent >= 0) & (parent_class == class_name).to_numpy()
    calls = pl.DataFrame(
        {
            "name": class_name,
            "module": frames.name_index,
            "parent": np.where(parent >= 0, frames.name_index[parent], -1),
            "depth": depth,
            "leaf": ~calls_modules,
            "ns": np.where(is_recursive, 0, frames.end_ns - frames.start_ns),
            "gpu_ns": np.where(is_recursive, 0, inclusive_ns),
        }
    ).filter(pl.col("name") != "")
    modules_per_parent = calls.group_by("name", "parent").agg(siblings=pl.col("module").n_unique())
    siblings = modules_per_parent.group_by("name").agg(pl.col("siblings").max())
    classes = calls.group_by("name").agg(
        pl.col("depth").min(), pl.col("leaf").mean(), pl.col("ns", "gpu_ns").sum()
    )
    return (
        classes.join(siblings, on="name")
        .sort("depth", -pl.col("ns"), "name")
        .with_columns(pl.col("leaf") > 0.5)
    )


def frame_depths(parent: Int32s) -> Ints:
    """Return the number of frames around each frame.

    >>> frame_depths(np.array([-1, 0, 1, 0], np.int32)).tolist()
    [0, 1, 2, 1]
    """
    # Twice as far with every round; row -1, the last, leads to itself.
    ancestor = np.append(parent, -1)
    depth = (ancestor >= 0).astype(np.int64)
    while (ancestor >= 0).any():
        depth += depth[ancestor]
        ancestor = ancestor[ancestor]
    return depth[:-1]


def _layer_class(classes: pl.DataFrame, total_ns: int) -> str | None:
    """Return the class of the layers.

    None if no class of several modules side by side holds most of the time.
    """
    repeated = classes.filter(
        (pl.col("siblings") > 1) & (pl.col("gpu_ns") >= MIN_COMPUTE_SHARE * total_ns)
    )
    # Leaves only if there is nothing else.
    candidates = repeated.filter(~pl.col("leaf") | pl.col("leaf").all())
    if candidates.is_empty():
        return None
    is_inside = pl.col("depth") >= pl.col("depth").first()  # the first is the outermost
    takes_its_time = pl.col("ns") >= MIN_INNER_TIME_SHARE * pl.col("ns").first()
    inner = candidates.filter(is_inside & takes_its_time)
    return str(inner.sort("depth", descending=True, maintain_order=True)["name"][0])


BY_MODULE_STACK = "module stack"
BY_NAME = "annotation"
"""Evidence for a position: calls of modules, or named ranges."""
UNKNOWN_FRAME = -2
"""Stands for a frame: it is not known in which one an event is; -1 if it is known to be in none."""
MIN_STACK_TO_NAME_RATIO = 0.99
"""Time that module calls put into layers, over that of named ranges, from which module calls are
preferred."""


class Positions(NamedTuple):
    """Of every GPU event: the module calls around it, and its layer."""

    path: CategoryColumn  # names of the calls, outermost first; null outside of calls and where nothing tells
    layer: Ints  # -1 outside of layers and where nothing tells
    layer_from: CategoryColumn  # "module stack" or "annotation", also for events known to be outside; else null


def find_positions(
    events: pl.DataFrame,
    gpu: GpuEvents,
    launches: Launches,
    autograd: Autograd,
    *,
    is_forward: Bools,
    by_engine: Bools,
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
    calls = Frames.of(module_frames(events))
    ranges = Frames.of(layer_ranges(events))
    creators = node_creators(autograd) if len(calls) or len(ranges) else pl.DataFrame()
    by_engine = by_engine | (autograd.node_row >= 0)
    placement = Placement(
        launches.tid, launches.start_ns, by_engine, autograd.node, autograd.sequence, creators
    )
    call = placement.frames(calls)
    named_range = placement.frames(ranges)
    own_ns = np.bincount(call[call >= 0], forward_ns[call >= 0], len(calls)).astype(np.int64)
    candidates = [
        (BY_MODULE_STACK, call, module_layers(calls, own_ns)),
        (BY_NAME, named_range, number_layers(ranges.names)[ranges.name_index]),
    ]
    layers = [take_or_missing(of_frame, np.maximum(frame, -1)) for _, frame, of_frame in candidates]
    placed_ns = [int(forward_ns[layer >= 0].sum()) for layer in layers]
    best = int(placed_ns[0] < MIN_STACK_TO_NAME_RATIO * placed_ns[1])
    source, frame, _ = candidates[best]
    if (
        not placed_ns[best]
        or placed_ns[best] < MIN_COMPUTE_SHARE * forward_ns.sum()
        or layers[best].max() < 1
    ):
        nothing = np.full(len(call), -1, np.int64)
        return Positions(calls.paths(call), nothing, CategoryColumn.constant(None, len(call)))
    layer_from = CategoryColumn.choose(len(call), [(source, frame != UNKNOWN_FRAME)])
    return Positions(calls.paths(call), layers[best], layer_from)


class Placement(NamedTuple):
    """What places GPU events in frames of host time.

    All columns but the last have one row per event.
    """

    tid: Ints
    launch_ns: Ints  # -1 where unknown
    by_engine: Bools  # autograd's engine launched it
    node: CategoryColumn  # autograd node that launched it
    sequence: Ints  # autograd sequence number, -1 where none
    # ``sequence, tid, start_ns`` of the operators that created nodes, by start.
    creators: pl.DataFrame

    def frames(
        self, frames: Frames, *, by_launch: Bools | None = None, by_sequence: bool = True
    ) -> Ints:
        """Return the frame of every GPU event: around its launch, else around the forward operator of its node.

        Args:
            frames: Frames of host time.
            by_launch: Events that may be placed by their launch; by default all.
            by_sequence: Whether other events may be placed by their node.
        """
        if not len(frames):
            return np.full(len(self.tid), UNKNOWN_FRAME, np.int64)
        around_launch = frames.around(self.tid, self.launch_ns)
        # Work of autograd's engine belongs to the forward: no frame around its launch does not mean
        # it is outside.
        is_decided = (around_launch >= 0) | ((self.launch_ns >= 0) & ~self.by_engine)
        is_decided &= True if by_launch is None else by_launch
        frame = np.where(is_decided, around_launch, UNKNOWN_FRAME)
        if by_sequence:
            frame = np.where(frame >= 0, frame, np.maximum(frame, self._frames_by_sequence(frames)))
        return self._with_accumulation(frame)

    def _frames_by_sequence(self, frames: Frames) -> Ints:
        """Return the frame of the operator that created each event's autograd node, found by sequence number."""
        around_creator = frames.around(
            self.creators["tid"].to_numpy(), self.creators["start_ns"].to_numpy()
        )
        # Every thread has its own sequence numbers: a number that two threads used is ambiguous.
        by_sequence = (
            self.creators.with_columns(frame=around_creator)
            .group_by("sequence")
            .agg(pl.col("frame").last(), threads=pl.col("tid").n_unique())
            .filter(pl.col("threads") == 1)
        )
        sequences = pl.DataFrame({"sequence": self.sequence})
        frame = sequences.join(by_sequence, on="sequence", how="left", maintain_order="left")[
            "frame"
        ]
        return frame.fill_null(UNKNOWN_FRAME).to_numpy()

    def _with_accumulation(self, frame: Ints) -> Ints:
        """Return the frames with gradient accumulation in the frame of the node before it on its thread.

        A gradient is accumulated right after the node that computed it, and has no sequence number
        of its own.
        """
        accumulates = self.node.any_of("AccumulateGrad")
        by_node = np.flatnonzero(self.node.present)
        order = by_node[np.lexsort((self.launch_ns[by_node], self.tid[by_node]))]
        # In launch order on each thread, the last frame that is known.
        last_known = pl.DataFrame({"tid": self.tid[order], "frame": frame[order]}).select(
            pl.when(pl.col("frame") > UNKNOWN_FRAME).then("frame").forward_fill().over("tid")
        )["frame"]
        is_open = accumulates[order] & (frame[order] < 0)
        filled = frame.copy()
        filled[order] = np.where(
            is_open, last_known.fill_null(UNKNOWN_FRAME).to_numpy(), frame[order]
        )
        return filled


def node_creators(autograd: Autograd) -> pl.DataFrame:
    """Return ``sequence, tid, start_ns`` of the forward operators that created nodes of autograd's graph, by start."""
    ranges = autograd.ranges
    differentiable = autograd.differentiable
    rows = np.unique(differentiable[differentiable >= 0])
    rows = rows[np.argsort(ranges.start(rows), kind="stable")]
    tid = ranges.column("tid", rows).fill_null(-1).cast(pl.Int64)
    return pl.DataFrame(
        {"sequence": ranges.sequence[rows], "tid": tid, "start_ns": ranges.start(rows)}
    )
