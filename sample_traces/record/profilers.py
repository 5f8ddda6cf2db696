"""The two profilers behind one small face: enter, ``step()`` after every training step, leave."""

from __future__ import annotations

import json
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from slim import slim
from torch.profiler import ProfilerActivity, profile, schedule

WARM_UP = 2


class PyTorch:
    """The PyTorch profiler, one ``.pt.trace.json.gz`` a rank."""

    def __init__(self, folder: Path, rank: int, *, steps: int, shapes: bool) -> None:
        self.path = folder / f"rank{rank}.pt.trace.json.gz"
        activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * torch.cuda.is_available()
        when = schedule(wait=0, warmup=WARM_UP, active=steps)
        self.profile = profile(
            activities=activities, record_shapes=shapes, schedule=when, on_trace_ready=self._write
        )

    def __enter__(self) -> PyTorch:
        self.profile.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self.profile.__exit__(*error)

    def step(self) -> None:
        """End a training step."""
        self.profile.step()

    def _write(self, profiled: Any) -> None:
        whole = self.path.with_suffix(".whole.json")
        profiled.export_chrome_trace(str(whole))
        self.path.write_bytes(slim(json.loads(whole.read_text()), self.path.name))
        whole.unlink()


class Nsight:
    """Nsight Systems: the capture range covers the active steps, autograd's ranges carry numbers and shapes."""

    def __init__(self, *, steps: int, shapes: bool) -> None:
        self.steps, self.done = steps, 0
        self.ranges = torch.autograd.profiler.emit_nvtx(record_shapes=shapes)

    def __enter__(self) -> Nsight:
        self.ranges.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.ranges.__exit__(kind, error, trace)

    def step(self) -> None:
        """End a training step."""
        self.done += 1
        torch.cuda.nvtx.mark(f"step {self.done}")
        if self.done == WARM_UP:
            torch.cuda.cudart().cudaProfilerStart()
        if self.done == WARM_UP + self.steps:
            torch.cuda.cudart().cudaProfilerStop()
