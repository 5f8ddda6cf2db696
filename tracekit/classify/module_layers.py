"""Layers among the modules of a model, from the nesting of module calls: only classes and numbers are recorded."""

from __future__ import annotations

import re

import msgspec
import numpy as np
import numpy.typing as npt
import polars as pl

from tracekit._util.arrays import Int32s
from tracekit.classify.model_frames import Frames
from tracekit.classify.range_nesting import nearest_marked_ancestor

Ints = npt.NDArray[np.int64]

MIN_COMPUTE_SHARE = 0.5
"""Share of the modules' time that layers must hold; else they are those of a part beside the model proper."""
MIN_INNER_TIME_SHARE = 0.8
"""Share of the outer modules' time that inner ones must take to be the layers instead: blocks in a stage do, experts in
a layer do not."""
_INSTANCE_NUMBER = re.compile(r"_\d+$")


class _ModuleClass(msgspec.Struct, frozen=True):
    """A class of modules."""

    name: str
    depth: int
    """Smallest number of modules around a call."""
    siblings: int
    """Most modules of the class that one module calls."""
    is_leaf: bool
    """Whether most of its calls call no module."""
    ns: int
    """Host time in its calls."""
    gpu_ns: int
    """GPU time launched in its calls."""


def module_layers(frames: Frames, own_ns: Ints) -> Ints:
    """Return the number of the layer that each module call is in; -1 outside of layers.

    Layers are modules of one class that the same module (or none) calls and that call modules themselves, and that
    hold most of the time. They are the outermost such class, unless one inside it takes nearly all of its time.

    Args:
        frames: Module calls.
        own_ns: GPU time launched in each call, without the calls inside it.

    >>> calls = [("Gpt_0", 0, 90), ("Embedding_0", 1, 5), ("Layer_0", 10, 40), ("Linear_0", 20, 30),
    ...          ("Layer_1", 40, 80), ("Linear_1", 50, 60)]
    >>> rows = [{"tid": 1, "start_ns": s, "end_ns": e, "name": n} for n, s, e in calls]
    >>> module_layers(Frames.of(pl.DataFrame(rows)), np.array([0, 1, 0, 8, 0, 8])).tolist()
    [-1, -1, 0, 0, 1, 1]
    """
    layer_class = _layer_class(_module_classes(frames, own_ns), int(own_ns.sum()))
    if layer_class is None:
        return np.full(len(frames), -1, np.int64)
    instances = {name: int(name[len(layer_class) + 1 :]) for name in frames.names if _class_of(name) == layer_class}
    layer_of_instance = {instance: layer for layer, instance in enumerate(sorted(set(instances.values())))}
    layer_of_name = [layer_of_instance[instances[name]] if name in instances else -1 for name in frames.names]
    layer = np.array(layer_of_name, np.int64)[frames.name_index]
    # A call of the class inside a call of the class is a part of that layer, not a layer.
    parent_is_layer = np.where(frames.parent >= 0, layer[frames.parent], -1) >= 0
    nearest_layer = nearest_marked_ancestor(frames.parent, (layer >= 0) & ~parent_is_layer)
    return np.where(nearest_layer >= 0, layer[nearest_layer], -1)


def _class_of(name: str) -> str:
    return _INSTANCE_NUMBER.sub("", name)


def _module_classes(frames: Frames, own_ns: Ints) -> list[_ModuleClass]:
    """Return the classes of the modules that were called, by depth, then most time first."""
    parent, depth, inclusive_ns = frames.parent, _depths(frames.parent), own_ns.copy()
    for level in range(int(depth.max(initial=0)), 0, -1):  # add the time of all calls of a level to their callers
        rows = np.flatnonzero(depth == level)
        np.add.at(inclusive_ns, parent[rows], inclusive_ns[rows])
    calls_modules = np.zeros(len(frames), np.bool_)
    calls_modules[parent[parent >= 0]] = True
    class_of_name = pl.Series(
        [_class_of(name) if _INSTANCE_NUMBER.search(name) else "" for name in frames.names], dtype=pl.String
    )
    class_name = class_of_name.gather(frames.name_index)
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
    classes = calls.group_by("name").agg(pl.col("depth").min(), pl.col("leaf").mean(), pl.col("ns", "gpu_ns").sum())
    table = classes.join(siblings, on="name").sort("depth", -pl.col("ns"), "name").with_columns(pl.col("leaf") > 0.5)
    columns = ("name", "depth", "siblings", "leaf", "ns", "gpu_ns")
    return [_ModuleClass(*row) for row in table.select(columns).iter_rows()]


def _depths(parent: Int32s) -> Ints:
    """Return the number of frames around each frame."""
    depth = np.zeros(len(parent), np.int64)
    ancestor = parent
    while (has_ancestor := ancestor >= 0).any():  # one level of all frames per round
        depth += has_ancestor
        ancestor = np.where(has_ancestor, np.append(parent, -1)[ancestor], -1)
    return depth


def _layer_class(classes: list[_ModuleClass], total_ns: int) -> str | None:
    """Return the class of the layers; None if no class of several modules side by side holds most of the time."""
    min_ns = MIN_COMPUTE_SHARE * total_ns
    repeated = [module_class for module_class in classes if module_class.siblings > 1 and module_class.gpu_ns >= min_ns]
    candidates = [module_class for module_class in repeated if not module_class.is_leaf] or repeated
    if not candidates:
        return None
    outermost = candidates[0]
    inner = [
        module_class
        for module_class in candidates
        if module_class.depth >= outermost.depth and module_class.ns >= MIN_INNER_TIME_SHARE * outermost.ns
    ]
    return max(inner, key=lambda module_class: module_class.depth).name
