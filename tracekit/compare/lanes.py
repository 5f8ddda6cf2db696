"""Three lanes in three phases: what communication and copies a rank hid while warming up, steady and cooling down.

The published ideal of the overlapped interleaved schedule: warm-up runs forwards beside their offload; steady state
runs a forward and a backward together, weight gradients beside the pipeline's sends, offload of the last forward and
onload for the next backward; cool-down runs backwards beside their onload. Every lane beside the first is hidden.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import polars as pl

from tracekit.metrics.intervals import Intervals, union
from tracekit.schema import COMMUNICATION_LABELS, COMPUTE_LABELS, COPY_LABELS

Ints = npt.NDArray[np.int64]
PHASES = ("warm-up", "steady", "cool-down")
LANES = pl.Schema(
    {
        "step": pl.Int64(),
        "phase": pl.Enum((*PHASES, "FB")),  # FB: inside the overlapped blocks alone
        "span_ns": pl.Int64(),  # of the phase on this rank
        "lane": pl.Enum(("computation", "communication", "offload")),
        "label": pl.String(),
        "pass": pl.String(),
        "total_ns": pl.Int64(),
        "hidden_ns": pl.Int64(),  # under compute
        "beside_wgrad_ns": pl.Int64(),
    }
)
_LANE = {
    **dict.fromkeys((*COMPUTE_LABELS, "other"), "computation"),
    **dict.fromkeys(COMMUNICATION_LABELS, "communication"),
    **dict.fromkeys(COPY_LABELS, "offload"),
}


def lanes(rows: pl.DataFrame, chunks: pl.DataFrame) -> pl.DataFrame:
    """Per step, phase, label and pass: time, and time hidden under compute, of one rank.

    Warm-up ends where the first backward starts, cool-down begins where the last forward ends.

    >>> rows = pl.DataFrame({"label": ["forward", "offload", "dgrad"], "pass": ["forward", None, "backward"],
    ...     "start_ns": [0, 4, 10], "end_ns": [8, 10, 20]})
    >>> chunks = pl.DataFrame({"step": [0, 0], "op": ["F", "B"], "beside": [-1, -1], "start_ns": [0, 10],
    ...     "end_ns": [8, 20]})
    >>> lanes(rows, chunks).filter(label="offload").select("phase", "total_ns", "hidden_ns").rows()
    [('warm-up', 6, 4)]
    """
    windows = _windows(chunks)
    keyed = rows.with_columns(pl.col("label").cast(pl.String), pl.col("pass").cast(pl.String))
    compute = union(*_spans(keyed.filter(pl.col("label").is_in([*COMPUTE_LABELS, "other"]))))
    weights = union(*_spans(keyed.filter(pl.col("label") == "wgrad")))
    found = []
    for (label, pass_), part in keyed.group_by("label", "pass", maintain_order=True):
        lane = _LANE.get(str(label))
        if lane is None:
            continue
        mine = union(*_spans(part))
        hidden = mine & compute
        beside = mine & weights
        totals = [s.covered_ns(windows["start_ns"], windows["end_ns"]) for s in (mine, hidden, beside)]
        found.append(
            windows.with_columns(
                pl.lit(lane).alias("lane"),
                pl.lit(label, pl.String).alias("label"),
                pl.lit(pass_, pl.String).alias("pass"),
                total_ns=pl.Series(totals[0]),
                hidden_ns=pl.Series(totals[1]),
                beside_wgrad_ns=pl.Series(totals[2]),
            )
        )
    if not found:
        return pl.DataFrame(schema=LANES)
    table = pl.concat(found).with_columns(span_ns=pl.col("end_ns") - pl.col("start_ns"))
    keys = ["step", "phase", "lane", "label", "pass"]
    summed = table.group_by(keys, maintain_order=True).agg(
        pl.col("span_ns", "total_ns", "hidden_ns", "beside_wgrad_ns").sum()
    )
    return summed.filter(pl.col("total_ns") > 0).select(pl.col(n).cast(kind) for n, kind in LANES.items())


def _spans(part: pl.DataFrame) -> tuple[Ints, Ints]:
    return part["start_ns"].to_numpy(), part["end_ns"].to_numpy()


def _windows(chunks: pl.DataFrame) -> pl.DataFrame:
    """Step, phase, start and end of every phase, and of every overlapped block."""
    rows: list[tuple[int, str, int, int]] = []
    for part in chunks.partition_by("step", maintain_order=True):
        step = int(part["step"][0])
        first, last = _time(part["start_ns"].min()), _time(part["end_ns"].max())
        backwards, forwards = part.filter(pl.col("op") != "F"), part.filter(pl.col("op") == "F")
        warm = _time(backwards["start_ns"].min()) if backwards.height else last
        cool = max(warm, _time(forwards["end_ns"].max()) if forwards.height else first)
        rows += [(step, "warm-up", first, warm), (step, "steady", warm, cool), (step, "cool-down", cool, last)]
        rows += [(step, "FB", a, b) for a, b in _blocks(part)]
    real = [row for row in rows if row[3] > row[2]]
    return pl.DataFrame(real, schema=["step", "phase", "start_ns", "end_ns"], orient="row")


def _blocks(part: pl.DataFrame) -> list[tuple[int, int]]:
    """Where a forward and a backward ran as one block."""
    paired = part.filter(pl.col("beside") >= 0)
    blocks: Intervals = union(*_spans(paired))
    return list(zip(blocks.start_ns.tolist(), blocks.end_ns.tolist(), strict=True))


def _time(value: object) -> int:
    assert isinstance(value, int)
    return value
