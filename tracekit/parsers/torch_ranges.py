"""PyTorch's operators among the ranges of a process.

``torch.autograd.profiler.emit_nvtx`` writes each op as a range ``name[, seq = N][, op_id = N][,
sizes = [[…]]]``, on NVIDIA's GPUs as on AMD's. Those ranges become the CPU ops of a PyTorch trace, with sequence
number, shapes and the forward thread of backward nodes.
"""

import polars as pl

from tracekit.parsers.process_ranks import PID_MASK

_ENGINE = "autograd::engine::evaluate_function: "
_TORCH_OPS = (
    r"^(aten|c10d|_c10d_functional|c10d_functional|autograd|torch|prim|prims|quantized|profiler)::"
)
_OPS_WITHOUT_NAMESPACE = ("record_param_comms", "detach", "detach_")
_NAMESPACED = r"^[a-z_][a-z0-9_]*::[A-Za-z0-9_.]+$"


def parse_ops(ranges: pl.DataFrame) -> pl.DataFrame:
    """Split ``text`` into ``name``, ``sequence``, ``external_id`` and ``shapes``.

    Ops become ``cpu_op``.

    Only push/pop ranges of the default domain can be ops. A range that a user named with
    ``record_function`` has neither a sequence number nor sizes and stays an annotation, as in a
    PyTorch trace.

    >>> ranges = pl.DataFrame({"kind": ["annotation"], "tid": [1], "domain": [None], "domain_id": [0],
    ...     "text": ["aten::mm, seq = 883, op_id = 9181, sizes = [[1024, 2048], [2048, 6144]]"]})
    >>> parse_ops(ranges).select("kind", "name", "sequence", "shapes").row(0)
    ('cpu_op', 'aten::mm', 883, '[[1024,2048],[2048,6144]]')
    """
    can_be_op = (
        (pl.col("kind") == "annotation") & pl.col("tid").is_not_null() & (pl.col("domain_id") == 0)
    )
    has_suffix = can_be_op & pl.col("text").str.contains(r", (?:seq = -?\d|op_id = \d|sizes = \[)")
    text = pl.when(has_suffix).then("text")
    parsed = ranges.with_columns(
        name=pl.coalesce(text.str.extract(r"(?s)^(.*?), (?:seq = |op_id = |sizes = \[)"), "text"),
        sequence=text.str.extract(", seq = ([0-9]+)").cast(pl.Int64, strict=False),
        external_id=text.str.extract(", op_id = ([0-9]+)").cast(pl.Int64, strict=False),
        # The ids of the inputs can follow the sizes.
        shapes=text.str.extract(
            r"(?s), sizes = (\[.*?\])(?:, input_op_ids = .*)?$"
        ).str.replace_all(" ", ""),
    )
    name = pl.col("name")
    is_torch_op = name.str.contains(_TORCH_OPS) | name.is_in(_OPS_WITHOUT_NAMESPACE)
    is_other_op = (
        pl.col("sequence").is_not_null()
        | pl.col("shapes").is_not_null()
        | name.str.contains(_NAMESPACED)
    )
    is_op = can_be_op & (is_torch_op | (has_suffix & is_other_op))
    return parsed.with_columns(kind=pl.when(is_op).then(pl.lit("cpu_op")).otherwise("kind")).drop(
        "text"
    )


def link_autograd(ranges: pl.DataFrame) -> pl.DataFrame:
    """Give backward nodes ``fwd_thread``, and the autograd engine's ranges the sequence number of their node.

    *ranges* are sorted by process, thread and start, outer range first. A backward node is the
    range directly inside the engine's range of its own name. Its forward thread is that of the
    latest op before it with its sequence number.
    """
    if not ranges.height:
        return ranges.with_columns(fwd_thread=pl.lit(None, dtype=pl.Int64))
    thread = ["process", "tid"]
    name = pl.col("name")
    is_engine = pl.col("name").str.starts_with(_ENGINE)
    is_inside_previous = (pl.col("start_ns") < pl.col("end_ns").shift(1)).over(thread)
    node_of_previous = name.str.strip_prefix(_ENGINE).shift(1).over(thread)
    is_engine_node = (
        is_inside_previous & (name == node_of_previous) & is_engine.shift(1).over(thread)
    )
    # Older versions of PyTorch have no range of the engine around a node.
    is_named_node = (
        ~is_engine & name.str.contains(r"Backward\d*$") & pl.col("sequence").is_not_null()
    )
    is_node = (pl.col("kind") == "cpu_op") & (is_engine_node | is_named_node).fill_null(False)
    ranges = ranges.with_columns(_is_node=is_node)
    node_sequence = pl.when(pl.col("_is_node")).then("sequence")
    ranges = ranges.with_columns(
        sequence=pl.when(is_engine).then(node_sequence.shift(-1).over(thread)).otherwise("sequence")
    )
    is_backward = (pl.col("_is_node") | is_engine) & pl.col("sequence").is_not_null()
    ranges = ranges.with_row_index("_row").with_columns(_is_backward=is_backward)
    is_forward = (pl.col("kind") == "cpu_op") & pl.col("sequence").is_not_null()
    # The first thread of a process has the process's pid.
    first_thread = pl.col("process") & PID_MASK
    of_backward = pl.when("_is_backward").then(pl.coalesce("_forward_tid", first_thread))
    fwd_thread = of_backward.when(is_forward).then(pl.lit(0, dtype=pl.Int64))
    linked = ranges.join(_forward_threads(ranges), on="_row", how="left", maintain_order="left")
    return linked.with_columns(fwd_thread=fwd_thread).drop(
        "_row", "_is_node", "_is_backward", "_forward_tid"
    )


def _forward_threads(ranges: pl.DataFrame) -> pl.DataFrame:
    """Return the thread of the latest forward op before each backward op with the same sequence number."""
    keys = ["process", "sequence"]
    ops = ranges.filter(pl.col("kind") == "cpu_op", pl.col("sequence").is_not_null())
    forward = (
        ops.filter(~pl.col("_is_backward"))
        .select(*keys, "start_ns", _forward_tid="tid")
        .sort("start_ns")
    )
    backward = ops.filter("_is_backward").select("_row", *keys, "start_ns").sort("start_ns")
    return backward.join_asof(forward, on="start_ns", by=keys, check_sortedness=False).select(
        "_row", "_forward_tid"
    )
