"""Records a pipeline: any order that ``tracekit schedule`` writes, on real GPUs.

    tracekit schedule interleaved-overlap --pp 4 --microbatches 8 --virtual 2 --json > plan.json
    python record/pipeline.py plan.json out/ --expert 2 --offload

Each rank writes ``out/rankK.pt.trace.json.gz``; rank 0 writes ``out/truth.json``: what was run,
counted where it ran.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import os
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from model import Stage, counted
from offload import Offload
from plan import Plan
from profilers import WARM_UP, Nsight, PyTorch
from runtime import Runtime


def options() -> argparse.Namespace:
    """Read the words of the command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("plan", type=Path, help="the JSON of tracekit schedule")
    parser.add_argument("out", type=Path, help="folder for the traces")
    parser.add_argument(
        "--expert",
        type=int,
        default=1,
        help="expert-parallel size: that many pipelines side by side",
    )
    parser.add_argument(
        "--offload", action="store_true", help="move activations to host memory and back"
    )
    parser.add_argument(
        "--annotate", action="store_true", help="write PP: ranges, the truth about every op"
    )
    parser.add_argument("--no-shapes", action="store_true", help="record no input shapes")
    parser.add_argument("--profiler", choices=("torch", "nsys"), default="torch")
    parser.add_argument("--steps", type=int, default=1, help="steps recorded after the warm-up")
    parser.add_argument("--layers", type=int, default=1, help="layers a stage")
    parser.add_argument("--width", type=int, default=4096)
    parser.add_argument("--hidden", type=int, default=12288)
    parser.add_argument("--tokens", type=int, default=1024)
    parser.add_argument("--batch", type=int, default=1, help="sequences a micro-batch")
    parser.add_argument(
        "--straggler",
        type=int,
        default=None,
        help="a stage that does its feed-forward part 12 times",
    )
    parser.add_argument(
        "--rank",
        type=int,
        default=None,
        help="run this rank alone (started by hand, one a process)",
    )
    parser.add_argument("--port", type=int, default=29500 + os.getpid() % 1000)
    return parser.parse_args()


def main() -> None:
    """Start every rank."""
    wanted = options()
    wanted.out.mkdir(parents=True, exist_ok=True)
    if wanted.rank is not None:
        run_rank(wanted.rank, wanted)
        return
    world = len(Plan.read(wanted.plan).orders) * wanted.expert
    mp.spawn(run_rank, args=(wanted,), nprocs=world, join=True)


def run_rank(rank: int, wanted: argparse.Namespace) -> None:
    """One rank, from its process group to its trace."""
    plan = Plan.read(wanted.plan)
    world = len(plan.orders) * wanted.expert
    faulthandler.dump_traceback_later(180, exit=True)  # a hang says where
    device = join(rank, world, wanted.port)
    stage_rank, replica = divmod(rank, wanted.expert)
    pipeline, expert = groups(rank, world, wanted.expert)
    # The feed-forward part's hidden activations are the largest, and the ones worth moving.
    offload = Offload(wanted.batch * wanted.tokens * wanted.hidden) if wanted.offload else None
    stages = {}
    for stage in plan.stages_of(stage_rank):
        torch.manual_seed(stage)
        module = Stage(wanted.layers, wanted.width, wanted.hidden, expert)
        module.repeats = 12 if stage == wanted.straggler else 1
        stages[stage] = module.to(
            device, torch.bfloat16 if device.type == "cuda" else torch.float32
        )
    torch.manual_seed(rank)
    shape = (plan.microbatches, wanted.batch, wanted.tokens, wanted.width)
    inputs = torch.randn(
        shape, device=device, dtype=next(iter(stages.values())).layers[0].norm1.weight.dtype
    )  # type: ignore[index,union-attr]
    runtime = Runtime(
        plan,
        stage_rank,
        stages,
        inputs,
        peers=[s * wanted.expert + replica for s in range(len(plan.orders))],
        group=pipeline,
        offload=offload,
        annotate=wanted.annotate,
    )
    if offload is not None:
        rehearse(stages, inputs, offload, plan.peak_chunks(stage_rank))
    train(runtime, stages, rank, wanted, device)
    if rank == 0:
        write_truth(plan, wanted, world)
    dist.barrier()
    dist.destroy_process_group()


def join(rank: int, world: int, port: int) -> torch.device:
    """Join the others: a GPU a rank where there are enough, else all on one GPU, else CPUs (to try the code)."""
    os.environ.update(
        MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(world)
    )
    if not torch.cuda.is_available():
        torch.set_num_threads(1)
        dist.init_process_group("gloo", rank=rank, world_size=world)
        return torch.device("cpu")
    if torch.cuda.device_count() < world:
        # NCCL refuses two ranks on one GPU of one host; a host name each lets them talk over
        # loopback.
        os.environ.update(
            NCCL_HOSTID=f"h{rank}",
            NCCL_SOCKET_IFNAME="lo",
            NCCL_IB_DISABLE="1",
            NCCL_MAX_NCHANNELS="2",
        )
    device = torch.device("cuda", rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    # No device_id: each pair talks on its own.
    dist.init_process_group("nccl", rank=rank, world_size=world)
    return device


def groups(rank: int, world: int, expert: int) -> tuple[Any, Any]:
    """Make this rank's pipeline group and expert group.

    Neighbours share experts, as in Megatron's order.
    """
    mine: list[Any] = [None, None]
    for replica in range(expert):
        members = list(range(replica, world, expert))
        group = dist.new_group(members, group_desc="PIPELINE_MODEL_PARALLEL_GROUP")
        if rank in members:
            mine[0] = group
    for first in range(0, world, expert) if expert > 1 else ():
        members = list(range(first, first + expert))
        group = dist.new_group(members, group_desc="EXPERT_MODEL_PARALLEL_GROUP")
        if rank in members:
            mine[1] = group
    return mine[0], mine[1]


def rehearse(stages: dict[int, Stage], inputs: torch.Tensor, offload: Offload, copies: int) -> None:
    """Run one chunk to see which pinned buffers it needs, then take them all."""
    tape: list[Any] = []
    stage = next(iter(stages))
    for _ in stages[stage].run_forward(inputs[0], tape, lambda: offload.saving((stage, 0))):
        pass
    torch.cuda.synchronize()
    offload.used.clear()
    offload.fill(copies + 1)


def train(
    runtime: Runtime,
    stages: dict[int, Stage],
    rank: int,
    wanted: argparse.Namespace,
    device: torch.device,
) -> None:
    """Warm up, then record."""
    parameters = [parameter for stage in stages.values() for parameter in stage.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=1e-4, fused=device.type == "cuda")
    shapes = not wanted.no_shapes
    profiler = (
        PyTorch(wanted.out, rank, steps=wanted.steps, shapes=shapes)
        if wanted.profiler == "torch"
        else Nsight(steps=wanted.steps, shapes=shapes)
    )
    with profiler:
        for step in range(WARM_UP + wanted.steps):
            if step == WARM_UP:
                counted.clear()
            runtime.step()
            optimizer.step()
            optimizer.zero_grad()
            if device.type == "cuda":
                torch.cuda.synchronize()
            profiler.step()


def write_truth(plan: Plan, wanted: argparse.Namespace, world: int) -> None:
    """What rank 0 ran in the recorded steps; every rank of a balanced plan runs as much."""
    truth = {
        "schedule": plan.name,
        "pp": len(plan.orders),
        "microbatches": plan.microbatches,
        "virtual": len(plan.stages_of(0)),
        "expert": wanted.expert,
        "world_size": world,
        "steps": wanted.steps,
        "orders": [[op.text for op in order] for order in plan.orders],
        "rank0_counts": dict(sorted(counted.items())),
    }
    (wanted.out / "truth.json").write_text(json.dumps(truth, indent=1) + "\n")


if __name__ == "__main__":
    main()
