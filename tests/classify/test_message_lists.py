"""Messages and group members as lists, and the text that tables of events hold."""

from __future__ import annotations

import polars as pl
import pytest

from tracekit.classify.messages import (
    format_messages,
    list_ranks,
    parse_group_ranks,
    parse_messages,
)
from tracekit.schema import MESSAGE_LIST


def sent(peer):
    return {"send": True, "peer": peer}


def received(peer):
    return {"send": False, "peer": peer}


@pytest.mark.parametrize("dtype", [pl.String, pl.Categorical])
def test_messages_are_read_in_the_order_of_issue(dtype):
    lists = parse_messages(
        pl.Series(["send:2,recv:0", None, "recv:?", "send:2,recv:0"], dtype=dtype)
    )
    assert lists.dtype == MESSAGE_LIST
    assert lists.to_list() == [
        [sent(2), received(0)],
        None,
        [received(None)],
        [sent(2), received(0)],
    ]


def test_a_peer_that_is_no_rank_is_unknown():
    """Damaged text names nobody; a number that no rank can have names nobody either."""
    lists = parse_messages(pl.Series(["send", "recv:x", "send:99999999999"]))
    assert lists.to_list() == [[sent(None)], [received(None)], [sent(None)]]


def test_text_and_lists_are_the_same_thing():
    texts = pl.Series("p2p", ["send:2,recv:0", None, "recv:?"])
    assert format_messages(parse_messages(texts)).to_list() == texts.to_list()


def test_columns_without_messages_have_no_lists():
    assert parse_messages(pl.Series([None, None], dtype=pl.Categorical)).to_list() == [None, None]
    assert parse_messages(pl.Series([], dtype=pl.String)).dtype == MESSAGE_LIST
    assert format_messages(pl.Series([], dtype=MESSAGE_LIST)).to_list() == []


def test_each_group_is_listed_once_and_a_shortened_list_says_so():
    column = pl.Series(["[0, 4]", None, "[0,1,...]", "[0, 4]", "", "[7]"], dtype=pl.Categorical)
    assert parse_group_ranks(column).rows() == [
        ("[0, 4]", [0, 4], True),
        ("[0,1,...]", [0, 1], False),
        ("", [], False),
        ("[7]", [7], True),
    ]


def test_ranks_of_one_text():
    assert list_ranks("[0,4,8]") == [0, 4, 8]
    assert list_ranks("nothing") == []
