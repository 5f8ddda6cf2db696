"""Events of one rank of a synthetic run: operators, launches, kernels, messages."""

import json
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import polars as pl

from tracekit.pipeline.schedules import Op
from tracekit.schema import EVENTS
from tracekit.synthetic.recipe import EPOCH_NS, Recipe

MAIN = 100
AUTOGRAD = 101
"""Threads."""
COMPUTE_STREAM = 7
COMMUNICATION_STREAM = 20
EXPERT = 24
D2H = 28
H2D = 32
"""Streams."""
LEAD_NS = 30_000
"""Time by which the host is ahead of the GPU at the start of a step."""
CALL_NS = 1_000
"""Time from one launch to the next."""
GAP_NS = 2_000_000
"""Time between two steps."""
TOKENS_PER_MICROBATCH = 1024
MODEL_WIDTH = 2048
INNER = 8192
"""Sizes of the matrix products."""
_GEMM = "nvjet_tst_128x256_64x4_2x1_v_bz_coopA_"
Row = dict[str, Any]
_compact_json = partial(json.dumps, separators=(",", ":"))


def rank_events(recipe: Recipe, rank: int) -> pl.DataFrame:
    """Return the events table of one rank, as a parser would return it.

    >>> from tracekit.pipeline.schedules import generate
    >>> events = rank_events(Recipe(generate("1f1b", pp=2, microbatches=2)), 0)
    >>> events.filter(kind="kernel").height > 8
    True
    """
    position, replica = divmod(rank, recipe.replicas)
    writer = _Writer(recipe, rank, position, replica)
    period = int(recipe.simulation().makespan) + GAP_NS
    for step in range(recipe.steps):
        writer.step(step, EPOCH_NS + step * period + recipe.skew_ns.get(rank, 0))
    rows = sorted(writer.rows, key=lambda row: row["start_ns"])
    return pl.DataFrame(
        [{"rank": rank, "id": i} | row for i, row in enumerate(rows)], schema=EVENTS
    )


@dataclass
class _Writer:
    """Rows of one rank as they are written, step by step."""

    recipe: Recipe
    rank: int
    position: int
    replica: int
    rows: list[Row] = field(default_factory=list)
    correlation: int = 0
    sequence: int = 1000
    # Numbers of each forward's ops.
    numbers: dict[tuple[int, int], list[int]] = field(default_factory=dict)
    number: int = 0  # of the step
    host: int = 0  # time until which the host is busy
    # Of each cell: cells of other ranks it receives from.
    producers: dict[int, list[int]] = field(default_factory=dict)
    # Of each cell: cells of other ranks it sends to.
    consumers: dict[int, list[int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for producer, consumer in self.recipe.messages:
            self.producers.setdefault(consumer, []).append(producer)
            self.consumers.setdefault(producer, []).append(consumer)

    def step(self, number: int, origin: int) -> None:
        """Write one step: cells where the simulation puts them, messages between, an optimizer at the end."""
        recipe = self.recipe
        done = self.recipe.simulation()
        table = recipe.schedule.table
        first = table.offsets[self.position]
        last = table.offsets[self.position + 1]
        self.number = number
        self.host = max(self.host, origin - LEAD_NS)
        self.numbers.clear()
        free = origin
        for i in range(first, last):
            start = origin + int(done.start[i])
            end = origin + int(done.end[i])
            for producer in self.producers.get(i, []):
                ready = origin + int(done.end[producer])
                self.message(
                    "recv", int(table.rank[producer]), min(free, ready), ready + recipe.p2p_ns
                )
            self.cell(
                recipe.schedule.ranks[self.position][i - first], start, end, int(recipe.work_ns[i])
            )
            for consumer in self.consumers.get(i, []):
                self.message("send", int(table.rank[consumer]), end, end + recipe.p2p_ns)
            free = end
        close = origin + int(done.makespan)
        self.annotated("Optimizer.step#AdamW.step", close, close + 60_000)
        self.kernel(
            "multi_tensor_apply_kernel", close + 10_000, close + 50_000, op="aten::_fused_adamw_"
        )
        self.annotated(f"ProfilerStep#{number}", origin - LEAD_NS - 20_000, close + GAP_NS // 2)

    # Cells

    def cell(self, op: Op, start: int, end: int, work: int) -> None:
        """Write one cell's kernels, with its stalls spread between them."""
        pieces = self._pieces(op)
        stalls = self._stalls(op, len(pieces))
        shares = np.diff(np.rint(np.linspace(0, work, len(pieces) + 1))).astype(np.int64).tolist()
        called = self.host + 2
        now = start
        late = 0
        for k, (piece, share) in enumerate(zip(pieces, shares, strict=True)):
            for cause, stall in stalls.get(k, []):
                if cause == "host":
                    late = stall
                elif cause == "onload":
                    self.copy(cause, now - min(self.recipe.offload_ns, now - start), now + stall)
                else:
                    hidden = self.recipe.ep_ns - self.recipe.ep_exposed_ns
                    self.exchange(cause, now - min(hidden, now - start), now + stall, piece)
                now += stall
            self.piece(piece, now, now + share, late)
            late = 0
            now += share
        copy_end = start + min(self.recipe.offload_ns or self.recipe.offload_exposed_ns, work)
        if copy_end > start and op.kind in ("F", "FB"):
            self.copy("offload", start, copy_end)
        if copy_end > start and op.kind in ("B", "I", "FB") and not self.recipe.offload_exposed_ns:
            self.copy("onload", start, copy_end)
        if self.recipe.annotations:
            text = str(op) + ("OVERLAP_F_B" if op.kind == "FB" else "")
            self.annotated(f"PP:{text}", called, self.host + 1)

    def _pieces(self, op: Op) -> list[tuple[str, int, int, int]]:
        """Return (F, I or W, stage, micro-batch, layer) of the kernels in the order they run."""
        stage = op.stage
        microbatch = op.microbatch
        b_stage = op.b_stage if op.kind == "FB" else op.stage
        b_microbatch = op.b_microbatch if op.kind == "FB" else op.microbatch
        pieces = []
        for forward_layer in range(self.recipe.layers):
            # A backward goes through the layers from the last to the first.
            backward_layer = self.recipe.layers - 1 - forward_layer
            if op.kind in ("F", "FB"):
                pieces.append(("F", stage, microbatch, forward_layer))
            if op.kind in ("I", "B", "FB"):
                pieces.append(("I", b_stage, b_microbatch, backward_layer))
            if op.kind in ("W", "B", "FB"):
                pieces.append(("W", b_stage, b_microbatch, backward_layer))
        return pieces

    def _stalls(self, op: Op, pieces: int) -> dict[int, list[tuple[str, int]]]:
        """Return the injected stalls by the piece they precede."""
        stalls: dict[int, list[tuple[str, int]]] = {}
        recipe = self.recipe
        exposed_ns = recipe.exposed_exchange_ns(op.stage)
        if recipe.ep_ns and op.kind != "W":
            names = {
                "F": ("dispatch", "combine"),
                "FB": ("dispatch", "combine", "combine", "dispatch"),
            }
            for k, name in enumerate(names.get(op.kind, ("combine", "dispatch"))):
                stalls.setdefault(min(1 + k % max(1, pieces - 1), pieces - 1), []).append(
                    (name, exposed_ns)
                )
        if recipe.offload_exposed_ns and op.kind in ("B", "I", "FB"):
            stalls.setdefault(pieces - 1, []).append(("onload", recipe.offload_exposed_ns))
        if recipe.host_ns:
            stalls.setdefault(pieces - 1, []).append(("host", recipe.host_ns))
        return stalls

    def piece(self, piece: tuple[str, int, int, int], start: int, end: int, late: int) -> None:
        """Write one GEMM with the ops around its launch."""
        what, stage, microbatch, layer = piece
        numbers = self.numbers.setdefault((stage, microbatch), [])
        if what == "F":
            self.sequence += 1
            numbers.append(self.sequence)
            shapes = (
                [[TOKENS_PER_MICROBATCH, MODEL_WIDTH], [MODEL_WIDTH, INNER]]
                if layer % 2 == 0
                else [[TOKENS_PER_MICROBATCH, INNER], [INNER, MODEL_WIDTH]]
            )
            self.kernel(
                _GEMM + "TNN",
                start,
                end,
                op="aten::mm",
                shapes=shapes,
                sequence=self.sequence,
                late=late,
            )
            return
        rows, width = (INNER, MODEL_WIDTH) if layer % 2 == 0 else (MODEL_WIDTH, INNER)
        shapes = (
            [[TOKENS_PER_MICROBATCH, rows], [rows, width]]
            if what == "I"
            else [[rows, TOKENS_PER_MICROBATCH], [TOKENS_PER_MICROBATCH, width]]
        )
        name = _GEMM + ("NNN" if what == "I" else "NTN")
        is_split = (self.position, stage, microbatch) in self.recipe.split_backwards
        if self.recipe.deferred and what == "W" and is_split:
            self.kernel(name, start, end, op="aten::mm", shapes=shapes, late=late)
            return
        sequence = numbers[layer] if layer < len(numbers) else 0
        self.kernel(
            name,
            start,
            end,
            op="aten::mm",
            shapes=shapes,
            sequence=sequence,
            node="MmBackward0",
            late=late,
        )

    # Events

    def kernel(
        self,
        name: str,
        start: int,
        end: int,
        *,
        op: str,
        shapes: list[list[int]] | None = None,
        sequence: int | None = None,
        node: str | None = None,
        late: int = 0,
        stream: int = COMPUTE_STREAM,
        kind: str = "kernel",
        **more: Any,
    ) -> None:
        """Write a GPU event, its launch, and the op (and autograd node) around the launch."""
        self.correlation += 1
        # The host runs ahead: it launches one kernel after another, and waits only where it is told
        # to be late.
        launched = max(start - CALL_NS, self.host + 10) if late else self.host + 10
        self.host = launched + 4 * CALL_NS // 5
        thread = AUTOGRAD if node else MAIN
        text = _compact_json(shapes) if shapes and self.recipe.shapes else None
        forward = sequence if node is None else None
        ids = {"sequence": forward, "fwd_thread": None if forward is None else 0}
        self._add("cpu_op", op, launched - 3, launched + 700, thread, shapes=text, **ids)
        if node:
            for around, by in ((f"autograd::engine::evaluate_function: {node}", 9), (node, 6)):
                back = {"sequence": sequence, "fwd_thread": 1}
                self._add("cpu_op", around, launched - by, launched + 700 + by, thread, **back)
        call = "cudaLaunchKernel" if kind == "kernel" else "cudaMemcpyAsync"
        self._add("runtime", call, launched, launched + 600, thread, correlation=self.correlation)
        gpu_columns = {"pid": 0, "device": 0, "stream": stream, "correlation": self.correlation}
        self._add(kind, name, start, max(end, start + 1), stream, **gpu_columns, **more)

    def copy(self, way: str, start: int, end: int) -> None:
        """Write a copy of activations to the host or back."""
        name, stream = (
            ("DtoH (Device -> Pinned)", D2H)
            if way == "offload"
            else ("HtoD (Pinned -> Device)", H2D)
        )
        size = TOKENS_PER_MICROBATCH * INNER * 2
        self.kernel(
            f"Memcpy {name}", start, end, op="aten::copy_", stream=stream, kind="memcpy", bytes=size
        )

    def exchange(self, what: str, start: int, end: int, piece: tuple[str, int, int, int]) -> None:
        """Write an all-to-all of the expert group."""
        ranks = [self.recipe.rank(self.position, r) for r in range(self.recipe.replicas)]
        args: dict[str, Any] = {
            "collective": "all_to_allv",
            "group": f"ep{self.position}",
            "group_desc": "EXPERT_MODEL_PARALLEL_GROUP",
            "group_ranks": _compact_json(ranks),
        }
        call = self.host + 10
        self.annotated(
            f"moe_{what} {'forward' if piece[0] == 'F' else 'backward'}", call, call + 1_000
        )
        self.kernel(
            "ncclDevKernel_SendRecv", start, end, op="record_param_comms", stream=EXPERT, **args
        )
        self.rows[-3].update(args)

    def message(self, way: str, position: int, start: int, end: int) -> None:
        """Write a send or receive between neighbours in the pipeline."""
        peer = self.recipe.rank(position, self.replica) if self.recipe.peers else None
        ranks = [self.recipe.rank(other, self.replica) for other in range(self.recipe.schedule.pp)]
        call = self.host + 10
        args = {
            "collective": way,
            "peer": peer,
            "group": f"pp{self.replica}",
            "group_ranks": _compact_json(ranks),
        }
        self._add("cpu_op", "record_param_comms", call, call + 500, MAIN, **args)
        self.host = call + 600
        self.annotated("nccl:coalesced", call + 600, call + 1_800)
        self.kernel(
            "ncclDevKernel_SendRecv",
            start,
            max(end, start + 1),
            op="c10d::batch",
            stream=COMMUNICATION_STREAM,
        )

    def annotated(self, name: str, start: int, end: int) -> None:
        """Write a user annotation on the main thread."""
        self._add("annotation", name, start, end, MAIN)

    def _add(self, kind: str, name: str, start: int, end: int, thread: int, **more: Any) -> None:
        """Add an event of the rank's process.

        *more* are further columns, or other values of these.
        """
        times = {"start_ns": start, "end_ns": end, "step": self.number}
        self.rows.append(
            {"kind": kind, "name": name, **times, "pid": 1000 + self.rank, "tid": thread, **more}
        )
