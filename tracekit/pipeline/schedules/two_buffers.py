"""Two-buffer ideal of a weight update (schedule ``weight-reload``), as checkpoint-engine runs it.

Every device has one buffer for the copy from the host (H2D) and two that it shares with the engine
(IPC). A round:

1. every device copies its own bucket from the host, all at once;
2. for each owner in turn: its bucket is broadcast into IPC buffer g % 2 of every device;
3. once the engine has taken the bucket before (reload g-1), it is told to take this one (reload g).

So broadcast g+1 runs beside reload g, and the next round's H2D beside the last reload. Where all
rounds and buckets take the same times h (H2D), b (broadcast) and l (reload), R rounds over N owners
take R(h + N·b) + l if l ≤ b, and R(h + b + (N−1)·l) + l if b < l ≤ h + b.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, TypeVar

import polars as pl

from tracekit._util.arguments import checked_type
from tracekit.documents.coding import HasDocument
from tracekit.documents.schedule import SCHEDULE_FORMAT, Cell, ScheduleDocument
from tracekit.errors import ScheduleError
from tracekit.pipeline.schedules.times import PositiveTimes

Time = TypeVar("Time", int, float)
BUFFER_LANES = ("H2D buffer", "IPC buffer 0", "IPC buffer 1")


@dataclass(frozen=True)
class ReloadTimes(PositiveTimes):
    """Durations of one bucket's copy from the host, broadcast and reload.

    >>> ReloadTimes.parse("H2D=4,RELOAD=2")
    ReloadTimes(H2D=4, BROADCAST=1, RELOAD=2)
    """

    H2D: float = 4
    BROADCAST: float = 1
    RELOAD: float = 1


@dataclass(frozen=True)
class WeightReload(HasDocument):
    """A simulated update: *rounds* rounds over *ranks* devices.

    >>> weight_reload(4, 2).makespan
    17
    """

    ranks: int
    rounds: int
    times: ReloadTimes
    steps: tuple[tuple[str, int, float, float], ...]
    """(op, bucket, start, end) in the order they start; an H2D stands for all devices, named by the
    round's first."""

    @property
    def name(self) -> str:
        """Name in the registry."""
        return "weight-reload"

    @property
    def makespan(self) -> float:
        """Time from the first copy to the end of the last reload."""
        return max(end for *_, end in self.steps)

    @cached_property
    def cells(self) -> pl.DataFrame:
        """One row per device and op: rank, lane, op, role (of a broadcast), bucket, round, start, end."""
        rows = []
        for op, bucket, start, end in self.steps:
            round_index, owner = divmod(bucket, self.ranks)
            for rank in range(self.ranks):
                if op == "H2D":
                    own_bucket = round_index * self.ranks + rank
                    lane = BUFFER_LANES[0]
                else:
                    own_bucket = bucket
                    lane = BUFFER_LANES[1 + bucket % 2]
                broadcast_role = None
                if op == "BROADCAST":
                    broadcast_role = "source" if rank == owner else "destination"
                rows.append((rank, lane, op, broadcast_role, own_bucket, round_index, start, end))
        columns = ["rank", "lane", "op", "role", "bucket", "round", "start", "end"]
        return pl.DataFrame(rows, schema=columns, orient="row").sort(
            "rank", "start", "lane", maintain_order=True
        )

    def orders(self) -> list[list[str]]:
        """Return the ops of every device in order of start, as in ``H2D0 BROADCAST0 RELOAD0``."""
        orders: list[list[str]] = [[] for _ in range(self.ranks)]
        for rank, op, bucket in self.cells.select("rank", "op", "bucket").iter_rows():
            orders[rank].append(f"{op}{bucket}")
        return orders

    def to_document(self) -> ScheduleDocument:
        """Return the JSON document (``format: tracekit.schedule/1``)."""
        return ScheduleDocument(
            format=SCHEDULE_FORMAT,
            name=self.name,
            devices=self.ranks,
            rounds=self.rounds,
            time=asdict(self.times),
            ranks=self.orders(),
            cells=[Cell(**cell) for cell in self.cells.iter_rows(named=True)],
            makespan=self.makespan,
        )


def weight_reload(ranks: int, rounds: int, times: ReloadTimes | None = None) -> WeightReload:
    """Return a simulated update of *rounds* rounds; every device owns one bucket per round.

    >>> weight_reload(2, 1, ReloadTimes(H2D=1, BROADCAST=1, RELOAD=3)).makespan
    8
    """
    for size, value in (("ranks", ranks), ("rounds", rounds)):
        checked_type(value, int, size, "give a number")
        if value < 1:
            raise ScheduleError(f"{size} must be 1 or more; got {value}")
    if ranks * ranks * rounds > 2_000_000:
        problem = f"ranks={ranks}, rounds={rounds}: more than 2,000,000 broadcasts"
        raise ScheduleError(problem, hint="use fewer ranks or rounds")
    times = times or ReloadTimes()
    owned = [(bucket // ranks, times.BROADCAST, times.RELOAD) for bucket in range(ranks * rounds)]
    return WeightReload(ranks, rounds, times, tuple(simulate_buckets([times.H2D] * rounds, owned)))


def simulate_buckets(
    h2d: Sequence[Time], buckets: Sequence[tuple[int, Time, Time]]
) -> list[tuple[str, int, Time, Time]]:
    """Return the steps (op, bucket, start, end) of an update with times of its own for every round and bucket.

    Args:
        h2d: Time of each round's copies from the host, which all devices make at once.
        buckets: Round, time of the broadcast and time of the reload of each bucket, in order of
            their rounds.

    >>> simulate_buckets([4, 2], [(0, 1, 1), (1, 1, 1)])[-2:]
    [('BROADCAST', 1, 7, 8), ('RELOAD', 1, 8, 9)]
    """
    steps: list[tuple[str, int, Time, Time]] = []
    now: Any = 0
    reloaded: Any = 0  # end of the last reload
    copied_rounds = 0
    for bucket, (round_index, broadcast, reload) in enumerate(buckets):
        while copied_rounds <= round_index:
            steps.append(("H2D", bucket, now, now + h2d[copied_rounds]))
            now += h2d[copied_rounds]
            copied_rounds += 1
        steps.append(("BROADCAST", bucket, now, now + broadcast))
        now = max(now + broadcast, reloaded)
        reloaded = now + reload
        steps.append(("RELOAD", bucket, now, reloaded))
    return steps
