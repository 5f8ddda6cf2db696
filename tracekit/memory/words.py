"""Sentences about what would have made memory for a request that failed."""

from __future__ import annotations

from collections.abc import Iterable

from tracekit._util.text import size
from tracekit.documents.memory import MemoryRemedy
from tracekit.report.words import WORDS


def remedy_words(remedy: MemoryRemedy) -> str:
    """Return what to do.

    >>> remedy_words(MemoryRemedy("recompute", 5, True, "model.py forward"))
    'recompute model.py forward (`torch.utils.checkpoint`)'
    """
    words = WORDS.memory_remedies[remedy.code]
    return words if remedy.name is None else words.format(name=remedy.name)


def remedies_sentence(remedies: Iterable[MemoryRemedy]) -> str:
    """Return remedies, each with what it frees; empty if none is known."""
    parts = []
    for remedy in remedies:
        freed = ""
        if remedy.bytes is not None:
            freed = f": up to {size(remedy.bytes)}"
            freed += "" if remedy.is_enough is not False else ", not enough alone"
        parts.append(f"{remedy_words(remedy)}{freed}")
    return "; or ".join(parts)
