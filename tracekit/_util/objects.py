"""Object files put into memory without LLVM: code that it once made runs again, and it need not be there.

LLVM's library takes 35 ms and 45 MB to load, and a millisecond more for each function. What the package's functions
need of it is little: the sections of an ELF file side by side, and a few kinds of places in them filled in with where
something else came to be. An object file that needs more than that is refused, and LLVM can still load it.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import struct
from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

import numpy as np

LIBRARY = ("memcpy", "memmove", "memset")
"""All that code may call outside of its object file."""

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_GAP = struct.Struct("<QQq")
_ELF64_LITTLE = b"\x7fELF\x02\x01\x01"
_PROGRAM, _SYMBOLS, _GAPS = 1, 2, 4  # types of sections: bytes of the program, its names, and what is to be filled in
_WRITTEN, _IN_MEMORY = 1, 2  # flags of a section
_FILLED_ONCE = b".data.rel.ro"  # said to be written, but only while its places are filled in
_UNWINDING = b".eh_frame"  # for errors that are thrown through a function; these throw none
_JUMP_ALIGN = 8
_OUTSIDE = 0  # section of a name that the file does not define
_PAGE = 4096  # what "page" means in an instruction, whatever the machine's pages are
_rooms: list[mmap.mmap] = []  # code is there as long as its memory is


class PlacingError(RuntimeError):
    """An object file that needs a linker."""


class _Fill(NamedTuple):
    """How a place is filled in: with what, and which bits of it go where."""

    what: str
    """The ``address`` itself, its ``distance`` from the place, its distance in ``pages``, or its place ``in page``."""
    size: int = 4
    """Bytes of the place."""
    shift: int = 0
    """Low bits that are left out; they are 0."""
    bits: tuple[tuple[int, int], ...] = ((32, 0),)
    """How many bits go to which bit of the place, lowest first."""


class _Machine(NamedTuple):
    """What differs between processors."""

    fills: dict[int, _Fill]
    """By the number that the processor's ELF specification gives them."""
    jump: bytes
    """Goes on at the address that stands behind it, wherever that is."""


_WORD = _Fill("address", 8, bits=((64, 0),))
_CALL = _Fill("distance", shift=2, bits=((26, 0),))
_MACHINES = {
    62: _Machine({1: _WORD, 2: _Fill("distance"), 4: _Fill("distance")}, bytes.fromhex("ff2500000000")),  # x86-64
    183: _Machine(  # arm64
        {
            257: _WORD,
            261: _Fill("distance"),
            275: _Fill("pages", shift=12, bits=((2, 29), (19, 5))),
            277: _Fill("in page", bits=((12, 10),)),
            278: _Fill("in page", bits=((12, 10),)),
            282: _CALL,
            283: _CALL,
            284: _Fill("in page", shift=1, bits=((11, 10),)),
            285: _Fill("in page", shift=2, bits=((10, 10),)),
            286: _Fill("in page", shift=3, bits=((9, 10),)),
            299: _Fill("in page", shift=4, bits=((8, 10),)),
        },
        bytes.fromhex("50000058 00021fd6"),
    ),
}


class _Section(NamedTuple):
    name: int
    type: int
    flags: int
    address: int
    offset: int
    size: int
    link: int
    info: int
    align: int
    item_size: int


class _Symbol(NamedTuple):
    name: str
    section: int
    value: int


def place(code: bytes, function: str) -> int:
    """Put an object file into memory for good; return the address of a function in it.

    Raises ``PlacingError`` for what is no ELF file, or needs more than is done here, or where the system refuses memory
    that can be executed.
    """
    try:
        return _Object(code).place(function)
    except (struct.error, ValueError, IndexError) as error:
        raise PlacingError(f"not an object file: {error}") from error


class _Object:
    """An object file, read."""

    def __init__(self, code: bytes) -> None:
        header = _HEADER.unpack_from(code)
        if not header[0].startswith(_ELF64_LITTLE) or header[2] not in _MACHINES:
            raise PlacingError("not an ELF file of a known processor")
        self.code = code
        self.machine = _MACHINES[header[2]]
        start, count = header[6], header[12]
        self.sections = [_Section(*_SECTION.unpack_from(code, start + i * _SECTION.size)) for i in range(count)]
        self.section_names = self._bytes(self.sections[header[13]])
        self.symbols = [symbol for section in self._all(_SYMBOLS) for symbol in self._named(section)]
        self.offsets = self._laid_out()

    def _all(self, kind: int) -> list[_Section]:
        return [section for section in self.sections if section.type == kind]

    def _bytes(self, section: _Section) -> bytes:
        return self.code[section.offset : section.offset + section.size]

    def _named(self, table: _Section) -> Iterator[_Symbol]:
        texts = self._bytes(self.sections[table.link])
        for name, _, _, section, value, _ in _SYMBOL.iter_unpack(self._bytes(table)):
            yield _Symbol(_text(texts, name).decode(), section, value)

    def _laid_out(self) -> dict[int, int]:
        """Where each section begins, those that are there when the code runs one behind the other."""
        offsets, end = {}, 0
        for number, section in enumerate(self.sections):
            name = _text(self.section_names, section.name)
            if section.flags & _IN_MEMORY and section.size and name != _UNWINDING:
                constant = not section.flags & _WRITTEN or name == _FILLED_ONCE
                if section.type != _PROGRAM or not constant:
                    raise PlacingError(f"a section of type {section.type} that may be written")
                offsets[number] = -(-end // section.align) * section.align
                end = offsets[number] + section.size
        return offsets

    def place(self, function: str) -> int:
        """Put it into memory; return the address of a function."""
        entry = next((one for one in self.symbols if one.name == function and one.section in self.offsets), None)
        if entry is None:
            raise PlacingError(f"{function} is not in the object file")
        image = bytearray()
        for number, offset in self.offsets.items():
            image += bytes(offset - len(image)) + self._bytes(self.sections[number])
        jumps = {}
        for name in sorted({symbol.name for symbol in self.symbols if symbol.section == _OUTSIDE} - {""}):
            image += bytes(-len(image) % _JUMP_ALIGN)
            jumps[name] = len(image)
            image += self.machine.jump + _of_library(name).to_bytes(8, "little")
        with _Room(len(image)) as room:
            for section in self._all(_GAPS):
                if section.info in self.offsets:
                    self._fill(image, section, room.address, jumps)
            room.write(image)
        return room.address + self.offsets[entry.section] + entry.value

    def _fill(self, image: bytearray, gaps: _Section, base: int, jumps: dict[str, int]) -> None:
        """Fill in what one section leaves open."""
        for offset, info, addend in _GAP.iter_unpack(self._bytes(gaps)):
            fill = self.machine.fills.get(info & 0xFFFFFFFF)
            symbol = self.symbols[info >> 32]
            if fill is None:
                raise PlacingError(f"a place of type {info & 0xFFFFFFFF}")
            if symbol.section in self.offsets:
                target = self.offsets[symbol.section] + symbol.value
            elif symbol.name in jumps:
                target = jumps[symbol.name]
            else:
                raise PlacingError(f"{symbol.name} is not in memory")
            at = self.offsets[gaps.info] + offset
            old = int.from_bytes(image[at : at + fill.size], "little")
            image[at : at + fill.size] = _filled(old, fill, base + target + addend, base + at).to_bytes(
                fill.size, "little"
            )


def _filled(old: int, fill: _Fill, target: int, place: int) -> int:
    """What stands at *place* once it leads to *target*.

    >>> hex(_filled(0x94000000, _CALL, 0x1010, 0x1000))  # a call to four instructions further
    '0x94000004'
    """
    value = {
        "address": target,
        "distance": target - place,
        "pages": target // _PAGE * _PAGE - place // _PAGE * _PAGE,
        "in page": target % _PAGE,
    }[fill.what]
    half = 1 << fill.shift + sum(count for count, _ in fill.bits) - 1
    if value % (1 << fill.shift) or (fill.what in ("distance", "pages") and not -half <= value < half):
        raise PlacingError(f"{value} does not fit")
    value >>= fill.shift
    for count, at in fill.bits:
        mask = (1 << count) - 1
        old = old & ~(mask << at) | (value & mask) << at
        value >>= count
    return old


def _text(texts: bytes, at: int) -> bytes:
    return texts[at : texts.index(b"\0", at)]


@cache
def _of_library(name: str) -> int:
    """The address of a function of C's library."""
    if name not in LIBRARY:
        raise PlacingError(f"{name} is not in the object file")
    return ctypes.cast(getattr(ctypes.CDLL(None), name), ctypes.c_void_p).value or 0


class _Room:
    """Memory that is written through a file that only it knows, and executed where it is mapped: never both at once."""

    def __init__(self, size: int) -> None:
        try:
            self._file = os.memfd_create("tracekit")
        except (AttributeError, OSError) as error:  # another system
            raise PlacingError(f"no memory for code: {error}") from error
        try:
            os.truncate(self._file, size)
            self._memory = mmap.mmap(self._file, size, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_EXEC)
        except (OSError, ValueError) as error:
            os.close(self._file)
            raise PlacingError(f"no memory for code: {error}") from error
        self.address = int(np.frombuffer(self._memory, np.uint8).ctypes.data)

    def __enter__(self) -> _Room:
        return self

    def write(self, image: bytearray) -> None:
        """Fill it; it stays for as long as the process."""
        os.pwrite(self._file, image, 0)
        _rooms.append(self._memory)

    def __exit__(self, *_: object) -> None:
        os.close(self._file)
