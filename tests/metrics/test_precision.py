"""Weights that are cast again."""

from __future__ import annotations

import polars as pl
import pytest

from tracekit.metrics.alternatives.precision import CastOnce
from tracekit.metrics.attainable import Share
from tracekit.metrics.rank_work import RankWork
from tracekit.metrics.speeds import Speeds


def rank_work(*events, bandwidth=None):
    """Work of a GPU whose memory moves as many bytes per ns, of which kernels reach the half, all or twice that."""
    works = [("memory", "*"), ("optimizer", "*")]
    speeds = Speeds({}, bandwidth, dict.fromkeys(works, Share(0.5, 1.0, 2.0)))
    frame = pl.DataFrame(list(events), infer_schema_length=None)
    missing = [pl.lit(None, pl.String).alias(name) for name in ("node",) if name not in frame]
    return RankWork(frame.with_columns(missing), pl.DataFrame(), speeds)


def event(row, op, shapes, dtypes, *, backward=False, part=0, **more):
    values = {
        "kind": "elementwise",
        "label": "dgrad" if backward else "forward",
        "node": None,
        **more,
    }
    return {"row": row, "part": part, "op": op, "ns": 10, "is_backward": backward,
            "shapes": shapes, "dtypes": dtypes, **values}  # fmt: skip


def cast(row, shape, **more):
    types = '["c10::BFloat16","float","Scalar"]'
    return event(row, "aten::copy_", f"[{shape},{shape},[]]", types, **more)


def cast_back(row, shape, **more):
    types = '["float","c10::BFloat16","Scalar"]'
    return event(row, "aten::copy_", f"[{shape},{shape},[]]", types, backward=True, **more)


def added_up(row, shape):
    types = '["float","float","Scalar"]'
    shapes = f"[{shape},{shape},[]]"
    return event(row, "aten::add_", shapes, types, backward=True, node="AccumulateGrad")


WEIGHT = "[64, 32]"


LINEAR = event(0, "aten::mm", "[[8,32],[32,64]]", None, kind="product")
"""A product of eight tokens by the weight, transposed."""


OTHER = (
    event(50, "aten::mm", "[[8,16],[16,16]]", None, kind="product"),
    cast(51, "[16, 16]"),
    cast_back(52, "[16, 16]"),
)
"""A weight that is trained, and cast once."""


@pytest.mark.parametrize(
    ("events", "again", "what"),
    [
        # A program that trains nothing, and a weight beside others that are trained.
        ([cast(1, WEIGHT), cast(2, WEIGHT, part=1)], [1, 2], "fixed_weights"),
        ([cast(1, WEIGHT), *OTHER], [1], "fixed_weights"),
        # Where no gradient is cast back it is not known what is trained.
        ([cast(1, WEIGHT), event(2, "aten::mm", "[]", None, backward=True)], [], None),
        ([cast(1, WEIGHT), cast_back(2, WEIGHT)], [], None),
        # Two micro-batches: the second gradient is added to the first.
        (
            [cast(1, WEIGHT), cast_back(2, WEIGHT), cast(3, WEIGHT), cast_back(4, WEIGHT), added_up(5, WEIGHT)],
            [3],
            "trained_weights",
        ),
        # Two weights of one size, and gradients that are zeroed and then added to.
        ([cast(1, WEIGHT), cast(2, WEIGHT), cast_back(3, WEIGHT), cast_back(4, WEIGHT)], [], None),
        ([cast(1, WEIGHT), cast_back(2, WEIGHT), added_up(3, WEIGHT)], [], None),
        # Recomputed forwards cast again: that goes with them. Activations change.
        ([cast(1, WEIGHT), cast(2, WEIGHT, label="recompute"), cast_back(3, WEIGHT)], [], None),
        ([cast(1, "[8, 32]"), cast(2, "[8, 32]", part=1)], [], None),
        ([cast(1, "[8, 32]"), *OTHER], [], None),
        # In a program that trains nothing they are cast for the weights' sake, and biases as weights are.
        ([cast(1, WEIGHT), cast(2, "[8, 32]")], [1, 2], "fixed_weights"),
        ([cast(1, "[64]"), *OTHER], [], None),
        (
            [cast(1, "[64]"), event(2, "aten::addmm", "[[64],[8,32],[32,64]]", None, kind="product"), *OTHER],
            [1],
            "fixed_weights",
        ),
    ],
)  # fmt: skip
def test_weights_are_cast_again_that_have_not_changed(events, again, what):
    (*remedies,) = CastOnce().find(rank_work(LINEAR, *events))
    table = pl.concat(remedies) if remedies else pl.DataFrame({"row": [], "what": []})
    assert sorted(table["row"].to_list()) == again
    assert table["what"].unique().to_list() == ([what] if what else [])
