"""Messages of one step: the sends of a pipeline joined with their receives."""

from collections.abc import Mapping

import polars as pl

from tracekit.align.matching import pair_messages
from tracekit.align.peers import MAX_MISSING_SHARE


def match_messages(messages_by_position: Mapping[int, pl.DataFrame]) -> pl.DataFrame | None:
    """Join the sends of one step with their receives.

    Args:
        messages_by_position: Messages (``MESSAGES``) of each rank on one clock, peers as positions
            in the pipeline.

    Returns:
        One row per message: start and end of its send and its receive, and whether a kernel carried
        it with others (``grouped``). None if a message has no known peer, or if more than a few
        have no other side.
    """
    tables = [
        table.with_columns(rank=pl.lit(position, pl.Int32))
        for position, table in messages_by_position.items()
        if table.height
    ]
    if not tables:
        return None
    messages = pl.concat(tables)
    if messages["peer"].null_count():
        return None
    matched = pair_messages(messages)
    without_other_side = messages.height - 2 * matched.height
    if matched.is_empty() or without_other_side > MAX_MISSING_SHARE * messages.height:
        return None
    carries_several = (pl.col("messages") > 1) | (pl.col("messages_received") > 1)
    return matched.select(
        send_start_ns="start_ns",
        send_end_ns="end_ns",
        receive_start_ns="start_ns_received",
        receive_end_ns="end_ns_received",
        grouped=carries_several,
    )
