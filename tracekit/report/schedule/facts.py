"""Name, sizes and results of a schedule as text, shared by its plots, pages and terminal text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracekit._util.text import percent
from tracekit.report.schedule.layout import stage_chunks
from tracekit.schema import PHASES

if TYPE_CHECKING:
    from tracekit.schedules import Schedule, Simulation, WeightReload

RANK_COLUMNS = ("rank", "work", "outside cells", *PHASES, "peak chunks")
"""Columns of ``rank_rows``."""


def schedule_headline(schedule: Schedule) -> str:
    """Return a schedule's name and sizes.

    >>> from tracekit.schedules import generate
    >>> schedule_headline(generate("interleaved", pp=2, microbatches=4))
    'interleaved · 2 ranks × 4 micro-batches × 2 chunks'
    """
    return f"{schedule.name} · {schedule.pp} ranks × {schedule.microbatches} micro-batches{chunks_suffix(schedule)}"


def chunks_suffix(schedule: Schedule) -> str:
    """Return `` × N chunks`` for a schedule whose ranks hold several chunks, else nothing."""
    return f" × {schedule.virtual} chunks" if schedule.virtual > 1 and stage_chunks(schedule).any() else ""


def reload_headline(reload: WeightReload) -> str:
    """Return the name and sizes of a weight reload."""
    return f"weight-reload · {reload.ranks} devices × {reload.rounds} rounds"


def simulation_facts(simulation: Simulation) -> str:
    """Return makespan, share outside cells and peak activations as one line."""
    peaks = simulation.peak_activations
    peak = f"{peaks[0]}" if len(set(peaks)) == 1 else f"{min(peaks)}–{max(peaks)}"
    outside = f"{percent(simulation.bubble_fraction)} of ranks × makespan outside cells"
    return f"makespan {simulation.makespan:g} · {outside} · peak {peak} chunks per rank"


def rank_rows(simulation: Simulation) -> list[tuple[float, ...]]:
    """Return work, time outside cells (in all and by phase) and peak activations of each rank (``RANK_COLUMNS``)."""
    idle_by_phase = simulation.idle_by_phase.iter_rows()
    figures = zip(idle_by_phase, simulation.busy, simulation.bubble, simulation.peak_activations, strict=True)
    return [(rank, work, bubble, *idle, peak) for (rank, *idle), work, bubble, peak in figures]
