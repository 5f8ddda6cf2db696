"""The processes of a run with their times on one clock, as weight updates and iterations read them."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from tracekit.align.clocks import Clocks
from tracekit.analysis.measure.tables import RankTables
from tracekit.errors import Notice
from tracekit.metrics.process_phases import ROLLOUT, TRAIN
from tracekit.roles.weight_updates.transfers import (
    RELOAD_EVENTS,
    WEIGHT_TRANSFERS,
    UpdateProcess,
)
from tracekit.schema import Source

_NO_TRANSFERS = RELOAD_EVENTS.to_frame()


@dataclass(frozen=True, eq=False)
class Process(UpdateProcess):
    """One process: its role and rank, and its small tables on the run's clock."""

    decode_steps: pl.DataFrame
    shapes_recorded: bool


def processes_on_one_clock(
    tables_by_role: Mapping[str, Sequence[RankTables]], clocks_by_role: Mapping[str, Clocks]
) -> tuple[list[Process], dict[str, Clocks], list[Notice]]:
    """Return the processes of all roles on the clock of the first role, and each role's clocks that bring them there.

    Processes of the same rank are on one host, so that a role whose ranks are not tied to each
    other takes over the offsets of a role whose ranks are. A role of other ranks is moved by its
    broadcasts, matched by order and size with those of the first role; without any its clock is
    used as it is, which is noted.
    """
    first = next(iter(tables_by_role))
    main = clocks_by_role[first]
    main_ranks = {tables.source.rank for tables in tables_by_role[first]}
    processes: list[Process] = []
    run_clocks: dict[str, Clocks] = {}
    notices: list[Notice] = []
    for role, ranks in tables_by_role.items():
        same_hosts = {tables.source.rank for tables in ranks} == main_ranks
        clocks = main
        if not same_hosts:
            own_clocks = clocks_by_role[role]
            on_own_clocks = _processes_of_role(role, ranks, own_clocks)
            first_processes = _processes_of_role(first, tables_by_role[first], main)
            offset = _offset_by_broadcasts(first_processes, on_own_clocks)
            if offset is None:
                notices.append(
                    Notice(
                        "role-clock",
                        (
                            f"nothing ties the clock of role {role} to that of "
                            f"{first}: their times are compared as recorded"
                        ),
                        values={"role": role, "other_role": first},
                    )
                )
            clocks = own_clocks.ahead_by(offset or 0)
        processes += _processes_of_role(role, ranks, clocks)
        run_clocks[role] = clocks
    return processes, run_clocks, notices


def _processes_of_role(role: str, ranks: Sequence[RankTables], clocks: Clocks) -> list[Process]:
    """Return the processes of a role with their times moved by these clocks."""
    return [_process(role, tables, clocks) for tables in ranks]


def _process(role: str, tables: RankTables, clocks: Clocks) -> Process:
    rank = tables.source.rank
    times = clocks.moved(rank, "start_ns", "end_ns")
    transfers = WEIGHT_TRANSFERS.of(tables)
    decode_steps = tables.decode_steps
    if len(decode_steps):  # training has none
        decode_steps = decode_steps.with_columns(clocks.moved(rank, "start_ns"))
    return Process(
        role=role,
        rank=rank,
        stretches=tables.stretches.with_columns(times),
        transfers=_NO_TRANSFERS if transfers is None else transfers.with_columns(times),
        decode_steps=decode_steps,
        shapes_recorded=bool(tables.source.record_shapes),
    )


def _offset_by_broadcasts(first: Sequence[Process], others: Sequence[Process]) -> int | None:
    """Return how far the clock of *others* is ahead: the median difference of the ends of common broadcasts."""
    differences = []
    for process in others:
        broadcasts = process.lane("broadcast")
        for reference in first:
            of_first = reference.lane("broadcast")
            if len(of_first) and of_first["bytes"].equals(broadcasts["bytes"]):
                differences.append((broadcasts["end_ns"] - of_first["end_ns"]).to_numpy())
    return round(float(np.median(np.concatenate(differences)))) if differences else None


def share_a_process(sources: Iterable[Source]) -> bool:
    """Return whether several sources of one rank come from one process: windows of one recording, or copies."""
    counts = Counter((source.rank, source.pid) for source in sources if source.pid is not None)
    return max(counts.values(), default=0) > 1


def kind_of_role(processes: Sequence[Process]) -> str:
    """Return the kind of a role from the work of its processes (``Role.kind``).

    >>> from tracekit.metrics.process_phases import DECODE_STEPS
    >>> stretches = pl.DataFrame({"phase": ["rollout"], "annotated": [False]})
    >>> process = Process("a", 0, stretches, _NO_TRANSFERS, DECODE_STEPS.to_frame(), shapes_recorded=False)
    >>> kind_of_role([process]), kind_of_role([])
    ('rollout', 'unknown')
    """
    phases: set[str] = set()
    lanes: set[str] = set()
    is_rollout = False
    for process in processes:
        phases.update(process.stretches["phase"])
        lanes.update(process.transfers["lane"])
        is_annotated = process.stretches.filter(phase=ROLLOUT)["annotated"].any()
        # Attention shows whether a cache grows, if shapes were recorded.
        may_decode = len(process.decode_steps) > 0 or not process.shapes_recorded
        is_rollout = is_rollout or is_annotated or may_decode
    if TRAIN in phases:
        return "trainer"
    if ROLLOUT in phases:
        return "rollout" if is_rollout else "inference"
    if lanes & {"broadcast", "h2d"}:
        return "parameter_server"
    return "inference_worker" if "reload" in lanes else "unknown"
