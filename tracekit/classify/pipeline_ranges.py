"""The one parser of pipeline ranges: ``PP:2F0`` and its kind, as PyTorch's pipelining writes them.

``PP:2F0`` is stage 2, forward, micro-batch 0; I, W and B are the input's, the weight's and the whole backward.
``PP:2SEND_F0`` passes a result on, ``PP:2RECV_B0`` takes a gradient. ``PP:(0F7;7B3)OVERLAP_F_B`` runs the forward of
one beside the backward of another.
"""

from __future__ import annotations

import re

import msgspec

from tracekit.schema import PATH_SEPARATOR

_SINGLE = re.compile(r"PP:(\d+)(SEND_|RECV_)?([FIWB])(\d+)")
_BLOCK = re.compile(r"(PP:\((\d+)F(\d+);(\d+)([IWB])(\d+)\))\w*")


class Place(msgspec.Struct, frozen=True):
    """One piece of work on a pipeline: what it does, for which stage and micro-batch."""

    op: str  # F, I, W or B
    stage: int
    microbatch: int


class PipelineRanges(msgspec.Struct, frozen=True):
    """What the pipeline ranges around something say."""

    work: Place | None = None  # of the innermost range of one piece of work
    message: Place | None = None  # of the innermost range of a message: what it carries
    halves: tuple[Place, Place] | None = None  # of a block: its forward and its backward
    block: str | None = None  # how the block is written

    def place(self, *, backward: bool) -> Place | None:
        """Return whose a piece of work is: as its own range says, else the half of the block that it is of."""
        if self.work or not self.halves:
            return self.work
        return self.halves[backward]


def parse_path(path: str) -> PipelineRanges:
    """Read the pipeline ranges in a path of range names, the outermost first.

    >>> parse_path("ProfilerStep#2 > PP:2F0").work
    Place(op='F', stage=2, microbatch=0)
    >>> parse_path("PP:(0F7;3B1)OVERLAP_F_B").place(backward=True)
    Place(op='B', stage=3, microbatch=1)
    >>> parse_path("PP:2SEND_F0"), parse_path("PP:2UNSHARD").work
    (PipelineRanges(work=None, message=Place(op='F', stage=2, microbatch=0), halves=None, block=None), None)
    """
    work = message = halves = block = None
    for part in path.split(PATH_SEPARATOR):
        if single := _SINGLE.fullmatch(part):
            place = Place(single[3], int(single[1]), int(single[4]))
            work, message = (work, place) if single[2] else (place, message)
        elif double := _BLOCK.fullmatch(part):
            block = double[1]
            halves = (
                Place("F", int(double[2]), int(double[3])),
                Place(double[5], int(double[4]), int(double[6])),
            )
    return PipelineRanges(work, message, halves, block)
