"""Work of the host at each allocation: operator, phase, label, module, step and pipeline chunk.

The allocator's times are the host's, and the host runs ahead of the GPU. So a moment belongs to the
work that the host is launching: to the launch that follows it in the same operator, else to the one
before it there. The phase of moments between operators is decided by the launches on both sides
(``phases.add_phases``).
"""

from __future__ import annotations

import polars as pl

from tracekit.memory.measures.phases import add_phases, find_outermost_ops

HOST_WORK = pl.Schema(
    {
        "row": pl.Int64(),  # the allocator's event
        "operator": pl.String(),  # outermost operator around it; null between operators
        "phase": pl.String(),  # forward, backward, recompute or optimizer; null if unknown
        "label": pl.String(),  # of the launch it belongs to
        "module": pl.String(),
        "step": pl.Int64(),
        "chunk": pl.Int64(),  # row of the rank's table of chunks; null outside of them
        "op_end_ns": pl.Int64(),  # end of the operator
    }
)
"""One row per event of the allocator."""


def find_host_work(
    events: pl.DataFrame, labelled: pl.DataFrame, ops: pl.DataFrame, chunks: pl.DataFrame | None
) -> pl.DataFrame:
    """Return ``HOST_WORK`` of the allocator's events, in their order.

    Args:
        events: Columns ``row``, ``at_ns`` and ``tid``, the thread; null where it is not known.
        labelled: GPU events of the rank.
        ops: CPU operators of the rank.
        chunks: Its pipeline chunks (``reconstruct.chunk_table.CHUNKS``); None without a pipeline.

    """
    outermost = find_outermost_ops(ops)
    placed = _place_in_operators(events, outermost)
    phased = add_phases(placed.select("row", "at_ns", "tid"), labelled, ops).select("row", "phase")
    placed = placed.join(phased, on="row", how="left", maintain_order="left")
    with_launch = _add_launches(placed, labelled)
    with_chunk = _add_chunks(with_launch, chunks)
    columns = [pl.col(name).cast(dtype) for name, dtype in HOST_WORK.items()]
    return with_chunk.sort("row").select(columns)


def find_threads(times: pl.Series, ops: pl.DataFrame) -> pl.Series:
    """Return the thread of each moment: that of the operator around it; null between operators."""
    events = times.alias("at_ns").to_frame().with_row_index("row").cast({"row": pl.Int64})
    placed = _place_in_operators(
        events.with_columns(tid=pl.lit(None, pl.Int64)), find_outermost_ops(ops)
    )
    return placed.sort("row")["tid"]


def _place_in_operators(events: pl.DataFrame, outermost: pl.DataFrame) -> pl.DataFrame:
    """Add the outermost operator around each event, and its thread where that is not known.

    An event of an unknown thread belongs to the operator around it that started last: other threads
    wait in theirs.
    """
    times = events.sort("at_ns", maintain_order=True)
    candidates = []
    for operators in outermost.partition_by("tid"):
        joined = times.join_asof(
            operators.rename({"tid": "op_tid"}).sort("op_ns"),
            left_on="at_ns",
            right_on="op_ns",
            check_sortedness=False,
            coalesce=False,
        )
        is_inside = pl.col("at_ns") <= pl.col("op_end_ns")
        is_thread = pl.col("tid").is_null() | (pl.col("tid") == pl.col("op_tid"))
        candidates.append(joined.filter(is_inside & is_thread))
    if not candidates:
        nothing = pl.lit(None, pl.Int64)
        return times.with_columns(
            op_ns=nothing, op_end_ns=nothing, operator=pl.lit(None, pl.String)
        )
    innermost = (
        pl.concat(candidates).sort("row", "op_ns").unique("row", keep="last", maintain_order=True)
    )
    operators = innermost.select("row", "op_tid", "op_ns", "op_end_ns", "operator")
    placed = times.join(operators, on="row", how="left", maintain_order="left")
    return placed.with_columns(tid=pl.coalesce("tid", "op_tid")).drop("op_tid")


def _add_launches(placed: pl.DataFrame, labelled: pl.DataFrame) -> pl.DataFrame:
    """Add label, module and step of the launch that each event belongs to, and its time (``anchor_ns``)."""
    launches = labelled.select(
        "launch_ns",
        pl.col("launch_tid").alias("tid"),
        pl.col("label", "module").cast(pl.String),
        "step",
    )
    launches = launches.drop_nulls(["launch_ns", "tid"]).sort("launch_ns")
    following = _nearest_launch(placed, launches, "forward").filter(
        pl.col("launch_ns") <= pl.col("op_end_ns")
    )
    previous = _nearest_launch(placed, launches, "backward").filter(
        pl.col("launch_ns") >= pl.col("op_ns")
    )
    nearest = pl.concat([following, previous]).unique("row", keep="first", maintain_order=True)
    nearest = nearest.select("row", "label", "module", "step", anchor_ns="launch_ns")
    joined = placed.join(nearest, on="row", how="left", maintain_order="left")
    return joined.with_columns(pl.coalesce("anchor_ns", "at_ns").alias("anchor_ns"))


def _nearest_launch(placed: pl.DataFrame, launches: pl.DataFrame, strategy: str) -> pl.DataFrame:
    in_operator = placed.filter(pl.col("op_ns").is_not_null()).sort("at_ns")
    return in_operator.join_asof(
        launches,
        left_on="at_ns",
        right_on="launch_ns",
        by="tid",
        strategy=strategy,  # type: ignore[arg-type]
        check_sortedness=False,
        coalesce=False,
    )


def _add_chunks(events: pl.DataFrame, chunks: pl.DataFrame | None) -> pl.DataFrame:
    """Add the chunk whose launches surround each event's anchor.

    Of a forward and a backward, that of its phase.
    """
    if chunks is None or chunks.is_empty():
        return events.with_columns(chunk=pl.lit(None, pl.Int64))
    spans = chunks.with_row_index("chunk").select(
        pl.col("chunk").cast(pl.Int64),
        is_forward=pl.col("op") == "F",
        launch_ns="launch_ns",
        last_ns="last_ns",
        chunk_step="step",
    )
    anchors = events.select("row", "anchor_ns", "phase").sort("anchor_ns")
    candidates = []
    for part in spans.partition_by("is_forward"):
        joined = anchors.join_asof(
            part.sort("launch_ns"),
            left_on="anchor_ns",
            right_on="launch_ns",
            check_sortedness=False,
            coalesce=False,
        )
        candidates.append(joined.filter(pl.col("anchor_ns") <= pl.col("last_ns")))
    is_of_phase = pl.col("is_forward") == (pl.col("phase") == "forward")
    best_first = pl.concat(candidates).sort(
        is_of_phase.fill_null(False), pl.col("launch_ns"), descending=True
    )
    best = best_first.unique("row", keep="first", maintain_order=True)
    chunk_of_event = best.select("row", "chunk", "chunk_step")
    joined = events.join(chunk_of_event, on="row", how="left", maintain_order="left")
    return joined.with_columns(step=pl.coalesce("step", "chunk_step"))
