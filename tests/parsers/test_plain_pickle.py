"""Pickles of plain values: loaded as Python loads them.

Everything else is refused before it is loaded.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import random
import struct

import pytest

from tracekit.errors import InputError
from tracekit.parsers import plain_pickle
from tracekit.parsers.plain_pickle import is_pickle, load_plain_pickle

PLAIN = {
    "version": "2.10",
    "entries": [
        {"process_group": ("0", "default_pg"), "sizes": [[1, 2], []], "ms": 0.5, "retired": True}
    ]
    * 3,
    "numbers": [0, -1, 255, 65_536, 2**31, -(2**31), 2**63, 18446744073709551502],
    "others": [None, False, "é", "x" * 300, ()],
    7: "a number as a key",
}


def load(data):
    return load_plain_pickle(data, name="dump")


def refusal(data):
    with pytest.raises(InputError) as error:
        load(data)
    assert "\n" not in error.value.message
    return error.value.message


def proto2(body):
    """A pickle of hand-written opcodes."""
    return b"\x80\x02" + body + b"."


@pytest.mark.parametrize("protocol", range(2, 6))
def test_plain_values_are_loaded_as_python_loads_them(protocol):
    assert load(pickle.dumps(PLAIN, protocol=protocol)) == PLAIN


def test_values_made_at_random_are_loaded_as_python_loads_them():
    choose = random.Random(1)

    def value(depth):
        kind = choose.randrange(8 if depth else 5)
        scalars = [
            None,
            True,
            choose.randrange(-(2**70), 2**70),
            choose.random(),
            "t" * choose.randrange(300),
        ]
        if kind < 5:
            return scalars[kind]
        members = [value(depth - 1) for _ in range(choose.randrange(4))]
        if kind == 5:
            return members
        return tuple(members) if kind == 6 else dict(enumerate(members))

    for _ in range(300):
        made = value(4)
        assert load(pickle.dumps(made, protocol=choose.randrange(2, 6))) == made


class Hostile:
    def __reduce__(self):
        return os.system, ("echo loaded",)


@pytest.mark.parametrize("protocol", range(2, 6))
def test_a_pickle_that_calls_something_is_refused(protocol, capfd):
    assert "names or calls" in refusal(pickle.dumps({"entries": [Hostile()]}, protocol=protocol))
    assert capfd.readouterr().out == ""


@pytest.mark.parametrize(
    "opcode",
    [b"cos\nsystem\n", b"ios\nsystem\n", b"P0\n", b"NQ", b"\x82\x01", b"Nb", b"))\x81", b"\x97"],
)
def test_opcodes_that_name_or_fetch_are_refused(opcode):
    assert "names or calls" in refusal(proto2(b"(" + opcode))


@pytest.mark.parametrize("value", [{1, 2}, frozenset([1]), bytearray(b"x"), 1j, len])
def test_values_that_are_not_plain_are_refused(value):
    refusal(pickle.dumps(value, protocol=5))


@pytest.mark.parametrize("index", [1, 2**28, 2**32 - 1])
def test_a_memo_index_out_of_order_allocates_nothing(index):
    assert "damaged" in refusal(proto2(b"Nr" + struct.pack("<I", index)))


@pytest.mark.parametrize("opcode", [b"X", b"B", b"\x8b"])
def test_a_length_beyond_the_file_allocates_nothing(opcode):
    refusal(proto2(opcode + b"\xff\xff\xff\x7f"))


@pytest.mark.parametrize("length", [2**40, 2**63 - 1, 2**64 - 1])
def test_a_length_of_eight_bytes_beyond_the_file_allocates_nothing(length):
    assert "cut off" in refusal(b"\x80\x04\x8d" + struct.pack("<Q", length) + b"abc.")


def nested(depth):
    return proto2(b")" + b"\x85" * (depth - 1))


def test_nesting_is_limited():
    assert load(nested(64)) is not None
    assert "deep" in refusal(nested(65))


def test_the_depth_of_nesting_allowed_is_not_moved():
    assert load(nested(60)) is not None
    assert "deep" in refusal(nested(100))


def test_a_million_nested_tuples_as_a_key_do_not_end_the_process():
    refusal(proto2(b"}" + b")" + b"\x85" * 1_000_000 + b"Ns"))


def test_a_container_as_a_key_is_refused():
    assert "key" in refusal(pickle.dumps({(1, 2): 3}))


def shared_lists(levels):
    """Lists of ten times the same list, level below level: 10**levels values from a few bytes."""
    value = [0] * 10
    for _ in range(levels - 1):
        value = [value] * 10
    return pickle.dumps(value)


def test_values_that_expand_without_bound_are_refused():
    assert "expands" in refusal(shared_lists(12))


@pytest.mark.parametrize(("levels", "accepted"), [(4, True), (6, False)])
def test_a_small_file_may_expand_to_a_hundred_thousand_values(levels, accepted):
    assert (load(shared_lists(levels)) is not None) if accepted else refusal(shared_lists(levels))


@pytest.mark.parametrize(("copies", "accepted"), [(40, True), (100, False)])
def test_a_large_file_may_expand_to_64_values_per_byte(copies, accepted):
    """One list of 100,000 numbers, two bytes each, several times."""
    numbers = [7] * 100_000
    data = pickle.dumps([numbers] * (2 * copies))
    assert (load(data) is not None) if accepted else refusal(data)


@pytest.mark.parametrize(("copies", "accepted"), [(90, True), (110, False)])
def test_the_limit_of_a_small_file_is_a_hundred_thousand_values(copies, accepted):
    """A list of a thousand values from about fifty bytes, several times."""
    ten = [0] * 10
    hundred = [ten] * 10
    thousand = [hundred] * 10
    data = pickle.dumps([thousand] * copies)
    assert len(data) < 1_500  # so that 64 values per byte are fewer
    assert (load(data) is not None) if accepted else refusal(data)


def test_a_list_that_holds_itself_is_refused():
    value = []
    value.append(value)
    assert "elsewhere" in refusal(pickle.dumps(value))


def test_a_list_changed_after_it_was_shared_is_refused():
    """a = []; b = [a]; a.append(b)."""
    assert "elsewhere" in refusal(proto2(b"]q\x00]q\x01h\x00ah\x00h\x01a0"))


@pytest.mark.parametrize(("length", "accepted"), [(16, True), (17, False)])
def test_integers_have_at_most_16_bytes(length, accepted):
    data = proto2(b"\x8a" + bytes([length]) + b"\x01" * length)
    assert (load(data) > 2**100) if accepted else refusal(data)


def test_numbers_are_limited_to_16_bytes_exactly():
    assert load(pickle.dumps(2**120)) == 2**120
    assert "number" in refusal(pickle.dumps(2**200))


def test_every_truncation_is_refused_in_one_line():
    data = pickle.dumps(PLAIN)
    for size in range(len(data)):
        refusal(data[:size])


def test_changed_bytes_are_refused_or_give_a_plain_value():
    data = pickle.dumps(PLAIN)
    choose = random.Random(2)
    for _ in range(3_000):
        changed = bytearray(data)
        for _ in range(choose.randrange(1, 4)):
            changed[choose.randrange(len(changed))] = choose.randrange(256)
        with contextlib.suppress(InputError):
            load(bytes(changed))


@pytest.mark.parametrize(
    "body", [b"", b"NN", b"(", b"s", b"a", b"Na", b"}Na", b"]NNs", b"(Nu", b"e", b"t", b"q\x00"]
)
def test_values_that_do_not_fit_together_are_damage(body):
    refusal(proto2(body))


def test_bytes_are_plain_values():
    assert load(pickle.dumps([b"short", b"long" * 100])) == [b"short", b"long" * 100]


def test_other_files_are_no_pickles():
    assert not is_pickle(b"")
    assert not is_pickle(b"\x80")
    assert not is_pickle(b"\x80\x06")
    assert "not a pickle" in refusal(b'{"version": "2.10"}')


def test_a_pickle_too_long_for_the_check_is_refused(monkeypatch):
    data = pickle.dumps(PLAIN)
    monkeypatch.setattr(plain_pickle, "MAX_PICKLE_BYTES", len(data) - 1)
    assert "bytes" in refusal(data)


def test_places_in_the_longest_pickle_fit_into_31_bits():
    assert 2**30 < plain_pickle.MAX_PICKLE_BYTES < 2**31
