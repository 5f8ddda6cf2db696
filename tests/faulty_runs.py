"""Runs of any number of ranks that lose a known time to one fault, as the PyTorch profiler writes them.

Two ranks share each layer (a group of two reduces behind it), and all ranks reduce at the end of a
step, which its host waits for. A step without a fault takes 20 layers of 1 ms, the reductions of
pairs of 0.1 ms each behind every tenth layer, one of all ranks of 2 ms, and 1 ms of optimizer.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import polars as pl

from tracekit.analysis.measure.tables import RankTables
from tracekit.run.measure import SourceWorker
from tracekit.store.sources import find

LAYERS, STEPS = 20, 4
LAYER_US, PAIR_US, ALL_US, OPTIMIZER_US = 1000, 100, 2000, 1000
LAUNCH_US = 5
START_NS = 1_700_000_000_000_000_000
LATE_US = 6000
GROUP_DESCRIPTIONS = ("TENSOR_MODEL_PARALLEL_GROUP", "DATA_PARALLEL_GROUP")


@dataclass(frozen=True)
class Fault:
    """What is wrong with one rank, or with the link between it and its partner."""

    code: str
    """Finding about it."""
    rank: int
    layer_factor: float = 1.0
    """Time of its layers over that of others."""
    more_layers: int = 0
    """Layers that it has besides."""
    is_of_stage: bool = False
    """Whether both ranks of the pair have these layers: a stage of the model, not a single rank."""
    host_late_us: int = 0
    """Time for which its host does something else before the first layer of each step."""
    link_factor: float = 1.0
    """Time of the reductions of its pair over that of others."""


FAULTS = {
    "slow_rank": Fault("slow_rank", rank=2, layer_factor=1.3),
    "uneven_rank": Fault("uneven_work", rank=2, more_layers=6),
    "uneven_stage": Fault("uneven_work", rank=2, more_layers=6, is_of_stage=True),
    "late_host": Fault("late_host", rank=2, host_late_us=LATE_US),
    "slow_link": Fault("slow_link", rank=2, link_factor=31.0),
}
"""Faults by name; each costs 6 ms of a step."""


class _Rank:
    """The events of one rank, written as its host launches and its GPU runs them."""

    def __init__(self, number: int, ranks: int) -> None:
        pair = [number - number % 2, number - number % 2 + 1]
        self.number = number
        self.groups = {"pair": (f"tp{pair[0]}", pair), "all": ("dp", list(range(ranks)))}
        self.events: list[dict[str, object]] = []
        self.host_us = self.gpu_us = 0.0
        self.correlation = 0

    def add(
        self, category: str, name: str, start: float, us: float, tid: int, **args: object
    ) -> None:
        self.events.append(
            {"ph": "X", "cat": category, "name": name, "pid": 0 if tid == 7 else 1, "tid": tid,
             "ts": start, "dur": us, "args": args}
        )  # fmt: skip

    def launch(
        self, op: str, kernel: str, us: float, *, ready_us: float = 0.0, **args: object
    ) -> float:
        """Launch a kernel; return its start. It ends *us* after its start, or after *ready_us* if that is later."""
        self.correlation += 1
        self.add("cpu_op", op, self.host_us, LAUNCH_US, 1, **args)
        self.add("cuda_runtime", "cudaLaunchKernel", self.host_us + 1, LAUNCH_US - 2, 1,
                 correlation=self.correlation)  # fmt: skip
        start = max(self.gpu_us, self.host_us + 10)
        self.gpu_us = max(start, ready_us) + us
        self.add("kernel", kernel, start, self.gpu_us - start, 7, device=0, stream=7,
                 correlation=self.correlation, **args)  # fmt: skip
        self.host_us += LAUNCH_US
        return start

    def layer(self, us: float) -> None:
        shapes = {"Input Dims": [[64, 64], [64, 64]], "Input type": ["float", "float"]}
        self.launch("aten::mm", "ampere_gemm", us, **shapes)

    def reduce(self, group: str, us: float, *, ready_us: float) -> float:
        name, members = self.groups[group]
        return self.launch(
            "record_param_comms", "ncclDevKernel_AllReduce_Sum_f32_RING_LL", us, ready_us=ready_us,
            **{"Collective name": "allreduce", "Process Group Name": name, "Group size": len(members),
               "Process Group Ranks": str(members), "In msg nelems": 1000, "Out msg nelems": 1000,
               "dtype": "Float"},
        )  # fmt: skip

    def next_start(self) -> float:
        """Return when its GPU would start what is launched now."""
        return max(self.gpu_us, self.host_us + 10)


def write_faulty_run(folder: Path, ranks: int, fault: Fault, *, written: int | None = None) -> Path:
    """Write a run of *ranks*, an even number, with one fault; return its folder.

    *written* is the number of ranks, from the first on, whose traces are written; by default all.
    """
    folder.mkdir(parents=True, exist_ok=True)
    parts = [_Rank(number, ranks) for number in range(ranks)]
    for step in range(STEPS):
        began = max(part.host_us for part in parts)
        for even, odd in zip(parts[::2], parts[1::2], strict=True):
            _run_layers(even, odd, began, fault)
        last = max(part.next_start() for part in parts)
        for part in parts:
            part.reduce("all", ALL_US, ready_us=last)
            part.launch("aten::add_", "optimizer_kernel", OPTIMIZER_US)
            part.add(
                "cuda_runtime", "cudaDeviceSynchronize", part.host_us, part.gpu_us - part.host_us, 1
            )
            part.host_us = part.gpu_us
            part.add("user_annotation", f"ProfilerStep#{step}", began, part.host_us - began, 1)
    for part in parts[:written]:
        groups = [
            {"pg_name": name, "pg_desc": desc, "ranks": members}
            for (name, members), desc in zip(part.groups.values(), GROUP_DESCRIPTIONS, strict=True)
        ]
        info = {"backend": "nccl", "rank": part.number, "world_size": ranks, "pg_config": groups}
        trace = {
            "schemaVersion": 1,
            "record_shapes": 1,
            "distributedInfo": info,
            # No two processes begin in the same nanosecond: equal times are those of copies.
            "baseTimeNanoseconds": START_NS + part.number,
            "traceEvents": part.events,
        }
        (folder / f"rank{part.number}.json").write_text(json.dumps(trace))
    return folder


def _run_layers(even: _Rank, odd: _Rank, began: float, fault: Fault) -> None:
    """Run the layers of a step on a pair, with a reduction of the two behind every tenth."""
    pair = (even, odd)
    for part in pair:
        part.host_us = began + (fault.host_late_us if part.number == fault.rank else 0)
    for layer in range(LAYERS):
        for part in pair:
            is_faulty = part.number == fault.rank
            part.layer(LAYER_US * (fault.layer_factor if is_faulty else 1.0))
            is_of_faulty_pair = part.number // 2 == fault.rank // 2
            has_more = is_of_faulty_pair if fault.is_of_stage else is_faulty
            if has_more and layer % 10 == 0:
                for _ in range(fault.more_layers // 2):
                    part.layer(LAYER_US)
        if layer % 10 == 9:
            is_slow = fault.rank in (even.number, odd.number)
            last = max(part.next_start() for part in pair)
            for part in pair:
                part.reduce(
                    "pair", PAIR_US * (fault.link_factor if is_slow else 1.0), ready_us=last
                )


def tables_of_faulty_run(folder: Path, ranks: int, fault: Fault) -> list[RankTables]:
    """Return the measured tables of a run with a fault in its second pair.

    Two pairs are measured; the tables of all others are those of the first with other numbers, as
    their traces would be.
    """
    traces = write_faulty_run(folder, ranks, fault, written=4)
    options = SourceWorker(with_pipeline=False)
    measured = [table for ref in find(traces).refs for table in options.measure(ref)]
    measured.sort(key=lambda table: table.source.rank)
    others = [_renumbered(measured[rank % 2], rank) for rank in range(4, ranks)]
    return [*measured, *others]


def _renumbered(tables: RankTables, rank: int) -> RankTables:
    """Return tables of a rank of the first pair as those of the rank that stands there in another pair."""
    pair = (rank - rank % 2, rank - rank % 2 + 1)
    group = f"tp{pair[0]}"
    groups = tuple(
        msgspec.structs.replace(each, name=group, ranks=pair) if each.name == "tp0" else each
        for each in tables.source.groups
    )
    path = tables.source.path.replace(f"rank{tables.source.rank}.", f"rank{rank}.")
    source = msgspec.structs.replace(tables.source, rank=rank, groups=groups, path=path)

    def renumbered(table: pl.DataFrame) -> pl.DataFrame:
        columns = []
        if "rank" in table.columns:
            columns.append(pl.lit(rank).alias("rank"))
        if "group" in table.columns:
            columns.append(pl.col("group").cast(pl.String).replace("tp0", group))
        if "group_ranks" in table.columns:
            of_pair = f"[{pair[0]},{pair[1]}]"
            columns.append(pl.col("group_ranks").cast(pl.String).replace("[0,1]", of_pair))
        return table.with_columns(columns).cast(table.schema)

    names = ("steps", "operations", "gaps", "timeline", "experts", "reasons")
    return replace(
        tables, source=source, **{name: renumbered(getattr(tables, name)) for name in names}
    )
