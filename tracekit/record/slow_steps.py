"""Dumps of the flight recorder: on request, and on all ranks when a step is slower than usual.

PyTorch keeps the recorder itself (``TORCH_NCCL_TRACE_BUFFER_SIZE``). Each rank times its own steps.
The rank that sees a slow one leaves a request in the folder that all ranks share, and every rank
that finds a request at the end of a step writes its dump: ``tracekit late FOLDER/step120`` reads
them.
"""

from __future__ import annotations

import importlib
import os
import time
from collections import deque
from pathlib import Path
from statistics import median
from typing import Any

from tracekit._util.files import atomic_write
from tracekit.errors import OptionError, TracekitError
from tracekit.record.handler import log_line
from tracekit.record.process_info import find_process_info, import_torch

MIN_STEPS_TIMED = 10
"""Steps that must have been timed before one can be slower than usual."""
MAX_STEPS_TIMED = 100
"""Steps, the last ones, that tell what is usual."""
DEFAULT_SLOW_FACTOR = 1.5
"""Time of a step over the usual time, from which on it is slow."""
MIN_STEPS_BETWEEN_DUMPS = 100
"""Steps from one request to the next of the same rank: one slow phase is dumped once."""
_REQUEST = "dump-requested"


def dump_flight_recorder(
    folder: str | os.PathLike[str],
    *,
    rank: int | None = None,
    world_size: int | None = None,
    stacks: bool = False,
) -> Path:
    """Write this rank's flight recorder into *folder*, under a name that says the rank.

    Return the file.

    Args:
        folder: Folder that all ranks write to; made if needed.
        rank: Rank of this process; by default that of torch.distributed, else of RANK.
        world_size: Number of ranks; by default likewise.
        stacks: Add where every operation was called. That takes much longer.

    Raises:
        OptionError: PyTorch is not installed, or has no flight recorder.

    >>> dump_flight_recorder("run/dumps", rank=0, world_size=4)  # doctest: +SKIP
    PosixPath('run/dumps/nccl_trace_rank_0')

    """
    process = find_process_info(folder, rank=rank, world_size=world_size)
    import_torch()
    try:
        recorder: Any = importlib.import_module("torch._C._distributed_c10d")
        dump = getattr(recorder, "_dump_nccl_trace")  # noqa: B009  # PyTorch has no other name for it
    except (ImportError, AttributeError):
        raise OptionError(
            "this PyTorch has no flight recorder", hint="use PyTorch 2.5 or later with NCCL"
        ) from None
    content: bytes = dump(True, stacks, False)
    process.folder.mkdir(parents=True, exist_ok=True)
    file = process.folder / f"nccl_trace_rank_{process.rank}"
    with atomic_write(file) as temporary:
        temporary.write_bytes(content)
    return file


class SlowStepDumps:
    """Dumps the flight recorder of all ranks when a step is slower than usual.

    Call ``step`` after each.

    >>> dumps = SlowStepDumps("run/dumps", rank=0, world_size=4)
    >>> dumps.step()  # after every training step, on every rank
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        slower_than: float = DEFAULT_SLOW_FACTOR,
        stacks: bool = False,
        rank: int | None = None,
        world_size: int | None = None,
    ) -> None:
        if slower_than <= 1:
            raise OptionError(
                f"slower_than={slower_than} is not above 1",
                hint="1.5 is half as long again as usual",
            )
        self._process = find_process_info(folder, rank=rank, world_size=world_size)
        self._slower_than = slower_than
        self._stacks = stacks
        self._times_s: deque[float] = deque(maxlen=MAX_STEPS_TIMED)
        self._step = 0
        self._last_request = -MIN_STEPS_BETWEEN_DUMPS
        self._answered: set[str] = set()
        self._began_s = time.perf_counter()

    def step(self) -> None:
        """Mark the end of a training step: time it, ask all ranks for a dump if it was slow, and answer requests."""
        duration_s = time.perf_counter() - self._began_s
        self._step += 1
        try:
            if self._is_slow(duration_s):
                self._request()
            self._answer_requests()
        except (TracekitError, OSError) as error:  # training must go on, whatever fails here
            log_line(self._process, f"the flight recorder is not dumped: {error}")
        self._times_s.append(duration_s)
        self._began_s = time.perf_counter()  # what dumping took belongs to no step

    def _is_slow(self, duration_s: float) -> bool:
        if (
            len(self._times_s) < MIN_STEPS_TIMED
            or self._step - self._last_request < MIN_STEPS_BETWEEN_DUMPS
        ):
            return False
        return duration_s > self._slower_than * median(self._times_s)

    def _request(self) -> None:
        """Ask all ranks for a dump; ranks that see the same slow step ask for the same."""
        self._last_request = self._step
        folder = self._process.folder / f"step{self._step}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / _REQUEST).touch()

    def _answer_requests(self) -> None:
        for request in self._process.folder.glob(f"step*/{_REQUEST}"):
            name = request.parent.name
            if name in self._answered:
                continue
            self._answered.add(name)
            self._last_request = self._step
            process = self._process
            dump_flight_recorder(
                request.parent,
                rank=process.rank,
                world_size=process.world_size,
                stacks=self._stacks,
            )
            log_line(process, f"the flight recorder of {name} is in {request.parent}")
