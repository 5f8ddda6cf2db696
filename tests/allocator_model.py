"""PyTorch's caching allocator in a few lines, which writes the snapshots that PyTorch writes.

It rounds, splits, joins and caches as ``c10/cuda/CUDACachingAllocator.cpp`` does, gives cached
segments back before it fails, and then writes the ``oom`` event with what is free on the GPU.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tests.memory_snapshots import BASE_US

MIB = 1 << 20


class OutOfMemoryError(Exception):
    pass


def frame(name, filename, line):
    return {"name": name, "filename": filename, "line": line}


MODULE_CALL = frame("_call_impl", "site-packages/torch/nn/modules/module.py", 1762)
TRAIN = frame("train", "train.py", 40)
BACKWARD = [
    frame("_engine_run_backward", "site-packages/torch/autograd/graph.py", 824),
    frame("backward", "site-packages/torch/_tensor.py", 626),
    TRAIN,
]
OPTIMIZER = [frame("_init_group", "site-packages/torch/optim/adamw.py", 90), TRAIN]
BUILD = [
    frame("convert", "site-packages/torch/nn/modules/module.py", 1300),
    frame("_apply", "site-packages/torch/nn/modules/module.py", 900),
    TRAIN,
]


def in_block(line, function="forward"):
    """A stack in a block of the model, as its layers call each other."""
    return [
        frame(function, "model.py", line),
        MODULE_CALL,
        frame("forward", "model.py", 80),
        MODULE_CALL,
        TRAIN,
    ]


@dataclass
class Block:
    address: int
    size: int
    segment: int
    requested: int = 0
    frames: list = field(default_factory=list)
    is_used: bool = False


class Allocator:
    """One GPU as one process sees it; other processes hold *others* bytes of it."""

    def __init__(self, capacity, *, others=0, limit=None):
        self.capacity = capacity
        self.others = others
        self.limit = limit
        self.time_us = BASE_US
        self.events = []
        self.segments = {}  # by address: size, stream, is_small
        self.blocks = []
        self.next_address = 0x7F0000000000

    @property
    def reserved(self):
        return sum(size for size, *_ in self.segments.values())

    @property
    def device_free(self):
        return self.capacity - self.others - self.reserved

    def alloc(self, size, frames, *, stream=0):
        rounded = max(512, -(-size // 512) * 512)
        is_small = rounded <= MIB
        block = self._best_fit(rounded, stream, is_small)
        if block is None:
            if is_small:
                total = 2 * MIB
            elif rounded < 10 * MIB:
                total = 20 * MIB
            else:
                total = -(-rounded // (2 * MIB)) * 2 * MIB
            if not self._fits(total):
                self._release_cached()
            if not self._fits(total):
                self._event("oom", None, rounded, stream, frames)
                raise OutOfMemoryError
            address = self.next_address
            self.next_address += total + 2 * MIB
            self.segments[address] = (total, stream, is_small)
            self._event("segment_alloc", address, total, stream, frames)
            block = Block(address, total, address)
            self.blocks.append(block)
        rest = block.size - rounded
        if rest >= 512 if is_small else rest > MIB:
            self.blocks.append(Block(block.address + rounded, rest, block.segment))
            block.size = rounded
        block.is_used = True
        block.requested = size
        block.frames = frames
        self._event("alloc", block.address, size, stream, frames)
        return block

    def free(self, block, frames=()):
        stream = self.segments[block.segment][1]
        self._event("free_requested", block.address, block.requested, stream, frames)
        self._event("free_completed", block.address, block.requested, stream, frames)
        block.is_used = False
        for other in list(self.blocks):
            if other.segment != block.segment or other.is_used or other is block:
                continue
            if other.address + other.size == block.address:
                block.address = other.address
            elif block.address + block.size != other.address:
                continue
            block.size += other.size
            self.blocks.remove(other)

    def snapshot(self):
        segments = []
        for address, (total, stream, is_small) in self.segments.items():
            blocks = sorted(
                (block for block in self.blocks if block.segment == address),
                key=lambda block: block.address,
            )
            used = sum(block.size for block in blocks if block.is_used)
            segments.append(
                {
                    "device": 0,
                    "address": address,
                    "total_size": total,
                    "allocated_size": used,
                    "active_size": used,
                    "requested_size": sum(b.requested for b in blocks if b.is_used),
                    "stream": stream,
                    "segment_type": "small" if is_small else "large",
                    "segment_pool_id": (0, 0),
                    "is_expandable": False,
                    "frames": [],
                    "blocks": [
                        {
                            "address": block.address,
                            "size": block.size,
                            "requested_size": block.requested,
                            "state": "active_allocated" if block.is_used else "inactive",
                            "frames": block.frames,
                        }
                        for block in blocks
                    ],
                }
            )
        return {
            "segments": segments,
            "device_traces": [self.events],
            "allocator_settings": {"PYTORCH_CUDA_ALLOC_CONF": "", "expandable_segments": False},
            "external_annotations": [],
        }

    def _best_fit(self, size, stream, is_small):
        fitting = []
        for block in self.blocks:
            own = self.segments[block.segment][1:] == (stream, is_small)
            if own and not block.is_used and block.size >= size:
                fitting.append(block)
        return min(fitting, key=lambda block: (block.size, block.address), default=None)

    def _fits(self, total):
        within_limit = self.limit is None or self.reserved + total <= self.limit
        return within_limit and total <= self.device_free

    def _release_cached(self):
        for block in list(self.blocks):
            if not block.is_used and block.size == self.segments[block.segment][0]:
                total, stream, _ = self.segments.pop(block.segment)
                self._event("segment_free", block.address, total, stream, [])
                self.blocks.remove(block)

    def _event(self, action, address, size, stream, frames):
        self.time_us += 7
        where = {"device_free": self.device_free} if action == "oom" else {"addr": address}
        self.events.append(
            {
                "action": action,
                **where,
                "size": size,
                "stream": stream,
                "time_us": self.time_us,
                "compile_context": "N/A",
                "user_metadata": "",
                "frames": list(frames),
            }
        )


class Training:
    """A model of some blocks that is trained; *layers* of them, each with *activation* bytes."""

    def __init__(self, gpu, *, layers=8, weight=20 * MIB, activation=24 * MIB, leak=0):
        self.gpu = gpu
        self.layers = layers
        self.weight = weight
        self.activation = activation
        self.leak = leak
        self.weights = [gpu.alloc(weight, BUILD) for _ in range(layers)]
        self.states = []

    def run(self, steps):
        """Run steps; return whether memory ran out."""
        try:
            for _ in range(steps):
                self.step()
        except OutOfMemoryError:
            return True
        return False

    def step(self):
        kept = []
        for _ in range(self.layers):
            kept.append(self.gpu.alloc(self.activation, in_block(25)))
            kept.append(self.gpu.alloc(self.activation // 2, in_block(31)))
        if self.leak:
            self.gpu.alloc(self.leak, [frame("log_loss", "train.py", 55), TRAIN])
        loss = self.gpu.alloc(
            4,
            [frame("_make_grads", "site-packages/torch/autograd/__init__.py", 199), *BACKWARD[1:]],
        )
        gradients = []
        for _ in range(self.layers):
            self.gpu.free(kept.pop())
            gradients.append(self.gpu.alloc(self.weight, []))
            self.gpu.free(kept.pop())
        self.gpu.free(loss)
        if not self.states:
            for _ in range(self.layers):
                self.states += [self.gpu.alloc(self.weight, OPTIMIZER) for _ in range(2)]
        passing = self.gpu.alloc(
            self.weight, [frame("_multi_tensor", "site-packages/torch/optim/adamw.py", 500), TRAIN]
        )
        self.gpu.free(passing)
        for gradient in gradients:
            self.gpu.free(gradient)
