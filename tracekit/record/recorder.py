"""``profiler``: PyTorch's profiler, set up as an analysis needs it, silent and free outside the steps it records."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any

from tracekit._util.text import counted, size
from tracekit.errors import OptionError
from tracekit.record.groups import describe_groups
from tracekit.record.handler import Handler, Log, say
from tracekit.record.place import Place, find_place, import_torch

WARM_UP = 1
"""Steps profiled and thrown away before the recorded ones: the profiler's own start is slow."""
MOST_MB = 2_000
"""A trace larger than this is thrown away unless asked for: it would fill disks and open nowhere."""

_running: list[object] = []  # PyTorch has one profiler per process


class Recorder:
    """Records a few steps of a training loop; call ``step`` after each.

    >>> recorder = profiler("traces", steps=(2, 1), rank=0, world_size=1)  # with recorder: ... recorder.step()
    >>> isinstance(recorder, Recorder)
    True
    """

    def __init__(
        self,
        handler: Handler,
        *,
        steps: tuple[int, int],
        shapes: bool,
        stacks: bool,
        memory: bool,
    ) -> None:
        self._handler = handler
        self._first, self._count = steps
        self._options = {"record_shapes": shapes, "with_stack": stacks, "profile_memory": memory}
        self._at = 0
        self._profile: Any = None
        self._inside_s = 0.0

    def __enter__(self) -> Recorder:
        if _running:
            raise OptionError("a recorder is running in this process already", hint="leave it before starting another")
        _running.append(self)
        self._begin_if_due()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _running.clear()
        self._finish()  # an exception in training still leaves what was recorded

    def step(self) -> None:
        """End a training step. Outside the recorded steps this counts, and does nothing else."""
        self._at += 1
        if self._profile is not None:
            self._profile.step()
            if self._at >= self._first + self._count:
                self._finish()
            return
        self._begin_if_due()

    def wait(self, timeout_s: float | None = None) -> None:
        """Return when rank 0 has printed the answer: for programs that end with ``os._exit``."""
        self._handler.wait(timeout_s)

    def _begin_if_due(self) -> None:
        if self._at == max(0, self._first - WARM_UP):
            self._begin()

    def _begin(self) -> None:
        torch = import_torch()
        kinds = torch.profiler.ProfilerActivity
        activities = [kinds.CPU]
        if torch.cuda.is_available():
            activities.append(kinds.CUDA)
        else:
            say(self._handler.place, "no GPU is visible: the trace will hold CPU events alone")
        warm = min(WARM_UP, self._first)
        when = torch.profiler.schedule(wait=0, warmup=warm, active=self._count, repeat=1)
        began = self._at
        self._profile = torch.profiler.profile(
            activities=activities,
            schedule=lambda step: when(max(0, step - began)),
            on_trace_ready=self._handler,
            **self._options,
        )
        self._profile.step_num = began  # so that steps are called in the trace what the training calls them
        self._inside_s = time.perf_counter()
        self._profile.start()

    def _finish(self) -> None:
        profile, self._profile = self._profile, None
        if profile is None:
            return
        elapsed_s = time.perf_counter() - self._inside_s
        try:
            profile.stop()
        except Exception as error:  # training goes on whatever the profiler meets
            say(self._handler.place, f"recording failed: {type(error).__name__}: {error}")
            return
        say(self._handler.place, f"recorded {counted(self._count, 'step')} in {elapsed_s:.1f} s, profiling included")


def profiler(
    folder: str | os.PathLike[str],
    *,
    steps: tuple[int, int] = (10, 3),
    shapes: bool = True,
    stacks: bool = False,
    memory: bool = False,
    most_mb: int = MOST_MB,
    rank: int | None = None,
    world_size: int | None = None,
    answer: bool = True,
    log: Log | None = None,
    groups: Mapping[str, Any] | None = None,
) -> Recorder:
    """Return a recorder of *steps* (which one first, counted from 0, and how many): one file per rank in *folder*.

    Shapes and process groups are recorded, Python stacks and memory only where asked. Rank 0 prints the answer once all
    ranks' files are there (*answer*), and hands its figures to *log*, a callable that takes a dictionary of numbers.
    *groups* names process groups that the framework made without a description: ``{"pp": group, "dp": group}``.

    >>> profiler("traces", steps=(10, 0))
    Traceback (most recent call last):
    tracekit.errors.OptionError: steps=(10, 0): there is nothing to record (give the first step and how many, ...)
    """
    first, count = steps
    if first < 0 or count < 1:
        raise OptionError(
            f"steps={steps}: there is nothing to record", hint="give the first step and how many, (10, 3)"
        )
    place = find_place(folder, rank=rank, world_size=world_size)
    _check_free(place)
    describe_groups(groups or {})
    made = Handler(place, answer=answer, log=log, most_bytes=most_mb * 1_000_000)
    return Recorder(made, steps=steps, shapes=shapes, stacks=stacks, memory=memory)


def _check_free(place: Place) -> None:
    """Refuse a folder in which another run's trace of this rank lies."""
    if place.file.exists():
        held = size(place.file.stat().st_size)
        raise OptionError(f"{place.file} is there already ({held})", hint="name a new folder for this run")
