"""Functions compiled once on a machine and kept as native code: a later process loads them without the compiler.

Importing numba and getting it ready takes most of a second; loading an object file that it once made takes a third of
a millisecond. So numba is only imported where a function has to be compiled: the first time on a machine, and after the
function's source, numba or the processor has changed. A file that is damaged, or that cannot be written, costs the
compiling and nothing else.

What a function may do is what native code can do alone: read and write the arrays it is given, and return an integer
or nothing. It allocates no array and raises no error.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import importlib
import os
import platform
import re
import sys
import threading
from collections.abc import Callable, Iterator
from functools import cache, update_wrapper
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np
import numpy.typing as npt

from tracekit._util import compilers, kept, llvm, objects
from tracekit._util.machine import processor
from tracekit.errors import TracekitError

R = TypeVar("R")

OPTIONS: dict[str, Any] = {
    "nogil": True,
    "error_model": "numpy",
    "no_cpython_wrapper": True,
    "no_cfunc_wrapper": True,
    "_nrt": False,
}
"""How numba compiles native code, and what it calls: with no word about Python and no arrays of its own."""

MODULES = (
    "tracekit.parsers.kineto.scanner",
    "tracekit.parsers.nsight.btree",
    "tracekit.store.parquet.encodings",
)
"""Where the package declares native functions, so that all are compiled when the first is."""

_DONE = (0, -2)  # what numba's functions return where nothing was raised: a value is ready, or there is none
_lock = threading.RLock()
_declared: list[Native] = []
_sources: dict[Path, bytes | None] = {}  # what the code of each depends on
_to_do: dict[str, bool] = {}  # functions that were compiled and kept: a sign that the rest has to be, too


class _Argument(NamedTuple):
    """An array of *dtype* with *ndim* dimensions, laid out as C does, or with none an integer."""

    dtype: np.dtype[Any]
    ndim: int

    def ctypes(self) -> list[Any]:
        """How numba passes it: of an array its owner (two), size, size of an item, address, shape and strides."""
        if not self.ndim:
            return [ctypes.c_int64]
        pointer, size = ctypes.c_void_p, ctypes.c_ssize_t
        return [pointer, pointer, size, size, pointer, *[size] * (2 * self.ndim)]

    def flatten(self, value: Any) -> tuple[Any, ...]:
        if not self.ndim:
            return (int(value),)
        if value.dtype != self.dtype or value.ndim != self.ndim or not value.flags.c_contiguous:
            raise TypeError(f"{self.dtype} in {self.ndim} dimensions is wanted, not {value.dtype}{value.shape}")
        return (None, None, value.size, value.itemsize, value.ctypes.data, *value.shape, *value.strides)


class Native:
    """A function and its native code, loaded or compiled at the first call.

    *function* is the function, or ``module:name`` where importing it needs numba. *source* is the file it is written
    in, or the folder: all of tracekit that it uses must be there or in ``compiled``, since these tell whether code is
    stale.
    """

    def __init__(self, signature: str, function: Callable[..., Any] | str, source: str | Path) -> None:
        self.signature = signature
        self._function = function
        if isinstance(function, str):
            self.name = function.replace(":", ".")
        else:
            self.name = f"{function.__module__}.{function.__qualname__}"
            update_wrapper(self, function)
        self._source = Path(source)
        self._result, self._arguments = _parse(signature)
        self._run: Callable[..., Any] | None = None
        _declared.append(self)
        _sources.pop(self._source, None)  # it may have changed since

    def __call__(self, *args: Any) -> Any:
        return (self._run or self.load())(*args)

    @property
    def python(self) -> Callable[..., Any]:
        """The function as it is written."""
        if not isinstance(self._function, str):
            return self._function
        module, _, name = self._function.partition(":")
        return cast("Callable[..., Any]", getattr(importlib.import_module(module), name))

    def load(self) -> Callable[..., Any]:
        """Make the function ready: from its file, or compiled, and then kept for the next process."""
        with _lock:
            if self._run is None:
                key = self._key()
                self._run = self._kept(key) or self._compiled(key)
            run = self._run
        if _to_do.pop(self.name, False):
            _compile_the_rest()
        return run

    def at_hand(self) -> bool:
        """Return whether the function need not be compiled: an earlier process, or this one, has done that."""
        with _lock:
            self._run = self._run or self._kept(self._key())
            return self._run is not None

    def _key(self) -> bytes | None:
        """All that the code depends on; None where that cannot be told."""
        made_of = self._made_of()
        return made_of and kept.digest([made_of, self.name.encode(), self.signature.encode()])

    def _made_of(self) -> bytes | None:
        """All that the code of one source depends on."""
        if self._source not in _sources:
            files = sorted(self._source.glob("*.py")) if self._source.is_dir() else [self._source]
            try:
                _sources[self._source] = kept.digest([_shared(), *map(_text, files)])
            except (OSError, ImportError):  # no source, or a numba that is not installed but packed
                _sources[self._source] = None
        return _sources[self._source]

    def _files(self) -> Iterator[Path]:
        """Where the code may be."""
        name = f"{self.name}-{hashlib.sha256(_machine()).hexdigest()[:12]}.native"
        return kept.places(name, self._source if self._source.is_dir() else self._source.parent)

    def _kept(self, key: bytes | None) -> Callable[..., Any] | None:
        """Load the code from the first file that holds it whole, made of this source and for this machine."""
        for code in kept.found(self._files(), key) if key else ():
            with contextlib.suppress(OSError, RuntimeError):
                return self._linked(code)
        return None

    def _can_be_kept(self) -> bool:
        """Return whether a folder seems to take the code."""
        there = (next(one for one in file.parents if one.exists()) for file in self._files())
        return any(folder.is_dir() and os.access(folder, os.W_OK) for folder in there)

    def _compiled(self, key: bytes | None) -> Callable[..., Any]:
        numba = _numba()
        _tell()
        if key and self.name.startswith(MODULES) and _first_process() and self._can_be_kept():
            compilers.start(self.name)
        try:
            code = self._code()
            run = self._linked(code)
        except Exception:  # numba's insides are not what they were: its own way of calling always works
            return cast("Callable[..., Any]", numba.njit(self.signature, nogil=True, error_model="numpy")(self.python))
        if key and not kept.keep(self._files(), key, code):
            _tell_unkept()
        elif key and self.name.rpartition(".")[0].startswith(MODULES) and _first_process():
            _to_do[self.name] = True
        return run

    def _code(self) -> bytes:
        """Compile to an object file, behind the name of the function in it."""
        import numba
        from llvmlite import binding  # type: ignore[import-untyped]

        compiled: Any = numba.njit(self.signature, **OPTIONS)(self.python)
        (types,) = compiled.signatures
        symbol: str = compiled.overloads[types].fndesc.llvm_func_name
        module = binding.parse_assembly(compiled.inspect_llvm(types))
        outside = [
            f.name for f in module.functions if f.is_declaration and not f.name.startswith(("llvm.", *objects.LIBRARY))
        ]
        if outside:
            raise RuntimeError(f"{self.name} calls {outside}")
        taken = [str(argument.type) for argument in module.get_function(symbol).arguments]
        if taken != ["ptr" if kind is ctypes.c_void_p else "i64" for kind in self._ctypes()]:
            raise RuntimeError(f"{self.name} takes {taken}")
        return symbol.encode() + b"\0" + cast(bytes, llvm.target_machine().emit_object(module))

    def _ctypes(self) -> list[Any]:
        """Room for the result and for an error, then the arguments."""
        return [ctypes.c_void_p] * 2 + [kind for argument in self._arguments for kind in argument.ctypes()]

    def _linked(self, code: bytes) -> Callable[..., Any]:
        """Load an object file and make its function callable; the interpreter is free while it runs."""
        symbol, _, data = code.partition(b"\0")
        try:
            address = objects.place(data, symbol.decode())
        except objects.PlacingError:
            address = llvm.place(data, symbol.decode())
        function = ctypes.CFUNCTYPE(ctypes.c_int32, *self._ctypes())(address)
        arguments, returns = self._arguments, self._result != "void"

        def run(*args: Any) -> int | None:
            flat = [part for argument, value in zip(arguments, args, strict=True) for part in argument.flatten(value)]
            result, error = ctypes.c_int64(), ctypes.c_void_p()
            if function(ctypes.byref(result), ctypes.byref(error), *flat) not in _DONE:
                raise RuntimeError(f"{self.name} failed")
            return result.value if returns else None

        return run


def native(signature: str) -> Callable[[Callable[..., R]], Callable[..., R]]:
    """Compile a function for *signature*, in numba's notation, when it is first called, and keep the native code.

    >>> @native("int64(int64[::1])")
    ... def total(values):
    ...     total = 0
    ...     for value in values:
    ...         total += value
    ...     return total
    >>> total(np.array([1, 2, 3]))
    6
    """

    def wrap(function: Callable[..., R]) -> Callable[..., R]:
        return cast("Callable[..., R]", Native(signature, function, function.__code__.co_filename))

    return wrap


def whole(values: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """Return *values* as native code takes them, 64-bit integers side by side; a copy only where they are not.

    >>> whole(np.arange(6, dtype=np.uint8)[::2])
    array([0, 2, 4])
    """
    return np.ascontiguousarray(values, np.int64)


def narrow(values: npt.NDArray[Any]) -> npt.NDArray[np.int32]:
    """Return *values*, which are places or rows, as 32-bit integers side by side; a copy only where they are not.

    >>> narrow(np.array([3, -1])).dtype
    dtype('int32')
    """
    return np.ascontiguousarray(values, np.int32)


def prepare() -> None:
    """Load, or compile, every function that is declared, before many processes would each compile it."""
    for function in list(_declared):
        function.load()


def package_functions() -> list[Native]:
    """Return every function that the package declares, in an order that all processes share."""
    for module in MODULES:
        importlib.import_module(module)
    return sorted((one for one in _declared if one.name.startswith(MODULES)), key=lambda one: one.name)


@cache
def _compile_the_rest() -> None:
    """Compile all the package has, once something had to be compiled and could be kept: then never again here."""
    for function in reversed(package_functions()):  # those who help begin at the other end
        function.load()


def _text(file: Path) -> bytes:
    return hashlib.sha256(file.name.encode() + b"\0" + file.read_bytes()).digest()


def _parse(signature: str) -> tuple[str, tuple[_Argument, ...]]:
    """Read a signature as numba writes it.

    >>> _parse("void(int64[:,::1], int64)")[1]
    (_Argument(dtype=dtype('int64'), ndim=2), _Argument(dtype=dtype('int64'), ndim=0))
    """
    result, _, inside = signature.rstrip(")").partition("(")
    arguments = []
    for dtype, dimensions in re.findall(r"(\w+)(?:\[((?::,)*::1)\])?", inside):
        arguments.append(
            _Argument(np.dtype(dtype.replace("boolean", "bool")), dimensions.count(",") + bool(dimensions))
        )
    plain = {str(argument.dtype) for argument in arguments if not argument.ndim}
    assert {result, *plain} <= {"void", "int64"}, f"{signature}: integers are 64 bits wide"
    return result, tuple(arguments)


@cache
def _shared() -> bytes:
    """What all code depends on: how it is compiled, and for what."""
    files = (Path(__file__).with_name(name) for name in ("native.py", "compiled.py", "llvm.py"))
    return kept.digest([_machine(), *map(_text, files)])


@cache
def _machine() -> bytes:
    """What made the code and what it runs on."""
    made = _version("numba"), _version("llvmlite"), platform.system(), platform.machine()
    return repr((*made, processor() or llvm.processor())).encode()


def _version(package: str) -> str:
    """Return an installed package's version, as the folder beside it is called where there is one such folder.

    Asking ``importlib.metadata`` takes 0.03 s.
    """
    spec = find_spec(package)
    if spec is not None and spec.origin is not None:
        folders = list(Path(spec.origin).parents[1].glob(f"{package}-*.dist-info"))
        if len(folders) == 1:
            return folders[0].stem.partition("-")[2]
    from importlib.metadata import version

    return version(package)


def _numba() -> Any:
    """Return the compiler; code that was kept needs none, and neither does ``tracekit schedule --list``."""
    try:
        return importlib.import_module("numba")
    except ImportError as error:  # not installed, or not made for this NumPy or Python
        reason = str(error).strip().split("\n", maxsplit=1)[0]
        raise TracekitError(
            f"numba, which compiles tracekit once on a machine, cannot be imported: {reason}",
            hint="pip install --upgrade numba llvmlite",
        ) from error


def _first_process() -> bool:
    """Return whether this is the process that somebody waits for, not one that was started to work in parallel."""
    from multiprocessing import parent_process

    return parent_process() is None and not compilers.helping.is_set()


@cache
def _tell() -> None:
    """Print once why nothing seems to happen; processes that were started to work in parallel keep quiet."""
    if _first_process():
        sys.stderr.write("tracekit: compiling, once on this machine; this takes a few seconds...\n")


@cache
def _tell_unkept() -> None:
    """Print once that the next process will have to compile again, and what would spare it that."""
    if _first_process():
        sys.stderr.write(
            f"tracekit: no folder can keep the compiled code; set {kept.FOLDER} to a writable one, or every "
            "command will compile again\n"
        )
