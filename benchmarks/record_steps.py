"""Record real step-to-step variation on a GPU: what the gate's false alarm rate is measured on.

    python benchmarks/record_steps.py FOLDER [--runs 8] [--steps 48]

Two programs, each started afresh for every run, because two processes differ more than two steps of
one do:

- ``offload``: a two-block transformer on one GPU whose activations are copied to pinned host memory
  in the forward pass and back in the backward pass, on streams of their own. ``blocking`` is the
  same program with the copies on the compute stream: the mistake that a gate is there to catch.
- ``1f1b``: PyTorch's own 1F1B schedule on four ranks that share the GPU (run it under MPS).

Every run first takes a few hundred steps with CUDA events alone, then ``--steps`` under the PyTorch
profiler, which are reduced here to a few numbers a step. Of ``offload`` and ``blocking`` the short
traces are kept too.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

# Large enough that the GPU, not the host, sets the pace.
DIM, HIDDEN, TOKENS, BATCH = (
    2048,
    8192,
    4096,
    4,
)
COMPUTE, COMM, COPY = "compute", "comm", "copy"


def union(intervals):
    """Sorted, disjoint (start, end) pairs that cover the same time."""
    if not len(intervals):
        return np.zeros((0, 2))
    intervals = intervals[np.argsort(intervals[:, 0], kind="stable")]
    ends = np.maximum.accumulate(intervals[:, 1])
    first = np.r_[True, intervals[1:, 0] > ends[:-1]]
    return np.c_[intervals[first, 0], ends[np.r_[first[1:], True]]]


def length(intervals):
    return float((intervals[:, 1] - intervals[:, 0]).sum())


def both(a, b):
    """Length of the intersection: |A| + |B| - |A or B|."""
    return length(a) + length(b) - length(union(np.concatenate([a, b])))


def reduce_trace(path):
    """Reduce a PyTorch trace to a few numbers a step, in nanoseconds."""
    events = json.loads(gzip.decompress(Path(path).read_bytes()))["traceEvents"]
    marks, launches, gpu = [], {}, []
    for e in events:
        category, args = e.get("cat"), e.get("args") or {}
        if category == "user_annotation" and e["name"].startswith("ProfilerStep#"):
            marks.append((float(e["ts"]), int(e["name"].split("#")[1])))
        elif category in ("cuda_runtime", "cuda_driver"):
            launches[args.get("correlation")] = float(e["ts"])
        elif category in ("kernel", "gpu_memcpy", "gpu_memset"):
            kind = COMM if "nccl" in e["name"] else COPY if category != "kernel" else COMPUTE
            gpu.append(
                (args.get("correlation"), float(e["ts"]), float(e["ts"]) + float(e["dur"]), kind)
            )
    marks.sort()
    starts = np.array([m[0] for m in marks])
    rows = {}
    for correlation, start, end, kind in gpu:
        at = np.searchsorted(starts, launches.get(correlation, -1.0), side="right") - 1
        if at >= 0:
            rows.setdefault(marks[at][1], {COMPUTE: [], COMM: [], COPY: []})[kind].append(
                (start, end)
            )
    table = []
    for step in sorted(rows):
        u = {k: union(np.array(v).reshape(-1, 2)) for k, v in rows[step].items()}
        every = union(np.concatenate(list(u.values())))
        work = {k: length(v) for k, v in u.items()}
        table.append(
            {
                "span_ns": round(1000 * (every[-1, 1] - every[0, 0])),
                "busy_ns": round(1000 * length(every)),
                "compute_ns": round(1000 * work[COMPUTE]),
                "comm_ns": round(1000 * work[COMM]),
                "comm_hidden_ns": round(1000 * both(u[COMM], u[COMPUTE])),
                "copy_ns": round(1000 * work[COPY]),
                "copy_hidden_ns": round(1000 * both(u[COPY], u[COMPUTE])),
            }
        )
    return table


def block():
    from torch import nn

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm_a, self.norm_m = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
            self.qkv, self.proj = (
                nn.Linear(DIM, 3 * DIM, bias=False),
                nn.Linear(DIM, DIM, bias=False),
            )
            self.up, self.down = (
                nn.Linear(DIM, HIDDEN, bias=False),
                nn.Linear(HIDDEN, DIM, bias=False),
            )

        def forward(self, x):
            b, t, d = x.shape
            q, k, v = self.qkv(self.norm_a(x)).view(b, t, 3, 16, d // 16).permute(2, 0, 3, 1, 4)
            a = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.proj(a.transpose(1, 2).reshape(b, t, d))
            return x + self.down(nn.functional.gelu(self.up(self.norm_m(x))))

    return Block()


def offload_step(blocking):
    """One training step whose activations travel to the host and back."""
    import torch
    from torch import nn

    main = torch.cuda.current_stream()
    out, back = (main, main) if blocking else (torch.cuda.Stream(), torch.cuda.Stream())
    host = [
        torch.empty(BATCH, TOKENS, DIM, dtype=torch.bfloat16, pin_memory=True) for _ in range(2)
    ]
    device = [
        torch.empty(BATCH, TOKENS, DIM, dtype=torch.bfloat16, device="cuda") for _ in range(2)
    ]

    class Travel(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, i):
            ctx.i = i
            out.wait_stream(main)
            with torch.cuda.stream(out):
                host[i].copy_(x, non_blocking=True)
            x.record_stream(out)
            return x.view_as(x)

        @staticmethod
        def backward(ctx, g):
            back.wait_stream(main)
            with torch.cuda.stream(back):
                device[ctx.i].copy_(host[ctx.i], non_blocking=True)
            return g, None

    blocks = nn.ModuleList([block() for _ in range(2)]).to("cuda", torch.bfloat16)
    optimizer = torch.optim.SGD(blocks.parameters(), lr=1e-4)
    x = torch.randn(BATCH, TOKENS, DIM, device="cuda", dtype=torch.bfloat16, requires_grad=True)

    def step():
        h = x
        for i, b in enumerate(blocks):
            h = b(Travel.apply(h, i))
        h.float().pow(2).mean().backward()
        main.wait_stream(back)
        main.wait_stream(out)
        optimizer.step()
        optimizer.zero_grad()
        torch.cuda.synchronize()

    return step


def pipeline_step(rank, world):
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    dist.init_process_group("nccl", rank=rank, world_size=world, device_id=torch.device("cuda", 0))
    device = torch.device("cuda", 0)
    module = nn.Sequential(block(), block(), block()).to(device, torch.bfloat16)
    group = dist.new_group(list(range(world)), group_desc="PIPELINE_MODEL_PARALLEL_GROUP")
    stage = PipelineStage(module, rank, world, device, group=group)
    schedule = Schedule1F1B(stage, 2 * world, lambda o, t: (o.float() - t.float()).pow(2).mean())
    optimizer = torch.optim.SGD(module.parameters(), lr=1e-4)
    x = torch.randn(2 * world, 512, DIM, device=device, dtype=torch.bfloat16)

    def step():
        args = (x,) if rank == 0 else ()
        schedule.step(*args, **({"target": x} if rank == world - 1 else {}))
        optimizer.step()
        optimizer.zero_grad()
        torch.cuda.synchronize()

    return step


def record(mode, folder, steps, plain, keep):
    """Run one process of one program."""
    import torch
    from torch.profiler import ProfilerActivity, profile, schedule

    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    torch.cuda.set_device(0)
    step = pipeline_step(rank, world) if mode == "1f1b" else offload_step(mode == "blocking")
    for _ in range(10):
        step()
    times = []
    for _ in range(plain):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        step()
        end.record()
        end.synchronize()
        times.append(round(start.elapsed_time(end), 4))
    trace = Path(folder, f"rank{rank}.pt.trace.json.gz")
    kinds = [ProfilerActivity.CPU, ProfilerActivity.CUDA]
    with profile(
        activities=kinds,
        record_shapes=True,
        schedule=schedule(wait=0, warmup=3, active=steps),
        on_trace_ready=lambda p: p.export_chrome_trace(str(trace)),
    ) as profiler:
        for _ in range(steps + 3):
            step()
            profiler.step()
    Path(folder, f"rank{rank}.json").write_text(
        json.dumps({"plain_ms": times, "profiled": reduce_trace(trace)})
    )
    if not keep:
        trace.unlink()
    if world > 1:
        os._exit(0)  # every rank has what it came for; tearing NCCL down can hang


def launch(mode, folder, steps, plain, world, *, keep):
    folder.mkdir(parents=True, exist_ok=True)
    words = [
        sys.executable,
        __file__,
        str(folder),
        "--one",
        mode,
        "--steps",
        str(steps),
        "--plain",
        str(plain),
    ]
    shared = {
        "WORLD_SIZE": str(world),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(29500 + int(time.time()) % 2000),
    }
    shared |= {"NCCL_SOCKET_IFNAME": "lo", "NCCL_IB_DISABLE": "1", "NCCL_MAX_NCHANNELS": "2"}
    if world > 1:
        shared["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] = str(100 // world)
    ranks = [
        subprocess.Popen(
            words + (["--keep"] if keep else []),
            env={**os.environ, **shared, "RANK": str(r), "NCCL_HOSTID": f"h{r}"},
        )
        for r in range(world)
    ]
    codes = [p.wait(timeout=120) for p in ranks]
    print(folder, codes, flush=True)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--runs", type=int, default=8)
    parser.add_argument("--steps", type=int, default=48)
    parser.add_argument("--plain", type=int, default=300)
    parser.add_argument(
        "--only", default="samples,offload,1f1b", help="which of samples, offload, 1f1b"
    )
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--keep", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        record(options.one, options.folder, options.steps, options.plain, options.keep)
        return
    if "samples" in options.only:
        for name, mode in (("baseline", "offload"), ("same", "offload"), ("blocking", "blocking")):
            launch(mode, options.folder / "gate" / name, 10, 20, 1, keep=True)
    if "offload" in options.only:
        for run in range(options.runs):
            launch(
                "offload",
                options.folder / "offload" / str(run),
                options.steps,
                options.plain,
                1,
                keep=False,
            )
    if "1f1b" in options.only:
        for run in range(max(2, options.runs // 2)):
            launch(
                "1f1b",
                options.folder / "1f1b" / str(run),
                options.steps,
                options.plain,
                4,
                keep=False,
            )


if __name__ == "__main__":
    main()
