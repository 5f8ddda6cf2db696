"""Tries the rules in order on all events at once."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tracekit._util.categories import CategoryColumn
from tracekit.classify.asking import first_met
from tracekit.classify.evidence import Evidence
from tracekit.classify.rules import RuleBook

UNKNOWN = "other"
"""Rule named on what no rule knows."""

PASS_OF = {
    "forward": "forward",
    "dgrad": "backward",
    "wgrad": "backward",
    "backward": "backward",
    "recompute": "backward",
}


class Decisions(NamedTuple):
    """For every event the place of the rule that won (-1 where none did), and what follows from it."""

    winner: npt.NDArray[np.int64]
    label: CategoryColumn
    passes: CategoryColumn
    module: CategoryColumn
    rule: CategoryColumn
    confidence: npt.NDArray[np.float32]


def decide_all(evidence: Evidence, book: RuleBook) -> Decisions:
    """Give every event the label of the first rule that matches it."""
    cases = [(rule.when, rule.unless) for rule in book.rules]
    winner = first_met(evidence.columns, cases, np.arange(len(evidence)))
    rules = book.rules
    label = CategoryColumn((*(r.label for r in rules), UNKNOWN), np.where(winner < 0, len(rules), winner))
    label = label.replace(label.values)
    stated = CategoryColumn(tuple(r.passes or "" for r in rules), winner)
    stated = stated.replace([v or None for v in stated.values])
    implied = label.replace([PASS_OF.get(v) for v in label.values])
    module = CategoryColumn(tuple(r.module or "" for r in rules), winner)
    module = module.replace([v or None for v in module.values])
    named = CategoryColumn((*(r.name for r in rules), UNKNOWN), np.where(winner < 0, len(rules), winner))
    confidence = np.array([*(r.confidence for r in rules), 0.0], np.float32)[winner]
    return Decisions(winner, label, stated.fill(implied), module, named, confidence)


def find_passes(evidence: Evidence, decisions: Decisions) -> CategoryColumn:
    """Pass of every event: as its rule says, else what is known of communication.

    Weights that are sent round, and a norm or a loss that a pipeline's ranks agree on, are of no pass.
    """
    spoken = evidence.text("exchange_pass").fill(evidence.text("comm_pass"))
    moves = evidence.text("call").any_of("send", "recv", "sendrecv", "coalesced")
    agreed = decisions.label.any_of("pp_comm") & evidence.text("call").present & ~moves
    return decisions.passes.fill(spoken.where(~decisions.label.any_of("broadcast") & ~agreed))
