"""Recipe of a synthetic run: a schedule, its times and the problems to inject, simulated on a clock."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain

import numpy as np
import numpy.typing as npt

from tracekit._util.arrays import Ints
from tracekit.errors import OptionError
from tracekit.pipeline.schedules import Schedule, Simulation, Times, simulate

EPOCH_NS = 1_790_000_000_000_000_000
"""Start of a synthetic run, in nanoseconds since 1970."""


@dataclass(frozen=True)
class Recipe:
    """A schedule, its times, and the problems to inject, each by a known amount.

    >>> from tracekit.pipeline.schedules import generate
    >>> recipe = Recipe(generate("1f1b", pp=2, microbatches=2), p2p_ns=1000)
    >>> recipe.simulation().makespan  # 3 × (F + I + W), and a transfer each way
    9002000
    """

    schedule: Schedule
    times: Times = field(default_factory=lambda: Times(F=1_000_000, I=1_000_000, W=1_000_000))
    """Nanoseconds of the ops of one chunk."""
    p2p_ns: int = 0
    """Time of one transfer between ranks."""
    jitter: float = 0.0
    """Standard deviation of a cell's time, as a share of it (seeded)."""
    stage_factor: Mapping[int, float] = field(default_factory=dict)
    """Imbalance: by stage, how many times as long it takes."""
    rank_factor: Mapping[int, float] = field(default_factory=dict)
    """Stragglers: by position in the pipeline, how many times slower it is."""
    slow_cells: Mapping[tuple[int, str, int, int], float] = field(default_factory=dict)
    """Single slow cells: (position, op, stage, micro-batch) to factor."""
    skew_ns: Mapping[int, int] = field(default_factory=dict)
    """Clock skew: by rank, how far its clock is ahead."""
    ep_ns: int = 0
    """Dispatch and combine in each cell's forward and backward: time of each of the two."""
    ep_exposed_ns: int = 0
    """How much of each of the two no compute hides."""
    ep_wait_ns: Mapping[int, int] = field(default_factory=dict)
    """Waiting for experts: by stage, how much longer each of the two takes, all of it exposed."""
    offload_ns: int = 0
    """Offload beside each forward, onload beside each backward: time of each, all of it hidden."""
    offload_exposed_ns: int = 0
    """Onload before each backward that compute has to wait for."""
    host_ns: int = 0
    """Idle time in each cell in which the host has not launched the next kernel yet."""
    deferred: bool = True
    """Whether weight gradients of split backwards run outside autograd (as in DualPipe) or in a
    second engine run."""
    annotations: bool = False
    """Whether cells bear PyTorch's ``PP:`` ranges."""
    shapes: bool = True
    peers: bool = True
    steps: int = 1
    replicas: int = 1
    """Pipelines side by side (expert or data parallel); rank = position × replicas + replica."""
    layers: int = 2
    seed: int = 0

    def __post_init__(self) -> None:
        if self.ep_exposed_ns > self.ep_ns:
            raise OptionError(
                "ep_exposed_ns is more than ep_ns", hint="the exposed part is part of the whole"
            )
        if min(self.steps, self.replicas, self.layers) < 1:
            raise OptionError("steps, replicas and layers must be 1 or more")

    @property
    def world_size(self) -> int:
        """Number of ranks in the run."""
        return self.schedule.pp * self.replicas

    def rank(self, position: int, replica: int = 0) -> int:
        """Return the rank at a position of a pipeline."""
        return position * self.replicas + replica

    @cached_property
    def stalls_ns(self) -> Ints:
        """Injected stalls inside each cell (aligned to ``schedule.table``)."""
        kind = np.array([op.kind for op in chain.from_iterable(self.schedule.ranks)])
        halves = np.where(kind == "FB", 2, np.where(kind == "W", 0, 1))
        onload = np.isin(kind, ["B", "I", "FB"]).astype(np.int64)
        exchange_ns = np.array(
            [self.exposed_exchange_ns(int(stage)) for stage in self.schedule.table.stage]
        )
        return np.asarray(
            halves * 2 * exchange_ns + onload * self.offload_exposed_ns + self.host_ns, np.int64
        )

    def exposed_exchange_ns(self, stage: int) -> int:
        """Return how much of each dispatch and combine of a stage no compute hides."""
        return self.ep_exposed_ns + self.ep_wait_ns.get(stage, 0)

    @cached_property
    def work_ns(self) -> Ints:
        """Compute time of each cell of one step: what the times say, with imbalance, stragglers and jitter."""
        table = self.schedule.table
        work: npt.NDArray[np.float64] = np.asarray(self.times.durations(self.schedule), np.float64)
        work = work * np.array([self.stage_factor.get(int(s), 1.0) for s in table.stage])
        work = work * np.array([self.rank_factor.get(int(r), 1.0) for r in table.rank])
        if self.jitter:
            noise = np.random.default_rng(self.seed).normal(1.0, self.jitter, len(work))
            work = work * np.clip(noise, 0.2, 5.0)
        if self.slow_cells:
            row = 0
            for position, order in enumerate(self.schedule.ranks):
                for op in order:
                    cell = (position, op.kind, op.stage, op.microbatch)
                    work[row] *= self.slow_cells.get(cell, 1.0)
                    row += 1
        return np.maximum(np.rint(work), 1).astype(np.int64)

    def simulation(self) -> Simulation:
        """Return start and end of every cell of a step, stalls and transfers included."""
        return self._simulation

    @cached_property
    def _simulation(self) -> Simulation:
        durations = np.split(self.work_ns + self.stalls_ns, self.schedule.table.offsets[1:-1])
        return simulate(self.schedule, replace(self.times, P2P=self.p2p_ns), durations=durations)

    @cached_property
    def messages(self) -> list[tuple[int, int]]:
        """Sending and receiving cell of every message between ranks, activations first."""
        edges = self.schedule.edges
        rank = self.schedule.table.rank
        messages = []
        for producers in (edges.forward, edges.backward):
            is_from_other_rank = (producers >= 0) & (rank[producers] != rank)
            messages += [
                (int(producers[cell]), cell) for cell in np.flatnonzero(is_from_other_rank).tolist()
            ]
        return messages

    @cached_property
    def split_backwards(self) -> frozenset[tuple[int, int, int]]:
        """Position, stage and micro-batch of the backwards whose W is an op of its own."""
        split = set()
        for position, order in enumerate(self.schedule.ranks):
            for op in order:
                if op.kind == "W":
                    split.add((position, op.stage, op.microbatch))
        return frozenset(split)
