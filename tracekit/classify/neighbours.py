"""What the work around an event says of it, where nothing else does.

Neighbours are counted in the order the host launched, over all threads: that order is the program's, while the order on
the GPU mixes streams. A stretch of launches ends at communication and where the engine's threads take over.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from tracekit._util.arrays import AnyInts, Bools
from tracekit.classify._nest import Ints
from tracekit.classify.autograd import Autograd
from tracekit.classify.parameters import parameter_work
from tracekit.classify.ranges import Gpu, Launches, Ranges

F, B, W, R, O = range(5)  # noqa: E741 - the letters that stand for these everywhere
"""Forward, backward, a weight's gradient, forward work run again, the optimizer."""
GRADED = np.array([False, True, True, True, False, False])
"""Of each of these, and last of none: it belongs to the backward."""
_STEPS = r"(?i)^(ProfilerStep#|iteration|step|train(ing)?[_ ]?(step|batch|loop|iter)|epoch)"
"""Ranges around a whole step or more."""
_MESSAGES = (
    r"(?i)^(nccl|rccl|c10d)[:_]|^PP:\d+(SEND|RECV|UNSHARD|RESHARD)"
    r"|(?<![a-z])(send|recv|all_?gather|all_?reduce|all_?to_?all)"
)
"""Ranges named for communication."""


class Sides(NamedTuple):
    """Directions of the nearest known work before and after each launch, and whether it is in the same stretch."""

    last: Ints
    following: Ints
    behind: Bools
    ahead: Bools

    @classmethod
    def of(cls, dirs: AnyInts, known: Bools, stretch: Ints) -> Sides:
        """Look at the rows that are *known*; -1 where none is."""
        rows = np.arange(len(known))
        # The nearest known row at or before each row is a running maximum of row numbers (-1: none), and the one at or
        # after it a running minimum from the back (the number of rows: none). Both places hold nothing known.
        before = np.maximum.accumulate(np.where(known, rows, -1))
        after = np.minimum.accumulate(np.where(known, rows, len(rows))[::-1])[::-1]
        direction, of_stretch = np.append(dirs, -1), np.append(stretch, -1)
        return cls(direction[before], direction[after], of_stretch[before] == stretch, of_stretch[after] == stretch)

    def where(self, mask: Bools, other: Sides) -> Sides:
        """These sides where *mask* holds, the *other*'s elsewhere."""
        return Sides(
            np.where(mask, self.last, other.last),
            np.where(mask, self.following, other.following),
            np.where(mask, self.behind, other.behind),
            np.where(mask, self.ahead, other.ahead),
        )


def shared(
    value: Ints, gpu: Gpu, ranges: Ranges, launches: Launches, autograd: Autograd, *, comm: Bools
) -> Iterator[tuple[str, int, Bools]]:
    """Directions that events share with their neighbours: why, which, and the events; the first that holds counts.

    What stands between two kinds of work is neither, and neighbours say nothing of a stream on which nothing is known.
    """
    order = launches.order
    if not len(order):
        return
    engine = _engine_threads(ranges, launches, autograd)[launches.thread][order]
    turn = np.append(False, engine[1:] != engine[:-1])
    stretch: Ints = np.cumsum(comm[order] | turn, dtype=np.int64)
    dirs, alone = value[order], (launches.op < 0)[order]
    # Where no operator launched it, other work of that kind says more than operators do.
    kind = Sides.of(dirs, (dirs >= 0) & alone, stretch)
    sides = kind.where(alone & (kind.behind | kind.ahead), Sides.of(dirs, dirs >= 0, stretch))
    around = launches.ann_name.take(order)
    # A range that no rule knows says that something else is done, and one named for messages that none of this is.
    plain, messages = ~around.present | around.matches(_STEPS), around.matches(_MESSAGES)
    sums, copies = (part[order] for part in parameter_work(ranges, launches, autograd))
    bare = alone & ~messages & gpu.frame["graph"].is_null().to_numpy()[order]
    streams = _known_streams(gpu, value)[order]
    graded = GRADED[sides.last]
    cases = (
        ("parameters", W, sums & graded & plain),
        ("parameters", O, copies & (sides.last == O) & plain),
        *_between(sides, engine=engine, plain=plain, messages=messages),
        *_at_ends(sides, bare=bare, plain=plain & ~messages),
    )
    for why, what, hit in cases:
        mask = np.zeros(len(value), np.bool_)
        mask[order] = hit & streams
        yield why, what, mask


def _between(sides: Sides, *, engine: Bools, plain: Bools, messages: Bools) -> Iterator[tuple[str, int, Bools]]:
    """Work whose two neighbours agree, and what the caller does with the gradients before the optimizer."""
    last, following = sides.last, sides.following
    graded, beside = GRADED[last], sides.behind | sides.ahead
    yield "between", B, graded & GRADED[following] & (beside | engine)
    yield "between", F, (last == F) & (following == F) & beside & ~messages
    yield "between", O, (last == O) & (following == O) & sides.behind & sides.ahead & plain
    yield "between", O, graded & (following == O) & ~engine & plain


def _at_ends(sides: Sides, *, bare: Bools, plain: Bools) -> Iterator[tuple[str, int, Bools]]:
    """What a stretch begins with leads up to what is known in it, and what it ends with follows from that.

    A weight's gradient is the end of its line: what comes after it leads up to something else. Before a forward a
    caller does other things too, so of what operators launched only the end of a stretch counts.
    """
    last, following = sides.last, sides.following
    leads, follows = sides.ahead & (~sides.behind | (last == W)), sides.behind & ~sides.ahead
    yield "between", F, (bare & leads & (following == F)) | ((bare | plain) & follows & (last == F))
    yield "between", B, bare & ((leads & GRADED[following]) | (follows & GRADED[last]))


def _known_streams(gpu: Gpu, value: Ints) -> Bools:
    """Events on streams on which some event's direction is known."""
    known = np.zeros(int(gpu.place.max(initial=-1)) + 1, np.bool_)
    known[gpu.place[value >= 0]] = True
    return known[gpu.place]


def _engine_threads(ranges: Ranges, launches: Launches, autograd: Autograd) -> Bools:
    """Of every thread, and of no thread at the end: it runs the backward and does not drive the program."""
    runs = autograd.site.any_of("backward", "recompute")
    nodes = np.zeros(int(max(ranges.thread.max(initial=-1), launches.thread.max(initial=-1))) + 2, np.bool_)
    nodes[ranges.thread[autograd.rows]] = True
    nodes[launches.thread[runs]] = True
    nodes[[ranges.main, -1]] = False
    return nodes
