"""Records one GPU training a small transformer in two ways that change what a trace shows.

``python record/single.py recompute out/``: activation checkpointing, forwards run again inside the
backward. ``python record/single.py compile out/``: torch.compile, fused kernels, compiled forward
and backward regions.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from profilers import WARM_UP, PyTorch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

WIDTH, HIDDEN, TOKENS, BATCH, LAYERS = 1024, 4096, 512, 2, 4


class Block(nn.Module):
    """A plain transformer block, with autograd's own linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.proj = (
            nn.Linear(WIDTH, 3 * WIDTH, bias=False),
            nn.Linear(WIDTH, WIDTH, bias=False),
        )
        self.up, self.down = (
            nn.Linear(WIDTH, HIDDEN, bias=False),
            nn.Linear(HIDDEN, WIDTH, bias=False),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Attend, then feed forward."""
        batch, tokens, width = x.shape
        q, k, v = (
            self.qkv(self.norm1(x)).view(batch, tokens, 3, 16, width // 16).permute(2, 0, 3, 1, 4)
        )
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(mixed.transpose(1, 2).reshape(batch, tokens, width))
        down: Tensor = self.down(nn.functional.gelu(self.up(self.norm2(x))))
        return x + down


class Recomputed(nn.Module):
    """A block whose activations are thrown away and computed again."""

    def __init__(self) -> None:
        super().__init__()
        self.block = Block()

    def forward(self, x: Tensor) -> Tensor:
        """Run the block under a checkpoint."""
        result: Tensor = checkpoint(self.block, x, use_reentrant=False)
        return result


def main() -> None:
    """Record two steps."""
    way, out = sys.argv[1], Path(sys.argv[2])
    out.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    kind = Recomputed if way == "recompute" else Block
    model: nn.Module = nn.Sequential(*(kind() for _ in range(LAYERS))).to("cuda", torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    run = torch.compile(model) if way == "compile" else model
    x = torch.randn(BATCH, TOKENS, WIDTH, device="cuda", dtype=torch.bfloat16)
    for _ in range(3):
        run(x).float().pow(2).mean().backward()
    with PyTorch(out, 0, steps=2, shapes=True) as profiler:
        for _ in range(WARM_UP + 2):
            run(x).float().pow(2).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            torch.cuda.synchronize()
            profiler.step()
    linears = 4 * LAYERS * 2  # four a block, two steps
    # A checkpoint stops recomputing at the last activation the backward needs: the final linear's
    # output is not one.
    again = {"recompute": 3 * LAYERS * 2} if way == "recompute" else {}
    truth = {
        "way": way,
        "layers": LAYERS,
        "steps": 2,
        "gemms": dict.fromkeys(("forward", "dgrad", "wgrad"), linears),
    }
    truth["gemms"] |= again
    (out / "truth.json").write_text(json.dumps(truth, indent=1) + "\n")


if __name__ == "__main__":
    main()
