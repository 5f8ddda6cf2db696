"""Loops of a program: runs of operators that repeat, as its threads called them.

What repeats tells what to do. A loop over parameters is one call over all of them, a loop over experts
is batched or grouped products, a loop over time steps with a recurrent cell is the recurrent module.
Layers of a model repeat as well: nothing counts in them. Bodies are compared by the names of their
operators, never by shapes.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from tracekit._util.arrays import Bools, Ints
from tracekit._util.columns import to_int64
from tracekit._util.shapes import parse_list

MAX_PERIOD = 40
"""Operators of a body, at most; layers of a model have more."""
MIN_LOOP_REPETITIONS = 16
"""Repetitions from which a run is a loop."""
MIN_PROVEN_REPETITIONS = 4
"""Repetitions from which a run is a loop where an integer counts in it, or where what it makes is joined behind it:
layers of a model do neither."""
MAX_RECORDED_LIST = 30
"""Tensors of a list up to which PyTorch's profiler records their sizes."""
JOINING_OPERATORS = ("aten::cat", "aten::stack")
MAX_SHARE_BETWEEN = 0.25
"""Operators between two runs of the same body over those of the body, up to which they are one loop: some
repetitions have an operator more or less."""
LOOKING_OPERATORS = frozenset(
    f"aten::{name}"
    for name in [
        "alias",
        "as_strided",
        "detach",
        "expand",
        "narrow",
        "permute",
        "reshape",
        "select",
        "slice",
        "split",
        "squeeze",
        "t",
        "transpose",
        "unbind",
        "unsqueeze",
        "view",
        "view_as",
    ]
)
"""Operators that compute nothing."""
MAX_BRANCHES = 3
"""Operators of a step that are left out in turn, to find loops that have them in some repetitions alone."""
MAX_COVERED_SHARE = 0.8
"""Time of loops over that of one with a branch that holds them, up to which that one explains more."""
MIN_COUNTED_SHARE = 0.8
"""Share of the repetitions of which a concrete integer differs by one from that before, from which it counts."""
PRODUCT_OPERATORS = (
    r"^aten::(linear|matmul|mm|addmm|bmm|baddbmm|einsum|_?convolution|conv[123]d|_(grouped|scaled)_mm"
    r"|scaled_dot_product_attention)$"
)
RESULT_OPERATORS = r"^aten::(item|is_nonzero|_local_scalar_dense|equal|tolist|numpy)$"
"""Operators that give the host a value of the GPU."""
MEASURING_OPERATORS = (
    r"^aten::(linalg_vector_norm|norm|abs|max|min|amax|amin|aminmax|mean|sum|std|var|any|all|isnan|isinf|isfinite|ne|eq"
    r"|gt|lt|ge|le|to|_to_copy|pow|square|sqrt|log|exp|histc|count_nonzero|detach|div|mul|logical_not|logical_or)$"
)
"""Operators that make a figure of a tensor for the host; in front of a result they serve it alone."""
MIN_RESULTS = 16
"""Results that are measured alike in a step, from which they are a habit."""
RECURRENT_CELLS = r"^aten::(_thnn_fused_(lstm|gru)_cell|lstm_cell|gru_cell|rnn_(tanh|relu)_cell)$"
_BACKWARD_OPERATORS = r"^(autograd::|torch::autograd::)|Backward\d*$"

LOOPS = pl.Schema(
    {
        "loop": pl.Int32(),
        "tid": pl.Int64(),
        "start_ns": pl.Int64(),
        "end_ns": pl.Int64(),
        "repetitions": pl.Int32(),
        "body": pl.String(),  # its operators in order, with spaces between
        "has_products": pl.Boolean(),
        "has_cell": pl.Boolean(),  # whether it holds a cell of a recurrent network
        "counts": pl.Boolean(),  # whether a concrete integer counts up or down in it
        "joined": pl.Boolean(),  # whether the results of its repetitions are concatenated or stacked behind it
        "first_sequence": pl.Int64(),  # of its operators' numbers for autograd; null: no backward follows
        "last_sequence": pl.Int64(),
    }
)
"""Loops of one rank, in order of their threads and times."""


class _RepeatedRun(NamedTuple):
    """Operators in a row that repeat."""

    first: int
    """Row of its first operator."""
    period: int
    stop: int
    """Row behind its last operator."""


def find_loops(events: pl.DataFrame, threads: Collection[int]) -> pl.DataFrame:
    """Return ``LOOPS`` of one rank.

    Args:
        events: The rank's events.
        threads: Threads that launch GPU work.

    >>> starts = [number * 10 for number in range(80)]
    >>> unknown = dict.fromkeys(("concrete", "shapes", "sequence"))
    >>> events = pl.DataFrame({"kind": "cpu_op", "name": ["aten::pow", "aten::sum"] * 40, "tid": 1, "step": 1,
    ...     "start_ns": starts, "end_ns": [start + 5 for start in starts], **unknown})
    >>> find_loops(events, [1]).select("repetitions", "body", "counts").row(0)
    (40, 'aten::pow aten::sum', False)
    """
    ops = _outermost(events, threads)
    tables = [LOOPS.to_frame()]
    text = pl.col("name", "concrete", "shapes").cast(pl.String)
    for (tid, _), rows_of_step in ops.group_by("tid", "step", maintain_order=True):
        of_step = rows_of_step.with_columns(text)
        runs = _runs_of_step(of_step)
        stretches = _measured_results(of_step, runs)
        rows = [_describe(of_step, run, tid) for run in (*runs, *stretches)]
        for branch in _branches(of_step["name"]):
            without = of_step.filter(pl.col("name") != branch)
            found = [_describe(without, run, tid) for run in _runs_of_step(without)]
            rows = _longer_loops(rows, [row for row in found if not _looks_alone(row["body"])])
        tables.append(pl.DataFrame(rows, schema=LOOPS))
    return pl.concat(tables).with_columns(loop=pl.int_range(pl.len(), dtype=pl.Int32))


def _outermost(events: pl.DataFrame, threads: Collection[int]) -> pl.DataFrame:
    """Return the operators of threads that no other operator called, those of the backward apart."""
    is_op = (pl.col("kind") == "cpu_op") & pl.col("tid").is_in(list(threads))
    columns = ("name", "tid", "step", "start_ns", "end_ns", "concrete", "shapes", "sequence")
    ops = events.select("kind", *columns).filter(is_op)
    ops = ops.sort("tid", "start_ns", -pl.col("end_ns"))
    end_before = pl.col("end_ns").cum_max().shift(1).over("tid")
    outermost = ops.filter((pl.col("start_ns") >= end_before).fill_null(value=True))
    return outermost.filter(~pl.col("name").cast(pl.String).str.contains(_BACKWARD_OPERATORS))


def _runs_of_step(ops: pl.DataFrame) -> list[_RepeatedRun]:
    """Return the runs of a step that are loops: those that repeat often, and short ones that show to be one."""
    codes = ops["name"].rank("dense").to_numpy().astype(np.int64)
    concrete = ops["concrete"]
    taken = np.zeros(len(codes), np.bool_)

    def repeats_often(run: _RepeatedRun) -> bool:
        return run.stop - run.first >= MIN_LOOP_REPETITIONS * run.period

    def is_proven(run: _RepeatedRun) -> bool:
        is_long_enough = run.stop - run.first >= MIN_PROVEN_REPETITIONS * run.period
        if not is_long_enough or _repeats_within(codes[run.first : run.first + run.period]):
            return False
        return _is_joined(ops, run) or _counts(concrete[run.first : run.stop], run.period)

    runs = _take_runs(codes, taken, first_period=1, is_loop=repeats_often)
    runs += _take_runs(codes, taken, first_period=2, is_loop=is_proven)
    return sorted(runs)


def _branches(names: pl.Series) -> list[str]:
    """Return operators that some repetitions of a loop may have and others not, those that are called most first.

    What stands around such an operator often also stands next to each other.

    >>> _branches(pl.Series("name", (["slice", "flip", "mean"] + ["slice", "mean"]) * 8))
    ['flip']
    """
    around = pl.DataFrame({"name": names, "before": names.shift(1), "behind": names.shift(-1)})
    inside = around.drop_nulls().group_by("name", "before", "behind").agg(pl.len())
    beside = around.group_by("before", behind="name").agg(beside=pl.len())
    skipped = inside.join(beside, on=["before", "behind"], how="inner").filter(
        (pl.min_horizontal("len", "beside") >= MIN_PROVEN_REPETITIONS)
        & (pl.col("len") + pl.col("beside") >= MIN_LOOP_REPETITIONS)
        & (pl.col("name") != pl.col("before"))
        & (pl.col("name") != pl.col("behind"))
    )
    counts = skipped.group_by("name").agg(pl.col("len").sum()).sort("len", "name", descending=True)
    return counts["name"].head(MAX_BRANCHES).to_list()


def _looks_alone(body: str) -> bool:
    """Return whether a body only looks at tensors: what was left out is its work, then, and no branch.

    >>> _looks_alone("aten::as_strided aten::view"), _looks_alone("aten::select aten::mean")
    (True, False)
    """
    return all(name in LOOKING_OPERATORS for name in body.split(" "))


def _longer_loops(
    rows: list[dict[str, Any]], without_branch: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Return loops with those that have a branch, where others cover little of what they repeat."""
    for found in without_branch:
        inside = [
            row
            for row in rows
            if row["start_ns"] < found["end_ns"] and found["start_ns"] < row["end_ns"]
        ]
        covered_ns = sum(row["end_ns"] - row["start_ns"] for row in inside)
        if covered_ns < MAX_COVERED_SHARE * (found["end_ns"] - found["start_ns"]):
            rows = [*(row for row in rows if row not in inside), found]
    return sorted(rows, key=lambda row: int(row["start_ns"]))


def _measured_results(ops: pl.DataFrame, loops: Collection[_RepeatedRun]) -> list[_RepeatedRun]:
    """Return stretches outside of *loops* that measure a tensor and give the host the result, as others do in the step.

    They lie apart, as hooks of modules do: each stretch is a run of one repetition.
    """
    names = ops["name"]
    measures = names.str.contains(MEASURING_OPERATORS).to_numpy()
    gives_result = names.str.contains(RESULT_OPERATORS).to_numpy()
    in_loop = np.zeros(len(names), np.bool_)
    for run in loops:
        in_loop[run.first : run.stop] = True
    serves = (measures | gives_result) & ~in_loop
    edges = np.flatnonzero(np.diff(np.concatenate([[0], serves.astype(np.int8), [0]])))
    stretches = []
    for first, stop in zip(edges[::2], edges[1::2], strict=True):
        results = np.flatnonzero(gives_result[first:stop])
        if len(results):
            last = int(first + results[-1] + 1)
            stretches.append(_RepeatedRun(int(first), last - int(first), last))
    bodies = [" ".join(names[run.first : run.stop]) for run in stretches]
    counts = Counter(bodies)
    return [
        run
        for run, body in zip(stretches, bodies, strict=True)
        if " " in body and counts[body] >= MIN_RESULTS
    ]


def _repeats_within(body: Ints) -> bool:
    """Return whether a body is a shorter one several times.

    >>> _repeats_within(np.array([1, 2, 1, 2])), _repeats_within(np.array([1, 2, 2]))
    (True, False)
    """
    divisors = [period for period in range(1, len(body) // 2 + 1) if len(body) % period == 0]
    return any(np.array_equal(body[period:], body[:-period]) for period in divisors)


def _take_runs(
    codes: Ints,
    taken: Bools,
    *,
    first_period: int,
    is_loop: Callable[[_RepeatedRun], bool],
) -> list[_RepeatedRun]:
    """Return the longest runs of each period, the shortest period first, and mark their operators as *taken*."""
    found: list[_RepeatedRun] = []
    for period in range(first_period, min(MAX_PERIOD, len(codes) // 2) + 1):
        repeats = codes[period:] == codes[:-period]
        edges = np.flatnonzero(np.diff(np.concatenate([[0], repeats.astype(np.int8), [0]])))
        pieces = [
            _RepeatedRun(int(first), period, int(stop) + period)
            for first, stop in zip(edges[::2], edges[1::2], strict=True)
            if stop - first >= period and not taken[first : stop + period].any()
        ]
        for run in _joined(codes, pieces):
            if is_loop(run):
                taken[run.first : run.stop] = True
                found.append(run)
    return found


def _joined(codes: Ints, pieces: list[_RepeatedRun]) -> list[_RepeatedRun]:
    """Return runs with those joined that repeat the same body, a few operators apart."""
    joined: list[_RepeatedRun] = []
    for piece in pieces:
        before = joined[-1] if joined else None
        if before is not None and piece.first - before.stop <= MAX_SHARE_BETWEEN * piece.period:
            own = np.sort(codes[piece.first : piece.first + piece.period])
            other = np.sort(codes[before.first : before.first + before.period])
            if np.array_equal(own, other):
                joined[-1] = before._replace(stop=max(piece.stop, before.stop))
                continue
        joined.append(piece)
    return joined


def _describe(ops: pl.DataFrame, run: _RepeatedRun, tid: object) -> dict[str, Any]:
    """Return the row of ``LOOPS`` of a run."""
    rows = slice(run.first, run.stop)
    body = ops["name"][run.first : run.first + run.period].to_list()
    sequences = ops["sequence"][rows]
    return {
        "loop": 0,
        "tid": tid,
        "start_ns": ops["start_ns"][rows].min(),
        "end_ns": ops["end_ns"][rows].max(),
        "repetitions": (run.stop - run.first) // run.period,
        "body": " ".join(body),
        "has_products": any(re.search(PRODUCT_OPERATORS, name) for name in body),
        "has_cell": any(re.search(RECURRENT_CELLS, name) for name in body),
        "counts": _counts(ops["concrete"][rows], run.period),
        "joined": _is_joined(ops, run),
        "first_sequence": sequences.min(),
        "last_sequence": sequences.max(),
    }


def _is_joined(ops: pl.DataFrame, run: _RepeatedRun) -> bool:
    """Return whether a run's results are joined behind it: one operator takes a tensor of each repetition.

    The sizes of long lists are not recorded: one behind as many repetitions is theirs.
    """
    repetitions = (run.stop - run.first) // run.period
    behind = slice(run.stop, run.stop + run.period)
    for name, shapes in zip(ops["name"][behind], ops["shapes"][behind], strict=True):
        if name in JOINING_OPERATORS and shapes is not None:
            tensors = (parse_list(shapes) or [[]])[0]
            is_unrecorded = not tensors and repetitions >= MAX_RECORDED_LIST
            return abs(len(tensors) - repetitions) <= 1 or is_unrecorded
    return False


def _counts(concrete: pl.Series, period: int) -> bool:
    """Return whether a concrete integer of an operator of the body differs by one from repetition to repetition.

    *concrete* are the inputs of the operators of all repetitions.
    """
    inputs = concrete.to_list()
    for number in range(period):
        texts = inputs[number::period]
        if len(texts) < 2 or None in texts or len(set(texts)) < len(texts) / 2:
            continue
        values = [parse_list(text) for text in texts]
        width = min(map(len, values))
        for position in range(width):
            column = [of_call[position] for of_call in values]
            if all(type(value) is int for value in column):
                steps = np.abs(np.diff(np.array(column, np.int64)))
                if np.mean(steps == 1) >= MIN_COUNTED_SHARE:
                    return True
    return False


def loop_of_events(labelled: pl.DataFrame, loops: pl.DataFrame) -> pl.Series:
    """Return the loop that launched each GPU event, or whose backward it is; null: none."""
    number = np.full(len(labelled), -1, np.int32)
    columns = {
        "launch_tid": to_int64(labelled["launch_tid"], -1),
        "launch_ns": to_int64(labelled["launch_ns"], -1),
        "sequence": to_int64(labelled["autograd_sequence"], -1),
    }
    is_backward = labelled["node"].is_not_null().to_numpy()
    for (tid,), of_thread in loops.sort("start_ns").group_by("tid"):
        launched = np.flatnonzero(columns["launch_tid"] == tid)
        row = (
            np.searchsorted(
                of_thread["start_ns"].to_numpy(), columns["launch_ns"][launched], "right"
            )
            - 1
        )
        is_inside = (row >= 0) & (
            columns["launch_ns"][launched] < of_thread["end_ns"].to_numpy()[row]
        )
        number[launched[is_inside]] = of_thread["loop"].to_numpy()[row[is_inside]]
    of_backward = np.flatnonzero(is_backward & (columns["sequence"] >= 0))
    differentiated = loops.drop_nulls("first_sequence").sort("first_sequence")
    if len(differentiated) and len(of_backward):
        sequence = columns["sequence"][of_backward]
        row = np.searchsorted(differentiated["first_sequence"].to_numpy(), sequence, "right") - 1
        is_inside = (row >= 0) & (sequence <= differentiated["last_sequence"].to_numpy()[row])
        number[of_backward[is_inside]] = differentiated["loop"].to_numpy()[row[is_inside]]
    found = pl.Series("loop", number)
    return found.set(found < 0, None)
