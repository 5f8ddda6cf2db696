"""Ranks' operations in a few words, for tests of matching and waiting."""

from __future__ import annotations

import polars as pl

from tracekit.classify.messages import parse_messages
from tracekit.metrics.operations import OPERATIONS
from tracekit.schema import conform


def table(*rows):
    """Return operations; ``p2p`` of a row names its messages: ``send:1,recv:2``."""
    frame = pl.DataFrame(
        [{"label": "dp_comm", "what": "all_reduce", "step": 1, "part": 0, **r} for r in rows]
    )
    if "p2p" in frame.columns:
        frame = frame.with_columns(parse_messages(frame["p2p"].cast(pl.String)))
    return conform(
        frame.with_columns(
            order_ns=pl.coalesce("order_ns", "start_ns")
            if "order_ns" in frame.columns
            else "start_ns"
        ),
        OPERATIONS,
    )


def collective(rank, start, end, **more):
    return {
        "rank": rank,
        "start_ns": start,
        "end_ns": end,
        "group": "1",
        "group_ranks": "[0,1]",
        **more,
    }


def message(rank, p2p, start, end, **more):
    return {
        "rank": rank,
        "what": "p2p",
        "label": "pp_comm",
        "p2p": p2p,
        "start_ns": start,
        "end_ns": end,
        **more,
    }
