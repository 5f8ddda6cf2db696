"""DualPipe and DualPipeV (DeepSeek 2024, 2025): eight steps per rank, forwards and backwards overlapped in pairs.

Two streams of micro-batches pass a rank, 0 and 1. In DualPipe they enter at the two ends of the
pipeline and every rank holds two stages' weights; in DualPipeV they are the two legs of a V, on
stages r and 2·pp-1-r.
"""

from collections import deque

from tracekit.errors import ScheduleError
from tracekit.pipeline.schedules.ops import (
    Op,
    backward,
    backward_input,
    backward_weight,
    forward,
    overlapped,
)


def dualpipe(pp: int, microbatches: int) -> list[list[Op]]:
    """Micro-batches of the first half enter at rank 0, the others at the last rank.

    Stream 0 is the nearer end's.

    >>> " ".join(map(str, dualpipe(2, 4)[0]))
    '0F0 1F2 0F1 1B2 (1F3;0B0) 1B3 0I1 0W1'
    """
    if microbatches % 2:
        raise ScheduleError(
            f"dualpipe needs an even number of micro-batches; got pp={pp}, microbatches={microbatches}"
        )
    half = microbatches // 2
    orders = []
    for rank in range(pp):
        near = min(rank, pp - 1 - rank)
        own, other = (0, half) if rank < pp // 2 else (half, 0)
        streams = _Streams((near, pp - 1 - near), (own, other))
        orders.append(streams.eight_steps(pp // 2, near, repeats=half - pp + near + 1))
    return orders


def dualpipev(pp: int, microbatches: int) -> list[list[Op]]:
    """Run the same eight steps, cut in half: stream 0 is the V's first leg, stream 1 its second.

    >>> " ".join(map(str, dualpipev(1, 2)[0]))
    '0F0 1F0 0F1 1B0 (1F1;0B0) 1B1 0I1 0W1'
    """
    orders = []
    for rank in range(pp):
        streams = _Streams((rank, 2 * pp - 1 - rank), (0, 0))
        repeats = microbatches - 2 * pp + rank + 1
        orders.append(streams.eight_steps(pp, rank, repeats=repeats))
    return orders


class _Streams:
    """The two streams through one rank: which stage each is on, which micro-batch is next."""

    def __init__(self, stages: tuple[int, int], first: tuple[int, int]) -> None:
        self.stages = stages
        self.next_forward = list(first)
        self.next_backward = list(first)
        self.ops: list[Op] = []
        self.weights: deque[Op] = deque()

    def eight_steps(self, h: int, q: int, *, repeats: int) -> list[Op]:
        """Walk through the paper's steps.

        *h* ranks per side, *q* ranks between this one and its side's end.
        """
        # 1. F0
        for _ in range(2 * (h - q - 1)):
            self.ops.append(self.f(0))
        # 2. F0 F1
        for _ in range(q + 1):
            self.ops += [self.f(0), self.f(1)]
        # 3. I1 W1 F1: the first backwards, split so that the neighbour can go on sooner
        for _ in range(h - q - 1):
            self.ops += [self.i(1), self.weights.popleft(), self.f(1)]
        # 4. F0&B1 F1&B0: the main part; on the innermost ranks the first pair cannot overlap yet
        for k in range(repeats):
            if k == 0 and q == h - 1:
                self.ops += [self.f(0), self.b(1)]
            else:
                self.ops.append(overlapped(self.f(0), self.b(1)))
            self.ops.append(overlapped(self.f(1), self.b(0)))
        # 5. B1 F1&B0
        for _ in range(h - q - 1):
            self.ops += [self.b(1), overlapped(self.f(1), self.b(0))]
        # 6. B1 B0, the second half of it split
        for k in range(q + 1):
            self.ops.append(
                self.i(1) if k > (q + 1) // 2 or (k == (q + 1) // 2 and q % 2) else self.b(1)
            )
            self.ops.append(self.i(0) if k >= (q + 1) // 2 else self.b(0))
        # 7. W I0
        for _ in range(h - q - 1):
            self.ops += [self.weights.popleft(), self.i(0)]
        # 8. W
        self.ops += self.weights
        return self.ops

    def f(self, stream: int) -> Op:
        self.next_forward[stream] += 1
        return forward(self.stages[stream], self.next_forward[stream] - 1)

    def b(self, stream: int) -> Op:
        self.next_backward[stream] += 1
        return backward(self.stages[stream], self.next_backward[stream] - 1)

    def i(self, stream: int) -> Op:
        """Run a backward for input; its W waits in the queue."""
        b = self.b(stream)
        self.weights.append(backward_weight(b.stage, b.microbatch))
        return backward_input(b.stage, b.microbatch)
