"""Three lanes in three phases: what communication and copies each rank hid while warming up, steady and cooling down.

The published ideal of the overlapped interleaved schedule: warm-up runs forwards beside their offload; steady state
runs a forward and a backward together, weight gradients beside the pipeline's sends, offload of the last forward and
onload for the next backward; cool-down runs backwards beside their onload. Every lane beside the first is hidden.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import polars as pl

from tracekit._util.coded import Text, kinds
from tracekit.intervals import EMPTY, Intervals, union
from tracekit.schema import COMMUNICATION_LABELS, COMPUTE_LABELS, COPY_LABELS, PHASES

Ints = npt.NDArray[np.int64]
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
        "beside_other_pass_ns": pl.Int64(),  # under compute of the other pass: another micro-batch's
    }
)
MEASURED = ("total_ns", "hidden_ns", "beside_wgrad_ns", "beside_other_pass_ns")
CROSSED = 0.1
"""Share of communication that must run beside the other pass's compute for micro-batches to overlap on a rank."""
_LANE = {
    **dict.fromkeys((*COMPUTE_LABELS, "other"), "computation"),
    **dict.fromkeys(COMMUNICATION_LABELS, "communication"),
    **dict.fromkeys(COPY_LABELS, "offload"),
}


def lanes(rows: pl.DataFrame, chunks: pl.DataFrame) -> pl.DataFrame:
    """Return one rank's time, and time hidden under compute, per step, phase, label and pass.

    Warm-up ends where the first backward starts, cool-down begins where the last forward ends.

    >>> rows = pl.DataFrame({"label": ["forward", "offload", "dgrad"], "pass": ["forward", None, "backward"],
    ...     "start_ns": [0, 4, 10], "end_ns": [8, 10, 20]})
    >>> chunks = pl.DataFrame({"step": [0, 0], "op": ["F", "B"], "beside": [-1, -1], "start_ns": [0, 10],
    ...     "end_ns": [8, 20]})
    >>> lanes(rows, chunks).filter(label="offload").select("phase", "total_ns", "hidden_ns").rows()
    [('warm-up', 6, 4)]
    """
    windows = _windows(chunks)
    low, high = _spans(windows)
    start, end = _spans(rows)
    label, pass_ = Text.of(rows["label"]), Text.of(rows["pass"])
    compute = _time(start, end, label, (*COMPUTE_LABELS, "other"))
    weights = _time(start, end, label, ("wgrad",))
    others = {
        "forward": _time(start, end, label, ("dgrad", "wgrad", "backward", "recompute")),
        "backward": _time(start, end, label, ("forward",)),
    }
    measured: dict[str, list[Ints]] = {name: [] for name in MEASURED}
    found = kinds(np.flatnonzero(label.map(_LANE.__contains__)), label, pass_)
    known = [(str(name), of_pass) for (name, of_pass), _ in found]
    for (_, of_pass), at in found:
        own_time = union(start[at], end[at])
        crossed = own_time & others[of_pass] if of_pass in others else EMPTY
        for part, time in zip(
            measured.values(), (own_time, own_time & compute, own_time & weights, crossed), strict=True
        ):
            part.append(time.covered_ns(low, high))
    if not known:
        return pl.DataFrame(schema=LANES)
    table = pl.concat([windows] * len(known)).with_columns(
        pl.Series("lane", np.repeat([_LANE[name] for name, _ in known], windows.height), pl.String),
        *(
            pl.Series(n, [kind[k] for kind in known for _ in range(windows.height)], pl.String)
            for k, n in enumerate(("label", "pass"))
        ),
        *(pl.Series(n, np.concatenate(parts)) for n, parts in measured.items()),
        span_ns=pl.col("end_ns") - pl.col("start_ns"),
    )
    by = ["step", "phase", "lane", "label", "pass"]
    summed = table.group_by(by, maintain_order=True).agg(pl.col("span_ns", *MEASURED).sum())
    return summed.filter(pl.col("total_ns") > 0).select(pl.col(n).cast(kind) for n, kind in LANES.items())


def _time(start: Ints, end: Ints, label: Text, wanted: tuple[str, ...]) -> Intervals:
    at = label.map(wanted.__contains__)
    return union(start[at], end[at])


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


def crossed_share(table: pl.DataFrame) -> float:
    """Return the share of a rank's communication, of known pass, that runs beside compute of the other pass.

    >>> crossed_share(pl.DataFrame({"phase": ["steady"], "lane": ["communication"], "pass": ["forward"],
    ...                             "total_ns": [10], "beside_other_pass_ns": [7]}))
    0.7
    """
    phases = pl.col("phase").cast(pl.String) != "FB"  # blocks are measured again inside their phases
    known = table.filter((pl.col("lane").cast(pl.String) == "communication") & pl.col("pass").is_not_null() & phases)
    whole = int(known["total_ns"].sum())
    return int(known["beside_other_pass_ns"].sum()) / whole if whole else 0.0
