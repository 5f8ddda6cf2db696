"""What is inside a block: the tasks of a Mixture-of-Experts layer on three lanes.

Computation, communication and offload run beside each other; each lane takes its tasks in order, and a task waits for
what it needs. In a steady FB block (Kimi K2, DualPipe) the forward of one micro-batch hides the communication of the
other's backward and the other way round:

    computation    attn(F)     mlp(B)       mlp(W)  mlp(F)    attn(B)     attn(W)
    communication  combine(B)  dispatch(F)  dispatch(B)       combine(F)  PP
    offload        offload of the previous forward, onload for the next backward
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Literal

import msgspec
import polars as pl

from tracekit.errors import DeadlockError, OptionError, ScheduleError
from tracekit.schedules.times import Times

LANES = ("Computation", "Communication", "Offload")
PHASES = {"warm-up": "F", "steady": "FB", "cool-down": "B"}
BlockKind = Literal["F", "B", "FB"]


@dataclass(frozen=True)
class BlockTimes:
    """Durations of one layer's tasks, and of what happens once per block: PP, offload and onload."""

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

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not 0 < value < float("inf"):
                raise OptionError(f"time {field.name} must be more than 0", hint=f"got {value!r}")


class Task(msgspec.Struct, frozen=True):
    """One piece of work: its lane, its label, how long it takes and which tasks it waits for."""

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
        rows = [(t.lane, t.name, t.label, ends[t.name] - t.duration, ends[t.name]) for t in self.tasks]
        return pl.DataFrame(rows, schema=["lane", "task", "label", "start", "end"], orient="row").sort(
            pl.col("lane").replace_strict(dict(zip(LANES, range(3), strict=True))), "start", maintain_order=True
        )

    @property
    def duration(self) -> float:
        """End of the last task on any lane: a long offload holds up the next block."""
        return float(self.cells["end"].max())  # type: ignore[arg-type]

    @property
    def exposed(self) -> float:
        """Time of the block in which computation stands still."""
        busy = self.cells.filter(pl.col("lane") == "Computation").select((pl.col("end") - pl.col("start")).sum())
        return self.duration - float(busy.item())


def block(kind: BlockKind, times: BlockTimes | None = None, *, layers: int = 1) -> Block:
    """Return the block of a phase: F (warm-up), FB (steady) or B (cool-down), of so many layers.

    >>> block("F", layers=2).cells.filter(pl.col("lane") == "Computation")["task"].to_list()
    ['attn(F) 0', 'mlp(F) 0', 'attn(F) 1', 'mlp(F) 1']
    """
    if layers < 1:
        raise ScheduleError(f"layers must be 1 or more; got {layers}")
    if kind not in PHASES.values():
        raise ScheduleError(f"no block is called {kind!r}", hint="F, B or FB")
    t = times or BlockTimes()
    tasks: list[Task] = []
    for layer in range(layers):
        tasks += {"F": _forward, "B": _backward, "FB": _pair}[kind](t, layer, layers)
    return Block(kind, (*tasks, *_ends(kind, t, layers)))


def block_times(times: BlockTimes | None = None, *, layers: int = 1) -> Times:
    """Return times of whole ops, from the tasks inside them, for ``simulate``.

    >>> block_times().FB < block_times().F + block_times().B
    True
    """
    f, b, fb = (block(kind, times, layers=layers).duration for kind in ("F", "B", "FB"))
    t = times or BlockTimes()
    w = layers * (t.attention_wgrad + t.mlp_wgrad)
    return Times(F=f, I=b - w, W=w, B=b, FB=fb)


def _name(task: str, layer: int, layers: int) -> str:
    return task if layers == 1 else f"{task} {layer}"


def _forward(t: BlockTimes, layer: int, layers: int) -> list[Task]:
    """Attention, dispatch, MLP, combine, one after the other: nothing to hide behind."""
    attn, sent, mlp, back = (_name(x, layer, layers) for x in ("attn(F)", "dispatch(F)", "mlp(F)", "combine(F)"))
    before = (_name("combine(F)", layer - 1, layers),) if layer else ()
    return [
        Task(attn, LANES[0], "forward", t.attention, before),
        Task(sent, LANES[1], "ep_dispatch", t.dispatch, (attn,)),
        Task(mlp, LANES[0], "forward", t.mlp, (sent,)),
        Task(back, LANES[1], "ep_combine", t.combine, (mlp,)),
    ]


def _backward(t: BlockTimes, layer: int, layers: int) -> list[Task]:
    """Backward of combine, MLP, dispatch and attention; the weight gradients hide what they can."""
    names = ("combine(B)", "mlp(B)", "dispatch(B)", "mlp(W)", "attn(B)", "attn(W)")
    back, mlp, sent, mlp_w, attn, attn_w = (_name(x, layer, layers) for x in names)
    before = (_name("attn(B)", layer - 1, layers),) if layer else ()
    return [
        Task(back, LANES[1], "ep_combine", t.combine, before),
        Task(mlp, LANES[0], "dgrad", t.mlp_dgrad, (back,)),
        Task(sent, LANES[1], "ep_dispatch", t.dispatch, (mlp,)),
        Task(mlp_w, LANES[0], "wgrad", t.mlp_wgrad, (mlp,)),
        Task(attn, LANES[0], "dgrad", t.attention_dgrad, (sent,)),
        Task(attn_w, LANES[0], "wgrad", t.attention_wgrad, (attn,)),
    ]


def _pair(t: BlockTimes, layer: int, layers: int) -> list[Task]:
    """Both at once: each communication runs beside the other micro-batch's computation."""
    tasks = {task.name: task for task in (*_forward(t, layer, layers), *_backward(t, layer, layers))}
    order: tuple[str, ...] = ("combine(B)", "attn(F)", "dispatch(F)", "mlp(B)", "dispatch(B)", "mlp(W)", "mlp(F)")
    order += ("combine(F)", "attn(B)", "attn(W)")
    return [tasks[_name(x, layer, layers)] for x in order]


def _ends(kind: str, t: BlockTimes, layers: int) -> list[Task]:
    """Add what happens once per block: PP beside the last attn(W), offload and onload beside everything."""
    last = layers - 1
    results = {"F": ("combine(F)",), "B": ("attn(B)",), "FB": ("combine(F)", "attn(B)")}[kind]
    tasks = [Task("PP", LANES[1], "pp_comm", t.pp, tuple(_name(x, last, layers) for x in results))]
    if kind != "B":
        tasks.append(Task("offload", LANES[2], "offload", t.offload))
    if kind != "F":
        tasks.append(Task("onload", LANES[2], "onload", t.onload))
    return tasks


def _run(tasks: Sequence[Task]) -> dict[str, float]:
    """Return the end of every task: lanes run in order, tasks start when what they need is ready."""
    lanes = {lane: [task for task in tasks if task.lane == lane] for lane in {task.lane: None for task in tasks}}
    ends: dict[str, float] = {}
    free = dict.fromkeys(lanes, 0.0)
    while any(lanes.values()):
        ready = [lane for lane, left in lanes.items() if left and all(name in ends for name in left[0].after)]
        if not ready:
            stuck = ", ".join(left[0].name for left in lanes.values() if left)
            raise DeadlockError(f"block: {stuck} wait for each other", hint="change the order on a lane")
        for lane in ready:
            task = lanes[lane].pop(0)
            start = max([free[lane], *(ends[name] for name in task.after)])
            free[lane] = ends[task.name] = start + task.duration
    return ends
