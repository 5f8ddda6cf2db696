"""Handler of a finished recording: write the trace, wait for the other ranks, print the answer.

Training must not be disturbed: a full disk, a missing rank or a failed analysis is one line in the
log.
"""

import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

from tracekit._util.text import counted, listing, size
from tracekit.errors import TracekitError
from tracekit.record.answer import Answer, analyse_apart, answer_to, gather_tables
from tracekit.record.process_info import TRACE_SUFFIX, ProcessInfo, find_process_info

Log = Callable[[Mapping[str, float]], object]
"""Takes figures by name: ``wandb.log``, or ``lambda d: mlflow.log_metrics(d)``."""

MAX_WAIT_S = 120.0
"""Seconds that rank 0 waits for the files of the other ranks."""
POLL_INTERVAL_S = 0.5


@dataclass(eq=False)
class Handler:
    """Writes the trace of a rank; on rank 0 analyses the run once all ranks have written.

    Use it as ``on_trace_ready``.

    >>> handler("traces", rank=0, world_size=2).process.file_of(0).name
    'rank0.pt.trace.json.gz'
    """

    process: ProcessInfo
    _: KW_ONLY
    answer: bool = True
    log: Log | None = None
    most_bytes: int | None = None
    wait_s: float = MAX_WAIT_S
    background: bool = True
    gather: bool = False
    suggests_timing: bool = False
    """Whether to say what would time the step without the profiler."""
    _thread: threading.Thread | None = field(default=None, init=False)

    def __call__(self, profiled: Any) -> None:
        """Handle a finished recording of PyTorch's profiler."""
        written = self._write(profiled)
        if self.gather:
            self._answer_gathered(written)
            return
        if not written or self.process.rank != 0 or not (self.answer or self.log):
            return
        if not self.background:
            self._answer_all()
            return
        # Not a daemon thread: a training that ends right after the recorded steps still prints its
        # answer.
        self._thread = threading.Thread(target=self._answer_all, name="tracekit-answer")
        self._thread.start()

    def wait(self, timeout_s: float | None = None) -> None:
        """Wait until the answer is printed."""
        if self._thread is not None:
            self._thread.join(timeout_s)

    def _write(self, profiled: Any) -> bool:
        """Write the trace under a temporary name and rename it.

        Log the outcome and return whether it was written.
        """
        process = self.process
        part = process.file.with_name(
            f".{process.file.name.removesuffix(TRACE_SUFFIX)}.{os.getpid()}{TRACE_SUFFIX}"
        )
        try:
            process.folder.mkdir(parents=True, exist_ok=True)
            profiled.export_chrome_trace(str(part))
            written = part.stat().st_size
            if self.most_bytes is not None and written > self.most_bytes:
                too_large = f"the trace of {size(written)} is larger than {size(self.most_bytes)} and was thrown away"
                log_line(process, f"{too_large}; record fewer steps, or raise most_mb")
                return False
            part.replace(process.file)
        except (OSError, RuntimeError) as error:
            log_line(process, f"the trace could not be written: {error}")
            return False
        finally:
            part.unlink(missing_ok=True)
        log_line(process, f"wrote {process.file} ({size(written)})")
        if self.suggests_timing:
            log_line(
                process,
                "the step without the profiler is modelled: tracekit.profiler(...) times it before it records",
            )
        return True

    def _answer_all(self) -> None:
        """Wait for the other ranks, analyse the run and report; a failure is logged."""
        process = self.process
        try:
            missing = self._wait_for_ranks()
            if missing:
                ranks = f"{counted(len(missing), 'rank')} of {process.world_size}"
                names = listing(map(str, missing))
                log_line(
                    process,
                    f"{ranks} wrote no trace into {process.folder}: {names}; the answer is without them",
                )
            present = [
                process.file_of(rank) for rank in range(process.world_size) if rank not in missing
            ]
            self._report(analyse_apart(present))
        except Exception as error:  # training must go on, whatever fails here
            self._log_failure(error)

    def _answer_gathered(self, written: bool) -> None:
        """Measure this rank's trace, send its tables to rank 0, and report there.

        Needs no shared folder.
        """
        try:
            tables = gather_tables(self.process.file if written else None)
            if tables and (self.answer or self.log):
                self._report(answer_to(tables, self.process.folder))
        except Exception as error:
            self._log_failure(error)

    def _log_failure(self, error: Exception) -> None:
        reason = (
            str(error) if isinstance(error, TracekitError) else f"{type(error).__name__}: {error}"
        )
        log_line(self.process, f"no answer: {reason}")

    def _wait_for_ranks(self) -> list[int]:
        """Wait until all ranks have written; return those that have not after the longest wait."""
        deadline = time.monotonic() + self.wait_s
        while (missing := self.process.missing_ranks()) and time.monotonic() < deadline:
            time.sleep(POLL_INTERVAL_S)
        return missing

    def _report(self, answer: Answer) -> None:
        if self.answer:
            for line in answer.lines:
                log_line(self.process, line)
            log_line(self.process, f"more: tracekit analyze {self.process.folder} -o report.html")
        if self.log is not None:
            self.log(answer.figures)


def handler(
    folder: str | os.PathLike[str],
    *,
    log: Log | None = None,
    rank: int | None = None,
    world_size: int | None = None,
    answer: bool = True,
    wait_s: float = MAX_WAIT_S,
    background: bool = True,
    gather: bool = False,
) -> Handler:
    """Return an ``on_trace_ready`` for your own ``torch.profiler.profile``: one file per rank, the answer on rank 0.

    Rank 0 reads the other ranks' files in *folder*, which all ranks must share. With *gather*, each
    rank measures its own trace and sends small tables through the process group instead; all ranks
    must then take part.

    >>> handler("traces", rank=0, world_size=2).process.file_of(1).name
    'rank1.pt.trace.json.gz'
    """
    process = find_process_info(folder, rank=rank, world_size=world_size)
    return Handler(
        process,
        answer=answer,
        log=log,
        wait_s=wait_s,
        background=background,
        gather=gather,
        suggests_timing=process.rank == 0,
    )


def log_line(process: ProcessInfo, text: str) -> None:
    """Print one line to the log of the training, its standard error."""
    rank = f"[rank {process.rank}] " if process.world_size > 1 else ""
    print(f"tracekit: {rank}{text}", file=sys.stderr, flush=True)  # noqa: T201  # the training's log is its terminal
