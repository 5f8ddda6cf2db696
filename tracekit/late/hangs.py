"""Operations that did not complete: which rank did not join, what it did last, who waits.

Or members that disagree.

Members of an operation share its number in the group. Of the operations that did not complete on
some member, the one with the lowest number of its group is where the group stands; of several
groups, the one whose operation was called first, since what is behind it waits for it. Messages
have no shared number: the sends of one rank to another are paired with the other's receives in
order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import polars as pl

from tracekit.align.recorded_clocks import clock_offsets
from tracekit.documents.late import Hang, RankState, RecordedClock
from tracekit.late.recording_checks import SIZES_MAY_DIFFER
from tracekit.schema import ProcessGroup, Recording

MIN_STEPS_WAITED = 10
"""Steps' time that an operation must have waited, to be a hang and not one that the dump caught
while it ran."""
MIN_WAIT_WITHOUT_STEPS_NS = 10_000_000_000
"""The same (10 s) where steps are not known."""
OPEN_STATES = ("scheduled", "started", "timed_out")
"""States of operations that did not complete."""


@dataclass(frozen=True, eq=False)
class Dumps:
    """Flight-recorder dumps of a run, and what is known of the run."""

    operations: pl.DataFrame
    """Operations of the flight recorder (``COLLECTIVES``) with a number."""
    sources: Sequence[Recording]
    clocks: Mapping[int, RecordedClock]
    step_ns: float | None
    """Usual time of a step."""
    step_of_op: Mapping[tuple[str, int], int]
    """Step of each collective, by group and number."""

    @property
    def ranks(self) -> list[int]:
        """Ranks with a dump."""
        return sorted(source.rank for source in self.sources if source.rank is not None)

    def group(self, name: str) -> ProcessGroup | None:
        """Return a group by name; None if no dump describes it."""
        for source in self.sources:
            for group in source.groups:
                if group.name == name:
                    return group
        return None

    def source(self, rank: int) -> Recording | None:
        """Return the dump of a rank."""
        return next((source for source in self.sources if source.rank == rank), None)


def find_hang(dumps: Dumps) -> Hang | None:
    """Return the operation at which a run stands; None if every operation completed."""
    is_open = pl.col("state").cast(pl.String).is_in(OPEN_STATES)
    stuck = dumps.operations.filter(is_open)
    if stuck.is_empty():
        return None
    mismatch = _first_mismatch(dumps.operations)
    if mismatch is not None:
        return _collective_hang(dumps, *mismatch)
    collectives = stuck.filter(~pl.col("is_message"))
    if not collectives.is_empty():
        return _collective_hang(dumps, *_first_called(collectives, dumps.clocks))
    return _message_hang(dumps, stuck.filter(pl.col("op") != "coalesced"))


def _first_called(stuck: pl.DataFrame, clocks: Mapping[int, RecordedClock]) -> tuple[str, int]:
    """Return group and number of where each group stands, of the group whose operation was called first."""
    offset = clock_offsets(clocks, default=0)
    lowest = stuck.filter(pl.col("sequence") == pl.col("sequence").min().over("group"))
    called = lowest.group_by("group", "sequence").agg(
        called_ns=(pl.col("enqueued_ns") - offset).min()
    )
    group, sequence, _ = called.sort("called_ns", "group", nulls_last=True).row(0)
    return str(group), int(sequence)


def _first_mismatch(operations: pl.DataFrame) -> tuple[str, int] | None:
    """Return group and number of the first operation whose members called different things.

    None if there is none.

    Only operations that did not complete everywhere count: what completed was no mismatch.
    """
    collectives = operations.filter(~pl.col("is_message") & (pl.col("op") != "coalesced"))
    size = pl.when(~pl.col("op").cast(pl.String).is_in(SIZES_MAY_DIFFER)).then(pl.col("bytes"))
    of_rank = (
        collectives.with_columns(
            size=size, is_open=pl.col("state").cast(pl.String).is_in(OPEN_STATES)
        )
        .group_by("group", "sequence", "rank")
        .agg(
            pl.col("op").first(),
            pl.col("size").sum(),
            pl.col("dtype").first(),
            pl.col("enqueued_ns").first(),
            pl.col("is_open").any(),
        )
    )
    differing = (
        of_rank.group_by("group", "sequence")
        .agg(
            pl.col("op", "size", "dtype").drop_nulls().n_unique(),
            pl.col("enqueued_ns").min(),
            pl.col("is_open").any(),
        )
        .filter(pl.col("is_open") & (pl.max_horizontal("op", "size", "dtype") > 1))
        .sort("enqueued_ns", "sequence", nulls_last=True)
    )
    if differing.is_empty():
        return None
    return str(differing["group"][0]), int(differing["sequence"][0])


def _collective_hang(dumps: Dumps, group_name: str, sequence: int) -> Hang:
    """Describe a collective that did not complete."""
    in_group = dumps.operations.filter((pl.col("group") == group_name) & ~pl.col("is_message"))
    joined = (
        in_group.filter(pl.col("sequence") == sequence)
        .sort("rank", "id")
        .unique("rank", keep="first")
    )
    # What most members called is the operation; those that called something else stand out.
    calls = joined.group_by("op", "bytes", "dtype").agg(
        pl.col("rank").sort(), first=pl.col("id").min()
    )
    op, size, dtype, agreeing, _ = calls.sort(
        [pl.col("rank").list.len(), "first"], descending=[True, False]
    ).row(0)
    varies = str(op) in SIZES_MAY_DIFFER
    same_op = set(joined.filter(pl.col("op") == op)["rank"].to_list())
    # Ranks call the operations of a group in their order: who called a later one joined this one,
    # also where the dump has lost it.
    called_later = set(in_group.filter(pl.col("sequence") > sequence)["rank"].to_list())
    lost = called_later - set(joined["rank"].to_list())
    waiting = sorted(lost.union(same_op if varies else agreeing))
    differing = sorted(set(joined["rank"].to_list()) - set(waiting))
    group = dumps.group(group_name)
    members = set(in_group["rank"].to_list())
    if group is not None and group.ranks:
        members = set(group.ranks)
    absent = sorted(members - set(joined["rank"].to_list()) - lost)
    missing, no_record = _split_recorded(dumps, absent)
    waited = _waited(dumps, joined)
    kind: Literal["missing", "mismatch", "stuck"] = "stuck"
    if differing:
        kind = "mismatch"
    elif absent:
        kind = "missing"
    return Hang(
        kind=kind,
        group=group_name,
        description=group.description if group is not None else None,
        op=str(op),
        bytes=size,
        dtype=None if dtype is None else str(dtype),
        sequence=sequence,
        step=dumps.step_of_op.get((group_name, sequence)),
        missing=tuple(_last_state(dumps, rank, in_group) for rank in missing),
        no_record=tuple(no_record),
        waiting=tuple(waiting),
        different=tuple(_last_state(dumps, rank, joined) for rank in differing),
        waited_ns=waited,
        certain=_is_certain(dumps, joined, waited),
        members_known=group is not None and bool(group.ranks),
    )


def _split_recorded(dumps: Dumps, ranks: Sequence[int]) -> tuple[list[int], list[int]]:
    """Return the *ranks* that wrote a dump, and those that did not."""
    recorded: list[int] = []
    unrecorded: list[int] = []
    for rank in ranks:
        group = recorded if rank in dumps.ranks else unrecorded
        group.append(rank)
    return recorded, unrecorded


def _message_hang(dumps: Dumps, stuck: pl.DataFrame) -> Hang | None:
    """Describe a message that did not complete: the first whose other side was not called."""
    if stuck.is_empty():
        return None
    messages = dumps.operations.filter(pl.col("is_message") & (pl.col("op") != "coalesced")).sort(
        "rank", "id"
    )
    one_sided = _first_one_sided(messages)
    row = one_sided or stuck.sort("enqueued_ns", nulls_last=True).row(0, named=True)
    peers = [] if one_sided is None or row["peer"] is None else [row["peer"]]
    missing, no_record = _split_recorded(dumps, peers)
    group = dumps.group(str(row["group"]))
    in_group = messages.filter(pl.col("group") == row["group"])
    own_call = stuck.filter((pl.col("rank") == row["rank"]) & (pl.col("id") == row["id"]))
    waited_ns = _waited(dumps, own_call)
    return Hang(
        kind="missing" if peers else "stuck",
        group=str(row["group"]),
        description=group.description if group is not None else None,
        op=str(row["op"]),
        bytes=row["bytes"],
        dtype=None if row["dtype"] is None else str(row["dtype"]),
        sequence=row["sequence"],
        step=None,
        missing=tuple(_last_state(dumps, rank, in_group) for rank in missing),
        no_record=tuple(no_record),
        waiting=tuple(sorted(set(stuck["rank"].to_list()) - set(peers))),
        different=(),
        waited_ns=waited_ns,
        certain=_is_certain(dumps, own_call, waited_ns),
    )


def _first_one_sided(messages: pl.DataFrame) -> dict[str, Any] | None:
    """Return the first message that did not complete and whose other side was not called.

    None if nothing tells.

    Messages of a pair of ranks are counted in their order. Rings that lost their beginning do not
    say which is which.
    """
    first_sequence = messages.group_by("rank", "group").agg(pl.col("sequence").min())["sequence"]
    if not (first_sequence <= 1).all():
        return None
    is_send = pl.col("op") == "send"
    paired = messages.with_columns(
        sender=pl.when(is_send).then("rank").otherwise("peer"),
        receiver=pl.when(is_send).then("peer").otherwise("rank"),
        number=pl.int_range(pl.len()).over("rank", "group", "op", "peer"),
    )
    is_one_sided = pl.len().over("group", "sender", "receiver", "number") == 1
    is_open = pl.col("state").cast(pl.String).is_in(OPEN_STATES)
    one_sided = paired.filter(is_open & is_one_sided).sort("enqueued_ns", nulls_last=True)
    return None if one_sided.is_empty() else one_sided.row(0, named=True)


def _last_state(dumps: Dumps, rank: int, operations: pl.DataFrame) -> RankState:
    """Return the last of these operations that a rank called, and where it called the last of all."""
    of_rank = operations.filter(pl.col("rank") == rank).sort("sequence", "id")
    source = dumps.source(rank)
    stack = source.last_stack if source is not None else ()
    if of_rank.is_empty():
        return RankState(rank, None, None, None, None, None, stack)
    row = of_rank.row(-1, named=True)
    return RankState(
        rank, str(row["op"]), row["sequence"], row["bytes"], row["state"], row["enqueued_ns"], stack
    )


def _waited(dumps: Dumps, joined: pl.DataFrame) -> int | None:
    """Return how long a member waited at least: from its call to the last time in its own dump, so on one clock."""
    waits = []
    for rank, enqueued_ns in joined.select("rank", "enqueued_ns").drop_nulls().iter_rows():
        source = dumps.source(rank)
        if source is not None and source.last_ns is not None:
            waits.append(max(0, source.last_ns - enqueued_ns))
    return max(waits, default=None)


def _is_certain(dumps: Dumps, joined: pl.DataFrame, waited_ns: int | None) -> bool:
    """Return whether an operation hangs, rather than having been caught while it ran."""
    if (joined["state"].cast(pl.String) == "timed_out").any():
        return True
    limit = MIN_WAIT_WITHOUT_STEPS_NS if dumps.step_ns is None else MIN_STEPS_WAITED * dumps.step_ns
    return waited_ns is not None and waited_ns >= limit
