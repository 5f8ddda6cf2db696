"""Ranges of the host that say where in the model it was: ``nn.Module`` calls, named ranges, pairs of hooks."""

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

MODULE = "nn.Module: "
"""How the profiler names a call of a module: ``nn.Module: Linear_3`` is the fourth module of that class."""
LAYER = re.compile(r"(?:(?:layers?|blocks?)[\s._#:=\[(-]*|(?<![a-z])h[.\[])(\d{1,5})(?!\d)", re.IGNORECASE)
"""A layer's number in a name: ``layer 3``, ``model.layers.3.mlp``, ``TransformerBlock_3``, ``transformer.h.3``."""
_HOOK = r"(?:^|[^a-z])(pre|post)_(forward|backward) \((.+)\)$"
"""Hooks around a module's pass, as FSDP2 names them: ``FSDP::pre_forward (layers.3)`` … ``post_forward (layers.3)``."""


@dataclass(frozen=True, eq=False)
class Frames:
    """Ranges that nest on their threads, sorted by thread and start, the longer first."""

    tid: Ints
    start: Ints
    end: Ints
    name: tuple[str, ...]
    code: Ints  # of every frame: which of the names

    @classmethod
    def of(cls, table: pl.DataFrame) -> Frames:
        """Return the frames of a table with ``tid``, ``start_ns``, ``end_ns`` and ``name``.

        >>> rows = {"tid": [1, 1], "start_ns": [2, 0], "end_ns": [5, 9], "name": ["Linear_0", "Mlp_0"]}
        >>> frames = Frames.of(pl.DataFrame(rows))
        >>> [frames.path(row) for row in (0, 1)]
        ['Mlp_0', 'Mlp_0 > Linear_0']
        """
        ordered = table.drop_nulls(["tid", "start_ns", "end_ns", "name"]).sort(
            "tid", "start_ns", -pl.col("end_ns"), maintain_order=True
        )
        names = ordered["name"].cast(pl.String)
        distinct = names.unique(maintain_order=True)
        places = {name: at for at, name in enumerate(distinct.to_list())}
        code = (
            names.replace_strict(places, return_dtype=pl.Int64, default=0)
            if len(names)
            else pl.Series([], dtype=pl.Int64)
        )
        tid, start, end = (ordered[c].cast(pl.Int64).to_numpy() for c in ("tid", "start_ns", "end_ns"))
        return cls(tid, start, end, tuple(distinct.to_list()), code.to_numpy())

    def __len__(self) -> int:
        return len(self.start)

    @cached_property
    def _nested(self) -> Nested:
        none = np.zeros(0, np.int64)
        return self._ask(none, none)

    @property
    def parent(self) -> Int32s:
        """Of every frame the one around it, -1 where none."""
        return self._nested.ann_of

    @property
    def paths(self) -> Ints:
        """Of every frame a number that is the same for the same names from the outermost down."""
        return self._nested.path

    def around(self, tid: Ints, at: Ints) -> Ints:
        """Return the innermost frame around each moment of a thread, -1 where none."""
        if not len(self):
            return np.full(len(at), -1, np.int64)
        return self._ask(tid, at).point_annotation

    def path(self, row: int) -> str:
        """Spell the names from the outermost frame down to *row*."""
        names: list[str] = []
        while row >= 0:
            names.append(self.name[self.code[row]])
            row = int(self.parent[row])
        return PATH_SEPARATOR.join(reversed(names))

    def _ask(self, tid: Ints, at: Ints) -> Nested:
        threads = np.unique(self.tid)
        number = np.searchsorted(threads, tid)
        known = (number < len(threads)) & (np.append(threads, -1)[number] == tid)
        asked = np.where(known, number, -1)
        what = np.full(len(self), ANNOTATION, np.int64)
        return nest(np.searchsorted(threads, self.tid), self.start, self.end, what, self.code, asked, at)


_COLUMNS = ("tid", "start_ns", "end_ns", "name")


def module_frames(events: pl.DataFrame) -> pl.DataFrame:
    """Return the calls of modules among *events*, named by class and number."""
    python = events.lazy().filter(pl.col("kind") == "python").select(_COLUMNS).collect()
    names = python["name"].cast(pl.String)
    found = python.with_columns(name=names.str.strip_prefix(MODULE)).filter(names.str.starts_with(MODULE))
    return found.select(_COLUMNS)


def layer_ranges(events: pl.DataFrame) -> pl.DataFrame:
    """Return named ranges with a layer's number, and the stretches between two hooks of one pass through a layer.

    >>> rows = [("FSDP::pre_forward (layers.3)", 0, 2), ("FSDP::post_forward (layers.3)", 8, 9), ("data", 10, 11)]
    >>> events = pl.DataFrame([{"kind": "annotation", "tid": 1, "start_ns": s, "end_ns": e, "name": n}
    ...                        for n, s, e in rows])
    >>> layer_ranges(events).select("name", "start_ns", "end_ns").rows()[-1]
    ('layers.3', 0, 9)
    """
    named = events.lazy().filter(pl.col("kind") == "annotation").select(_COLUMNS).collect()
    named = named.with_columns(pl.col("name").cast(pl.String))
    distinct = named["name"].unique().drop_nulls().to_list()
    numbered = [name for name in distinct if layer_number(name) is not None]
    ranges = named.filter(pl.col("name").is_in(numbered))
    hooks = {name: found.groups() for name in numbered if (found := re.search(_HOOK, name[-1000:]))}
    if not hooks:
        return ranges
    heads = dict.fromkeys(("name", "side", "pass", "path"), pl.String)
    words = pl.DataFrame([(name, *groups) for name, groups in hooks.items()], orient="row", schema=heads)
    marks = ranges.join(words, on="name").sort("start_ns")
    keys = ["tid", "pass", "path"]
    before = marks.filter(pl.col("side") == "pre").select(*keys, "start_ns", "end_ns")
    after = marks.filter(pl.col("side") == "post").select(*keys, at="start_ns", end="end_ns")
    paired = before.join_asof(
        after, left_on="start_ns", right_on="at", by=keys, strategy="forward", check_sortedness=False
    )
    paired = paired.drop_nulls("end").select("tid", "start_ns", end_ns="end", name="path")
    return pl.concat([ranges, paired.select(_COLUMNS)])


def layer_number(name: str) -> int | None:
    """Return the number of the layer that a name speaks of; the last, where it names several.

    >>> [layer_number(name) for name in ("layer 3", "model.layers.12.mlp", "DecoderLayer_4", "h.7", "launch 5")]
    [3, 12, 4, 7, None]
    """
    found = LAYER.findall(name[-1000:])
    return int(found[-1]) if found else None
