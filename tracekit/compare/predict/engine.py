"""Run programs on a machine: compute in order, queues of messages in order, each link one message at a time.

Compute beside a running message kernel is slower, so an op has no fixed end: what is left of it is worked off at the
speed of the moment.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush

import msgspec
import numpy as np
import numpy.typing as npt

from tracekit.compare.predict.machine import Machine
from tracekit.compare.predict.programs import POST, RUN, WAIT, Program

Floats = npt.NDArray[np.float64]

_PIECE, _KERNEL, _WAKE = range(3)


class Launches(msgspec.Struct, frozen=True, eq=False):
    """When the host has launched the first and the last of each piece, and each kernel; none can be ahead of that."""

    first: Floats
    last: Floats
    posts: Floats

    def lists(self) -> tuple[list[float], list[float], list[float]]:
        """Return all three as lists: single values are read faster from them."""
        return self.first.tolist(), self.last.tolist(), self.posts.tolist()


class Outcome(msgspec.Struct, frozen=True, eq=False):
    """When every piece ran. ``stuck``: pieces that never did, since something waits for itself."""

    start: Floats
    end: Floats
    stuck: int

    @property
    def makespan(self) -> float:
        """From the first piece's start to the last one's end."""
        return float(self.end.max() - self.start.min()) if len(self.end) else 0.0


def run(program: Program, work: Sequence[float], machine: Machine, launches: Launches | None = None) -> Outcome:
    """Return when every piece of *program* runs, where each takes *work* with nothing beside it.

    >>> from tracekit.compare.predict.programs import just_in_time
    >>> from tracekit.schedules import generate
    >>> program = just_in_time(generate("gpipe", pp=2, microbatches=1))
    >>> run(program, [1.0, 2.0, 1.0, 2.0], Machine(send_ns=0, receive_ns=0, latency_ns=0)).makespan
    6.0
    >>> run(program, [1.0, 2.0, 1.0, 2.0], Machine(send_ns=1, receive_ns=1, latency_ns=3)).makespan
    12.0
    """
    return _Run(program, work, machine, launches).go()


@dataclass
class _Run:
    program: Program
    work: Sequence[float]
    machine: Machine
    launches: Launches | None
    events: list[tuple[float, int, int, int, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        p = self.program
        ranks, kernels, messages = len(p.steps), len(p.kernels), len(p.messages)
        self.at = [0] * ranks
        self.current = [-1] * ranks  # piece that runs
        self.left = [0.0] * ranks
        self.since = [0.0] * ranks
        self.version = [0] * ranks
        self.beside = [0] * ranks  # message kernels that run
        self.blocked = [-1] * ranks  # kernel that compute waits for
        self.queues: list[dict[int, deque[int]]] = [{} for _ in range(ranks)]
        self.ended = [False] * kernels
        self.began: list[float | None] = [None] * kernels
        self.over: list[bool] = [False] * kernels
        self.loose: list[bool] = [False] * kernels  # on no queue
        self.sent: list[float | None] = [None] * messages
        self.got: list[float | None] = [None] * messages
        self.leaves: list[float] = [0.0] * messages  # when the link is free for it
        self.sender, self.receiver = [-1] * messages, [-1] * messages
        for number, kernel in enumerate(p.kernels):
            for m in kernel.sends:
                self.sender[m] = number
            for m in kernel.receives:
                self.receiver[m] = number
        self.links: dict[tuple[int, int], float] = {}
        self.start, self.end = [math.nan] * len(p.pieces), [math.nan] * len(p.pieces)
        self.first, self.last, self.posts = ([], [], []) if self.launches is None else self.launches.lists()
        self.speeds = [1.0 / self.machine.slowdown.get(piece.kind, 1.0) for piece in p.pieces]
        self.streams = [self._stream(number) for number in range(kernels)]
        self.count = 0

    def _open(self) -> None:
        """Open every receive at the start, with nothing beside it."""
        for number, kernel in enumerate(self.program.kernels):
            if kernel.receives and not kernel.sends:
                self.loose[number] = True
                self.began[number] = 0.0
                for m in kernel.receives:
                    self.got[m] = 0.0

    def go(self) -> Outcome:
        if self.machine.queues == "free":
            self._open()
        for rank in range(len(self.program.steps)):
            self._advance(rank, 0.0)
        while self.events:
            now, _, what, which, version = heappop(self.events)
            if what == _PIECE:
                if version == self.version[which]:
                    self._finish_piece(which, now)
            elif what == _WAKE:
                self._advance(which, now)
            else:
                self._finish_kernel(which, now)
        end = np.array(self.end)
        return Outcome(np.array(self.start), end, int(np.isnan(end).sum()))

    def _push(self, time: float, what: int, which: int, version: int = 0) -> None:
        self.count += 1
        heappush(self.events, (time, self.count, what, which, version))

    # compute ------------------------------------------------------------------------------------------------------

    def _advance(self, rank: int, now: float) -> None:
        """Run the rank's steps until one has to wait."""
        steps = self.program.steps[rank]
        while self.at[rank] < len(steps):
            code, which = steps[self.at[rank]]
            if code == POST:
                if self.posts and self.posts[which] > now:
                    self._push(self.posts[which], _WAKE, rank)
                    return
                if not self.loose[which]:
                    self._queue(rank, which, now)
                if self.machine.queues == "compute" and not self.ended[which]:
                    self.at[rank] += 1
                    self.blocked[rank] = which
                    return
            elif code == WAIT:
                if not self.ended[which]:
                    self.blocked[rank] = which
                    return
            elif code == RUN:
                if self.first and self.first[which] > now:
                    self._push(self.first[which], _WAKE, rank)
                    return
                self.at[rank] += 1
                self.start[which], self.current[rank] = now, which
                self.left[rank], self.since[rank] = self.work[which], now
                self._plan(rank, now)
                return
            self.at[rank] += 1

    def _speed(self, rank: int) -> float:
        return self.speeds[self.current[rank]] if self.beside[rank] else 1.0

    def _plan(self, rank: int, now: float) -> None:
        """Schedule the end of the running piece, at its present speed."""
        self.version[rank] += 1
        end = now + self.left[rank] / self._speed(rank)
        if self.last:
            end = max(end, self.last[self.current[rank]])
        self._push(end, _PIECE, rank, self.version[rank])

    def _pause(self, rank: int, now: float) -> None:
        """Subtract the work done so far at the present speed."""
        if self.current[rank] >= 0:
            self.left[rank] = max(0.0, self.left[rank] - (now - self.since[rank]) * self._speed(rank))
            self.since[rank] = now

    def _finish_piece(self, rank: int, now: float) -> None:
        self.end[self.current[rank]] = now
        self.current[rank] = -1
        self._advance(rank, now)

    # messages -----------------------------------------------------------------------------------------------------

    def _queue(self, rank: int, kernel: int, now: float) -> None:
        queue = self.queues[rank].setdefault(self.streams[kernel], deque())
        queue.append(kernel)
        if len(queue) == 1:
            self._begin(kernel, now)

    def _stream(self, kernel: int) -> int:
        """Return the queue a kernel is on: one for all, one per peer, or one per peer and direction."""
        if self.machine.queues in ("one", "compute"):
            return 0
        k, messages = self.program.kernels[kernel], self.program.messages
        peer = messages[k.sends[0]].target if k.sends else messages[k.receives[0]].source
        return peer if self.machine.queues == "peer" else 2 * peer + bool(k.sends)

    def _begin(self, kernel: int, now: float) -> None:
        k = self.program.kernels[kernel]
        self.began[kernel] = now
        self._pause(k.rank, now)
        self.beside[k.rank] += 1
        if self.current[k.rank] >= 0:
            self._plan(k.rank, now)
        for m in k.sends:
            message = self.program.messages[m]
            link = (message.source, message.target)
            self.sent[m] = now
            self.leaves[m] = max(now, self.links.get(link, 0.0))
            self.links[link] = self.leaves[m] + self.machine.send_ns
        for m in k.receives:
            self.got[m] = now
        self._try_end(kernel, now)
        for m in (*k.sends, *k.receives):
            other = self.receiver[m] if self.sender[m] == kernel else self.sender[m]
            if other >= 0 and self.began[other] is not None:
                self._try_end(other, now)

    def _try_end(self, kernel: int, now: float) -> None:
        """Schedule the end of a kernel once it is known."""
        if self.over[kernel]:
            return
        k, machine = self.program.kernels[kernel], self.machine
        both = bool(k.sends and k.receives)
        last = now
        for m in k.sends:
            end = self.leaves[m] + machine.send_ns
            if not machine.eager:
                received = self.got[m]
                if received is None:
                    return
                end = max(self.leaves[m], received) + machine.send_ns
            last = max(last, end)
        for m in k.receives:
            sent, received = self.sent[m], self.got[m]
            if sent is None or received is None:
                return
            duplex = machine.duplex if both or self._both(self.sender[m]) else 1.0
            last = max(last, self.leaves[m] + machine.latency_ns * duplex, received + machine.receive_ns)
        self.over[kernel] = True
        self._push(last, _KERNEL, kernel)

    def _both(self, kernel: int) -> bool:
        k = self.program.kernels[kernel]
        return bool(k.sends and k.receives)

    def _finish_kernel(self, kernel: int, now: float) -> None:
        rank = self.program.kernels[kernel].rank
        self.ended[kernel] = True
        if not self.loose[kernel]:
            self._pause(rank, now)
            self.beside[rank] -= 1
            if self.current[rank] >= 0:
                self._plan(rank, now)
            queue = self.queues[rank][self.streams[kernel]]
            queue.popleft()
            if queue:
                self._begin(queue[0], now)
        if self.blocked[rank] == kernel:
            self.blocked[rank] = -1
            self._advance(rank, now)
