"""Runs one rank of a plan: forward, input gradient, weight gradient and overlapped blocks, with their messages."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from model import Stage, Turn, weights
from offload import Offload
from plan import Message, Op, Plan
from torch import Tensor

Chunk = tuple[int, int]  # (stage, micro-batch)


class Runtime:
    """One rank's place in the pipeline."""

    def __init__(
        self,
        plan: Plan,
        rank: int,
        stages: dict[int, Stage],
        inputs: Tensor,
        *,
        peers: list[int],
        group: Any,
        offload: Offload | None,
        annotate: bool,
    ) -> None:
        self.plan, self.rank, self.stages, self.inputs = plan, rank, stages, inputs
        self.peers, self.group, self.offload, self.annotate = peers, group, offload, annotate
        self.last = plan.stages - 1

    def step(self) -> None:
        """One training step's forwards and backwards."""
        self.tapes: dict[Chunk, list[Any]] = {}
        self.later: dict[Chunk, list[Callable[[], None]]] = {}
        self.activations: dict[Chunk, Tensor] = {}
        self.gradients: dict[Chunk, Tensor] = {}
        self.coming: dict[tuple[str, Chunk], tuple[Tensor, Any]] = {}
        self.sent: list[tuple[Tensor, Any]] = []
        actions = self.plan.actions[self.rank]
        for position, action in enumerate(actions):
            if isinstance(action, Message):
                self._communicate(action)
            else:
                with (
                    torch.profiler.record_function(f"PP:{action.text}")
                    if self.annotate
                    else contextlib.nullcontext()
                ):
                    self._run(action, actions[position + 1 :])
        for _, work in self.sent:
            work.wait()

    def _communicate(self, message: Message) -> None:
        chunk = (message.stage, message.microbatch)
        if message.target == self.rank:
            buffer = torch.empty_like(self.inputs[0])
            work = dist.irecv(buffer, self.peers[message.source], group=self.group)
            self.coming[message.kind, chunk] = (buffer, work)
        else:
            ready = self.activations if message.kind == "activation" else self.gradients
            tensor = ready.pop(chunk).contiguous()
            self.sent.append(
                (tensor, dist.isend(tensor, self.peers[message.target], group=self.group))
            )
            # What was held back runs beside the send.
            weights.run()

    def _run(self, op: Op, rest: tuple[Op | Message, ...]) -> None:
        if self.offload is not None:
            self._fetch_for(op, rest)
        turns = [
            self._turn(kind, (stage, microbatch))
            for kind, stage, microbatch in op.parts
            if kind != "W"
        ]
        while turns:
            turns = [turn for turn in turns if next(turn, "end") != "end"]
        for kind, stage, microbatch in op.parts:
            if kind == "I":
                self.later[stage, microbatch] = weights.take()
            elif kind == "W":
                for compute in self.later.pop((stage, microbatch)):
                    compute()
            elif kind == "B" and not self._sends_next(rest):
                weights.run()

    def _sends_next(self, rest: tuple[Op | Message, ...]) -> bool:
        """Whether a send comes before the next op, for the last weight gradients to run beside."""
        messages = itertools.takewhile(lambda action: isinstance(action, Message), rest)
        return any(
            isinstance(message, Message) and message.source == self.rank for message in messages
        )

    def _turn(self, kind: str, chunk: Chunk) -> Turn:
        return self._forward(chunk) if kind == "F" else self._backward(chunk)

    def _forward(self, chunk: Chunk) -> Turn:
        stage, microbatch = chunk
        x = (
            self.inputs[microbatch]
            if stage == 0
            else self._take("activation", self.activations, chunk)
        )
        tape = self.tapes[chunk] = []
        saving = (
            contextlib.nullcontext if self.offload is None else lambda: self.offload.saving(chunk)
        )
        out = yield from self.stages[stage].run_forward(x, tape, saving)
        if stage == self.last:
            # The gradient of a mean square, without its graph.
            self.gradients[chunk] = (out * 1e-3).detach()
        else:
            self.activations[stage + 1, microbatch] = out
        return out

    def _backward(self, chunk: Chunk) -> Turn:
        stage, microbatch = chunk
        grad = self._take("gradient", self.gradients, chunk)
        grad = yield from self.stages[stage].run_backward(grad, self.tapes.pop(chunk))
        if stage > 0:
            self.gradients[stage - 1, microbatch] = grad
        return grad

    def _take(self, kind: str, ready: dict[Chunk, Tensor], chunk: Chunk) -> Tensor:
        if (kind, chunk) not in self.coming:
            return ready.pop(chunk)
        buffer, work = self.coming.pop((kind, chunk))
        work.wait()
        return buffer

    def _fetch_for(self, op: Op, rest: tuple[Op | Message, ...]) -> None:
        """Bring back what this op's backward needs, if nobody has, and start on the next backward's."""
        assert self.offload is not None
        following = next(
            (action for action in rest if isinstance(action, Op) and action.kind != "W"), None
        )
        for candidate in (op, following):
            for kind, stage, microbatch in candidate.parts if candidate else ():
                if kind in "BI":
                    self.offload.fetch((stage, microbatch))
