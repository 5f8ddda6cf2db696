"""Recorder of a few training steps: PyTorch's profiler with the settings that an analysis needs.

Outside the recorded steps it costs nothing but a counter. A few steps before the profiler starts are
timed from one synchronisation with the GPU to another, so that the trace tells how long a step takes
without the profiler.

Callbacks are for trainers that own the training loop (Hugging Face, Lightning).
"""

from __future__ import annotations

import importlib
import json
import os
import time
from collections.abc import Mapping, Sequence
from typing import Any

from tracekit._util.text import counted, size
from tracekit.errors import OptionError
from tracekit.record.handler import Handler, Log, log_line
from tracekit.record.process_info import describe_groups, find_process_info, import_torch

WARM_UP_STEPS = 1
"""Steps profiled and discarded before the recorded ones, because the start of the profiler is
slow."""
DEFAULT_MAX_MB = 2_000
"""Default size limit of a trace: a larger one fills disks and no viewer opens it."""

MIN_TIMED_STEPS = 3
"""Steps that must be timed to tell how long one takes without the profiler."""
MAX_TIMED_STEPS = 10
"""Steps that are timed, the last ones before the profiler starts, and at most half of those: the
first steps of a training are slow."""

DEFAULT_STEPS = (10, 5)
"""First step that is recorded, and how many: five are enough to compare two runs (``diff``, ``gate``)."""

running_recorders: list[object] = []  # PyTorch has one profiler per process


class Recorder:
    """Records a few steps of a training loop; call ``step`` after each.

    >>> recorder = profiler("traces", steps=(2, 1), rank=0, world_size=1)  # with recorder: ... recorder.step()
    >>> isinstance(recorder, Recorder)
    True
    """

    def __init__(
        self, handler: Handler, *, steps: tuple[int, int], shapes: bool, stacks: bool, memory: bool
    ) -> None:
        self._handler = handler
        self._first, self._count = steps
        self._options = {"record_shapes": shapes, "with_stack": stacks, "profile_memory": memory}
        self._step = 0
        self._profile: Any = None
        self._started_s = 0.0
        begin = max(0, self._first - WARM_UP_STEPS)
        self._timed_steps = min(begin // 2, MAX_TIMED_STEPS)
        if self._timed_steps < MIN_TIMED_STEPS:
            self._timed_steps = 0
        self._timing_from = begin - self._timed_steps
        self._timing_began_s: float | None = None
        self._free_step_ns: int | None = None
        self._has_ended = False

    def __enter__(self) -> Recorder:
        if running_recorders:
            raise OptionError(
                "a recorder is running in this process already",
                hint="leave it before starting another",
            )
        running_recorders.append(self)
        self._begin_if_due()
        return self

    def __exit__(self, *_: object) -> None:
        running_recorders.clear()
        if not self._has_ended:
            self._finish()  # also after an exception in training, so that the recorded steps are written

    def step(self) -> None:
        """Mark the end of a training step.

        Outside the recorded and the timed steps this only counts.
        """
        self._step += 1
        if self._has_ended:
            return
        if self._profile is None:
            if self._timed_steps and self._step == self._timing_from:
                self._timing_began_s = _time_when_gpu_is_done()
            self._begin_if_due()
            return
        is_last = self._step >= self._first + self._count
        if is_last:
            self._store_free_step()
        self._profile.step()
        if is_last:
            self._finish()

    def wait(self, timeout_s: float | None = None) -> None:
        """Wait until rank 0 has printed the answer, for programs that end without exit handlers."""
        self._handler.wait(timeout_s)

    def _store_free_step(self) -> None:
        """Write into the trace how long a step takes without the profiler, if enough steps were timed."""
        if self._free_step_ns is None:
            return
        try:
            self._profile.add_metadata_json(
                "tracekit", json.dumps({"free_step_ns": self._free_step_ns})
            )
        except Exception as error:  # training must go on, whatever fails here
            log_line(
                self._handler.process, f"the step without the profiler is not in the trace: {error}"
            )

    def _begin_if_due(self) -> None:
        if self._profile is None and self._step == max(0, self._first - WARM_UP_STEPS):
            if self._timing_began_s is not None:
                elapsed_s = _time_when_gpu_is_done() - self._timing_began_s
                self._free_step_ns = round(elapsed_s / self._timed_steps * 1e9)
            self._begin()

    def _begin(self) -> None:
        torch = import_torch()
        activity = torch.profiler.ProfilerActivity
        activities = [activity.CPU]
        if torch.cuda.is_available():
            activities.append(activity.CUDA)
        else:
            log_line(
                self._handler.process, "no GPU is visible: the trace will hold CPU events alone"
            )
        warm_up = min(WARM_UP_STEPS, self._first)
        schedule = torch.profiler.schedule(wait=0, warmup=warm_up, active=self._count, repeat=1)
        began = self._step
        self._profile = torch.profiler.profile(
            activities=activities,
            schedule=lambda step: schedule(max(0, step - began)),
            on_trace_ready=self._handler,
            **self._options,
        )
        self._profile.step_num = began  # so that the trace has the step numbers of the training
        self._started_s = time.perf_counter()
        self._profile.start()

    def _finish(self) -> None:
        """End the recording, and say what was recorded: also if that is less than was asked for."""
        self._has_ended = True
        process = self._handler.process
        if self._profile is not None:
            elapsed_s = time.perf_counter() - self._started_s
            try:
                self._profile.stop()
            except Exception as error:  # training must go on, whatever fails here
                log_line(process, f"recording failed: {type(error).__name__}: {error}")
                return
        recorded = max(0, min(self._step - self._first, self._count))
        if not recorded:
            log_line(process, f"recorded nothing: {self._why_nothing()}")
            return
        steps = counted(self._count, "step")
        if recorded < self._count:
            log_line(process, f"recorded {recorded} of {steps}: the loop ended first")
            return
        log_line(process, f"recorded {steps} in {elapsed_s:.1f} s, profiling included")

    def _why_nothing(self) -> str:
        """Return why no step was recorded, and what to do."""
        if not self._step:
            return "recorder.step() was never called; call it after each training step"
        steps = counted(self._step, "step")
        return f"the loop ended after {steps}, before step {self._first} was done; record earlier: steps=(first, count)"


def _time_when_gpu_is_done() -> float:
    """Return the time at which the GPU has done all work that was launched.

    The host runs ahead of the GPU, so that its own times say nothing of how long a step takes.
    """
    torch = import_torch()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()


def profiler(
    folder: str | os.PathLike[str],
    *,
    steps: tuple[int, int] = DEFAULT_STEPS,
    shapes: bool = True,
    stacks: bool = False,
    memory: bool = False,
    most_mb: int = DEFAULT_MAX_MB,
    rank: int | None = None,
    world_size: int | None = None,
    answer: bool = True,
    log: Log | None = None,
    groups: Mapping[str, Any] | None = None,
) -> Recorder:
    """Return a recorder that writes one trace per rank to *folder*.

    Args:
        folder: Folder of the run, shared by all ranks.
        steps: First step to record, counted from 0, and the number of steps.
        shapes: Whether to record input shapes.
        stacks: Whether to record Python stacks, which slow the run down.
        memory: Whether to record allocations.
        most_mb: Size limit of a trace in MB; a larger one is discarded.
        rank: Rank of this process, by default that of torch.distributed or the launcher.
        world_size: Number of ranks, by default likewise.
        answer: Whether rank 0 prints the answer once all ranks have written.
        log: Callable that takes the figures of the answer as a dictionary.
        groups: Descriptions for process groups created without one: ``{"pp": group, "dp": group}``.

    >>> profiler("traces", steps=(10, 0))
    Traceback (most recent call last):
    tracekit.errors.OptionError: steps=(10, 0): there is nothing to record (give the first step and how many, ...)
    """
    _check_steps(steps)
    process = find_process_info(folder, rank=rank, world_size=world_size)
    if process.file.exists():
        problem = f"{process.file} is there already ({size(process.file.stat().st_size)})"
        raise OptionError(problem, hint="name a new folder for this run")
    describe_groups(groups or {})
    handler = Handler(process, answer=answer, log=log, most_bytes=most_mb * 1_000_000)
    return Recorder(handler, steps=steps, shapes=shapes, stacks=stacks, memory=memory)


def _check_steps(steps: Any) -> None:
    """Raise OptionError unless *steps* are the first step and the number of steps."""
    is_pair = isinstance(steps, Sequence) and len(steps) == 2
    if not is_pair or any(type(number) is not int for number in steps):
        problem = f"steps={steps!r}: two whole numbers are needed"
    elif steps[0] < 0 or steps[1] < 1:
        problem = f"steps={steps}: there is nothing to record"
    else:
        return
    raise OptionError(problem, hint=f"give the first step and how many, {DEFAULT_STEPS}")


class _TrainingRecorder:
    """Recorder that starts and stops with the training.

    Its methods ignore what a trainer passes to a callback.
    """

    def __init__(self, folder: str | os.PathLike[str], options: dict[str, Any]) -> None:
        self._folder = folder
        self._options = options
        self._recorder: Recorder | None = None

    def begin(self, *_: Any, **__: Any) -> None:
        self._recorder = profiler(self._folder, **self._options).__enter__()

    def step(self, *_: Any, **__: Any) -> None:
        if self._recorder is not None:
            self._recorder.step()

    def end(self, *_: Any, **__: Any) -> None:
        recorder = self._recorder
        self._recorder = None
        if recorder is not None:
            recorder.__exit__(None, None, None)


def transformers_callback(folder: str | os.PathLike[str], **options: Any) -> Any:
    """Return a callback for Hugging Face's ``Trainer``; takes what ``profiler`` takes.

    A step is an optimizer step.

    >>> try:
    ...     callback = transformers_callback("traces", steps=(10, 5))
    ... except OptionError as error:  # where it is not installed
    ...     assert "transformers" in str(error)
    """
    base = _import_base_class("TrainerCallback", ("transformers",), package="transformers")
    recorder = _TrainingRecorder(folder, options)
    hooks = {
        "on_train_begin": recorder.begin,
        "on_step_end": recorder.step,
        "on_train_end": recorder.end,
    }
    return type("TracekitCallback", (base,), hooks)()


def lightning_callback(folder: str | os.PathLike[str], **options: Any) -> Any:
    """Return a callback for Lightning's ``Trainer``; takes what ``profiler`` takes.

    A step is a training batch.

    >>> try:
    ...     callback = lightning_callback("traces", steps=(10, 5))
    ... except OptionError as error:  # where it is not installed
    ...     assert "lightning" in str(error)
    """
    base = _import_base_class(
        "Callback", ("lightning.pytorch", "pytorch_lightning"), package="lightning"
    )
    recorder = _TrainingRecorder(folder, options)
    hooks = {
        "on_train_start": recorder.begin,
        "on_train_batch_end": recorder.step,
        "on_train_end": recorder.end,
        "on_exception": recorder.end,
    }
    return type("TracekitCallback", (base,), hooks)()


def _import_base_class(name: str, modules: tuple[str, ...], *, package: str) -> Any:
    """Return the class *name* of the first module that is installed."""
    for module in modules:
        try:
            return getattr(importlib.import_module(module), name)
        except ImportError:
            continue
    raise OptionError(f"this callback needs {package}", hint=f"pip install {package}")
