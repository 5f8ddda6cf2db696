"""Iterations of an RL loop: rollout, training and weight update, from the phases of all processes.

A process's stretches (``metrics.process_phases``) become bands. Weight updates number them: a band
belongs to the iteration that the next weight update of its process ends. Iterations follow each
other without a gap.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import median
from typing import TypeVar

import numpy as np
import polars as pl
from msgspec.structs import replace

from tracekit.documents.roles import Iteration, PhaseBand, RoleWait, RolloutTail, WeightUpdate
from tracekit.intervals import Intervals, union
from tracekit.metrics.process_phases import ROLLOUT, TRAIN, WEIGHT_SYNC
from tracekit.roles.processes import Process

Key = TypeVar("Key")
OTHER_PHASE = "other"
"""Phase of forward work without a growing cache: a reward or a reference model."""
PHASE_ORDER = (WEIGHT_SYNC, TRAIN, ROLLOUT, OTHER_PHASE)
"""Where colocated roles overlap, the GPU's time counts for the first of these."""


def find_iterations(
    processes: Sequence[Process], kinds: Mapping[str, str], updates: Sequence[WeightUpdate]
) -> tuple[list[Iteration], list[PhaseBand]]:
    """Return the iterations of an RL loop and the bands of all processes.

    No iterations if nothing is rolled out.

    Args:
        processes: The processes of all roles on one clock.
        kinds: Kind of each role.
        updates: The run's weight updates.
    """
    bands: list[PhaseBand] = []
    for process in processes:
        bands += _number(_bands(process, kinds[process.role], updates), updates)
    phases = {band.phase for band in bands}
    if not {ROLLOUT, TRAIN} <= phases:
        return [], bands
    starts: list[tuple[int, int]] = []  # number and start of each iteration
    for number, (start, _) in band_spans(bands, lambda band: band.iteration).items():
        if number is not None:
            starts.append((number, start))
    starts.sort()
    loop = _Loop(processes, bands, _colocated(processes))
    last_end = max(band.end_ns for band in bands)
    iterations = []
    for i, (number, start) in enumerate(starts):
        end = starts[i + 1][1] if i + 1 < len(starts) else last_end
        if end > start:
            iterations.append(loop.measure(number, start, end))
    return iterations, bands


def band_spans(
    bands: Iterable[PhaseBand], key: Callable[[PhaseBand], Key]
) -> dict[Key, tuple[int, int]]:
    """Return the first start and the last end of the bands with each key."""
    spans: dict[Key, tuple[int, int]] = {}
    for band in bands:
        start, end = spans.get(key(band), (band.start_ns, band.end_ns))
        spans[key(band)] = (min(start, band.start_ns), max(end, band.end_ns))
    return spans


def select_bands(
    bands: Iterable[PhaseBand],
    *,
    role: str | None = None,
    rank: int | None = None,
    phase: str | None = None,
    iteration: int | None = None,
) -> list[PhaseBand]:
    """Return the bands of a role, rank, phase and iteration; None stands for any."""
    selected = []
    for band in bands:
        is_wanted = (
            (role is None or band.role == role)
            and (rank is None or band.rank == rank)
            and (phase is None or band.phase == phase)
            and (iteration is None or band.iteration == iteration)
        )
        if is_wanted:
            selected.append(band)
    return selected


def _bands(process: Process, kind: str, updates: Sequence[WeightUpdate]) -> list[PhaseBand]:
    """Return the phases of one process.

    Synchronisation outside of weight updates belongs to the phase around it.
    """
    bands: list[PhaseBand] = []
    stretches = process.stretches.select("phase", "annotated", "start_ns", "end_ns", "busy_ns")
    for phase, annotated, start, end, busy in stretches.iter_rows():
        is_update = annotated or _update_inside(start, end, updates) is not None
        name = phase
        if phase == WEIGHT_SYNC and not is_update and bands:
            name = bands[-1].phase
        elif phase == ROLLOUT and kind == "inference":
            name = OTHER_PHASE
        if bands and bands[-1].phase == name:
            bands[-1] = replace(
                bands[-1], end_ns=max(end, bands[-1].end_ns), busy_ns=bands[-1].busy_ns + busy
            )
        else:
            bands.append(PhaseBand(process.role, process.rank, name, start, end, busy, None))
    return bands


def _number(bands: Sequence[PhaseBand], updates: Sequence[WeightUpdate]) -> list[PhaseBand]:
    """Return the bands of one process with their iterations, which its weight updates end.

    Without any update in the process, bands are numbered by the run's updates, or by how often
    their phase came.
    """
    if any(band.phase == WEIGHT_SYNC for band in bands):
        return _number_by_own_updates(bands, updates)
    numbered = []
    if updates:
        middles = [(update.start_ns + update.end_ns) // 2 for update in updates]
        numbered += [replace(band, iteration=bisect_left(middles, band.start_ns)) for band in bands]
        return numbered
    counts: Counter[str] = Counter()
    for band in bands:
        numbered.append(replace(band, iteration=counts[band.phase]))
        counts[band.phase] += 1
    return numbered


def _number_by_own_updates(
    bands: Sequence[PhaseBand], updates: Sequence[WeightUpdate]
) -> list[PhaseBand]:
    """Return the bands with the number of the update at which their iteration ends.

    A synchronisation has the number of the run's update that it overlaps, else its own position.
    Bands behind the last one belong to the iteration after it.
    """
    numbered: list[PhaseBand] = []
    pending: list[PhaseBand] = []  # bands of the iteration that has not ended yet
    update_count = 0
    number = -1
    for band in bands:
        pending.append(band)
        if band.phase == WEIGHT_SYNC:
            update = _update_inside(band.start_ns, band.end_ns, updates)
            number = update_count if update is None else update
            update_count += 1
            numbered += _with_iteration(pending, number)
            pending = []
    return numbered + _with_iteration(pending, number + 1)


def _with_iteration(bands: Iterable[PhaseBand], number: int) -> list[PhaseBand]:
    """Return the bands as those of one iteration."""
    return [replace(band, iteration=number) for band in bands]


def _update_inside(start_ns: int, end_ns: int, updates: Sequence[WeightUpdate]) -> int | None:
    """Return the number of the first weight update that overlaps a stretch of time.

    None if none does.
    """
    for number, update in enumerate(updates):
        if start_ns < update.end_ns and end_ns > update.start_ns:
            return number
    return None


def _colocated(processes: Sequence[Process]) -> bool:
    """Return whether all roles share GPUs: the same ranks on the same devices, and mostly not at the same time.

    Device numbers alone do not tell, because each process may see its own GPU as device 0.
    """
    gpus_of_roles: dict[str, set[tuple[int, int | None]]] = {}
    for process in processes:
        device = next(iter(process.stretches["device"]), None)
        gpus_of_roles.setdefault(process.role, set()).add((process.rank, device))
    first_gpus, *other_gpus = gpus_of_roles.values()
    if not other_gpus or any(gpus != first_gpus for gpus in other_gpus):
        return False
    if any(len(process.lane("reload")) for process in processes):
        return True  # weights are taken out of memory on the same GPU
    by_role: dict[str, Intervals] = {}
    for process in processes:
        work = process.stretches.filter(pl.col("phase") != WEIGHT_SYNC)
        number = np.full(len(work), process.rank)
        bands = union(work["start_ns"].to_numpy(), work["end_ns"].to_numpy(), number)
        by_role[process.role] = by_role[process.role] | bands if process.role in by_role else bands
    for first, second in combinations(by_role.values(), 2):
        if 2 * (first & second).total_ns > min(first.total_ns, second.total_ns):
            return False
    return True


def _union(bands: Sequence[PhaseBand]) -> Intervals:
    return union([band.start_ns for band in bands], [band.end_ns for band in bands])


@dataclass(frozen=True, eq=False)
class _Loop:
    """The processes of an RL loop and their bands, from which its iterations are measured."""

    processes: Sequence[Process]
    bands: Sequence[PhaseBand]
    colocated: bool

    def measure(self, index: int, start: int, end: int) -> Iteration:
        """Measure one iteration: the phases of its GPUs, the waits of its roles, and the tail of its rollout."""
        inside = [band for band in self.bands if band.start_ns < end and band.end_ns > start]
        in_iteration = select_bands(self.bands, iteration=index)
        window = union([start], [end])
        roles = dict.fromkeys(process.role for process in self.processes)
        role_waits = [self._role_wait(role, roles, window, inside) for role in roles]
        return Iteration(
            index=index,
            start_ns=start,
            end_ns=end,
            phase_ns=self._phases(start, end, inside),
            roles=tuple(role_waits),
            rollout_tail=_tail(in_iteration, self.processes),
        )

    def _phases(self, start: int, end: int, bands: Sequence[PhaseBand]) -> dict[str, int]:
        """Return the time of each phase, a mean over GPUs.

        With idle time they sum to the iteration.
        """
        bands_of_gpu: dict[object, list[PhaseBand]] = {
            self._gpu(process): [] for process in self.processes
        }
        for band in bands:
            bands_of_gpu[self._gpu(band)].append(band)
        totals: Counter[str] = Counter()
        for gpu_bands in bands_of_gpu.values():
            rest = union([start], [end])
            for phase in PHASE_ORDER:
                covered = _union(select_bands(gpu_bands, phase=phase))
                totals[phase] += (rest & covered).total_ns
                rest -= covered
        shown = [ROLLOUT, TRAIN, WEIGHT_SYNC]
        if totals[OTHER_PHASE]:
            shown.append(OTHER_PHASE)
        phase_ns = {phase: totals[phase] // len(bands_of_gpu) for phase in shown}
        phase_ns["idle"] = end - start - sum(phase_ns.values())
        return phase_ns

    def _gpu(self, owner: Process | PhaseBand) -> object:
        """Return what tells the GPU of a process or band from others."""
        return owner.rank if self.colocated else (owner.role, owner.rank)

    def _role_wait(
        self, role: str, roles: Iterable[str], window: Intervals, bands: Sequence[PhaseBand]
    ) -> RoleWait:
        """Return the idle time of a role and which roles ran meanwhile: on the same rank if colocated, else on any."""
        ranks = [process.rank for process in self.processes if process.role == role]
        own_bands = select_bands(bands, role=role)
        idle_ns = 0
        waited = Counter[str]()
        for rank in ranks:
            idle = window - _union(select_bands(own_bands, rank=rank))
            idle_ns += idle.total_ns
            for other in roles:
                if other != role:
                    rank_that_matters = rank if self.colocated else None
                    running = select_bands(bands, role=other, rank=rank_that_matters)
                    waited[other] += (idle & _union(running)).total_ns
        waited_ns = {other: ns // len(ranks) for other, ns in waited.items()}
        longest = max(waited_ns, key=lambda other: waited_ns[other], default=None)
        has_waited = longest is not None and waited_ns[longest] > 0
        return RoleWait(
            role=role,
            idle_ns=idle_ns // len(ranks),
            busy_ns=sum(band.busy_ns for band in own_bands) // len(ranks),
            waits_for=longest if has_waited else None,
            waited_ns=waited_ns,
        )


def _tail(bands: Sequence[PhaseBand], processes: Sequence[Process]) -> RolloutTail | None:
    """Return the rank whose rollout takes longest; None for fewer than two ranks."""
    spans = band_spans(select_bands(bands, phase=ROLLOUT), key=lambda band: (band.role, band.rank))
    if len(spans) < 2:
        return None
    durations_ns = {}
    ends_ns = {}
    for process_key, (start, end) in spans.items():
        durations_ns[process_key] = end - start
        ends_ns[process_key] = end
    longest = max(durations_ns, key=lambda process: durations_ns[process])
    last = max(ends_ns, key=lambda process: ends_ns[process])
    decode_steps: dict[tuple[str, int], int | None] = {}
    for process in processes:
        key = (process.role, process.rank)
        if key in spans:
            decode_steps[key] = _decode_steps(process, *spans[key])
    counts = [count for count in decode_steps.values() if count is not None]
    all_are_counted = len(counts) == len(decode_steps)
    median_ns = round(median(durations_ns.values()))
    return RolloutTail(
        rank=longest[1],
        ns=durations_ns[longest] - median_ns,
        median_ns=median_ns,
        last_rank=last[1],
        last_ns=ends_ns[last] - round(median(ends_ns.values())),
        decode_steps=decode_steps[longest],
        median_decode_steps=median(counts) if all_are_counted else None,
    )


def _decode_steps(process: Process, start: int, end: int) -> int | None:
    """Return how often the key/value cache of a process grew in a stretch of time.

    None if that was not recorded.

    Every layer reads the cache once per step, so a step is a new largest number of keys, or the
    first of a new batch.
    """
    keys = process.decode_steps.filter(pl.col("start_ns").is_between(start, end))["keys"]
    return int((keys.diff().fill_null(1) != 0).sum()) if len(keys) else None
