"""Matching of operations across ranks."""

from __future__ import annotations

import polars as pl
import pytest

from tests.operations import collective, message, table
from tracekit.align import waits
from tracekit.align.matching import MEMBERS, match
from tracekit.schema import conform


def members(*rows):
    return match(table(*rows)).members


def test_a_member_says_what_it_is_and_how_its_time_divides():
    matched = members(
        collective(0, 0, 100, id=7, bytes=64), collective(1, 70, 100, id=9, bytes=64),
        message(0, "send:1", 200, 230, id=8, bytes=16), message(1, "recv:0", 180, 231, id=10, bytes=16),
    )  # fmt: skip
    assert conform(matched, MEMBERS).equals(matched.cast({pl.Categorical: pl.String}))
    assert matched.columns == MEMBERS.names()
    assert matched.select(
        "match", "rank", "id", "what", "sends", "peer", "messages", "bytes"
    ).rows() == [
        (0, 0, 7, "all_reduce", None, None, None, 64),
        (0, 1, 9, "all_reduce", None, None, None, 64),
        (1, 0, 8, "p2p", True, 1, 1, 16),
        (1, 1, 10, "p2p", False, 0, 1, 16),
    ]
    assert matched["transfer_ns"].to_list() == [30, 30, 30, 30]
    assert matched["wait_ns"].to_list() == [70, 0, 0, 21]  # bounds, before clocks are aligned
    assert matched["wait_is_bound"].all()


def test_the_bytes_of_a_kernel_with_several_messages_belong_to_none_of_them():
    matched = members(
        message(0, "send:1,recv:1", 0, 100, bytes=32),
        message(1, "recv:0", 0, 40),
        message(1, "send:0", 50, 100),
    )
    own = matched.filter(rank=0)
    assert own["messages"].to_list() == [2, 2]
    assert own["bytes"].to_list() == [None, None]
    assert sorted(own["transfer_ns"].to_list()) == [40, 50]


def test_one_collective_in_two_spellings_is_one():
    """A kernel that lost its args has the name that its own name gives."""
    rows = [
        collective(rank, 100 * n, 100 * n + 50, what="all_to_allv")
        for n in range(3)
        for rank in (0, 1)
    ]
    rows[3]["what"] = "all_to_all"
    operations = table(*(row | {"call": "all_to_all"} for row in rows))
    assert len(match(operations).members) == 6
    # Without the common spelling one operation stays alone on each side.
    assert len(match(table(*rows)).members) == 4


def test_an_operation_of_one_rank_alone_has_no_members():
    assert members(
        collective(0, 0, 100), message(0, "send:1", 0, 9), message(1, "send:0", 0, 9)
    ).is_empty()


def test_a_rank_that_began_late_is_matched_from_the_end():
    """Rank 1 lacks the first two operations; their ends say so."""
    ends = [100, 250, 330, 480, 700]
    rows = [collective(0, end - 20, end) for end in ends] + [
        collective(1, end - 10, end) for end in ends[2:]
    ]
    matching = match(table(*rows))
    assert matching.members["row"].to_list() == [2, 5, 3, 6, 4, 7]
    assert matching.members["wait_ns"].to_list() == [10, 0] * 3
    assert [n.code for n in matching.notices] == ["uneven-operations"]


def test_operations_of_unnamed_groups_must_agree():
    def rows(shift):
        return [
            {"rank": rank, "start_ns": start_ns, "end_ns": start_ns + 50_000 + rank * shift(n)}
            for rank in (0, 1)
            for n, start_ns in enumerate(range(0, 50_000_000, 10_000_000))
        ]

    together = match(table(*rows(lambda n: 500)))
    assert len(together.members) == 10
    assert not together.notices
    apart = match(table(*rows(lambda n: 3_000_000 * (n % 3))))
    assert apart.members.is_empty()
    assert [n.code for n in apart.notices] == ["wait-unknown"]


@pytest.mark.parametrize(
    ("duration_ns", "scatter_ns", "agrees"),
    [
        (50_000, 99_000, True),
        (50_000, 101_000, False),
        (4_000_000, 990_000, True),
        (4_000_000, 1_010_000, False),
    ],
)
def test_how_well_ends_of_unnamed_groups_must_agree(duration_ns, scatter_ns, agrees):
    """Within 100 µs, or within a quarter of the operation's own time."""
    rows = []
    for n, apart in enumerate((-scatter_ns, 0, scatter_ns, -scatter_ns, scatter_ns)):
        end = 100_000_000 * n + 50_000_000
        rows += [{"rank": 0, "start_ns": end - duration_ns, "end_ns": end}]
        rows += [{"rank": 1, "start_ns": end + apart - duration_ns, "end_ns": end + apart}]
    assert bool(len(match(table(*rows)).members)) is agrees


ENDS = [100, 250, 330, 480, 700, 760, 900, 990]


@pytest.mark.parametrize("lost", range(len(ENDS)))
@pytest.mark.parametrize("clock_ns", [0, 123_456_789])
def test_a_missing_operation_leaves_a_hole_where_it_is_missing(lost, clock_ns):
    """Rank 1, whose clock may differ, lacks one operation of eight: all others keep their partners."""
    rows = [collective(0, end - 20, end, id=n) for n, end in enumerate(ENDS)]
    rows += [
        collective(1, end - 10 + clock_ns, end + clock_ns, id=n)
        for n, end in enumerate(ENDS)
        if n != lost
    ]
    result = match(table(*rows))
    by_rank = {rank: result.members.filter(rank=rank)["id"].to_list() for rank in (0, 1)}
    assert by_rank[0] == by_rank[1] == [n for n in range(len(ENDS)) if n != lost]
    assert [notice.code for notice in result.notices] == ["uneven-operations"]


def test_sizes_tell_where_an_operation_is_missing_if_ends_do_not():
    """Ends scatter by more than the time between two operations.

    The sizes come in an order of their own.
    """
    sizes, late = [8, 16, 8, 32, 16, 8], [0, 90, 10, 95, 5, 80]
    rows = [collective(0, 100 * n, 100 * n + 50, id=n, bytes=size) for n, size in enumerate(sizes)]
    rows += [
        collective(1, 100 * n, 100 * n + 50 + late[n], id=n, bytes=size)
        for n, size in enumerate(sizes)
        if n != 3
    ]
    assert members(*rows).filter(rank=0)["id"].to_list() == [0, 1, 2, 4, 5]


def test_a_late_end_is_not_taken_for_that_of_a_neighbour_of_another_size():
    """A large operation ends 0.8 ms later on rank 1, right before the small ones after it, some 0.1 ms apart."""
    ends = {0: [15.33, 16.32, 16.41, 27.07, 30.0], 1: [16.19, 16.31, 16.42, 27.1, 30.1]}
    sizes, durations = [1 << 25, 4096, 4096, 1 << 24, 1 << 25], [15, 0.1, 0.1, 10, 2]
    rows = [
        collective(rank, int((end - duration) * 1e6), int(end * 1e6), bytes=size)
        for rank in ends
        for end, size, duration in zip(ends[rank], sizes, durations, strict=True)
    ]
    matching = match(table(*rows))
    assert matching.members["row"].to_list() == [0, 5, 1, 6, 2, 7, 3, 8, 4, 9]
    assert not matching.notices


def test_where_it_is_open_which_operation_is_missing_its_neighbours_stay_unmatched():
    """Rank 1 lacks one of two operations of equal size and recorded an end between theirs: the others are certain."""
    ends = [100, 250, 400, 440, 600, 750, 900]
    rows = [collective(0, end - 20, end, id=n) for n, end in enumerate(ends)]
    rows += [collective(1, end - 10, end, id=n) for n, end in enumerate(ends) if n not in (2, 3)]
    between = collective(1, 410, 420, id=2)
    assert members(*rows, between).filter(rank=1)["id"].to_list() == [0, 1, 4, 5, 6]
    clear = {**between, "start_ns": 430, "end_ns": 440}
    assert members(*rows, clear).filter(rank=1)["row"].len() == 6


def test_of_equal_intervals_clocks_are_moved_no_further_than_they_must_be():
    """Messages every 100 on clocks that nothing else ties: a missing one is no reason to shift all the others."""
    rows = [message(0, "send:1", 100 * n, 100 * n + 10, id=n) for n in range(9)]
    rows += [message(1, "recv:0", 100 * n, 100 * n + 10, id=n) for n in range(9) if n != 4]
    assert members(*rows).filter(rank=0)["id"].to_list() == [0, 1, 2, 3, 5, 6, 7, 8]


def test_recorded_sequence_numbers_decide():
    """By order, rank 1's operations would be 0 and 1.

    Their numbers say 1 and 2, although no end agrees.
    """
    rows = [collective(0, 1_000 * n, 1_000 * n + 50, id=n, collective_seq=40 + n) for n in range(3)]
    rows += [collective(1, 10 + n, 20 + n, id=n, collective_seq=40 + n) for n in (1, 2)]
    matched = members(*rows)
    assert matched.select("rank", "id").rows() == [(0, 1), (1, 1), (0, 2), (1, 2)]
    partly = [{**row, "collective_seq": None} if row["id"] == 1 else row for row in rows]
    assert len(members(*partly)) > 0  # numbers that some lack are not used


def test_a_message_is_not_matched_with_a_send_that_began_after_it_ended():
    """Rank 0 lacks its first send: the receive that ended before the second send began stays unmatched."""
    messages = [(0, 10), (100, 110), (200, 210), (300, 310)]
    rows = [message(0, "send:1", start, end, id=n) for n, (start, end) in enumerate(messages) if n]
    rows += [message(1, "recv:0", start, end, id=n) for n, (start, end) in enumerate(messages)]
    assert members(*rows).filter(rank=1)["id"].to_list() == [1, 2, 3]


@pytest.mark.parametrize(("first", "second"), [(2, 6), (6, 2), (3, 4), (0, 9), (9, 0)])
@pytest.mark.parametrize("offset_ns", [0, 7_000_000_000])
def test_two_ranks_that_each_lack_another_collective_keep_their_other_matches(
    first, second, offset_ns
):
    """Ten collectives at uneven intervals.

    Both ranks recorded nine, and their numbers do not tell.
    """
    ends = [1_000_000 * n + 130_000 * (n * n % 7) for n in range(1, 11)]
    rows = [collective(0, end - 90_000, end, id=n) for n, end in enumerate(ends) if n != first]
    rows += [collective(1, end - 40_000 + offset_ns, end + 300 * n + offset_ns, id=n)
             for n, end in enumerate(ends) if n != second]  # fmt: skip
    matching = match(table(*rows))
    pairs = matching.members.group_by("match").agg("id")["id"].to_list()
    assert all(low == high for low, high in pairs)
    assert len(pairs) >= 6
    assert [notice.code for notice in matching.notices] == ["uneven-operations"]


@pytest.mark.parametrize(("sent", "received"), [(0, 7), (7, 0), (1, 6)])
def test_sends_and_receives_that_each_lack_another_message_keep_their_other_matches(sent, received):
    ends = [1_000_000 * n + 130_000 * (n * n % 7) for n in range(1, 11)]
    rows = [
        message(0, "send:1", end - 90_000, end, id=n) for n, end in enumerate(ends) if n != sent
    ]
    rows += [
        message(1, "recv:0", end - 80_000, end + 900, id=n)
        for n, end in enumerate(ends)
        if n != received
    ]
    pairs = members(*rows).group_by("match").agg("id")["id"].to_list()
    assert sorted(pairs) == [[n, n] for n in range(10) if n not in (sent, received)]


@pytest.mark.parametrize(("arrived_at", "is_awaited"), [(2, True), (1, False)])
def test_a_root_is_at_most_eight_operations_ahead(arrived_at, is_awaited):
    """Rank 1 comes to one broadcast while the root is in the tenth, and to the later ones after it.

    The third broadcast is the eighth back from the tenth, which counts; the second is the ninth.
    """
    rows = []
    for n in range(10):
        rows.append({"match": n, "rank": 0, "start_ns": 10 * n, "end_ns": 10 * n + 5})
        start_ns = 1_000 + n
        if n <= arrived_at:
            start_ns = 92 if n == arrived_at else 1
        rows.append({"match": n, "rank": 1, "start_ns": start_ns, "end_ns": start_ns + 2})
    table = pl.DataFrame(rows).with_columns(what=pl.lit("broadcast"), group=pl.lit("0"))
    members = conform(table, MEMBERS)
    last = waits.last_awaited(members, members["start_ns"].to_numpy())
    root_in_tenth = 18
    rank_1_at_broadcast = 2 * arrived_at + 1
    assert last[root_in_tenth] == (rank_1_at_broadcast if is_awaited else root_in_tenth)
