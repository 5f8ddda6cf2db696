"""Tries the rules in order on all events at once."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tracekit._util.coded import Bools, Text
from tracekit._util.records import dataclass
from tracekit.classify.evidence import Evidence
from tracekit.classify.rules import Condition, Rule, RuleBook

UNKNOWN = "other"
"""Rule named on what no rule knows."""

PASS_OF = {
    "forward": "forward",
    "dgrad": "backward",
    "wgrad": "backward",
    "backward": "backward",
    "recompute": "backward",
}


@dataclass(frozen=True)
class Decisions:
    """For every event the place of the rule that won (-1 where none did), and what follows from it."""

    winner: npt.NDArray[np.int64]
    label: Text
    passes: Text
    module: Text
    rule: Text
    confidence: npt.NDArray[np.float32]


class Matcher:
    """Tests rules against one trace's evidence; a condition used by many rules is evaluated once."""

    def __init__(self, evidence: Evidence) -> None:
        self.evidence = evidence
        self._known: dict[tuple[str, Condition], Bools] = {}

    def test(self, column: str, condition: Condition) -> Bools:
        """Rows that meet one condition."""
        key = (column, condition)
        if key not in self._known:
            self._known[key] = self.evidence.test(column, condition)
        return self._known[key]

    def match(self, rule: Rule) -> Bools:
        """Rows that meet all of a rule's conditions and none of its exceptions."""
        hit = np.ones(len(self.evidence), np.bool_)
        for column, condition in rule.when.items():
            hit &= self.test(column, condition)
            if not hit.any():  # most rules speak of something that this trace does not have
                return hit
        for column, condition in rule.unless.items():
            hit &= ~self.test(column, condition)
        return hit


def decide_all(evidence: Evidence, book: RuleBook) -> Decisions:
    """Give every event the label of the first rule that matches it."""
    matcher = Matcher(evidence)
    winner = np.full(len(evidence), -1, np.int64)
    for place, rule in enumerate(book.rules):
        hit = matcher.match(rule)
        if hit.any():
            winner[hit & (winner < 0)] = place
            if winner.min() >= 0:
                break
    rules = book.rules
    label = Text((*(r.label for r in rules), UNKNOWN), np.where(winner < 0, len(rules), winner))
    label = label.replace(label.values)
    stated = Text(tuple(r.passes or "" for r in rules), winner)
    stated = stated.replace([v or None for v in stated.values])
    implied = label.replace([PASS_OF.get(v) for v in label.values])
    module = Text(tuple(r.module or "" for r in rules), winner)
    module = module.replace([v or None for v in module.values])
    named = Text((*(r.name for r in rules), UNKNOWN), np.where(winner < 0, len(rules), winner))
    confidence = np.array([*(r.confidence for r in rules), 0.0], np.float32)[winner]
    return Decisions(winner, label, stated.fill(implied), module, named, confidence)


def find_passes(evidence: Evidence, decisions: Decisions) -> Text:
    """Pass of every event: as its rule says, else what is known of communication.

    Weights that are sent round, and a norm or a loss that a pipeline's ranks agree on, are of no pass.
    """
    spoken = evidence.text("exchange_pass").fill(evidence.text("comm_pass"))
    moves = evidence.text("call").map(lambda v: v in ("send", "recv", "sendrecv", "coalesced"))
    agreed = decisions.label.map(lambda v: v == "pp_comm") & evidence.text("call").present & ~moves
    return decisions.passes.fill(spoken.where(~decisions.label.map(lambda v: v == "broadcast") & ~agreed))
