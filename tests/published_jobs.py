"""Three jobs published with ByteDance's StragglerAnalysis: operations, their dependences and the published figures.

The dependences are those of the published simulator, read from its description. Used by tests and
by the proof table.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from graphlib import TopologicalSorter
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

MESSAGES = ("forward-send", "forward-recv", "backward-send", "backward-recv")
GRADIENTS = ("params-all-gather", "grads-reduce-scatter", "separate-grads-all-reduce")
JOINT = (*GRADIENTS, "optimizer-clip-main-grad")
"""Collectives of all data-parallel replicas."""
TRANSFERS = (*MESSAGES, *JOINT, "embedding-grads-all-reduce", "layernorm-grads-all-reduce")
CLOCK_S = 5e-5
MAX_NEGATIVE_S = 1e-2


class OperationGraph:
    """Operations of one step of one replica, which is one lane; all lanes have the same graph.

    Args:
        waits_for: Operations that must have ended before each operation starts.
        transfers: Operations that are one transfer: each takes its duration from the start of the
            last of them.
        joint: Transfers in which all lanes of a step take part.
        lane_step: Step of each lane, counted from 0.
    """

    def __init__(
        self,
        waits_for: Sequence[Sequence[int]],
        transfers: Sequence[Sequence[int]],
        joint: frozenset[int],
        lane_step: np.ndarray[Any, Any],
    ) -> None:
        self.waits_for, self.joint, self.lane_step = waits_for, joint, lane_step
        in_transfers = {op for ops in transfers for op in ops}
        self.units = [*transfers, *([op] for op in range(len(waits_for)) if op not in in_transfers)]
        unit_of = {op: unit for unit, ops in enumerate(self.units) for op in ops}
        waiting = {
            unit: {unit_of[before] for op in ops for before in waits_for[op]}
            for unit, ops in enumerate(self.units)
        }
        self.order = list(TopologicalSorter(waiting).static_order())

    def step_times(self, durations: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Return the time of each step: the end of its last operation on any lane."""
        end = np.zeros_like(durations)
        for unit in self.order:
            ops, start = self.units[unit], np.zeros(durations.shape[1])
            for before in {before for op in ops for before in self.waits_for[op]}:
                start = np.maximum(start, end[before])
            if unit in self.joint:
                start = self.max_by_step(start)[self.lane_step]
            end[ops] = start + durations[ops]
        return self.max_by_step(end.max(axis=0))

    def max_by_step(self, values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Return the largest value of each step."""
        result = np.full(int(self.lane_step.max()) + 1, -np.inf)
        np.maximum.at(result, self.lane_step, values)
        return result


class Job:
    """One job: its graph, durations in operations × lanes, and the published figures."""

    def __init__(self, folder: Path, name: str) -> None:
        table = pl.read_parquet(folder / f"trace-{name}.parquet").with_columns(
            pl.col("optype").cast(pl.String),
            pl.col("start_ts", "duration").cast(pl.Float64),
            op=pl.format("{}/{}/{}", pl.col("optype").cast(pl.String), "seq_id", "stage"),
        )
        self.published = json.loads((folder / f"result-{name}.json").read_text())
        self.workers = json.loads((folder / f"mw-{name}.json").read_text())
        self.last_stage = json.loads((folder / f"ms-{name}.json").read_text())
        steps = sorted(table["step"].unique())
        first_lane = table.filter(
            (pl.col("dp_rank") == 0) & (pl.col("step") == steps[0])
        ).with_columns(end_ts=pl.col("start_ts") + pl.col("duration"))
        self.ops = first_lane["op"].to_list()
        index = {op: row for row, op in enumerate(self.ops)}
        lanes = table.select("step", "dp_rank").unique().sort("step", "dp_rank")
        lane = {key: column for column, key in enumerate(lanes.iter_rows())}
        self.lane_step = np.array([steps.index(step) for step in lanes["step"]])
        rows = np.array([index[op] for op in table["op"]])
        columns = np.array([lane[key] for key in table.select("step", "dp_rank").iter_rows()])
        start, end, self.rank = (np.zeros((len(self.ops), len(lanes))) for _ in range(3))
        start[rows, columns] = table["start_ts"]
        end[rows, columns] = table["start_ts"] + table["duration"]
        self.rank[rows, columns] = table["rank"]
        self.optype, self.stage = first_lane["optype"].to_list(), first_lane["stage"].to_numpy()
        self.replica = np.tile(lanes["dp_rank"].to_numpy(), (len(self.ops), 1))
        waits, transfers = dependencies(first_lane)
        numbered = [[index[op] for op in ops] for ops in transfers]
        joint = frozenset(i for i, ops in enumerate(numbered) if self.optype[ops[0]] in JOINT)
        waits_for = [[index[before] for before in waits.get(op, ())] for op in self.ops]
        self.graph = OperationGraph(waits_for, numbered, joint, self.lane_step)
        # A transfer takes its time from the start of its last member.
        self.durations = end - start
        for i, ops in enumerate(numbered):
            last = start[ops].max(axis=0)
            if i in joint:
                last = self.graph.max_by_step(last)[self.lane_step]
            self.durations[ops] = end[ops] - last
        self.durations[self.durations <= -MAX_NEGATIVE_S] = 0
        # Usual durations as published: the mean of computation, the median of transfers.
        self.usual = np.empty_like(self.durations)
        for optype in set(self.optype):
            same = np.array(self.optype) == optype
            self.usual[same] = (np.median if optype in TRANSFERS else np.mean)(self.durations[same])


def dependencies(first_lane: pl.DataFrame) -> tuple[dict[str, list[str]], list[list[str]]]:  # noqa: PLR0912
    """Return the operations that each operation of a step waits for, and those that are first_lane transfer."""
    waits: dict[str, list[str]] = {}
    transfers: list[list[str]] = []

    def chain(ops: list[str]) -> None:
        for before, after in pairwise(ops):
            waits.setdefault(after, []).append(before)

    stages = int(first_lane["stage"].max()) + 1
    names = set(first_lane["op"])
    overlapped = any(name.startswith("separate-grads-all-reduce") for name in names)
    real: dict[tuple[str, int], list[str]] = {}
    for stage in range(stages):
        in_stage = first_lane.filter(pl.col("stage") == stage).sort("start_ts", "seq_id", "optype")
        compute = in_stage.filter(pl.col("optype").is_in(["forward-compute", "backward-compute"]))
        chain(compute["op"].to_list())
        for kind in ("forward", "backward"):
            own = compute.filter(pl.col("optype") == f"{kind}-compute")
            for way in ("send", "recv"):
                messages = in_stage.filter(pl.col("optype") == f"{kind}-{way}")
                chain(messages["op"].to_list())
                if way == "recv":
                    used = messages.filter(pl.col("start_ts") <= own["start_ts"].max() + CLOCK_S)
                else:
                    used = messages.filter(pl.col("end_ts") >= own["end_ts"].min() - CLOCK_S)
                real[f"{kind}-{way}", stage] = used["op"].to_list()
                for number, message in enumerate(used["op"]):
                    work = f"{kind}-compute/{number}/{stage}"
                    if way == "send":
                        waits.setdefault(message, []).append(work)
                    else:
                        waits.setdefault(work, []).append(message)
                        if number:
                            waits.setdefault(message, []).append(
                                f"{kind}-compute/{number - 1}/{stage}"
                            )
        # The first messages of the backward are posted two computations before it.
        kinds = compute["optype"].to_list()
        first_backward = kinds.index("backward-compute")
        if first_backward >= 2:
            for message in (f"backward-recv/0/{stage}", f"backward-send/0/{stage}"):
                if message in names:
                    waits.setdefault(message, []).append(compute["op"][first_backward - 2])
        gathers = in_stage.filter(pl.col("optype") == "params-all-gather")["op"].to_list()
        scatters = in_stage.filter(pl.col("optype") == "grads-reduce-scatter")["op"].to_list()
        if gathers:
            chain([*gathers, *(scatters if overlapped else [])])
            first_forward = compute.filter(pl.col("optype") == "forward-compute")["op"][0]
            waits.setdefault(first_forward, []).append(gathers[-1])
        last_compute = compute.sort("end_ts")["op"][-1]
        end = [
            f"gc/0/{stage}",
            f"layernorm-grads-all-reduce/0/{stage}",
            f"embedding-grads-all-reduce/0/{stage}",
        ]
        if overlapped:
            waits.setdefault(scatters[0], []).append(last_compute)
            waits.setdefault(end[1], []).append(scatters[-1])
            end.append(f"separate-grads-all-reduce/0/{stage}")
        else:
            end += scatters
        end += [f"optimizer-clip-main-grad/0/{stage}", f"optimizer/0/{stage}"]
        chain([last_compute, *(name for name in end if name in names)])
        transfers += [
            [op]
            for op in (*gathers, *scatters, f"separate-grads-all-reduce/0/{stage}")
            if op in names
        ]
    for (name, stage), sent in real.items():
        kind, way = name.split("-")
        if way != "send":
            continue
        peer = stage + 1 if kind == "forward" else stage - 1
        transfers += [
            list(pair) for pair in zip(sent, real.get((f"{kind}-recv", peer), []), strict=True)
        ]
    paired = {op for ops in transfers for op in ops}
    transfers += [
        [op] for op in first_lane.filter(pl.col("optype").is_in(MESSAGES))["op"] if op not in paired
    ]
    transfers.append([op for op in sorted(names) if op.startswith("embedding-grads-all-reduce")])
    transfers.append([op for op in sorted(names) if op.startswith("optimizer-clip-main-grad")])
    return waits, transfers


def groups_of(job: Job) -> dict[str, Any]:
    """Return the operation kind, stage and replica of every operation and lane."""
    merged = [kind.replace("-send", "-pp-comm").replace("-recv", "-pp-comm") for kind in job.optype]
    lanes = len(job.lane_step)
    return {
        "optype": np.repeat(np.array(merged)[:, None], lanes, axis=1),
        "stage": np.repeat(job.stage[:, None], lanes, axis=1),
        "dp_rank": job.replica,
    }
