"""Object files in memory: what is placed runs as LLVM would run it, and what cannot be placed is refused."""

import ctypes
import struct
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from llvmlite import binding

from tracekit._util import llvm, objects
from tracekit._util.objects import _CALL, _MACHINES, PlacingError, _filled, place

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="LLVM loads code on other systems")
X86_64, ARM64 = _MACHINES[62].fills, _MACHINES[183].fills
TWICE = """
define i64 @half(i64 %x) noinline { %y = sdiv i64 %x, 2 ret i64 %y }
define i64 @twice(i64 %x) { %h = call i64 @half(i64 %x) %y = mul i64 %h, 4 ret i64 %y }
"""
TABLE = """
@table = internal constant [5 x i64] [i64 7, i64 -1, i64 9223372036854775807, i64 0, i64 12]
@ends = internal constant [2 x ptr] [ptr @table, ptr getelementptr (i64, ptr @table, i64 4)]
define i64 @at(i64 %i) { %p = getelementptr i64, ptr @table, i64 %i %v = load i64, ptr %p ret i64 %v }
define i64 @last(i64 %i) {
  %e = getelementptr ptr, ptr @ends, i64 %i
  %p = load ptr, ptr %e
  %v = load i64, ptr %p
  ret i64 %v
}
"""
CLEAR = """
declare ptr @memset(ptr, i32, i64)
define i64 @clear(ptr %p, i64 %n) { %r = call ptr @memset(ptr %p, i32 0, i64 %n) ret i64 %n }
"""


def compiled(text):
    """An object file of this processor."""
    return llvm.target_machine().emit_object(binding.parse_assembly(text))


def called(code, name, *args, by=place):
    """What a function of an object file returns."""
    kinds = [ctypes.c_void_p if isinstance(arg, np.ndarray) else ctypes.c_int64 for arg in args]
    values = [arg.ctypes.data if isinstance(arg, np.ndarray) else arg for arg in args]
    return ctypes.CFUNCTYPE(ctypes.c_int64, *kinds)(by(code, name))(*values)


@pytest.mark.parametrize("by", [place, llvm.place])
def test_a_function_that_calls_another(by):
    assert [called(compiled(TWICE), "twice", x, by=by) for x in (0, 1, 7, -9)] == [0, 0, 12, -16]


@pytest.mark.parametrize("by", [place, llvm.place])
def test_constants_and_addresses_of_constants(by):
    code = compiled(TABLE)
    assert [called(code, "at", i, by=by) for i in range(5)] == [7, -1, 2**63 - 1, 0, 12]
    assert [called(code, "last", i, by=by) for i in range(2)] == [7, 12]


@pytest.mark.parametrize("by", [place, llvm.place])
def test_a_function_of_the_library_is_reached_however_far_it_is(by):
    values = np.arange(1, 9)
    assert called(compiled(CLEAR), "clear", values, 40, by=by) == 40
    assert values.tolist() == [0, 0, 0, 0, 0, 6, 7, 8]


@pytest.mark.parametrize(
    ("fill", "old", "target", "place", "new"),
    [
        (X86_64[1], 0, 2**64 - 1, 0x1000, 2**64 - 1),
        (X86_64[2], 0, 0x1010, 0x1000, 0x10),
        (X86_64[4], 0, 0xFFC, 0x1000, 0xFFFFFFFC),
        (ARM64[257], 0, 0x123456789ABCDEF0, 0, 0x123456789ABCDEF0),
        (ARM64[261], 0xFFFFFFFF, 0x1004, 0x1008, 0xFFFFFFFC),
        (ARM64[283], 0x94000000, 0x1010, 0x1000, 0x94000004),  # bl #16
        (ARM64[282], 0x14000000, 0xFF0, 0x1000, 0x17FFFFFC),  # b #-16
        (ARM64[275], 0x90000000, 0x3456, 0x1FFC, 0xD0000000),  # adrp x0, two pages on
        (ARM64[275], 0x90000000, 0x5000, 0x1000, 0x90000020),  # adrp x0, four pages on
        (ARM64[275], 0x90000000, 0xFF8, 0x1000, 0xF0FFFFE0),  # adrp x0, one page back
        (ARM64[277], 0x91000000, 0x2010, 0, 0x91004000),  # add x0, x0, #16
        (ARM64[278], 0x39400000, 0x2003, 0, 0x39400C00),  # ldrb w0, [x0, #3]
        (ARM64[284], 0x79400000, 0x2006, 0, 0x79400C00),  # ldrh w0, [x0, #6]
        (ARM64[285], 0xB9400000, 0x2008, 0, 0xB9400800),  # ldr w0, [x0, #8]
        (ARM64[286], 0xF9400000, 0x2008, 0, 0xF9400400),  # ldr x0, [x0, #8]
        (ARM64[299], 0x3DC00000, 0x2020, 0, 0x3DC00800),  # ldr q0, [x0, #32]
    ],
)
def test_places_are_filled_in_as_the_processors_read_them(fill, old, target, place, new):
    assert _filled(old, fill, target, place) == new


@given(st.integers(-(2**27), 2**27 - 4).map(lambda distance: distance // 4 * 4))
def test_a_call_leads_where_it_should(distance):
    word = _filled(0x94000000, _CALL, 2**30 + distance, 2**30)
    assert word >> 26 == 0b100101
    immediate = word & (1 << 26) - 1
    assert (immediate - (immediate >> 25 << 26)) * 4 == distance


@pytest.mark.parametrize(
    ("fill", "target"),
    [(_CALL, 2**27), (_CALL, -(2**27) - 4), (_CALL, 2), (X86_64[2], 2**31), (X86_64[4], -(2**31) - 1),
     (ARM64[275], 2**32), (ARM64[286], 4)],
)  # fmt: skip
def test_what_is_too_far_or_not_aligned_is_refused(fill, target):
    with pytest.raises(PlacingError, match="does not fit"):
        _filled(0, fill, target, 0)


@pytest.mark.parametrize(
    "text",
    [
        "declare i64 @elsewhere(i64) define i64 @f(i64 %x) { %y = call i64 @elsewhere(i64 %x) ret i64 %y }",
        "@n = global i64 5 define i64 @f(i64 %x) { store i64 %x, ptr @n ret i64 %x }",
        "@n = internal global i64 0 define i64 @f(i64 %x) { store volatile i64 %x, ptr @n ret i64 %x }",
        "define i64 @g(i64 %x) { ret i64 %x }",
    ],
    ids=["calls something unknown", "writes", "writes where nothing was", "another function"],
)
def test_what_needs_a_linker_or_memory_of_its_own_is_refused(text):
    with pytest.raises(PlacingError):
        place(compiled(text), "f")


def test_a_place_of_an_unknown_kind_is_refused():
    code = bytearray(compiled(TABLE))
    start, count = struct.unpack_from("<Q", code, 40)[0], struct.unpack_from("<H", code, 60)[0]
    for i in range(count):
        _, kind, _, _, offset, size, *_ = struct.unpack_from("<IIQQQQIIQQ", code, start + 64 * i)
        if kind == 4 and size:
            struct.pack_into("<I", code, offset + 8, 9999)
    with pytest.raises(PlacingError, match="9999"):
        place(bytes(code), "at")


@given(st.data())
def test_a_file_that_is_cut_or_is_none_is_refused(data):
    code = compiled(TWICE)
    cut = data.draw(st.one_of(st.integers(0, len(code) - 1).map(lambda n: code[:n]), st.binary(max_size=200)))
    with pytest.raises(PlacingError):
        place(cut, "twice")


@pytest.mark.parametrize("refused", ["memfd_create", "truncate"])
def test_where_no_code_can_be_placed_nothing_is_left_open(monkeypatch, refused):
    def refuse(*_):
        raise PermissionError(1, "not here")

    closed = []
    close = objects.os.close
    monkeypatch.setattr(objects.os, "close", lambda file: closed.append(file) or close(file))
    monkeypatch.setattr(objects.os, refused, refuse)
    with pytest.raises(PlacingError, match="not here"):
        place(compiled(TWICE), "twice")
    assert len(closed) == (refused == "truncate")
