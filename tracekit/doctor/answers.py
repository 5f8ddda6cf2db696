"""Answers that an Nsight recording can give, and what exporting its report again would add.

Most people record without operators and export with defaults. Threads, kernel names and NCCL's calls still give most
answers, and the report on disk contains more than its export, so that no new run is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import PurePath

import msgspec

from tracekit.doctor.findings import MIN_LAUNCHED_SHARE, RankFacts
from tracekit.documents.doctor import Reexport

EXPORT_OPTION = "--include-blobs=true"


class Answer(msgspec.Struct, frozen=True):
    """An answer, and the condition under which a rank's events can give it."""

    text: str
    available: Callable[[RankFacts], bool]


def _has_launches(fact: RankFacts) -> bool:
    return fact.gpu_events > 0 and fact.launched >= MIN_LAUNCHED_SHARE * fact.gpu_events


ANSWERS = (
    Answer("where GPU time went: compute, exposed communication and copies, idle", lambda f: f.gpu_events > 0),
    Answer(
        "forward, dgrad, wgrad and optimizer: by operators and autograd's numbers",
        lambda f: _has_launches(f) and f.with_sequence > 0,
    ),
    Answer(
        "forward, dgrad, wgrad and optimizer: by launching threads, kernel names and sums of gradients",
        lambda f: _has_launches(f) and f.with_sequence == 0,
    ),
    Answer("pipeline cells, schedule and ideal", lambda f: _has_launches(f) and f.messages > 0),
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
"""Answers in the order they are reported."""


def available_answers(facts: Sequence[RankFacts]) -> list[str]:
    """Return the answers that are available for every rank."""
    return [answer.text for answer in ANSWERS if facts and all(answer.available(fact) for fact in facts)]


def suggest_reexport(facts: Sequence[RankFacts]) -> Reexport | None:
    """Return the export that would add the communicators of NCCL calls; None if it would add nothing."""
    lacking = [
        fact
        for fact in facts
        if fact.source.reader == "nsight" and fact.collectives > 0 and fact.nccl_calls > 0 and not fact.groups
    ]
    if not lacking:
        return None
    path = PurePath(lacking[0].source.path)
    report = path.with_suffix(".nsys-rep")
    gives = "communicators, sizes and peers of NCCL calls: groups told apart, waits of collectives, bandwidths"
    if len(lacking) > 1:
        gives += f" (on each of {len(lacking)} ranks)"
    return Reexport(EXPORT_OPTION, gives, f"nsys export --type=sqlite {EXPORT_OPTION} --force-overwrite=true {report}")
