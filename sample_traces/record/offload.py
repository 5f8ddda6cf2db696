"""Activations moved to pinned host memory after a forward and fetched before its backward, on streams of their own."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import torch
from model import counted
from torch import Tensor, nn

Shape = tuple[torch.Size, torch.dtype]


class _Kept:
    """One activation in host memory, perhaps on its way back."""

    def __init__(self, host: Tensor) -> None:
        self.host = host
        self.back: Tensor | None = None


class Offload:
    """One rank's offload lanes: a stream out, a stream in, and a pool of pinned buffers that never grows in a step.

    Allocating pinned memory can wait for the device while a peer waits for us, so ``fill`` takes it
    all beforehand.
    """

    def __init__(self, smallest: int) -> None:
        self.smallest = smallest  # tensors below this many elements stay on the GPU
        self.out, self.back = torch.cuda.Stream(), torch.cuda.Stream()
        self.pool: dict[Shape, list[Tensor]] = defaultdict(list)
        self.used: dict[tuple[int, int], list[_Kept]] = defaultdict(list)
        self.seen: dict[Shape, int] = defaultdict(int)

    def fill(self, copies: int) -> None:
        """Allocate *copies* chunks' worth of the buffers that one chunk was seen to need."""
        for (shape, dtype), count in self.seen.items():
            missing = count * copies - len(self.pool[shape, dtype])
            self.pool[shape, dtype] += [
                torch.empty(shape, dtype=dtype, pin_memory=True) for _ in range(missing)
            ]

    def saving(self, chunk: tuple[int, int]) -> torch.autograd.graph.saved_tensors_hooks:
        """Hooks under which a forward's saved activations leave the GPU."""
        return torch.autograd.graph.saved_tensors_hooks(
            lambda t: self._pack(t, chunk), self._unpack
        )

    def fetch(self, chunk: tuple[int, int]) -> None:
        """Start bringing a chunk's activations back, before its backward asks for them."""
        for kept in self.used.pop(chunk, []):
            self._fetch(kept)

    def _pack(self, tensor: Tensor, chunk: tuple[int, int]) -> Any:
        if tensor.numel() < self.smallest or isinstance(tensor, nn.Parameter):
            return tensor
        shape = (tensor.shape, tensor.dtype)
        self.seen[shape] += 1
        host = (
            self.pool[shape].pop()
            if self.pool[shape]
            else torch.empty_like(tensor, device="cpu", pin_memory=True)
        )
        self.out.wait_stream(torch.cuda.current_stream())
        self.out.wait_stream(self.back)  # the buffer may still be on its way in
        with torch.cuda.stream(self.out):
            host.copy_(tensor, non_blocking=True)
        tensor.record_stream(self.out)
        counted["offload"] += 1
        kept = _Kept(host)
        self.used[chunk].append(kept)
        return kept

    def _fetch(self, kept: _Kept) -> None:
        self.back.wait_stream(self.out)
        with torch.cuda.stream(self.back):
            kept.back = kept.host.to("cuda", non_blocking=True)
        counted["onload"] += 1
        self.pool[kept.host.shape, kept.host.dtype].append(kept.host)

    def _unpack(self, kept: Any) -> Tensor:
        if not isinstance(kept, _Kept):
            tensor: Tensor = kept
            return tensor
        if kept.back is None:
            self._fetch(kept)
        current = torch.cuda.current_stream()
        current.wait_stream(self.back)
        back = kept.back
        assert back is not None
        back.record_stream(current)
        kept.back = None
        return back
