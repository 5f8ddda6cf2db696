"""``torch.autograd.profiler.emit_nvtx`` writes each op as ``name[, seq = N][, op_id = N][, sizes = [[…]]]``.

Read back, those ranges are the CPU ops of a PyTorch trace: name, sequence number, shapes, and which of them are
autograd's backward nodes.
"""

from __future__ import annotations

import polars as pl

ENGINE = "autograd::engine::evaluate_function: "
_OPS = r"^(aten|c10d|_c10d_functional|c10d_functional|autograd|torch|prim|prims|quantized|profiler)::"
_NAMESPACED = r"^[a-z_][a-z0-9_]*::[A-Za-z0-9_.]+$"
_BARE = ("record_param_comms", "detach", "detach_")


def parse_ops(frame: pl.DataFrame) -> pl.DataFrame:
    """Turn *frame*'s ``text`` into ``name``, ``sequence``, ``external_id`` and ``shapes``; ops become ``cpu_op``.

    Only push/pop ranges of the default domain can be ops. What a user named with ``record_function`` has neither
    a sequence number nor sizes and stays an annotation, as in a PyTorch trace.

    >>> frame = pl.DataFrame({"kind": ["annotation"], "tid": [1], "domain": [None], "domain_id": [0],
    ...     "text": ["aten::mm, seq = 883, op_id = 9181, sizes = [[1024, 2048], [2048, 6144]]"]})
    >>> parse_ops(frame).select("kind", "name", "sequence", "shapes").row(0)
    ('cpu_op', 'aten::mm', 883, '[[1024,2048],[2048,6144]]')
    """
    eligible = (pl.col("kind") == "annotation") & pl.col("tid").is_not_null() & (pl.col("domain_id") == 0)
    emitted = pl.col("text").str.contains(r", (?:seq = -?\d|op_id = \d|sizes = \[)")
    chosen = frame.select("text", eligible=eligible, emitted=eligible & emitted)
    text = chosen.select(pl.when("emitted").then("text")).to_series()
    end = text.str.find(r", (?:seq = |op_id = |sizes = \[)")
    parsed = frame.with_columns(
        _cut(text, 0, end).fill_null(frame["text"]).alias("name"),
        _number(text, ", seq = ").alias("sequence"),
        _number(text, ", op_id = ").alias("external_id"),
        _shapes(text).alias("shapes"),
    )
    name = pl.col("name")
    torch = name.str.contains(_OPS) | name.is_in(_BARE)
    suffixed = pl.col("sequence").is_not_null() | pl.col("shapes").is_not_null() | name.str.contains(_NAMESPACED)
    is_op = chosen["eligible"] & (torch | (chosen["emitted"] & suffixed))
    return parsed.with_columns(kind=pl.when(is_op).then(pl.lit("cpu_op")).otherwise("kind")).drop("text")


def _cut(text: pl.Series, start: pl.Series | int, length: pl.Series | int | None = None) -> pl.Series:
    """Return a part of *text* by bytes, as they are counted where something is found; null where *start* is.

    Both ends must be where a character begins. To find and to cut takes a sixth of what a pattern with groups takes.
    """
    part = pl.lit(text).cast(pl.Binary).bin.slice(start, length).cast(pl.String)
    return pl.select(part).to_series()


def _number(text: pl.Series, mark: str) -> pl.Series:
    """Return the number behind *mark*."""
    behind = _cut(text, text.str.find(mark + "[0-9]") + len(mark))
    return behind.str.extract("^([0-9]+)").cast(pl.Int64, strict=False)


def _shapes(text: pl.Series) -> pl.Series:
    """Return the sizes without blanks, and without the ids of the inputs behind them."""
    sizes = _cut(text, text.str.find(", sizes = [", literal=True) + len(", sizes = "))
    ids = sizes.str.find("], input_op_ids = ", literal=True)
    known = pl.when(ids.is_not_null()).then(_cut(sizes, 0, ids + 1)).when(sizes.str.ends_with("]")).then(sizes)
    return pl.select(known).to_series().str.replace_all(" ", "", literal=True)


def link_autograd(frame: pl.DataFrame) -> pl.DataFrame:
    """Give backward nodes ``fwd_thread``, and the engine's ranges their node's sequence number.

    *frame* is sorted by process, thread and start, outer range first. A backward node is the range directly inside
    the engine's range of its own name; the forward thread is that of the latest op before it with its number.
    """
    if not frame.height:
        return frame.with_columns(fwd_thread=pl.lit(None, dtype=pl.Int64))
    name, engine = pl.col("name"), pl.col("name").str.starts_with(ENGINE)
    keys = ["process", "tid"]
    inside = (pl.col("start_ns") < pl.col("end_ns").shift(1)).over(keys)
    node = inside & (name == name.str.strip_prefix(ENGINE).shift(1).over(keys)) & engine.shift(1).over(keys)
    older = ~engine & name.str.contains(r"Backward\d*$") & pl.col("sequence").is_not_null()
    frame = frame.with_columns(_node=(pl.col("kind") == "cpu_op") & (node | older).fill_null(False))
    own = pl.when(pl.col("_node")).then("sequence")
    frame = frame.with_columns(sequence=pl.when(engine).then(own.shift(-1).over(keys)).otherwise("sequence"))
    backward = (pl.col("_node") | engine) & pl.col("sequence").is_not_null()
    frame = frame.with_row_index("_row").with_columns(_backward=backward)
    threads = _forward_threads(frame)
    forward = (pl.col("kind") == "cpu_op") & pl.col("sequence").is_not_null()
    return (
        frame.join(threads, on="_row", how="left", maintain_order="left")
        .with_columns(
            fwd_thread=pl.when("_backward")
            .then(pl.coalesce("_forward_tid", pl.col("process") & 0xFFFFFF))  # a process's first thread has its pid
            .when(forward)
            .then(pl.lit(0, dtype=pl.Int64))
        )
        .drop("_row", "_node", "_backward", "_forward_tid")
    )


def _forward_threads(frame: pl.DataFrame) -> pl.DataFrame:
    numbered = frame.filter(pl.col("kind") == "cpu_op", pl.col("sequence").is_not_null())
    keys = ["process", "sequence"]
    forward = (
        numbered.filter(~pl.col("_backward"))
        .select(*keys, "start_ns", pl.col("tid").alias("_forward_tid"))
        .sort("start_ns")
    )
    backward = numbered.filter("_backward").select("_row", *keys, "start_ns").sort("start_ns")
    return backward.join_asof(forward, on="start_ns", by=keys, check_sortedness=False).select("_row", "_forward_tid")
