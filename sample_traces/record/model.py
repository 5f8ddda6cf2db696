"""A small transformer stage whose communication, weight gradients and saved activations can be moved about.

``forward`` and ``backward`` are generators: they yield wherever expert communication is in flight,
so that a runtime can drive a forward and a backward by turns and hide one's communication under the
other's compute.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

Turn = Generator[None, None, Tensor]
counted: Counter[str] = Counter()
"""What was really run, counted where it is run: the truth beside each sample."""


class WeightGradients:
    """Weight gradients waiting to be computed: put by the backward, run when the schedule says."""

    def __init__(self) -> None:
        self.waiting: list[Callable[[], None]] = []

    def run(self) -> None:
        """Compute what waits, oldest first."""
        for compute in self.waiting:
            compute()
        self.waiting.clear()

    def take(self) -> list[Callable[[], None]]:
        """Hand over what waits, to be run later."""
        waiting, self.waiting = self.waiting, []
        return waiting


weights = WeightGradients()


class _Matmul(torch.autograd.Function):
    """A linear layer that computes its input gradient at once and leaves its weight gradient for later."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        counted["forward"] += 1
        return nn.functional.linear(x, weight)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        x, weight = ctx.saved_tensors
        grad = grads[0]

        def weight_gradient() -> None:
            counted["wgrad"] += 1
            update = grad.flatten(0, -2).T @ x.flatten(0, -2)
            weight.grad = update if weight.grad is None else weight.grad.add_(update)

        weights.waiting.append(weight_gradient)
        counted["dgrad"] += 1
        return grad @ weight, None


class Linear(nn.Module):
    """``x @ weight.T``, with the weight gradient left to ``weights``."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(outputs, inputs) * 0.02)

    def forward(self, x: Tensor) -> Tensor:
        """Multiply."""
        result: Tensor = _Matmul.apply(x, self.weight)
        return result


class Layer(nn.Module):
    """Attention, then a feed-forward part that may live on other ranks."""

    def __init__(self, width: int, hidden: int, heads: int = 16) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = Linear(width, 3 * width), Linear(width, width)
        self.up, self.down = Linear(width, hidden), Linear(hidden, width)

    def attention(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the residual stream and what goes to the experts."""
        batch, tokens, width = x.shape
        qkv = self.qkv(self.norm1(x)).view(batch, tokens, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(mixed.transpose(1, 2).reshape(batch, tokens, width))
        return x, self.norm2(x).reshape(batch * tokens, width)

    def experts(self, x: Tensor) -> Tensor:
        """Feed forward."""
        result: Tensor = self.down(nn.functional.silu(self.up(x)))
        return result


class Exchange:
    """All-to-all over the expert group; without a group, nothing moves and nothing waits."""

    def __init__(self, group: Any) -> None:
        self.group = group

    def start(self, x: Tensor, role: str) -> tuple[Tensor, Any]:
        """Begin to exchange *x*; return where it arrives and what to wait for."""
        if self.group is None:
            return x, None
        counted[role] += 1
        out = torch.empty_like(x)
        return out, dist.all_to_all_single(out, x.contiguous(), group=self.group, async_op=True)


class Stage(nn.Module):
    """Some layers, run and differentiated piece by piece."""

    def __init__(self, layers: int, width: int, hidden: int, group: Any) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(width, hidden) for _ in range(layers))
        self.exchange = Exchange(group)
        self.repeats = 1  # above 1, a straggler: the feed-forward part runs that often

    def run_forward(self, x: Tensor, tape: list[Any], saving: Callable[[], Any]) -> Turn:
        """Forward.

        *tape* keeps what the backward needs, *saving* decides where activations are kept.
        """
        for layer in self.layers:
            x = _leaf(x)
            with saving():
                residual, tokens = layer.attention(x)  # type: ignore[operator]
            arrived, work = self.exchange.start(tokens.detach(), "dispatch_forward")
            if work is not None:
                yield
                work.wait()
            arrived = _leaf(arrived)
            for _ in range(self.repeats - 1):
                with torch.no_grad():
                    layer.experts(arrived)  # type: ignore[operator]
            with saving():
                done = layer.experts(arrived)  # type: ignore[operator]
            back, work = self.exchange.start(done.detach(), "combine_forward")
            if work is not None:
                yield
                work.wait()
            tape.append((x, residual, tokens, arrived, done))
            x = residual.detach() + back.view_as(residual)
        return x

    def run_backward(self, grad: Tensor, tape: list[Any]) -> Turn:
        """Backward for the inputs.

        Weight gradients run under communication or stay with ``weights``.
        """
        while tape:
            x, residual, tokens, arrived, done = tape.pop()
            to_experts, work = self.exchange.start(grad.reshape(done.shape), "combine_backward")
            if work is not None:
                weights.run()
                yield
                work.wait()
            torch.autograd.backward([done], [to_experts])
            from_experts, work = self.exchange.start(arrived.grad, "dispatch_backward")
            if work is not None:
                weights.run()
                yield
                work.wait()
            torch.autograd.backward([residual, tokens], [grad, from_experts])
            grad = x.grad
        return grad


def _leaf(x: Tensor) -> Tensor:
    return x.detach().requires_grad_(True)
