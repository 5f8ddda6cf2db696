"""Remedies: what a change of types, kernels or calls would make of each GPU event of a rank.

Found per rank, where operators, shapes, types and kernels are at hand, and kept with the rank's
events, so that a change can be replayed with all others (``graph.change``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import polars as pl

from tracekit.metrics.alternatives.remedy import REMEDIES, REMEDY, without_rows
from tracekit.metrics.rank_work import RankWork
from tracekit.metrics.remedies.attention import attention_remedies, find_written_out, is_upcast
from tracekit.metrics.remedies.casts import cast_remedies
from tracekit.metrics.remedies.fusion import fusion_remedies
from tracekit.metrics.remedies.messages import message_remedies
from tracekit.metrics.remedies.padding import padding_remedies
from tracekit.metrics.remedies.precision import precision_remedies
from tracekit.metrics.remedies.recompute import recompute_remedies
from tracekit.metrics.remedies.removals import removal_remedies, stall_remedies

__all__ = ["find_remedies"]


class FindsRemedies(Protocol):
    """What finds remedies in a rank's work."""

    def find(self, rank: RankWork) -> Iterator[pl.DataFrame]:
        """Yield tables of ``REMEDIES``."""


def find_remedies(
    rank: RankWork,
    *,
    alternatives: Sequence[FindsRemedies] = (),
    own: Callable[[RankWork], Iterator[pl.DataFrame]] | None = None,
) -> pl.Series:
    """Return the remedies of each GPU event as a list of ``REMEDY``; null where it has none.

    Args:
        rank: The rank's work.
        alternatives: Entries of a catalogue (``metrics.alternatives``).
        own: What finds the remedies of a user's entries.
    """
    written_out = list(find_written_out(rank))
    attention = list(attention_remedies(rank, written_out))
    in_attention: set[int] = set()
    for frame in attention:
        in_attention.update(frame["row"].to_list())
    upcast: set[int] = set()
    for _, members in written_out:
        if is_upcast(rank, members):
            upcast.update(members["row"].to_list())
    frames = [
        *(without_rows(frame, upcast) for frame in precision_remedies(rank)),
        *cast_remedies(rank),
        *attention,
        *fusion_remedies(rank, without=in_attention),
        *recompute_remedies(rank),
        *removal_remedies(rank),
        *(without_rows(padded, in_attention) for padded in padding_remedies(rank)),
        *stall_remedies(rank, rank.stalls, "free cpu"),
        *(
            remedies
            for op, slow in rank.on_new_shapes.items()
            for remedies in stall_remedies(rank, slow, "known shapes", what=op)
        ),
        *message_remedies(rank),
        *(remedies for finder in alternatives for remedies in finder.find(rank)),
        *(own(rank) if own is not None else ()),
    ]
    table = pl.concat([REMEDIES.to_frame(), *frames])
    rows = table.group_by("row").agg(remedies=pl.struct([field.name for field in REMEDY.fields]))
    all_rows = pl.DataFrame({"row": pl.int_range(rank.events.height, dtype=pl.Int32, eager=True)})
    return all_rows.join(rows, on="row", how="left", maintain_order="left")["remedies"]
