"""Ideals as people get them: simulated schedules and weight updates, with their pictures and files."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any

from tracekit._util.arguments import checked_type
from tracekit.pipeline.schedules import Schedule, Simulation, Times
from tracekit.pipeline.schedules import simulate as run_schedule
from tracekit.pipeline.schedules.two_buffers import ReloadTimes, WeightReload
from tracekit.pipeline.schedules.two_buffers import weight_reload as run_weight_reload

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class SimulationResult(Simulation):
    """A simulated schedule that can be drawn and saved.

    >>> from tracekit.pipeline.schedules import generate
    >>> simulate(generate("1f1b", pp=2, microbatches=2))
    <Simulation: 1f1b, 2 ranks × 2 micro-batches, makespan 9>
    """

    def plot(self) -> Figure:
        """Return a matplotlib figure of the schedule.

        >>> from tracekit.pipeline.schedules import generate
        >>> simulate(generate("1f1b", pp=2, microbatches=2)).plot().axes[0].get_xlabel()
        'time (units of the given times)'
        """
        from tracekit.report.schedule.plot import draw_schedule

        return draw_schedule(self)

    def save(self, path: str | PathLike[str]) -> None:
        """Write the schedule to *path* in the format of its extension.

        These are .svg .png .html .json, .txt (orders) and .trace.json (Perfetto).
        """
        from tracekit.report.schedule.write import write_schedule

        write_schedule(self, path)


class WeightReloadResult(WeightReload):
    """A simulated weight update that can be saved.

    >>> weight_reload(4, 2).orders()[0][:3]
    ['H2D0', 'BROADCAST0', 'RELOAD0']
    """

    def save(self, path: str | PathLike[str]) -> None:
        """Write the update to *path* in the format of its extension: .svg .png .html .json, .trace.json (Perfetto)."""
        from tracekit.report.schedule.write import write_schedule

        write_schedule(self, path)


def simulate(
    schedule: Schedule,
    times: Times | None = None,
    *,
    durations: Sequence[Sequence[Any]] | None = None,
) -> SimulationResult:
    """Return a schedule with its clock, which can be drawn and saved.

    The arguments are those of ``tracekit.pipeline.schedules.simulate``.

    >>> from tracekit.pipeline.schedules import generate
    >>> simulate(generate("dualpipe", pp=8, microbatches=20)).makespan
    66
    """
    checked_type(
        schedule, Schedule, "schedule", "make one with tracekit.pipeline.schedules.generate"
    )
    return SimulationResult(**_fields(run_schedule(schedule, times, durations=durations)))


def weight_reload(ranks: int, rounds: int, times: ReloadTimes | None = None) -> WeightReloadResult:
    """Return a simulated update of *rounds* rounds, which can be saved.

    >>> weight_reload(4, 2).makespan
    17
    """
    return WeightReloadResult(**_fields(run_weight_reload(ranks, rounds, times)))


def _fields(data: Simulation | WeightReload) -> dict[str, Any]:
    """Return the fields of a result by name."""
    return {field.name: getattr(data, field.name) for field in dataclasses.fields(data)}
