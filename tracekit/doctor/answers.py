"""What an Nsight recording answers as it is, and what one option more at its export would add.

Most people record without operators and export with defaults. Threads, kernel names and NCCL's own calls still tell
most of it, and the report on disk holds more than its export: no new run is needed for that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import PurePath

import msgspec

from tracekit.doctor.recording import RankFacts

OPTION = "--include-blobs=true"


class Answer(msgspec.Struct, frozen=True):
    """An answer, and when a rank's events can give it."""

    what: str
    holds: Callable[[RankFacts], bool]


class Again(msgspec.Struct, frozen=True):
    """One option more at the export: what it would give, and the command."""

    option: str
    gives: str
    command: str


def _launched(fact: RankFacts) -> bool:
    return fact.gpu_events > 0 and fact.launched >= 0.8 * fact.gpu_events


ANSWERS = (
    Answer("where GPU time went: compute, exposed communication and copies, idle", lambda f: f.gpu_events > 0),
    Answer(
        "forward, dgrad, wgrad and optimizer: by operators and autograd's numbers",
        lambda f: _launched(f) and f.with_sequence > 0,
    ),
    Answer(
        "forward, dgrad, wgrad and optimizer: by launching threads, kernel names and sums of gradients",
        lambda f: _launched(f) and f.with_sequence == 0,
    ),
    Answer("pipeline cells, schedule and ideal", lambda f: _launched(f) and f.messages > 0),
    Answer(
        "waits and the bubble: both sides of each message, by the recorded peers",
        lambda f: f.messages > 0 and f.peers > 0,
    ),
    Answer(
        "waits and the bubble: messages matched by their order along the pipeline, where all ranks are here",
        lambda f: f.messages > 0 and f.peers == 0,
    ),
    Answer("steps, by marks", lambda f: bool(f.steps)),
    Answer("steps, by the optimizer at their end", lambda f: f.gpu_events > 0 and not f.steps),
)
"""In the order they are told; a new answer is an entry."""


def answers(facts: Sequence[RankFacts]) -> list[str]:
    """Return what can be answered for every one of the ranks."""
    return [answer.what for answer in ANSWERS if facts and all(answer.holds(fact) for fact in facts)]


def again(facts: Sequence[RankFacts]) -> Again | None:
    """Return what exporting the same report again would add; None where nothing."""
    lacking = [
        f for f in facts if f.source.reader == "nsight" and f.collectives > 0 and f.nccl_calls > 0 and not f.groups
    ]
    if not lacking:
        return None
    path = PurePath(lacking[0].source.path)
    report = path.with_suffix(".nsys-rep")
    gives = "communicators, sizes and peers of NCCL calls: groups told apart, waits of collectives, bandwidths"
    if len(lacking) > 1:
        gives += f" (on each of {len(lacking)} ranks)"
    return Again(OPTION, gives, f"nsys export --type=sqlite {OPTION} --force-overwrite=true {report}")
