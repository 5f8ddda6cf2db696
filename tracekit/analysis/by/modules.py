"""Which of a model's modules are its layers, from who called whom: nothing but class names and nesting is recorded."""

from __future__ import annotations

import re

import msgspec
import numpy as np
import numpy.typing as npt
import polars as pl

from tracekit._util.arrays import Int32s
from tracekit.analysis.by.frames import Frames
from tracekit.classify.range_nesting import nearest_marked_ancestor

Ints = npt.NDArray[np.int64]

COVERED = 0.8
"""Share of the time of outer modules that inner ones must take to be the layers in their place: blocks in a stage are,
experts in a layer are not."""


class _Kind(msgspec.Struct, frozen=True):
    """A class of modules."""

    name: str
    depth: int
    siblings: int  # most instances called by one module
    leaf: bool  # its calls call no module
    ns: int


def module_layers(frames: Frames) -> Ints:
    """Return of every module call the number of the layer it is in, -1 outside of layers.

    Layers are modules of one class, called side by side by the same module (or by none), that call modules in turn.
    The outermost such class counts, and one inside it that takes nearly all of its time comes before it.

    >>> calls = [("Gpt_0", 0, 90), ("Embedding_0", 1, 5), ("Layer_0", 10, 40), ("Linear_0", 20, 30),
    ...          ("Layer_1", 40, 80), ("Linear_1", 50, 60)]
    >>> rows = [{"tid": 1, "start_ns": s, "end_ns": e, "name": n} for n, s, e in calls]
    >>> module_layers(Frames.of(pl.DataFrame(rows))).tolist()
    [-1, -1, 0, 0, 1, 1]
    """
    none = np.full(len(frames), -1, np.int64)
    chosen = _layer_class(_kinds(frames))
    if chosen is None:
        return none
    numbers = {name: int(name[len(chosen) + 1 :]) for name in frames.name if _class(name) == chosen}
    order = {number: at for at, number in enumerate(sorted(set(numbers.values())))}
    by_name = np.array([order[numbers[name]] if name in numbers else -1 for name in frames.name], np.int64)
    own = by_name[frames.code]
    outer = np.where(frames.parent >= 0, own[frames.parent], -1) >= 0  # one of them inside one of them: a part of it
    nearest = nearest_marked_ancestor(frames.parent, (own >= 0) & ~outer)
    return np.where(nearest >= 0, own[nearest], -1)


def _class(name: str) -> str:
    return re.sub(r"_\d+$", "", name)


def _kinds(frames: Frames) -> list[_Kind]:
    parent = frames.parent
    depth = _depths(parent)
    has_children = np.zeros(len(frames), np.bool_)
    has_children[parent[parent >= 0]] = True
    classes = pl.Series([_class(name) if re.search(r"_\d+$", name) else "" for name in frames.name], dtype=pl.String)
    own = classes.gather(frames.code)
    above = own.gather(np.maximum(parent, 0)).to_numpy() if len(own) else np.zeros(0, object)
    table = pl.DataFrame(
        {
            "name": own,
            "module": frames.code,
            "parent": np.where(parent >= 0, frames.code[parent], -1),
            "depth": depth,
            "leaf": ~has_children,
            "ns": np.where((parent >= 0) & (above == own.to_numpy()), 0, frames.end - frames.start),
        }
    ).filter(pl.col("name") != "")
    siblings = (
        table.group_by("name", "parent").agg(n=pl.col("module").n_unique()).group_by("name").agg(pl.col("n").max())
    )
    kinds = table.group_by("name").agg(pl.col("depth").min(), pl.col("leaf").mean(), pl.col("ns").sum())
    joined = kinds.join(siblings, on="name").sort("depth", -pl.col("ns"), "name")
    return [_Kind(r["name"], r["depth"], r["n"], r["leaf"] > 0.5, r["ns"]) for r in joined.iter_rows(named=True)]


def _depths(parent: Int32s) -> Ints:
    """Return how many frames are around each; parents come before their children."""
    depth = np.zeros(len(parent), np.int64)
    at = parent
    while (inside := at >= 0).any():  # as many rounds as modules nest
        depth += inside
        at = np.where(inside, np.append(parent, -1)[at], -1)
    return depth


def _layer_class(kinds: list[_Kind]) -> str | None:
    several = [kind for kind in kinds if kind.siblings > 1]
    candidates = [kind for kind in several if not kind.leaf] or several
    if not candidates:
        return None
    first = candidates[0]
    inner = [kind for kind in candidates if kind.depth >= first.depth and kind.ns >= COVERED * first.ns]
    return max(inner, key=lambda kind: kind.depth).name
