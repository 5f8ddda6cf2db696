"""Discrete-event simulation of rank programs on a machine.

Every rank runs its pieces in order. Its message kernels run in order on one or several queues. A
link between two ranks carries one message at a time. A piece runs slower while a message kernel
runs on its rank, so its end is not fixed when it starts: its remaining work shrinks at the current
speed, and its end is planned again whenever the speed changes.
"""

import math
from collections import deque
from collections.abc import Sequence
from heapq import heappop, heappush

import msgspec
import numpy as np

from tracekit._util.arrays import Floats
from tracekit.graph.machine import Machine
from tracekit.graph.rank_programs import POST, RUN, WAIT, MessageKernel, Program

_PIECE_ENDS, _KERNEL_ENDS, _RANK_MAY_ADVANCE = range(3)
"""Kinds of events."""


class HostTimes(msgspec.Struct, frozen=True, eq=False):
    """Time the host of each rank needs for its steps, in nanoseconds."""

    before_ns: Sequence[float]  # of each piece: host time before its first launch
    launch_ns: Sequence[float]  # of each piece: from its first to its last launch
    post_ns: float = 0.0  # before the launch of a message kernel
    # From the last launch of a piece to its end, where the host is the limit.
    last_launch_to_end_ns: float = 0.0
    # Whether the host stands still until a message that compute waits for is there.
    waits_for_messages: bool = False
    starts: Sequence[float] | None = None  # of each rank: when its host begins the step; 0 if None
    # Of each rank: when its GPU is free for the step; 0 if None.
    gpu_starts: Sequence[float] | None = None


class Outcome(msgspec.Struct, frozen=True, eq=False):
    """Start and end of every piece.

    ``stuck`` counts pieces that never ran because they wait for each other.
    """

    start: Floats
    end: Floats
    stuck: int
    host_ends: tuple[float, ...] = ()  # of each rank: when its host has launched everything

    @property
    def makespan(self) -> float:
        """Time from the first start to the last end."""
        return float(self.end.max() - self.start.min()) if len(self.end) else 0.0

    def outside_cells(self, ranks: int) -> float:
        """Return the share of ranks × makespan in which a rank runs no piece, 0 to 1."""
        busy = float((self.end - self.start).sum())
        return max(0.0, 1 - busy / (ranks * self.makespan)) if self.makespan else 0.0


def run_program(
    program: Program, work: Sequence[float], machine: Machine, host: HostTimes | None = None
) -> Outcome:
    """Simulate a program.

    Args:
        program: Steps of every rank.
        work: Duration of each piece when no message kernel runs on its rank.
        machine: Costs and queues of messages.
        host: Times of the hosts, which launch the steps in order; None if the host is never late.

    >>> from tracekit.graph.rank_programs import write_just_in_time
    >>> from tracekit.pipeline.schedules import generate
    >>> program = write_just_in_time(generate("gpipe", pp=2, microbatches=1))
    >>> run_program(program, [1.0, 2.0, 1.0, 2.0], Machine(send_ns=0, receive_ns=0, latency_ns=0)).makespan
    6.0
    >>> run_program(program, [1.0, 2.0, 1.0, 2.0], Machine(send_ns=1, receive_ns=1, latency_ns=3)).makespan
    12.0
    """
    return _ProgramRun(program, work, machine, host).run()


class _ProgramRun:
    """State of a simulation.

    Pieces, kernels and messages are numbered as in the program; -1 stands for none.
    """

    def __init__(
        self, program: Program, work: Sequence[float], machine: Machine, host: HostTimes | None
    ) -> None:
        self.program = program
        self.work = work
        self.machine = machine
        # Heap: time, number, kind, rank or kernel, plan.
        self.events: list[tuple[float, int, int, int, int]] = []
        self.event_count = 0
        ranks = len(program.steps)
        pieces = len(program.pieces)
        kernels = len(program.kernels)
        # Times at which the host has launched each step, by action; not known until the host gets
        # there.
        self.host = host or HostTimes([0.0] * pieces, [0.0] * pieces)
        self.launches = {RUN: [math.inf] * pieces, POST: [math.inf] * kernels}
        self.last_launch = [0.0] * pieces
        self.host_step = [0] * ranks
        self.host_time = list(self.host.starts or [0.0] * ranks)

        self.next_step = [0] * ranks
        self.running_piece = [-1] * ranks
        self.remaining_work = [0.0] * ranks
        self.updated_at = [0.0] * ranks  # time at which remaining_work was true
        self.plan = [0] * ranks  # number of the valid plan of the running piece's end
        self.active_kernels = [0] * ranks  # message kernels that run and slow the compute
        self.awaited_kernel = [-1] * ranks
        self.piece_start = [math.nan] * pieces
        self.piece_end = [math.nan] * pieces
        self.slow_speed = [1.0 / machine.slowdown.get(piece.kind, 1.0) for piece in program.pieces]
        self.ranks_share_gpu = machine.ranks_share_gpu

        messages = len(program.messages)
        self.queues: list[dict[int, deque[int]]] = [{} for _ in range(ranks)]
        self.queue_of_kernel = [self._queue_of(kernel) for kernel in range(kernels)]
        self.kernel_started = [False] * kernels
        self.kernel_end_planned = [False] * kernels
        self.kernel_ended = [False] * kernels
        self.kernel_end = [0.0] * kernels
        self.off_queue = [False] * kernels
        # kernels
        self.sender = [-1] * messages
        self.receiver = [-1] * messages
        self.send_start: list[float | None] = [None] * messages
        self.receive_start: list[float | None] = [None] * messages
        self.departure = [0.0] * messages  # start of the send, or later when the link is free
        self.link_free_at: dict[tuple[int, int], float] = {}
        for number, kernel in enumerate(program.kernels):
            for send in kernel.sends:
                self.sender[send] = number
            for receive in kernel.receives:
                self.receiver[receive] = number

    def run(self) -> Outcome:
        """Process all events."""
        if self.machine.queues == "free":
            self._start_all_receives()
        for rank in range(len(self.program.steps)):
            self._run_host(rank)
            self._add_event(
                self.host.gpu_starts[rank] if self.host.gpu_starts else 0.0, _RANK_MAY_ADVANCE, rank
            )
        while self.events:
            now, _, kind, number, plan = heappop(self.events)
            if kind == _KERNEL_ENDS:
                self._end_kernel(number, now)
            elif kind == _RANK_MAY_ADVANCE:
                self._advance(number, now)
            elif plan == self.plan[number]:  # else the end was planned again meanwhile
                self._end_piece(number, now)
        end = np.array(self.piece_end)
        return Outcome(
            np.array(self.piece_start), end, int(np.isnan(end).sum()), tuple(self.host_time)
        )

    def _start_all_receives(self) -> None:
        """Start every kernel that only receives at time 0, on no queue and without an effect on compute."""
        for number, kernel in enumerate(self.program.kernels):
            if kernel.receives and not kernel.sends:
                self.off_queue[number] = self.kernel_started[number] = True
                for receive in kernel.receives:
                    self.receive_start[receive] = 0.0

    def _add_event(self, time: float, kind: int, number: int, plan: int = 0) -> None:
        # Events at the same time happen in the order in which they were added.
        self.event_count += 1
        heappush(self.events, (time, self.event_count, kind, number, plan))

    # host and compute
    # ---------------------------------------------------------------------------------------------

    def _run_host(self, rank: int) -> None:
        """Let the host of a rank launch steps until it has to wait for a message."""
        host = self.host
        steps = self.program.steps[rank]
        now = self.host_time[rank]
        while self.host_step[rank] < len(steps):
            action, number = steps[self.host_step[rank]]
            if action == RUN:
                self.launches[RUN][number] = now + host.before_ns[number]
                now = self.launches[RUN][number] + host.launch_ns[number]
                self.last_launch[number] = now + host.last_launch_to_end_ns
            elif action == POST:
                now += host.post_ns
                self.launches[POST][number] = now
            elif host.waits_for_messages:
                if not self.kernel_ended[number]:
                    break
                now = max(now, self.kernel_end[number])
            self.host_step[rank] += 1
        self.host_time[rank] = now

    def _advance(self, rank: int, now: float) -> None:
        """Take the next steps of a rank until it runs a piece or has to wait."""
        awaited = self.awaited_kernel[rank]
        if self.running_piece[rank] >= 0 or (awaited >= 0 and not self.kernel_ended[awaited]):
            return
        steps = self.program.steps[rank]
        while self.next_step[rank] < len(steps):
            action, number = steps[self.next_step[rank]]
            if action != WAIT and self.launches[action][number] > now:
                if self.launches[action][number] < math.inf:
                    self._add_event(self.launches[action][number], _RANK_MAY_ADVANCE, rank)
                return
            if action == WAIT and not self.kernel_ended[number]:
                self.awaited_kernel[rank] = number
                return
            self.next_step[rank] += 1
            if action == RUN:
                self._settle_other_ranks(rank, now)
                self.piece_start[number] = now
                self.running_piece[rank] = number
                self.remaining_work[rank] = self.work[number]
                self.updated_at[rank] = now
                self._plan_piece_end(rank, now)
                self._plan_other_ranks(rank, now)
                return
            if action == POST:
                if not self.off_queue[number]:
                    self._enqueue(number, now)
                if self.machine.queues == "compute" and not self.kernel_ended[number]:
                    self.awaited_kernel[rank] = number
                    return

    def _speed(self, rank: int) -> float:
        own_speed = self.slow_speed[self.running_piece[rank]] if self.active_kernels[rank] else 1.0
        if not self.ranks_share_gpu:
            return own_speed
        others = self._other_running_ranks(rank)
        beside_message = sum(self.active_kernels[other] > 0 for other in others)
        computing = len(others) - beside_message
        cost = self.machine.other_cost * beside_message + self.machine.compute_cost * computing
        return own_speed / (1.0 + cost)

    def _other_running_ranks(self, rank: int) -> list[int]:
        return [
            other for other, piece in enumerate(self.running_piece) if piece >= 0 and other != rank
        ]

    def _settle(self, rank: int, now: float) -> None:
        """Take off the running piece what it did until now at its present speed."""
        done = (now - self.updated_at[rank]) * self._speed(rank)
        self.remaining_work[rank] = max(0.0, self.remaining_work[rank] - done)
        self.updated_at[rank] = now

    def _settle_other_ranks(self, rank: int, now: float) -> None:
        """Settle the pieces of other ranks, before something of *rank* changes that they feel on a shared GPU."""
        if self.ranks_share_gpu:
            for other in self._other_running_ranks(rank):
                self._settle(other, now)

    def _plan_other_ranks(self, rank: int, now: float) -> None:
        """Plan the pieces of other ranks again, after something of *rank* changed that they feel on a shared GPU."""
        if self.ranks_share_gpu:
            for other in self._other_running_ranks(rank):
                self._plan_piece_end(other, now)

    def _plan_piece_end(self, rank: int, now: float) -> None:
        """Plan the end of the running piece at its current speed.

        It cannot end before its last kernel is launched.
        """
        self.plan[rank] += 1
        end = now + self.remaining_work[rank] / self._speed(rank)
        end = max(end, self.last_launch[self.running_piece[rank]])
        self._add_event(end, _PIECE_ENDS, rank, self.plan[rank])

    def _change_active_kernels(self, rank: int, change: int, now: float) -> None:
        """Add to the number of message kernels that run, and plan the running piece's end at its new speed."""
        runs = self.running_piece[rank] >= 0
        if runs:
            self._settle(rank, now)
            self._settle_other_ranks(rank, now)
        self.active_kernels[rank] += change
        if runs:
            self._plan_piece_end(rank, now)
            self._plan_other_ranks(rank, now)

    def _end_piece(self, rank: int, now: float) -> None:
        self.piece_end[self.running_piece[rank]] = now
        self._settle_other_ranks(rank, now)
        self.running_piece[rank] = -1
        self._plan_other_ranks(rank, now)
        self._advance(rank, now)

    # messages
    # -----------------------------------------------------------------------------------------------------

    def _queue_of(self, kernel: int) -> int:
        """Return the queue a kernel is on: one for all, one per peer, or one per peer and direction."""
        if self.machine.queues in ("one", "compute"):
            return 0
        _, sends, receives = self.program.kernels[kernel]
        messages = self.program.messages
        peer = messages[sends[0]].target if sends else messages[receives[0]].source
        return peer if self.machine.queues == "peer" else 2 * peer + bool(sends)

    def _enqueue(self, kernel: int, now: float) -> None:
        rank = self.program.kernels[kernel].rank
        queue = self.queues[rank].setdefault(self.queue_of_kernel[kernel], deque())
        queue.append(kernel)
        if len(queue) == 1:
            self._start_kernel(kernel, now)

    def _start_kernel(self, kernel: int, now: float) -> None:
        rank, sends, receives = self.program.kernels[kernel]
        self.kernel_started[kernel] = True
        self._change_active_kernels(rank, +1, now)
        for send in sends:
            link = self.program.messages[send]
            self.send_start[send] = now
            self.departure[send] = max(now, self.link_free_at.get(link, 0.0))
            self.link_free_at[link] = self.departure[send] + self.machine.send_ns
        for receive in receives:
            self.receive_start[receive] = now
        self._plan_kernel_end(kernel, now)
        # The kernels at the other ends may have waited for this one.
        for peer_kernel in (
            *(self.receiver[send] for send in sends),
            *(self.sender[receive] for receive in receives),
        ):
            if peer_kernel >= 0 and self.kernel_started[peer_kernel]:
                self._plan_kernel_end(peer_kernel, now)

    def _plan_kernel_end(self, kernel: int, now: float) -> None:
        """Plan the end of a kernel if all that it depends on has started."""
        if self.kernel_end_planned[kernel]:
            return
        machine = self.machine
        carrier = self.program.kernels[kernel]
        end = now
        for send in carrier.sends:
            begin = self.departure[send]
            if not machine.eager:
                received = self.receive_start[send]
                if received is None:
                    return
                begin = max(begin, received)
            end = max(end, begin + machine.send_ns * self._duplex(carrier, self.receiver[send]))
        for receive in carrier.receives:
            sent = self.send_start[receive]
            received = self.receive_start[receive]
            if sent is None or received is None:
                return
            duplex = self._duplex(carrier, self.sender[receive])
            end = max(
                end,
                self.departure[receive] + machine.latency_ns * duplex,
                received + machine.receive_ns * duplex,
            )
        self.kernel_end_planned[kernel] = True
        self._add_event(end, _KERNEL_ENDS, kernel)

    def _duplex(self, carrier: MessageKernel, peer_kernel: int) -> float:
        """Return how much longer a message takes if a kernel at either end carries others with it."""
        peer_carries_several = (
            peer_kernel >= 0 and self.program.kernels[peer_kernel].carries_several
        )
        return self.machine.duplex if carrier.carries_several or peer_carries_several else 1.0

    def _end_kernel(self, kernel: int, now: float) -> None:
        rank = self.program.kernels[kernel].rank
        self.kernel_ended[kernel] = True
        self.kernel_end[kernel] = now
        if not self.off_queue[kernel]:
            self._change_active_kernels(rank, -1, now)
            queue = self.queues[rank][self.queue_of_kernel[kernel]]
            queue.popleft()
            if queue:
                self._start_kernel(queue[0], now)
        host_waited = self.host_step[rank] < len(self.program.steps[rank]) and self.program.steps[
            rank
        ][self.host_step[rank]] == (WAIT, kernel)
        if host_waited:
            self._run_host(rank)
        if host_waited or self.awaited_kernel[rank] == kernel:
            self._advance(rank, now)
