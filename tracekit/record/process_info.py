"""Rank, world size and trace files of the recording process."""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from typing import Any

import msgspec

from tracekit.errors import OptionError

TRACE_SUFFIX = ".pt.trace.json.gz"


class ProcessInfo(msgspec.Struct, frozen=True):
    """Rank of a process in its run, and the folder that all ranks write to."""

    folder: Path
    rank: int
    world_size: int

    @property
    def file(self) -> Path:
        """Trace file of this rank."""
        return self.file_of(self.rank)

    def file_of(self, rank: int) -> Path:
        """Return the trace file of any rank."""
        return self.folder / f"rank{rank}{TRACE_SUFFIX}"

    def missing_ranks(self) -> list[int]:
        """Return the ranks whose trace file does not exist."""
        return [rank for rank in range(self.world_size) if not self.file_of(rank).exists()]


def import_torch() -> Any:
    """Return PyTorch; raise OptionError if it is not installed."""
    try:
        return importlib.import_module("torch")
    except ImportError:
        raise OptionError("recording needs PyTorch", hint="run this where the training runs") from None


def find_process_info(
    folder: str | os.PathLike[str], *, rank: int | None = None, world_size: int | None = None
) -> ProcessInfo:
    """Return rank and world size: as given, else of torch.distributed, else of RANK and WORLD_SIZE, else 0 and 1.

    >>> find_process_info("traces", rank=2, world_size=4).file.name
    'rank2.pt.trace.json.gz'
    """
    if rank is None or world_size is None:
        detected_rank, detected_size = _detect_rank()
        rank = detected_rank if rank is None else rank
        world_size = detected_size if world_size is None else world_size
    if not 0 <= rank < world_size:
        raise OptionError(f"rank {rank} of {world_size} ranks cannot be", hint="give rank= and world_size=")
    return ProcessInfo(Path(folder), rank, world_size)


def _detect_rank() -> tuple[int, int]:
    """Return rank and world size of torch.distributed, else of the launcher's environment variables."""
    torch = import_torch()
    group = getattr(torch, "distributed", None)
    if group is not None and group.is_available() and group.is_initialized():
        return int(group.get_rank()), int(group.get_world_size())
    return int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
