"""Stacks of allocations: where they come from, and the source line that stands for each."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import msgspec

from tracekit.schema import Frame

_LIBRARY = re.compile(r"site-packages/|dist-packages/|(^|/)torch/|(^|/)python3\.\d+/|^<")
"""Matches the path of a file that belongs to a library or to Python itself."""

Stack = tuple[Frame, ...]
"""Frames, innermost first."""


class _OriginRule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One rule of ``origins.toml``."""

    origin: str
    files: tuple[str, ...] = ()
    functions: tuple[str, ...] = ()

    def matches(self, frame: Frame) -> bool:
        """Return whether a frame is one that the rule is about."""
        function, file, _ = frame
        is_file = not self.files or any(part in file for part in self.files)
        return is_file and (not self.functions or function in self.functions)


class _Rules(msgspec.Struct, frozen=True):
    rule: tuple[_OriginRule, ...]


@cache
def _rules() -> tuple[_OriginRule, ...]:
    text = Path(__file__).with_name("origins.toml").read_bytes()
    return msgspec.toml.decode(text, type=_Rules).rule


def stack_origin(stack: Stack) -> str | None:
    """Return where an allocation comes from by its stack.

    None if no rule of ``origins.toml`` tells.

    >>> stack_origin((("step", "site-packages/torch/optim/adam.py", 248), ("main", "train.py", 3)))
    'optimizer'
    >>> stack_origin((("main", "train.py", 3),)) is None
    True
    """
    for rule in _rules():
        if any(rule.matches(frame) for frame in stack):
            return rule.origin
    return None


def source_line(stack: Stack) -> str | None:
    """Return the innermost line of the user's own code, else of any Python code.

    None without a Python stack.

    >>> source_line((("linear", "site-packages/torch/nn/functional.py", 9), ("forward", "model.py", 25)))
    'model.py:25 forward'
    """
    # Frames of C++ have no line.
    python = [frame for frame in stack if frame[2] > 0]
    own = [frame for frame in python if not _LIBRARY.search(frame[1])]
    shown = own or python
    if not shown:
        return None
    function, file, line = shown[0]
    return f"{file}:{line} {function}"


def stack_origins(stacks: Sequence[Stack]) -> list[str | None]:
    """Return the origin of every stack."""
    return [stack_origin(stack) for stack in stacks]
