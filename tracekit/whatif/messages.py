"""Messages of one step: the sends of a pipeline joined with their receives."""

from collections.abc import Mapping

import polars as pl


def match_messages(messages_by_position: Mapping[int, pl.DataFrame]) -> pl.DataFrame | None:
    """Join the sends of one step with their receives.

    The n-th send from one rank to another belongs to the n-th receive there.

    Args:
        messages_by_position: Messages (``MESSAGES``) of each rank on one clock, peers as positions in the pipeline.

    Returns:
        One row per message: start and end of its send and its receive, and whether a kernel carried it with others
        (``grouped``). None if a message has no known peer or no other side.
    """
    tables = [
        table.with_columns(rank=pl.lit(position, pl.Int32))
        for position, table in messages_by_position.items()
        if table.height
    ]
    if not tables:
        return None
    rows = pl.concat(tables)
    if rows["peer"].null_count():
        return None
    rows = rows.with_columns(
        source=pl.when("send").then("rank").otherwise("peer"),
        target=pl.when("send").then("peer").otherwise("rank"),
        carries_several=pl.len().over("rank", "kernel") > 1,
    )
    rows = rows.sort("launch_ns").with_columns(number=pl.int_range(pl.len()).over("source", "target", "send"))
    sends, receives = rows.filter("send"), rows.filter(~pl.col("send"))
    matched = sends.join(receives, on=["source", "target", "number"], suffix="_received")
    if matched.height < max(sends.height, receives.height):
        return None
    return matched.select(
        send_start_ns="start_ns",
        send_end_ns="end_ns",
        receive_start_ns="start_ns_received",
        receive_end_ns="end_ns_received",
        grouped=pl.col("carries_several") | pl.col("carries_several_received"),
    )
