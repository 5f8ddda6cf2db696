"""Stage and micro-batch, where annotations or autograd's numbers give them.

PyTorch's pipelining writes them out (``pipeline_ranges``). Without annotations, one backward call differentiates one
micro-batch: the sequence numbers it runs through are that micro-batch's forward.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np

from tracekit._util.arrays import group_rows
from tracekit.classify._nest import Ints
from tracekit.classify.engine import Decisions
from tracekit.classify.evidence import Evidence
from tracekit.classify.pipeline_ranges import parse_path

_PLAIN = re.compile(r"(?:^| > )(Forward|Backward) (\d+)(?= > |$)")


class Places(NamedTuple):
    """Stage and micro-batch of every event, -1 where unknown."""

    stage: Ints
    microbatch: Ints


def find_places(evidence: Evidence, decisions: Decisions) -> Places:
    """Read places off the annotations; fill micro-batches from the backward calls where every call looks alike."""
    annotations = evidence.text("annotations")
    lookup = np.array([*(_read(v) for v in annotations.values), (-1,) * 4], np.int64).reshape(-1, 4)
    if not (lookup >= 0).any():
        return Places(np.full(len(evidence), -1, np.int64), _by_backward_calls(evidence))
    backward = decisions.passes.fill(evidence.text("comm_pass")).any_of("backward")
    stage_f, batch_f, stage_b, batch_b = annotations.look_up(lookup).T
    stage, batch = np.where(backward, stage_b, stage_f), np.where(backward, batch_b, batch_f)
    if (batch >= 0).any():
        return Places(stage, batch)
    return Places(stage, _by_backward_calls(evidence))


def _read(path: str) -> tuple[int, int, int, int]:
    """Stage and micro-batch for forward work, and for backward work.

    >>> _read("ProfilerStep#2 > PP:2F0"), _read("PP:(0F7;7B3)OVERLAP_F_B"), _read("Backward 3")
    ((2, 0, 2, 0), (0, 7, 7, 3), (-1, 3, -1, 3))
    """
    ranges = parse_path(path)
    one = [ranges.place(backward=backward) or ranges.message for backward in (False, True)]
    if one[0] and one[1]:
        return one[0].stage, one[0].microbatch, one[1].stage, one[1].microbatch
    plain = _PLAIN.search(path)
    number = int(plain[2]) if plain else -1
    return -1, number, -1, number


def _by_backward_calls(evidence: Evidence) -> Ints:
    """Count the backward calls of a step in the order of their forwards.

    Only where every call runs through as many numbers, each number through one call, and calls come in the order of
    their forwards: then each call is a whole micro-batch. A rank that holds several stages runs them backward in
    another order, or is fed from both ends; there the numbers alone do not tell micro-batches.
    """
    none = np.full(len(evidence), -1, np.int64)
    numbers, starts = evidence.autograd.nodes
    if len(numbers) < 2 or evidence.two_way:
        return none
    # Inside one call numbers fall; one well above the number before starts the next call.
    begins = np.append(0, np.flatnonzero(numbers[1:] > numbers[:-1] + _slack(numbers)) + 1)
    low, high = np.minimum.reduceat(numbers, begins), np.maximum.reduceat(numbers, begins)
    if (low[1:] <= high[:-1]).any() or len(np.unique(high - low)) > 1:
        return none
    # An event belongs to the call its number lies in; the engine's unnumbered work, to the call then running.
    sequence, at = evidence.autograd.sequence, evidence.launches.at
    nearest = np.searchsorted(low, sequence, side="right") - 1
    place = np.where((nearest >= 0) & (sequence >= 0) & (sequence <= high[nearest]), nearest, -1)
    engine = np.flatnonzero((evidence.autograd.node_row >= 0) & (sequence < 0))
    place[engine] = np.searchsorted(starts[begins], at[engine], side="right") - 1
    return _within_steps(evidence.gpu.int64("step"), place)


def _within_steps(step: Ints, place: Ints) -> Ints:
    """Start counting anew in each step."""
    number, seen = group_rows(step)
    first = np.full(len(seen), np.iinfo(np.int64).max)
    known = place >= 0
    np.minimum.at(first, number[known], place[known])
    return np.where(known, place - first[number], -1)


def _slack(numbers: Ints) -> int:
    """How far numbers may rise inside one call: branches of a graph are not visited in strict order."""
    return int(np.clip((numbers.max() - numbers.min()) // 50, 2, 16))
