"""Three lanes in three phases: what communication and copies each rank hid while warming up, steady and cooling down.

The published ideal of the overlapped interleaved schedule: warm-up runs forwards beside their offload; steady state
runs a forward and a backward together, weight gradients beside the pipeline's sends, offload of the last forward and
onload for the next backward; cool-down runs backwards beside their onload. Every lane beside the first is hidden.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import numpy.typing as npt
import polars as pl

from tracekit._util.arrays import group_rows
from tracekit._util.columns import to_int64
from tracekit.intervals import EMPTY, Intervals, union
from tracekit.metrics.lanes import among_labels, label_codes
from tracekit.schema import COMMUNICATION_LABELS, COMPUTE_LABELS, COPY_LABELS, LABELS, PASSES, PHASES

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
_COMPUTE = (*COMPUTE_LABELS, "other")
_OTHER_PASS = (("dgrad", "wgrad", "backward", "recompute"), ("forward",))
"""Compute of the other pass, for each of ``PASSES``."""
_LANE = {
    **dict.fromkeys(_COMPUTE, "computation"),
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
    step, phase, low, high = np.array(windows, np.int64).reshape(-1, 4).T
    label = rows["code"].to_numpy() if "code" in rows.columns else label_codes(rows)
    pass_ = to_int64(rows["pass"].cast(pl.Enum(PASSES)).to_physical())
    kind, first = group_rows(label, pass_)
    if not windows or not len(first):
        return pl.DataFrame(schema=LANES)
    start, end = _spans(rows)
    own = union(start, end, kind)
    covers = [_time(start, end, label, wanted) for wanted in (_COMPUTE, ("wgrad",), *_OTHER_PASS)]
    ns = np.zeros((len(MEASURED), len(first), len(windows)), np.int64)
    for at, of_pass in enumerate(pass_[first].tolist()):
        time = own.of(at)
        beside = [time & covers[0], time & covers[1], time & covers[2 + of_pass] if of_pass >= 0 else EMPTY]
        for which, part in enumerate((time, *beside)):
            ns[which, at] = part.covered_ns(low, high)
    return _summed(ns, (step, phase, high - low), label[first], pass_[first])


def _summed(ns: Ints, windows: tuple[Ints, Ints, Ints], label: Ints, pass_: Ints) -> pl.DataFrame:
    """Return LANES: what was measured of each label and pass in each window, over the windows of a step's phase."""
    step, phase, span = windows
    same, first = group_rows(step - step.min(), phase)
    totals = np.zeros((1 + len(ns), len(label), len(first)), np.int64)
    for window, of_phase in enumerate(same.tolist()):
        totals[0, :, of_phase] += span[window]
        totals[1:, :, of_phase] += ns[:, :, window]
    of, at = np.nonzero(totals[1])
    lane = [_LANE[LABELS[code]] for code in label.tolist()]
    columns = {
        "step": step[first[at]],
        "phase": pl.Series((*PHASES, "FB"), dtype=LANES["phase"])[phase[first[at]]],
        "span_ns": totals[0][of, at],
        "lane": pl.Series(lane, dtype=LANES["lane"])[of],
        "label": pl.Series([LABELS[code] for code in label.tolist()], dtype=pl.String)[of],
        "pass": pl.Series([(*PASSES, None)[code] for code in pass_.tolist()], dtype=pl.String)[of],
        **{name: totals[1 + which][of, at] for which, name in enumerate(MEASURED)},
    }
    return pl.DataFrame(columns, schema=LANES)


def _time(start: Ints, end: Ints, label: Ints, wanted: tuple[str, ...]) -> Intervals:
    at = np.flatnonzero(among_labels(label, wanted))
    return union(start[at], end[at])


def _spans(part: pl.DataFrame) -> tuple[Ints, Ints]:
    return part["start_ns"].to_numpy(), part["end_ns"].to_numpy()


def _windows(chunks: pl.DataFrame) -> list[tuple[int, int, int, int]]:
    """Step, phase, start and end of every phase, and of every overlapped block."""
    rows: list[tuple[int, int, int, int]] = []
    columns = (chunks[name].to_list() for name in ("step", "op", "start_ns", "end_ns"))
    spans: dict[int, tuple[list[tuple[int, int]], list[tuple[int, int]]]] = {}
    for step, op, start, end in zip(*columns, strict=True):
        spans.setdefault(step, ([], []))[op == "F"].append((start, end))
    for step, (back, forward) in spans.items():
        first, last = min(start for start, _ in back + forward), max(end for _, end in back + forward)
        warm = min((start for start, _ in back), default=last)
        cool = max(warm, max((end for _, end in forward), default=first))
        rows += [(step, phase, a, b) for phase, (a, b) in enumerate(pairwise((first, warm, cool, last)))]
    for part in chunks.filter(pl.col("beside") >= 0).partition_by("step", maintain_order=True):
        rows += [(int(part["step"][0]), len(PHASES), a, b) for a, b in _blocks(part)]
    return [row for row in rows if row[3] > row[2]]


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
