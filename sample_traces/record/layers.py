"""Records a model whose layers are known: `python record/layers.py out/`, one GPU, a few seconds."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile, schedule

LAYERS, WIDTH, HEADS, HIDDEN, WORDS, TOKENS, BATCH, MICROBATCHES = (
    6,
    1024,
    16,
    4096,
    8192,
    512,
    4,
    2,
)


class Attention(nn.Module):
    """Causal attention."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.proj = (
            nn.Linear(WIDTH, 3 * WIDTH, bias=False),
            nn.Linear(WIDTH, WIDTH, bias=False),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Attend within each sequence."""
        batch, tokens, width = x.shape
        q, k, v = self.qkv(x).view(batch, tokens, 3, HEADS, width // HEADS).permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        out: Tensor = self.proj(mixed.transpose(1, 2).reshape(batch, tokens, width))
        return out


class Mlp(nn.Module):
    """Two products with a GELU between them."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = (
            nn.Linear(WIDTH, HIDDEN, bias=False),
            nn.Linear(HIDDEN, WIDTH, bias=False),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Feed forward."""
        out: Tensor = self.down(nn.functional.gelu(self.up(x)))
        return out


class Layer(nn.Module):
    """Attention and MLP, each after a norm."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.attention = nn.LayerNorm(WIDTH), Attention()
        self.norm2, self.mlp = nn.LayerNorm(WIDTH), Mlp()

    def forward(self, x: Tensor) -> Tensor:
        """Attend, then feed forward."""
        x = x + self.attention(self.norm1(x))
        out: Tensor = x + self.mlp(self.norm2(x))
        return out


class Gpt(nn.Module):
    """Embedding, layers, norm and head."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WORDS, bias=False)
        self.layers, self.norm = (
            nn.ModuleList([Layer() for _ in range(LAYERS)]),
            nn.LayerNorm(WIDTH),
        )

    def forward(self, tokens: Tensor) -> Tensor:
        """Return a score for every word."""
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        out: Tensor = self.head(self.norm(x))
        return out


def main() -> None:
    """Record two steps after two warm-up steps."""
    out = Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    model = Gpt().to("cuda", torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    tokens = torch.randint(WORDS, (MICROBATCHES, BATCH, TOKENS), device="cuda")
    with profile(
        activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA],
        record_shapes=True,
        with_stack=True,
        schedule=schedule(wait=0, warmup=2, active=2),
        on_trace_ready=lambda p: p.export_chrome_trace(str(out / "rank0.pt.trace.json.gz")),
    ) as profiler:
        for _ in range(4):
            for batch in tokens:
                scores = model(batch)
                nn.functional.cross_entropy(
                    scores.view(-1, WORDS).float(), batch.view(-1)
                ).backward()
            optimizer.step()
            optimizer.zero_grad()
            torch.cuda.synchronize()
            profiler.step()


if __name__ == "__main__":
    main()
