"""What compiled functions are made of: plain memory behind an address, and words of eight bytes. It needs numba."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba import extending, njit
from numba import types as numba_types

from tracekit._util.native import OPTIONS

types: Any = numba_types  # numba's own annotations are those of Python, not of what it compiles
intrinsic: Any = extending.intrinsic

_BYTES = types.CPointer(types.uint8)
_WORDS = types.CPointer(types.uint64)
_INTS = types.CPointer(types.int64)
_SHORTS = types.CPointer(types.int32)


def inlined(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile into the functions that call it."""
    compiled: Callable[..., Any] = njit(forceinline=True, **OPTIONS)(function)
    return compiled


def called(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile as a function of its own: for what is rare or long."""
    compiled: Callable[..., Any] = njit(**OPTIONS)(function)
    return compiled


def _cast(pointer: Any) -> Any:
    """Make the compiled conversion of an address to *pointer*: unlike an array it is not counted at each call."""

    def cast(_context: Any, address: Any) -> Any:
        def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return builder.inttoptr(args[0], context.get_value_type(signature.return_type))

        return pointer(address), emit

    return intrinsic(cast)


def _load(_context: Any, buf: Any, at: Any) -> Any:
    """Eight bytes from any address: a plain 64-bit index would promise the compiler an alignment we do not have."""

    def emit(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        address = builder.gep(args[0], [args[1]], source_etype=ir.IntType(8))
        return builder.load(builder.bitcast(address, ir.IntType(64).as_pointer()), align=1, typ=ir.IntType(64))

    return types.uint64(_BYTES, types.int64), emit


def _count_zeros(_context: Any, value: Any) -> Any:
    def emit(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        return builder.cttz(args[0], ir.Constant(ir.IntType(1), 0))

    return types.int64(types.uint64), emit


def _swap(_context: Any, value: Any) -> Any:
    def emit(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        return builder.bswap(args[0])

    return types.uint64(types.uint64), emit


as_bytes, as_words, as_ints, as_shorts = _cast(_BYTES), _cast(_WORDS), _cast(_INTS), _cast(_SHORTS)
word_at: Any = intrinsic(_load)
trailing_zeros: Any = intrinsic(_count_zeros)
reversed_bytes: Any = intrinsic(_swap)
