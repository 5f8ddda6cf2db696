"""Pipeline stage and micro-batch of events, from annotations or from autograd's sequence numbers.

PyTorch's pipelining annotates its work. ``PP:2F0`` is stage 2, forward, micro-batch 0; I, W and B
are the backward by the input, by the weight, and the whole one. ``PP:2SEND_F0`` passes a result on,
``PP:2RECV_B0`` takes a gradient. ``PP:(0F7;7B3)OVERLAP_F_B`` runs the forward of one micro-batch
beside the backward of another.

Without annotations, one backward call differentiates one micro-batch: the sequence numbers that it
runs through are those of that micro-batch's forward.
"""

import re

import msgspec
import numpy as np

from tracekit._util.arrays import Ints, group_rows
from tracekit.classify.evidence import EventEvidence
from tracekit.classify.rules import Decisions
from tracekit.schema import PATH_SEPARATOR

_SINGLE_RANGE = re.compile(r"PP:(\d+)(SEND_|RECV_)?([FIWB])(\d+)")
_BLOCK_RANGE = re.compile(r"(PP:\((\d+)F(\d+);(\d+)([IWB])(\d+)\))\w*")
_NUMBERED_RANGE = re.compile(r"(?:^| > )(Forward|Backward) (\d+)(?= > |$)")


class NamedCell(msgspec.Struct, frozen=True):
    """One piece of work on a pipeline: operation, stage and micro-batch."""

    op: str  # F, I, W or B
    stage: int
    microbatch: int


class PipelineRanges(msgspec.Struct, frozen=True):
    """The pipeline annotations around an event."""

    # Work of a forward event: of the innermost range of a single piece, else of a block.
    forward: NamedCell | None = None
    backward: NamedCell | None = None  # the same of a backward event
    message: NamedCell | None = None  # of the innermost range of a message: what it carries
    block: str | None = None  # name of the block


def parse_path(path: str) -> PipelineRanges:
    """Read the pipeline ranges in a path of range names, the outermost first.

    >>> parse_path("ProfilerStep#2 > PP:2F0").forward
    NamedCell(op='F', stage=2, microbatch=0)
    >>> parse_path("PP:(0F7;3B1)OVERLAP_F_B").backward
    NamedCell(op='B', stage=3, microbatch=1)
    >>> parse_path("PP:2SEND_F0"), parse_path("PP:2UNSHARD").forward
    (PipelineRanges(forward=None, backward=None, message=NamedCell(op='F', stage=2, microbatch=0), block=None), None)
    """
    work = message = halves = block = None
    for name in path.split(PATH_SEPARATOR):
        if single := _SINGLE_RANGE.fullmatch(name):
            position = NamedCell(single[3], int(single[1]), int(single[4]))
            work, message = (work, position) if single[2] else (position, message)
        elif double := _BLOCK_RANGE.fullmatch(name):
            block = double[1]
            halves = (
                NamedCell("F", int(double[2]), int(double[3])),
                NamedCell(double[5], int(double[4]), int(double[6])),
            )
    forward, backward = halves if halves and not work else (work, work)
    return PipelineRanges(forward, backward, message, block)


def find_places(evidence: EventEvidence, decisions: Decisions) -> tuple[Ints, Ints]:
    """Return stage and micro-batch of every event, -1 where unknown: from annotations, else from backward calls."""
    annotations = evidence.text("annotations")
    # One row per distinct path, and last for none: stage and micro-batch for forward work, then for
    # backward work.
    places = np.array([*map(_places_in_path, annotations.values), (-1,) * 4], np.int64).reshape(
        -1, 4
    )
    forward_stage, forward_microbatch, backward_stage, backward_microbatch = annotations.look_up(
        places
    ).T
    is_backward = decisions.passes.fill(evidence.text("comm_pass")).any_of("backward")
    stage = np.where(is_backward, backward_stage, forward_stage)
    microbatch = np.where(is_backward, backward_microbatch, forward_microbatch)
    if not (microbatch >= 0).any():
        microbatch = _microbatches_by_backward_calls(evidence)
    return stage, microbatch


def _places_in_path(path: str) -> tuple[int, int, int, int]:
    """Return stage and micro-batch for forward work, and for backward work.

    -1 where the path does not tell.

    >>> _places_in_path("ProfilerStep#2 > PP:2F0"), _places_in_path("PP:(0F7;7B3)OVERLAP_F_B")
    ((2, 0, 2, 0), (0, 7, 7, 3))
    >>> _places_in_path("Backward 3")
    (-1, 3, -1, 3)
    """
    ranges = parse_path(path)
    forward = ranges.forward or ranges.message
    backward = ranges.backward or ranges.message
    if forward and backward:
        return forward.stage, forward.microbatch, backward.stage, backward.microbatch
    numbered = _NUMBERED_RANGE.search(path)
    number = int(numbered[2]) if numbered else -1
    return -1, number, -1, number


def _microbatches_by_backward_calls(evidence: EventEvidence) -> Ints:
    """Number the backward calls of each step in the order of their forwards, and give events the number of their call.

    This holds only where every call runs through as many sequence numbers, no two calls share one,
    and calls come in the order of their forwards: then each call is one micro-batch. A rank that
    holds several stages runs them backward in another order, or gets work from both ends of the
    pipeline; there all are -1.
    """
    none = np.full(len(evidence), -1, np.int64)
    autograd = evidence.autograd
    numbers = autograd.node_sequence[autograd.numbered_rows]
    if len(numbers) < 2 or evidence.is_fed_from_both_ends:
        return none
    # Inside one call numbers fall; a number well above the one before it starts the next call.
    # Inside one call numbers rise a little: branches of a graph are not visited in strict order.
    max_rise = np.clip((numbers.max() - numbers.min()) // 50, 2, 16)
    begins = np.append(0, np.flatnonzero(numbers[1:] > numbers[:-1] + max_rise) + 1)
    lowest = np.minimum.reduceat(numbers, begins)
    highest = np.maximum.reduceat(numbers, begins)
    if (lowest[1:] <= highest[:-1]).any() or len(np.unique(highest - lowest)) > 1:
        return none
    # An event belongs to the call in whose numbers its own lies; unnumbered work of the engine to
    # the call then running.
    sequence = autograd.sequence
    launch = evidence.launches.start_ns
    nearest = np.searchsorted(lowest, sequence, side="right") - 1
    call = np.where((nearest >= 0) & (sequence >= 0) & (sequence <= highest[nearest]), nearest, -1)
    unnumbered = np.flatnonzero((autograd.node_row >= 0) & (sequence < 0))
    call_starts = autograd.ranges.start(autograd.numbered_rows[begins])
    call[unnumbered] = np.searchsorted(call_starts, launch[unnumbered], side="right") - 1
    # Count from 0 in each step.
    step, first_row = group_rows(evidence.gpu.int64("step"))
    first_call = np.full(len(first_row), np.iinfo(np.int64).max)
    is_known = call >= 0
    np.minimum.at(first_call, step[is_known], call[is_known])
    return np.where(is_known, call - first_call[step], -1)
