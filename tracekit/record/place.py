"""Where a process stands in its run: its rank, how many there are, and the file its trace goes to."""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from typing import Any

import msgspec

from tracekit.errors import OptionError

SUFFIX = ".pt.trace.json.gz"


class Place(msgspec.Struct, frozen=True):
    """One rank of a run, and the folder its ranks write to."""

    folder: Path
    rank: int
    world_size: int

    @property
    def file(self) -> Path:
        """The trace of this rank."""
        return self.of(self.rank)

    def of(self, rank: int) -> Path:
        """The trace of any rank."""
        return self.folder / f"rank{rank}{SUFFIX}"

    def missing(self) -> list[int]:
        """The ranks whose trace is not there."""
        return [rank for rank in range(self.world_size) if not self.of(rank).exists()]


def import_torch() -> Any:
    """Return PyTorch, or say that it is needed."""
    try:
        return importlib.import_module("torch")
    except ImportError:
        raise OptionError("recording needs PyTorch", hint="run this where the training runs") from None


def find_place(folder: str | os.PathLike[str], *, rank: int | None = None, world_size: int | None = None) -> Place:
    """Return this process's place: as given, else as torch.distributed says, else as launchers set RANK, else alone.

    >>> find_place("traces", rank=2, world_size=4).file.name
    'rank2.pt.trace.json.gz'
    """
    if rank is None or world_size is None:
        own_rank, own_size = _distributed()
        rank = own_rank if rank is None else rank
        world_size = own_size if world_size is None else world_size
    if not 0 <= rank < world_size:
        raise OptionError(f"rank {rank} of {world_size} ranks cannot be", hint="give rank= and world_size=")
    return Place(Path(folder), rank, world_size)


def _distributed() -> tuple[int, int]:
    torch = import_torch()
    group = getattr(torch, "distributed", None)
    if group is not None and group.is_available() and group.is_initialized():
        return int(group.get_rank()), int(group.get_world_size())
    return int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
