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
    forward = pl.col("op") == "F"
    edges = chunks.group_by("step", maintain_order=True).agg(
        pl.col("start_ns").min().alias("first"),
        pl.col("end_ns").max().alias("last"),
        pl.col("start_ns").filter(~forward).min().alias("warm"),
        pl.col("end_ns").filter(forward).max().alias("cool"),
    )
    warm = pl.coalesce("warm", "last")
    cool = pl.max_horizontal(warm, pl.coalesce("cool", "first")).alias("cool")
    ends = edges.select("step", "first", warm, cool, "last")
    rows: list[tuple[int, str, int, int]] = []
    for step, *times in ends.rows():
        rows += [(step, phase, a, b) for phase, a, b in zip(PHASES, times, times[1:], strict=False)]
    for part in chunks.filter(pl.col("beside") >= 0).partition_by("step", maintain_order=True):
        rows += [(int(part["step"][0]), "FB", a, b) for a, b in _blocks(part)]
    real = [row for row in rows if row[3] > row[2]]
    kinds = {"step": pl.Int64, "phase": pl.String, "start_ns": pl.Int64, "end_ns": pl.Int64}
    return pl.DataFrame(real, schema=kinds, orient="row")


def _blocks(part: pl.DataFrame) -> list[tuple[int, int]]:
    """Where a forward and a backward ran as one block."""
    blocks: Intervals = union(*_spans(part))
    return list(zip(blocks.start_ns.tolist(), blocks.end_ns.tolist(), strict=True))
