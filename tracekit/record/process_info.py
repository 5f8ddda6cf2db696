"""Facts about this process and its run: rank, world size, output folder, and descriptions of its process groups."""

import importlib
import os
from collections.abc import Mapping
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
        raise OptionError(
            "recording needs PyTorch", hint="run this where the training runs"
        ) from None


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
        raise OptionError(
            f"rank {rank} of {world_size} ranks cannot be", hint="give rank= and world_size="
        )
    return ProcessInfo(Path(folder), rank, world_size)


def _detect_rank() -> tuple[int, int]:
    """Return rank and world size of torch.distributed, else of the launcher's environment variables."""
    torch = import_torch()
    group = getattr(torch, "distributed", None)
    if group is not None and group.is_available() and group.is_initialized():
        return int(group.get_rank()), int(group.get_world_size())
    return int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))


NO_DESCRIPTION = ("", "undefined")
"""Values of PyTorch for a group that was created without a description."""


def describe_groups(groups: Mapping[str, Any]) -> list[str]:
    """Set each group's description in PyTorch to its name; return the names that were set.

    A group that has a description keeps it. None, for a group that this rank is not in, is ignored.

    >>> class Group:
    ...     group_desc = "undefined"
    ...     def _set_group_desc(self, text):
    ...         self.group_desc = text
    >>> pipeline = Group()
    >>> describe_groups({"pp": pipeline, "ep": None})
    ['pp']
    >>> pipeline.group_desc
    'pp'
    """
    described = []
    for name, group in groups.items():
        if group is None:
            continue
        describe = getattr(group, "_set_group_desc", None)
        if describe is None:
            problem = f"groups[{name!r}] is a {type(group).__name__}, which cannot be described"
            raise OptionError(
                problem, hint="give a torch.distributed process group, with PyTorch 2.4 or newer"
            )
        if group.group_desc in NO_DESCRIPTION:
            describe(name)
            described.append(name)
    return described
