"""Frames: ranges of host time that tell a position in the model.

A frame is a call of an ``nn.Module``, a named range, or the stretch between the hooks before and after a module's pass.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import polars as pl

from tracekit._loops.nesting import ANNOTATION
from tracekit._util.arrays import Int32s
from tracekit.classify.range_nesting import Nested, nest
from tracekit.schema import PATH_SEPARATOR

Ints = npt.NDArray[np.int64]

MODULE_PREFIX = "nn.Module: "
"""Prefix of a module call in the profiler's trace: ``nn.Module: Linear_3`` is the fourth module of that class."""
LAYER_NUMBER = re.compile(r"(?:(?:layers?|blocks?)[\s._#:=\[(-]*|(?<![a-z])h[.\[])(\d{1,5})(?!\d)", re.IGNORECASE)
"""A layer's number in a name: ``layer 3``, ``model.layers.3.mlp``, ``TransformerBlock_3``, ``transformer.h.3``."""
_HOOK = re.compile(r"(?:^|[^a-z])(pre|post)_(forward|backward) \((.+)\)$")
"""Hooks around a module's pass, as FSDP2 names them: ``FSDP::pre_forward (layers.3)`` … ``post_forward (layers.3)``."""
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
        >>> [frames.path(frame) for frame in (0, 1)]
        ['Mlp_0', 'Mlp_0 > Linear_0']
        """
        complete = table.select(_COLUMNS).drop_nulls().with_columns(pl.col("name").cast(pl.String))
        ordered = sort_frames(complete)
        names = ordered["name"].unique(maintain_order=True)
        positions = pl.DataFrame({"name": names, "index": np.arange(len(names))})
        name_index = ordered.select("name").join(positions, on="name", how="left", maintain_order="left")["index"]
        tid, start_ns, end_ns = (ordered[name].cast(pl.Int64).to_numpy() for name in ("tid", "start_ns", "end_ns"))
        return cls(tid, start_ns, end_ns, tuple(names.to_list()), name_index.to_numpy())

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

    @property
    def path_hash(self) -> Ints:
        """A number per frame, equal for frames with equal names from the outermost frame down."""
        return self._nested.path

    def around(self, tid: Ints, time_ns: Ints) -> Ints:
        """Return the innermost frame around each point in time on a thread; -1 if there is none."""
        if not len(self):
            return np.full(len(time_ns), -1, np.int64)
        return self._nest(tid, time_ns).point_annotation

    def path(self, frame: int) -> str:
        """Return the names from the outermost frame down to *frame*."""
        names: list[str] = []
        while frame >= 0:
            names.append(self.names[self.name_index[frame]])
            frame = int(self.parent[frame])
        return PATH_SEPARATOR.join(reversed(names))

    def _nest(self, tid: Ints, time_ns: Ints) -> Nested:
        """Nest the frames, and find the frames around points; threads are numbered from 0, unknown ones are -1."""
        threads = np.unique(self.tid)
        position = np.searchsorted(threads, tid)
        is_known = np.append(threads, -1)[position] == tid
        point_thread = np.where(is_known & (position < len(threads)), position, -1)
        frame_thread = np.searchsorted(threads, self.tid)
        kind = np.full(len(self), ANNOTATION, np.int64)
        return nest(frame_thread, self.start_ns, self.end_ns, kind, self.name_index, point_thread, time_ns)


def sort_frames(table: pl.DataFrame) -> pl.DataFrame:
    """Return frames in the order of ``Frames``."""
    return table.sort("tid", "start_ns", -pl.col("end_ns"), maintain_order=True)


def module_frames(events: pl.DataFrame) -> pl.DataFrame:
    """Return the calls of modules among *events*, named by class and number such as ``Linear_3``."""
    python = events.lazy().filter(pl.col("kind") == "python").select(_COLUMNS).collect()
    names = python["name"].cast(pl.String)
    return python.with_columns(name=names.str.strip_prefix(MODULE_PREFIX)).filter(names.str.starts_with(MODULE_PREFIX))


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
    hook_names = [(name, *match.groups()) for name in numbered if (match := _HOOK.search(name[-_MAX_NAME_LETTERS:]))]
    if not hook_names:
        return ranges
    hook_table = pl.DataFrame(
        hook_names, orient="row", schema=dict.fromkeys(("name", "side", "pass", "path"), pl.String)
    )
    hooks = ranges.join(hook_table, on="name").sort("start_ns")
    # Each hook before a pass is paired with the next hook after the same pass of the same module on its thread.
    keys = ["tid", "pass", "path"]
    before = hooks.filter(pl.col("side") == "pre").select(*keys, "start_ns")
    after = hooks.filter(pl.col("side") == "post").select(*keys, "end_ns", after_ns="start_ns")
    passes = before.join_asof(
        after, left_on="start_ns", right_on="after_ns", by=keys, strategy="forward", check_sortedness=False
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
    """Return the number of the layer in each name, -1 where there is none; a second part's layers follow the first's.

    >>> number_layers(("encoder.block.0", "encoder.block.1", "decoder.block.0", "loss")).tolist()
    [0, 1, 2, -1]
    """
    layers = [layer_number(name) for name in names]
    parts = sorted({layer[0] for layer in layers if layer}, key=len)
    # "layers.3" and "model.layers.3" are one layer: a part is known by the shortest ending that others share.
    short = {part: next(ending for ending in parts if part.endswith(ending)) for part in parts}
    first_number: dict[str, int] = {}
    for part in dict.fromkeys(short[layer[0]] for layer in layers if layer):
        first_number[part] = sum(
            1 + max(layer[1] for layer in layers if layer and short[layer[0]] == previous) for previous in first_number
        )
    return np.array([-1 if layer is None else first_number[short[layer[0]]] + layer[1] for layer in layers], np.int64)
