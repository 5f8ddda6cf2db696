"""Records a pipeline with ``profile_memory=True``, and what the allocator itself says of every cell beside the trace.

    python record/memory.py OUT

Four ranks of PyTorch's 1F1B on one GPU; start MPS first (see ``record.sh``), so that they run side
by side. Writes ``OUT/rankK.pt.trace.json.gz`` and ``OUT/truth-rankK.json``.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.profiler import ProfilerActivity, profile, schedule

RANKS, MICROBATCHES, BLOCKS = 4, 8, 2
WIDTH, TOKENS, BATCH = 2048, 512, 2
WARM_UP = 2


class Block(nn.Module):
    """A transformer's block."""

    def __init__(self) -> None:
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.proj = (
            nn.Linear(WIDTH, 3 * WIDTH, bias=False),
            nn.Linear(WIDTH, WIDTH, bias=False),
        )
        self.up, self.down = (
            nn.Linear(WIDTH, 4 * WIDTH, bias=False),
            nn.Linear(4 * WIDTH, WIDTH, bias=False),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Attention, then the feed-forward part."""
        b, t, d = x.shape
        q, k, v = self.qkv(self.n1(x)).view(b, t, 3, 16, d // 16).permute(2, 0, 3, 1, 4)
        a = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(a.transpose(1, 2).reshape(b, t, d))
        return x + self.down(nn.functional.gelu(self.up(self.n2(x))))


class Truth:
    """What the allocator held before, at most during and after everything named."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self.step = self.top = 0

    @contextlib.contextmanager
    def of(self, what: str, **more: int) -> Iterator[None]:
        """Count what runs inside."""
        before = torch.cuda.memory_allocated()
        self._reset()
        yield
        peak = torch.cuda.max_memory_allocated()
        self._reset()
        row = {"step": self.step, "what": what, **more, "before": before, "peak": peak}
        self.rows.append({**row, "after": torch.cuda.memory_allocated()})

    def _reset(self) -> None:
        self.top = max(self.top, torch.cuda.max_memory_allocated())
        torch.cuda.reset_peak_memory_stats()

    def end_step(self) -> None:
        """Note the step's own peak."""
        self._reset()
        self.rows.append({"step": self.step, "what": "step", "peak": self.top})
        self.step, self.top = self.step + 1, 0


def counted(stage: PipelineStage, truth: Truth) -> PipelineStage:
    """Return the stage with every cell counted."""
    forward, backward = stage.forward_one_chunk, stage.backward_one_chunk

    def run_forward(index: int, *args: Any, **more: Any) -> Any:
        with truth.of("F", microbatch=index):
            return forward(index, *args, **more)

    def run_backward(index: int, *args: Any, **more: Any) -> Any:
        with truth.of("B", microbatch=index):
            return backward(index, *args, **more)

    stage.forward_one_chunk, stage.backward_one_chunk = run_forward, run_backward
    return stage


def main(rank: int, out: Path) -> None:
    """Run one rank."""
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29533", NCCL_HOSTID=f"h{rank}")
    os.environ.update(NCCL_SOCKET_IFNAME="lo", NCCL_IB_DISABLE="1")
    torch.cuda.set_device(0)
    device = torch.device("cuda", 0)
    dist.init_process_group("nccl", rank=rank, world_size=RANKS, device_id=device)
    group = dist.new_group(list(range(RANKS)), group_desc="PIPELINE_MODEL_PARALLEL_GROUP")
    torch.manual_seed(rank)
    truth = Truth()
    model = nn.Sequential(*[Block() for _ in range(BLOCKS)]).to(device, torch.bfloat16)
    stage = counted(PipelineStage(model, rank, RANKS, device, group=group), truth)
    run = Schedule1F1B(stage, MICROBATCHES, lambda o, t: (o.float() - t.float()).pow(2).mean())
    x = torch.randn(MICROBATCHES * BATCH, TOKENS, WIDTH, device=device, dtype=torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def written(profiled: profile) -> None:
        profiled.export_chrome_trace(str(out / f"rank{rank}.pt.trace.json.gz"))

    with profile(
        activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA],
        record_shapes=True,
        profile_memory=True,
        schedule=schedule(wait=0, warmup=WARM_UP, active=1),
        on_trace_ready=written,
    ) as profiler:
        for _ in range(WARM_UP + 1):
            optimizer.zero_grad()
            run.step(*([x] if rank == 0 else []), **({"target": x} if rank == RANKS - 1 else {}))
            with truth.of("optimizer"):
                optimizer.step()
            torch.cuda.synchronize()
            truth.end_step()
            profiler.step()
    rows = [row for row in truth.rows if row["step"] == WARM_UP]
    (out / f"truth-rank{rank}.json").write_text(json.dumps(rows))
    dist.destroy_process_group()


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    mp.spawn(main, args=(folder,), nprocs=RANKS)
