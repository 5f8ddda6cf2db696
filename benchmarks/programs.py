"""Other people's training programs: their step without the profiler, a recording, and the step again with one change.

    python benchmarks/programs.py [--record trace.json.gz] [--change tf32] [--replace OLD NEW] train.py [its arguments]

The program runs as it is, in this process. A step ends where the first of its optimizers has stepped.
After warm-up steps, *FREE_STEPS* are timed between two synchronisations, which is printed as one line of
JSON; with ``--record``, four steps are then recorded with shapes. A change is a switch of PyTorch's
(``CHANGES``) or a replacement in the program's text. Programs are not part of this repository.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.profiler import ProfilerActivity, profile

WARM_UP_STEPS = 15
FREE_STEPS = 30
PROFILED_BEFORE = 2
"""Steps with the profiler on that are not recorded."""
RECORDED_STEPS = 4


def _tf32() -> None:
    torch.backends.cuda.matmul.allow_tf32 = True
    torch.backends.cudnn.allow_tf32 = True


def _bf16() -> None:
    torch.autocast("cuda", dtype=torch.bfloat16).__enter__()


def _channels_last() -> None:
    to = torch.nn.Module.to

    def to_channels_last(module: torch.nn.Module, *words: Any, **options: Any) -> Any:
        return to(to(module, *words, **options), memory_format=torch.channels_last)

    torch.nn.Module.to = to_channels_last  # type: ignore[method-assign]


def _cudnn_benchmark() -> None:
    torch.backends.cudnn.benchmark = True


def _fused_adam() -> None:
    for kind in (torch.optim.Adam, torch.optim.AdamW):
        make = kind.__init__

        def fused(self: Any, *words: Any, make: Callable[..., None] = make, **options: Any) -> None:
            make(self, *words, **{**options, "fused": True})

        kind.__init__ = fused  # type: ignore[method-assign]


CHANGES: dict[str, Callable[[], None]] = {
    "tf32": _tf32,
    "bf16": _bf16,
    "channels-last": _channels_last,
    "cudnn-benchmark": _cudnn_benchmark,
    "fused-adam": _fused_adam,
}
"""Switches of PyTorch's, by name."""


class Steps:
    """Counts the steps of a program's first optimizer; times some, records others, then ends the program."""

    def __init__(self, name: str, recording: Path | None) -> None:
        self.name = name
        self.recording = recording
        self.optimizer: torch.optim.Optimizer | None = None
        self.count = 0
        self.began_s = 0.0
        self.profiler: profile | None = None

    def after_step(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        """Note one step of an optimizer."""
        if self.optimizer is None:
            self.optimizer = optimizer
        if optimizer is not self.optimizer:
            return
        self.count += 1
        if self.count == WARM_UP_STEPS:
            torch.cuda.synchronize()
            self.began_s = time.perf_counter()
        if self.count == WARM_UP_STEPS + FREE_STEPS:
            torch.cuda.synchronize()
            free_ms = 1e3 * (time.perf_counter() - self.began_s) / FREE_STEPS
            sys.stderr.write(json.dumps({"run": self.name, "free_ms": round(free_ms, 3)}) + "\n")
            if self.recording is None:
                _end()
            self._start_profiler()
        elif self.profiler is not None:
            self.profiler.step()

    def _start_profiler(self) -> None:
        plan = torch.profiler.schedule(wait=0, warmup=PROFILED_BEFORE, active=RECORDED_STEPS)
        both = [ProfilerActivity.CPU, ProfilerActivity.CUDA]
        self.profiler = profile(
            activities=both, schedule=plan, record_shapes=True, on_trace_ready=self._write
        )
        self.profiler.start()

    def _write(self, profiler: profile) -> None:
        profiler.export_chrome_trace(str(self.recording))
        _end()


def _end() -> None:
    """End the program at once: workers and loops of its own are not waited for."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def main() -> None:
    """Run a program."""
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--name", default="", help="what the run is called in the output")
    options.add_argument("--record", type=Path, help="file of the recording")
    options.add_argument("--change", action="append", default=[], choices=CHANGES)
    options.add_argument("--replace", action="append", nargs=2, default=[], metavar=("OLD", "NEW"))
    options.add_argument("program", type=Path)
    options.add_argument("words", nargs=argparse.REMAINDER)
    wanted = options.parse_args()
    text = wanted.program.read_text(encoding="utf-8")
    for old, new in wanted.replace:
        if old not in text:
            raise SystemExit(f"{wanted.program} has no {old!r}")
        text = text.replace(old, new)
    for name in wanted.change:
        CHANGES[name]()
    steps = Steps(wanted.name or wanted.program.stem, wanted.record and wanted.record.resolve())
    register_optimizer_step_post_hook(steps.after_step)
    sys.argv = [str(wanted.program), *wanted.words]
    folder = wanted.program.resolve().parent
    sys.path.insert(0, str(folder))
    os.chdir(folder)
    # As __main__, so that workers of a loader find what the program defines.
    main_module = sys.modules["__main__"].__dict__
    exec(compile(text, str(wanted.program), "exec"), main_module)


if __name__ == "__main__":
    main()
