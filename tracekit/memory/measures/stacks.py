"""Stacks of allocations: where they come from, and the source line that stands for each."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache, lru_cache
from itertools import pairwise
from pathlib import Path

import msgspec

from tracekit.schema import Frame

_LIBRARY = re.compile(
    r"site-packages/|dist-packages/|(^|/)torch/|(^|/)python3?\.?\d+/|(^|/)envs/[^/]+/lib/|^<",
    re.IGNORECASE,
)
"""Matches the path of a file that belongs to a library or to Python itself."""
_COMPILED = re.compile(
    r"^(\?\?)?$|\.(c|h|cc|cpp|cxx|cu|cuh|hpp|inc|inl|o|s|so[.\d]*|dll|pyd)$", re.I
)
"""Matches the file of a frame of C++ or of the interpreter itself, which may have a line as well."""

_TORCH = re.compile(r"(^|/)torch/")
_TENSOR_FILES = re.compile(r"(^|/)torch/(_tensor|functional|_ops|utils/_device)\.py$")
"""Matches files of PyTorch whose functions pass a call on that could stand in the program itself."""
_MODULE_FILE = "torch/nn/modules/module.py"

Stack = tuple[Frame, ...]
"""Frames, innermost first."""
MAX_REMEMBERED_FRAMES = 1 << 16
"""Frames whose first matching rule is kept; stacks share most of theirs."""
_CONSTRUCTORS = ("__init__", "reset_parameters", "init_weights")
"""Functions in which modules make their parameters."""


class _OriginRule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One rule of ``origins.toml``."""

    origin: str
    files: tuple[str, ...] = ()
    functions: tuple[str, ...] = ()
    own_files: tuple[str, ...] = ()
    """Parts of the names of files of the user's own code, in small letters."""
    compiled: tuple[str, ...] = ()
    """Parts of the names of C++ functions; such a rule is about no Python frame."""

    def matches(self, frame: Frame) -> bool:
        """Return whether a frame is one that the rule is about."""
        function, file, _ = frame
        if self.compiled:
            return is_compiled(frame) and any(part in function for part in self.compiled)
        path = with_slashes(file)
        if self.own_files:
            name = path.rpartition("/")[2].lower()
            return not _LIBRARY.search(path) and any(part in name for part in self.own_files)
        is_file = not self.files or any(part in path for part in self.files)
        return is_file and (not self.functions or function in self.functions)


class _Rules(msgspec.Struct, frozen=True):
    rule: tuple[_OriginRule, ...]


def with_slashes(path: str) -> str:
    r"""Return a path with the separators of Linux.

    >>> with_slashes("C:\\env\\Lib\\site-packages\\torch\\functional.py")
    'C:/env/Lib/site-packages/torch/functional.py'
    """
    return path.replace("\\", "/")


def is_compiled(frame: Frame) -> bool:
    """Return whether a frame is of C++ or of the interpreter, not of Python code.

    >>> is_compiled(("cfunction_call", "/conda/python-3.12.7/Objects/methodobject.c", 537))
    True
    >>> is_compiled(("forward", "model.py", 25)), is_compiled(("<module>", "<string>", 1))
    (False, False)
    """
    return _COMPILED.search(frame[1]) is not None


def is_of_library(frame: Frame) -> bool:
    """Return whether a frame of Python is of a library or of Python itself, not of the user's own code.

    >>> is_of_library(("linear", "site-packages/torch/nn/functional.py", 9))
    True
    """
    return _LIBRARY.search(with_slashes(frame[1])) is not None


@cache
def _rules() -> tuple[_OriginRule, ...]:
    text = Path(__file__).with_name("origins.toml").read_bytes()
    return msgspec.toml.decode(text, type=_Rules).rule


@lru_cache(maxsize=MAX_REMEMBERED_FRAMES)
def _first_rule(frame: Frame) -> int:
    """Return the index of the first rule that a frame matches; the number of rules if it matches none."""
    rules = _rules()
    for i, rule in enumerate(rules):
        if rule.matches(frame):
            return i
    return len(rules)


def stack_origin(stack: Stack) -> str | None:
    """Return where an allocation comes from by its stack.

    None if no rule of ``origins.toml`` tells.

    >>> stack_origin((("step", "site-packages/torch/optim/adam.py", 248), ("main", "train.py", 3)))
    'optimizer'
    >>> stack_origin((("main", "train.py", 3),)) is None
    True
    """
    first_rule = min(map(_first_rule, stack), default=len(_rules()))
    if first_rule < len(_rules()):
        return _rules()[first_rule].origin
    innermost = _innermost_python(stack)
    # A tensor that a constructor of the user's own code makes, and no forward, is a parameter.
    is_constructed = innermost is not None and innermost[0] in _CONSTRUCTORS
    return "weights" if is_constructed else None


def source_line(stack: Stack) -> str | None:
    """Return the innermost line of the user's own code, else of any Python code.

    None without a Python stack.

    >>> source_line((("linear", "site-packages/torch/nn/functional.py", 9), ("forward", "model.py", 25)))
    'model.py:25 forward'
    """
    innermost = _innermost_python(stack)
    if innermost is None:
        return None
    function, file, line = innermost
    return f"{file}:{line} {function}"


def shared_line(stacks: Sequence[Stack]) -> str | None:
    """Return the innermost line of the user's own code that all stacks were called from; None if there is none.

    Of one stack, its outermost line.

    >>> loop = ("<module>", "train.py", 3)
    >>> shared_line([(("forward", "a.py", 1), loop), (("loss", "b.py", 7), loop)])
    'train.py:3 <module>'
    """
    shared = None
    for frames in zip(*(_own_frames(stack) for stack in stacks), strict=False):
        if len(set(frames)) > 1:
            break
        function, file, line = frames[0]
        shared = f"{file}:{line} {function}"
        if len(stacks) == 1:
            break
    return shared


def _own_frames(stack: Stack) -> list[Frame]:
    """Return the frames of the user's own code, outermost first."""
    own = []
    for frame in reversed(stack):
        if not is_compiled(frame) and not _LIBRARY.search(with_slashes(frame[1])):
            own.append(frame)
    return own


def repeated_functions(stack: Stack) -> list[str]:
    """Return the functions of modules that a stack passes through, outermost first.

    These are the frames that ``torch.nn.Module`` calls, outside of PyTorch itself.

    >>> call = ("_call_impl", "site-packages/torch/nn/modules/module.py", 9)
    >>> repeated_functions((("forward", "model.py", 25), call, ("step", "train.py", 3)))
    ['model.py forward']
    """
    python = [frame for frame in stack if not is_compiled(frame)]
    names: list[str] = []
    for (function, file, _), (_, caller, _) in pairwise(python):
        is_called_by_module = with_slashes(caller).endswith(_MODULE_FILE)
        name = f"{file} {function}"
        if is_called_by_module and not _TORCH.search(with_slashes(file)) and name not in names:
            names.insert(0, name)
    return names


def is_of_program(stack: Stack) -> bool:
    """Return whether the program itself made a tensor: its own line called PyTorch, through no library.

    >>> is_of_program((("load", "data.py", 9), ("main", "train.py", 3)))
    True
    >>> is_of_program((("make", "site-packages/xformers/ops.py", 5), ("main", "train.py", 3)))
    False
    """
    for frame in stack:
        if frame[2] <= 0 or is_compiled(frame) or _TENSOR_FILES.search(with_slashes(frame[1])):
            continue
        return not is_of_library(frame)
    return False


def _innermost_python(stack: Stack) -> Frame | None:
    """Return the innermost frame of the user's own code, else of any Python code; None without a Python stack."""
    python = [frame for frame in stack if frame[2] > 0 and not is_compiled(frame)]
    own = [frame for frame in python if not is_of_library(frame)]
    return next(iter(own or python), None)
