"""Records runs whose rates are known: a slow shape among fast ones, and a router that favours one rank's experts.

``python record/rates.py rates out/``: one GPU; also counts the step's FLOP with PyTorch's own
counter. ``python record/rates.py router out/ RANK WORLD``: one process per rank, started with
MASTER_ADDR and MASTER_PORT set.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile, schedule
from torch.utils.flop_counter import FlopCounterMode

ODD_WIDTH = 4093  # not a multiple of eight: tensor cores cannot be fed in whole
FAVOURED = 0.55  # of all tokens, to rank 0, in every second layer


class Block(nn.Module):
    """A transformer block whose feed-forward part has a width of its own."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.qkv, self.proj = (
            nn.Linear(width, 3 * width, bias=False),
            nn.Linear(width, width, bias=False),
        )
        self.up, self.down = (
            nn.Linear(width, hidden, bias=False),
            nn.Linear(hidden, width, bias=False),
        )

    def attend(self, x: Tensor) -> Tensor:
        """Attend within each sequence."""
        batch, tokens, width = x.shape
        q, k, v = (
            self.qkv(self.norm(x)).view(batch, tokens, 3, 16, width // 16).permute(2, 0, 3, 1, 4)
        )
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + self.proj(mixed.transpose(1, 2).reshape(batch, tokens, width))

    def forward(self, x: Tensor) -> Tensor:
        """Attend, then feed forward."""
        x = self.attend(x)
        down: Tensor = self.down(nn.functional.gelu(self.up(x)))
        return x + down


def recorded(path: Path) -> profile:
    """Return a profiler of two steps after two warm-up steps."""
    return profile(
        activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA],
        record_shapes=True,
        schedule=schedule(wait=0, warmup=2, active=2),
        on_trace_ready=lambda p: p.export_chrome_trace(str(path)),
    )


def rates(out: Path) -> None:
    """Record four blocks, one of an odd width, and two convolutions."""
    body = nn.Sequential(*(Block(1024, ODD_WIDTH if n == 2 else 4096) for n in range(4))).to(
        "cuda", torch.bfloat16
    )
    filters = [
        nn.Conv2d(16, 64, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(64, 64, 3, padding=1),
    ]
    images = nn.Sequential(*filters).to("cuda", torch.bfloat16)
    optimizer = torch.optim.AdamW([*body.parameters(), *images.parameters()], lr=1e-4)
    text = torch.randn(4, 512, 1024, device="cuda", dtype=torch.bfloat16)
    image = torch.randn(8, 16, 64, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)

    def step() -> None:
        loss = body(text).float().pow(2).mean() + images(image).float().pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        torch.cuda.synchronize()

    with FlopCounterMode(display=False) as counter:
        step()
    (out / "flops.json").write_text(json.dumps({"flop_per_step": counter.get_total_flops()}))
    with recorded(out / "rank0.pt.trace.json.gz") as profiler:
        for _ in range(4):
            step()
            profiler.step()


class Exchange(torch.autograd.Function):
    """An all-to-all of rows, and its way back."""

    @staticmethod
    def forward(
        ctx: object, x: Tensor, group: object, sent: list[int], received: list[int]
    ) -> Tensor:
        """Send *sent* rows to each rank, receive *received* from each."""
        ctx.about = (group, sent, received)  # type: ignore[attr-defined]
        out = x.new_empty(sum(received), x.shape[1])
        dist.all_to_all_single(out, x.contiguous(), received, sent, group=group)
        return out

    @staticmethod
    def backward(ctx: object, grad: Tensor) -> tuple[Tensor, None, None, None]:
        """Send the gradients back."""
        group, sent, received = ctx.about  # type: ignore[attr-defined]
        out = grad.new_empty(sum(sent), grad.shape[1])
        dist.all_to_all_single(out, grad.contiguous(), sent, received, group=group)
        return out, None, None, None


def router(out: Path, rank: int, world: int) -> None:
    """Record four MoE layers: even ones favour rank 0's experts, odd ones share evenly."""
    torch.cuda.set_device(0)
    dist.init_process_group("nccl", rank=rank, world_size=world)
    group = dist.new_group(list(range(world)), group_desc="EXPERT_MODEL_PARALLEL_GROUP")
    layers = nn.ModuleList([Block(2048, 4096) for _ in range(4)]).to("cuda", torch.bfloat16)
    x = torch.randn(4, 512, 2048, device="cuda", dtype=torch.bfloat16)
    tokens = x.shape[0] * x.shape[1]
    with recorded(out / f"rank{rank}.pt.trace.json.gz") as profiler:
        for _ in range(4):
            y = x
            for number, layer in enumerate(layers):
                rest = (1 - FAVOURED) / (world - 1)
                shares = [1 / world] * world if number % 2 else [FAVOURED, *[rest] * (world - 1)]
                sent = [int(tokens * share) for share in shares]
                sent[-1] += tokens - sum(sent)
                received = [sent[rank]] * world
                y = layer.attend(y)
                rows = Exchange.apply(y.reshape(tokens, -1), group, sent, received)
                rows = layer.down(nn.functional.silu(layer.up(rows)))
                y = y + Exchange.apply(rows, group, received, sent).view_as(y)
            y.float().pow(2).mean().backward()
            torch.cuda.synchronize()
            layers.zero_grad()
            profiler.step()
    dist.destroy_process_group()


def main() -> None:
    """Record what was asked for."""
    what, out = sys.argv[1], Path(sys.argv[2])
    out.mkdir(parents=True, exist_ok=True)
    if what == "rates":
        rates(out)
    else:
        router(out, int(sys.argv[3]), int(sys.argv[4]))


if __name__ == "__main__":
    main()
