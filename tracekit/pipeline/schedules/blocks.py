"""Tasks inside a block of a schedule: a Mixture-of-Experts layer on three lanes.

Computation, communication and offload run at the same time. Each lane runs its tasks in order, and
a task waits for those it depends on. In a steady FB block (Kimi K2, DualPipe) the forward of one
micro-batch hides the communication of the other's backward, and the backward that of the forward:

    computation    attn(F)     mlp(B)       mlp(W)  mlp(F)    attn(B)     attn(W)
    communication  combine(B)  dispatch(F)  dispatch(B)       combine(F)  PP
    offload        offload of the previous forward, onload for the next backward
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import msgspec
import polars as pl

from tracekit.errors import DeadlockError, ScheduleError
from tracekit.pipeline.schedules.times import PositiveTimes, Times

BLOCK_LANES = ("Computation", "Communication", "Offload")
KIND_OF_PHASE = {"warm-up": "F", "steady": "FB", "cool-down": "B"}
BlockKind = Literal["F", "B", "FB"]


@dataclass(frozen=True)
class BlockTimes(PositiveTimes):
    """Durations of the tasks of one layer, and of the tasks that run once per block: pp, offload and onload.

    >>> BlockTimes.parse("mlp=3").mlp
    3
    """

    attention: float = 2
    mlp: float = 2
    attention_dgrad: float = 2
    mlp_dgrad: float = 2
    attention_wgrad: float = 1
    mlp_wgrad: float = 1
    dispatch: float = 1.5
    combine: float = 1.5
    pp: float = 1
    offload: float = 3
    onload: float = 3


class Task(msgspec.Struct, frozen=True):
    """One task: its lane, its label, its duration and the tasks it waits for."""

    name: str
    lane: str
    label: str
    duration: float
    after: tuple[str, ...] = ()


@dataclass(frozen=True)
class Block:
    """The tasks of a block, lane by lane in the order they run, on a clock.

    >>> done = block("FB")
    >>> done.duration < block("F").duration + block("B").duration
    True
    >>> done.cells.filter(pl.col("lane") == "Communication")["task"].to_list()
    ['combine(B)', 'dispatch(F)', 'dispatch(B)', 'combine(F)', 'PP']
    """

    kind: str
    tasks: tuple[Task, ...]

    @cached_property
    def cells(self) -> pl.DataFrame:
        """One row per task: lane, task, label, start, end."""
        ends = _run(self.tasks)
        rows = [
            (t.lane, t.name, t.label, ends[t.name] - t.duration, ends[t.name]) for t in self.tasks
        ]
        return pl.DataFrame(
            rows, schema=["lane", "task", "label", "start", "end"], orient="row"
        ).sort(
            pl.col("lane").replace_strict(dict(zip(BLOCK_LANES, range(3), strict=True))),
            "start",
            maintain_order=True,
        )

    @property
    def duration(self) -> float:
        """End of the last task on any lane: a long offload delays the next block."""
        return float(self.cells["end"].max())  # type: ignore[arg-type]

    @property
    def exposed(self) -> float:
        """Time of the block in which no computation runs."""
        busy = self.cells.filter(pl.col("lane") == "Computation").select(
            (pl.col("end") - pl.col("start")).sum()
        )
        return self.duration - float(busy.item())


def block(kind: BlockKind, times: BlockTimes | None = None, *, layers: int = 1) -> Block:
    """Return the block of a phase: F (warm-up), FB (steady) or B (cool-down).

    >>> block("F", layers=2).cells.filter(pl.col("lane") == "Computation")["task"].to_list()
    ['attn(F) 0', 'mlp(F) 0', 'attn(F) 1', 'mlp(F) 1']
    """
    if layers < 1:
        raise ScheduleError(f"layers must be 1 or more; got {layers}")
    if kind not in KIND_OF_PHASE.values():
        raise ScheduleError(f"no block is called {kind!r}", hint="F, B or FB")
    times = times or BlockTimes()
    layer_tasks = {"F": _forward_tasks, "B": _backward_tasks, "FB": _overlapped_tasks}[kind]
    tasks = []
    for layer in range(layers):
        tasks.extend(layer_tasks(times, layer, layers))
    return Block(kind, (*tasks, *_tasks_once_per_block(kind, times, layers)))


def block_times(times: BlockTimes | None = None, *, layers: int = 1) -> Times:
    """Return the times of whole ops for ``simulate``, from the tasks inside them.

    >>> block_times().FB < block_times().F + block_times().B
    True
    """
    times = times or BlockTimes()
    forward = block("F", times, layers=layers).duration
    backward = block("B", times, layers=layers).duration
    both = block("FB", times, layers=layers).duration
    weight = layers * (times.attention_wgrad + times.mlp_wgrad)
    return Times(F=forward, I=backward - weight, W=weight, B=backward, FB=both)


def _name(task: str, layer: int, layers: int) -> str:
    """Return the name of a task, with its layer if there are several."""
    return task if layers == 1 else f"{task} {layer}"


def _forward_tasks(t: BlockTimes, layer: int, layers: int) -> list[Task]:
    """Return attention, dispatch, MLP and combine, which run one after the other."""
    attn = _name("attn(F)", layer, layers)
    dispatch = _name("dispatch(F)", layer, layers)
    mlp = _name("mlp(F)", layer, layers)
    combine = _name("combine(F)", layer, layers)
    before = (_name("combine(F)", layer - 1, layers),) if layer else ()
    return [
        Task(attn, BLOCK_LANES[0], "forward", t.attention, before),
        Task(dispatch, BLOCK_LANES[1], "ep_dispatch", t.dispatch, (attn,)),
        Task(mlp, BLOCK_LANES[0], "forward", t.mlp, (dispatch,)),
        Task(combine, BLOCK_LANES[1], "ep_combine", t.combine, (mlp,)),
    ]


def _backward_tasks(t: BlockTimes, layer: int, layers: int) -> list[Task]:
    """Return the backwards of combine, MLP, dispatch and attention.

    Weight gradients hide some communication.
    """
    names = ("combine(B)", "mlp(B)", "dispatch(B)", "mlp(W)", "attn(B)", "attn(W)")
    combine, mlp, dispatch, mlp_w, attn, attn_w = (_name(x, layer, layers) for x in names)
    before = (_name("attn(B)", layer - 1, layers),) if layer else ()
    return [
        Task(combine, BLOCK_LANES[1], "ep_combine", t.combine, before),
        Task(mlp, BLOCK_LANES[0], "dgrad", t.mlp_dgrad, (combine,)),
        Task(dispatch, BLOCK_LANES[1], "ep_dispatch", t.dispatch, (mlp,)),
        Task(mlp_w, BLOCK_LANES[0], "wgrad", t.mlp_wgrad, (mlp,)),
        Task(attn, BLOCK_LANES[0], "dgrad", t.attention_dgrad, (dispatch,)),
        Task(attn_w, BLOCK_LANES[0], "wgrad", t.attention_wgrad, (attn,)),
    ]


def _overlapped_tasks(t: BlockTimes, layer: int, layers: int) -> list[Task]:
    """Return forward and backward together: each communication beside the other micro-batch's computation."""
    tasks = {
        task.name: task
        for task in (*_forward_tasks(t, layer, layers), *_backward_tasks(t, layer, layers))
    }
    order = (
        "combine(B)",
        "attn(F)",
        "dispatch(F)",
        "mlp(B)",
        "dispatch(B)",
        "mlp(W)",
        "mlp(F)",
        "combine(F)",
        "attn(B)",
        "attn(W)",
    )
    return [tasks[_name(task, layer, layers)] for task in order]


def _tasks_once_per_block(kind: str, t: BlockTimes, layers: int) -> list[Task]:
    """Return the send of the results (PP), and offload and onload, which depend on nothing in the block."""
    last = layers - 1
    results = {"F": ("combine(F)",), "B": ("attn(B)",), "FB": ("combine(F)", "attn(B)")}[kind]
    tasks = [
        Task("PP", BLOCK_LANES[1], "pp_comm", t.pp, tuple(_name(x, last, layers) for x in results))
    ]
    if kind != "B":
        tasks.append(Task("offload", BLOCK_LANES[2], "offload", t.offload))
    if kind != "F":
        tasks.append(Task("onload", BLOCK_LANES[2], "onload", t.onload))
    return tasks


def _run(tasks: Sequence[Task]) -> dict[str, float]:
    """Return the end of every task: lanes run in order, tasks start when those they wait for have ended."""
    lanes: dict[str, list[Task]] = {}  # tasks to run
    for task in tasks:
        lanes.setdefault(task.lane, []).append(task)
    ends: dict[str, float] = {}
    free = dict.fromkeys(lanes, 0.0)
    while any(lanes.values()):
        ready = []
        for lane, waiting in lanes.items():
            if waiting and all(name in ends for name in waiting[0].after):
                ready.append(lane)
        if not ready:
            stuck = ", ".join(waiting[0].name for waiting in lanes.values() if waiting)
            raise DeadlockError(
                f"block: {stuck} wait for each other", hint="change the order on a lane"
            )
        for lane in ready:
            task = lanes[lane].pop(0)
            start = max([free[lane], *(ends[name] for name in task.after)])
            free[lane] = ends[task.name] = start + task.duration
    return ends
