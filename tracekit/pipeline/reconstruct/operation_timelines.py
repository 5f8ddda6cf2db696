"""Pipeline parts of ranks from a timeline of operations, in which cells and messages are recorded as such."""

from dataclasses import replace

import polars as pl

from tracekit.errors import InputError
from tracekit.parsers.operation_timeline import CELL_OPERATIONS, MESSAGE_OPERATIONS
from tracekit.pipeline.reconstruct.rank_pipeline import RankPipeline, rank_pipeline
from tracekit.schema import LABELLED, ProcessGroup, Source, conform

LABEL_OF_OPERATION = {
    "forward-compute": "forward",
    "backward-compute": "backward",
    **dict.fromkeys(MESSAGE_OPERATIONS, "pp_comm"),
    **dict.fromkeys(("params-all-gather", "grads-reduce-scatter"), "dp_comm"),
    **dict.fromkeys(
        ("embedding-grads-all-reduce", "layernorm-grads-all-reduce", "separate-grads-all-reduce"),
        "comm",
    ),
    "optimizer-clip-main-grad": "comm",
    "optimizer": "optimizer",
}
"""Label of an operation by its name; the host's own (gc) have none."""
_STREAMS = {"forward": 0, "backward": 0, "optimizer": 0, "pp_comm": 1}
_OTHER_STREAM = 2


def pipelines_of_operations(operations: pl.DataFrame) -> list[RankPipeline]:
    """Return the pipeline part of every rank of a timeline.

    Ranks are numbered replica by replica, in each by pipeline rank and then by tensor rank.

    Args:
        operations: A table with the columns of ``parsers.operation_timeline.TIMELINE_OPERATIONS``.
    """
    if (operations["chunk"].fill_null(0) > 0).any():
        hint = "timelines of interleaved schedules do not say which chunk a message is of"
        raise InputError("the timeline has several model chunks per rank", hint=hint)
    stages = int(operations["pipeline_rank"].to_numpy().max()) + 1
    tensor_ranks = int(operations["tensor_rank"].to_numpy().max()) + 1
    first_of_replica = pl.col("replica") * stages * tensor_ranks
    rank = (first_of_replica + pl.col("pipeline_rank") * tensor_ranks + pl.col("tensor_rank")).cast(
        pl.Int32
    )
    ranked = operations.with_columns(rank=rank)
    labelled = ranked.with_columns(**_label_columns(tensor_ranks)).drop_nulls("label")
    parts = []
    for (number,), rows in labelled.group_by("rank", maintain_order=True):
        first = rows.row(0, named=True)
        first_stage = first["replica"] * stages * tensor_ranks + first["tensor_rank"]
        members = range(first_stage, first_stage + stages * tensor_ranks, tensor_ranks)
        group = ProcessGroup("pipeline", "PIPELINE_MODEL_PARALLEL_GROUP", tuple(members))
        source = Source("", "operations", int(str(number)), "content", groups=(group,))
        table = rows.with_columns(
            id=pl.int_range(pl.len(), dtype=pl.Int64),
            kind=pl.lit("kernel"),
            group=pl.when(pl.col("label") == "pp_comm").then(pl.lit("pipeline")),
        )
        part = rank_pipeline(conform(table, LABELLED), source)
        # Operations name their micro-batches, so that pairs need no sequence numbers.
        notices = tuple(notice for notice in part.notices if notice.code != "pairs-by-order")
        parts.append(replace(part, notices=notices))
    return sorted(parts, key=lambda part: part.rank)


def _label_columns(tensor_ranks: int) -> dict[str, pl.Expr]:
    """Return the columns that classification would add, from an operation's name and numbers."""
    name = pl.col("name")
    pass_of_name = dict(CELL_OPERATIONS)
    distance_of_message = {}
    for message, (served_pass, distance) in MESSAGE_OPERATIONS.items():
        pass_of_name[message] = served_pass
        distance_of_message[message] = distance
    letter = name.replace_strict(pass_of_name, default=None, return_dtype=pl.String)
    stages_away = name.replace_strict(distance_of_message, default=None, return_dtype=pl.Int32)
    direction = name.str.extract("-(send|recv)$")
    microbatch = pl.coalesce("microbatch", "number")
    verb = (
        pl.when(name.is_in(list(MESSAGE_OPERATIONS)))
        .then(direction.str.to_uppercase() + "_")
        .otherwise(pl.lit(""))
    )
    annotation = pl.format("PP:{}{}{}{}", "pipeline_rank", verb, letter, microbatch)
    label = name.replace_strict(LABEL_OF_OPERATION, default=None, return_dtype=pl.String)
    return {
        "label": label,
        "pass": letter.replace_strict(
            {"F": "forward", "B": "backward"}, default=None, return_dtype=pl.String
        ),
        "stream": label.replace_strict(_STREAMS, default=_OTHER_STREAM, return_dtype=pl.Int64),
        "stage": pl.when(letter.is_not_null()).then("pipeline_rank"),
        "microbatch": pl.when(letter.is_not_null()).then(microbatch),
        "annotation": annotation,
        "annotations": annotation,
        "p2p": pl.format("{}:{}", direction, pl.col("rank") + stages_away * tensor_ranks),
    }
