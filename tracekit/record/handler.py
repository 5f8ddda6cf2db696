"""``handler``: what happens when a recording is ready: write it, wait for the other ranks, print the answer.

Training must not notice: a full disk, a rank that never comes or an analysis that fails is one line in the log.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from tracekit._util.text import counted, listing, size
from tracekit.errors import TracekitError
from tracekit.record.place import SUFFIX, Place, find_place

if TYPE_CHECKING:
    from tracekit.analysis import Analysis

Log = Callable[[Mapping[str, float]], object]
"""Takes figures by name: ``wandb.log``, or ``lambda d: mlflow.log_metrics(d)``."""

WAIT_S = 120.0
"""How long rank 0 waits for the other ranks' files."""
LOOK_EVERY_S = 0.5


class Handler:
    """Writes a rank's trace; on rank 0 analyses the run once all ranks are there. Use it as ``on_trace_ready``.

    >>> handler("traces", rank=0, world_size=2).place.of(0).name
    'rank0.pt.trace.json.gz'
    """

    def __init__(
        self,
        place: Place,
        *,
        answer: bool = True,
        log: Log | None = None,
        most_bytes: int | None = None,
        wait_s: float = WAIT_S,
        background: bool = True,
        gather: bool = False,
    ) -> None:
        self.place, self._gather = place, gather
        self._answer, self._log = answer, log
        self._most_bytes, self._wait_s, self._background = most_bytes, wait_s, background
        self._thread: threading.Thread | None = None

    def __call__(self, profiled: Any) -> None:
        """Take a finished recording from PyTorch's profiler."""
        written = self._write(profiled)
        if self._gather:
            self._answer_gathered(written)
            return
        if not written or self.place.rank != 0 or not (self._answer or self._log):
            return
        if not self._background:
            self._answer_all()
            return
        # Not a daemon: a training that ends right after its recorded steps still gets its answer.
        self._thread = threading.Thread(target=self._answer_all, name="tracekit-answer")
        self._thread.start()

    def wait(self, timeout_s: float | None = None) -> None:
        """Return when the answer is printed."""
        if self._thread is not None:
            self._thread.join(timeout_s)

    def _write(self, profiled: Any) -> bool:
        """Write the trace beside its place and move it there; say what became of it."""
        place = self.place
        part = place.file.with_name(f".{place.file.name.removesuffix(SUFFIX)}.{os.getpid()}{SUFFIX}")
        try:
            place.folder.mkdir(parents=True, exist_ok=True)
            profiled.export_chrome_trace(str(part))
            written = part.stat().st_size
            if self._most_bytes is not None and written > self._most_bytes:
                say(place, f"the trace of {size(written)} is larger than {size(self._most_bytes)} and was thrown away; "
                    "record fewer steps, or raise most_mb")  # fmt: skip
                return False
            part.replace(place.file)
        except (OSError, RuntimeError) as error:
            say(place, f"the trace could not be written: {error}")
            return False
        finally:
            part.unlink(missing_ok=True)
        say(place, f"wrote {place.file} ({size(written)})")
        return True

    def _answer_all(self) -> None:
        try:
            missing = self._wait_for_ranks()
            if missing:
                say(self.place, f"{counted(len(missing), 'rank')} of {self.place.world_size} wrote no trace into "
                    f"{self.place.folder}: {listing(map(str, missing))}; the answer is without them")  # fmt: skip
            from tracekit.run.analyze import analyze

            present = [str(self.place.of(rank)) for rank in range(self.place.world_size) if rank not in missing]
            self._report(analyze(present, workers=1))
        except Exception as error:  # whatever it is, training goes on
            self._no_answer(error)

    def _answer_gathered(self, written: bool) -> None:
        """Measure this rank's trace here and send the small tables to rank 0: no folder need be shared."""
        from tracekit.analysis.combine import combine
        from tracekit.record.gather import gather_tables

        try:
            tables = gather_tables(self.place.file if written else None)
            if tables and (self._answer or self._log):
                self._report(combine(tables, paths=[str(self.place.folder)], schedule="auto"))
        except Exception as error:
            self._no_answer(error)

    def _no_answer(self, error: Exception) -> None:
        reason = str(error) if isinstance(error, TracekitError) else f"{type(error).__name__}: {error}"
        say(self.place, f"no answer: {reason}")

    def _wait_for_ranks(self) -> list[int]:
        until = time.monotonic() + self._wait_s
        while (missing := self.place.missing()) and time.monotonic() < until:
            time.sleep(LOOK_EVERY_S)
        return missing

    def _report(self, analysis: Analysis) -> None:
        from tracekit.report.scalars import scalars
        from tracekit.report.view import view_of

        if self._answer:
            for line in view_of(analysis).answer:
                say(self.place, f"{line.topic}: {line.text}")
            say(self.place, f"more: tracekit analyze {self.place.folder} -o report.html")
        if self._log is not None:
            self._log(scalars(analysis))


def handler(
    folder: str | os.PathLike[str],
    *,
    log: Log | None = None,
    rank: int | None = None,
    world_size: int | None = None,
    answer: bool = True,
    wait_s: float = WAIT_S,
    background: bool = True,
    gather: bool = False,
) -> Handler:
    """Return an ``on_trace_ready`` for your own ``torch.profiler.profile``: one file per rank, the answer on rank 0.

    Rank 0 finds the others' files in *folder*, which all ranks share; with *gather* each rank measures its own trace
    and sends the small tables through the process group instead: all ranks must then take part.

    >>> handler("traces", rank=0, world_size=2).place.of(1).name
    'rank1.pt.trace.json.gz'
    """
    place = find_place(folder, rank=rank, world_size=world_size)
    return Handler(place, answer=answer, log=log, wait_s=wait_s, background=background, gather=gather)


def say(place: Place, text: str) -> None:
    """Print one line to the training's log."""
    rank = f"[rank {place.rank}] " if place.world_size > 1 else ""
    print(f"tracekit: {rank}{text}", file=sys.stderr, flush=True)  # noqa: T201  # the training's log is its terminal
