"""The wording of findings that changed between two runs, and of predicted against measured savings."""

from collections.abc import Sequence
from itertools import chain, dropwhile, repeat

import msgspec

from tracekit._util.text import counted, percent, short_ms, size
from tracekit.documents.coding import known
from tracekit.documents.diff import DiffDocument, FindingChange, SavingCheck
from tracekit.report.ci.words import Compared

KIND_MARKS = {"new": "🆕", "worse": "🔺", "gone": "✅", "better": "🔽"}
OUTCOME_WORDS = {
    "as_predicted": "as predicted",
    "less": "less than predicted",
    "more": "more than predicted",
    "opposite": "the opposite of predicted",
}
MAX_TEXT_LENGTH = 300
"""Characters of a finding's sentence, which may hold names from a trace."""
MIN_RANGE_SHARE_TO_SHOW = 0.05
"""Width of a predicted range, as a share of the prediction, from which it is shown beside it."""


class FindingLine(msgspec.Struct, frozen=True):
    """One finding that changed, in words.

    >>> FindingLine("gone", "5.00 ms before", "the GPU waits for data", "").sentence
    'gone, 5.00 ms before: the GPU waits for data'
    """

    kind: str
    """new, worse, gone or better."""
    cost: str
    """What it costs now and cost before."""
    text: str
    """What costs time and why."""
    advice: str
    """What to do about it; empty if it is gone."""

    @property
    def sentence(self) -> str:
        """All of it in one line."""
        return f"{self.kind}, {self.cost}: {self.explanation}"

    @property
    def explanation(self) -> str:
        """What costs time and why, and what to do."""
        advice = f" → {self.advice}" if self.advice else ""
        return f"{self.text}{advice}"


def changed_findings(result: Compared) -> list[FindingLine]:
    """Return the findings of a diff or gate that changed together with the step time, in words.

    None of runs that cannot be compared.
    """
    return [_line(row) for row in _comparable_rows(result) if row.step_agrees]


def undecided_findings(result: Compared) -> list[FindingLine]:
    """Return the findings that changed although the step time did not beyond its noise."""
    return [_line(row) for row in _comparable_rows(result) if not row.step_agrees]


def undecided_note(result: Compared) -> str:
    """Return the title of findings that changed without the step time, or the other way."""
    rows = _comparable_rows(result)
    count = sum(not row.step_agrees for row in rows)
    verb = "differs" if count == 1 else "differ"
    # What is about memory agrees whatever the step does.
    if any(row.step_agrees and row.cost_after_bytes is None for row in rows):
        return f"{counted(count, 'finding')} {verb} the other way than the step time"
    return f"{counted(count, 'finding')} {verb}, but the step time does not beyond its noise"


def _comparable_rows(result: Compared) -> Sequence[FindingChange]:
    findings = result.findings
    if result.obstacles or findings is None:
        return ()
    return known(findings, [])


def _line(row: FindingChange) -> FindingLine:
    return FindingLine(
        kind=row.kind,
        cost=_cost(row),
        text=f"{_clip(row.text)}{_before(row)}",
        advice=_clip(row.advice),
    )


def _before(row: FindingChange) -> str:
    """Return what the run before said, from the first word that differs; empty if it said the same."""
    words_after = chain(row.text.split(), repeat(""))
    pairs = zip(row.text_before.split(), words_after, strict=False)
    told_before = " ".join(word for word, _ in dropwhile(lambda pair: pair[0] == pair[1], pairs))
    return f" (before: {_clip(told_before)})" if told_before else ""


def _clip(text: str) -> str:
    return text if len(text) <= MAX_TEXT_LENGTH else text[: MAX_TEXT_LENGTH - 1] + "…"


def _cost(row: FindingChange) -> str:
    """Return the cost of a finding before and after."""
    if row.cost_before_bytes is not None or row.cost_after_bytes is not None:
        before = size(row.cost_before_bytes or 0)
        after = size(row.cost_after_bytes or 0)
        new_cost = after
        old_cost = f"{before} before"
    else:
        before = short_ms(row.cost_before_ns)
        after = short_ms(row.cost_after_ns)
        new_cost = f"{after}{_share(row.share_after)}"
        old_cost = f"{before}{_share(row.share_before)} before"
    costs = {"new": new_cost, "gone": old_cost}
    return costs.get(row.kind, f"{before} → {after}")


def _share(share: float) -> str:
    """Return a share of the step in brackets; empty for a slow step, which costs more than a step."""
    return "" if share > 1 else f" ({percent(share, digits=0)} of the step)"


def _saving(saving_ns: int, range_ns: Sequence[int] | None) -> str:
    """Return a predicted saving as a change of the step, with its range where that says more.

    >>> _saving(8_900_000, [7_300_000, 10_500_000]), _saving(400_000, [0, 400_000])
    ('−8.90 ms (−7.30 to −10.5 ms)', 'up to −0.40 ms')
    >>> _saving(48_700_000, [48_400_000, 49_000_000])
    '−48.7 ms'
    """
    text = short_ms(-saving_ns)
    if range_ns is None:
        return text
    least_ns, largest_ns = range_ns
    if least_ns == 0:
        return f"up to {short_ms(-largest_ns)}"
    if largest_ns - least_ns < MIN_RANGE_SHARE_TO_SHOW * saving_ns:
        return text
    return f"{text} ({_range(least_ns, largest_ns)})"


def _range(least_ns: int, largest_ns: int) -> str:
    """Return two savings as changes of the step; a unit that both have is written once.

    >>> _range(1_200_000, 4_900_000), _range(81_000, 2_670_000)
    ('−1.20 to −4.90 ms', '−81 µs to −2.67 ms')
    """
    least, _, unit = short_ms(-least_ns).partition(" ")
    largest, _, largest_unit = short_ms(-largest_ns).partition(" ")
    if unit == largest_unit:
        return f"{least} to {largest} {unit}"
    return f"{least} {unit} to {largest} {largest_unit}"


def savings_sentence(result: Compared) -> str:
    """Return predicted against measured saving of the change that was named; empty if none was."""
    savings = result.savings if isinstance(result, DiffDocument) else None
    if savings is None or result.obstacles:
        return ""
    return f"{_prediction(savings)}{_measurement(savings)}{_additions(savings)}"


def _prediction(savings: SavingCheck) -> str:
    """Return the change and its predicted saving; of several findings as a range, because they may share time."""
    unit = "per step without the profiler" if savings.step == "free" else "per step"
    least_ns, largest_ns = savings.predicted_range_ns
    if len(savings.codes) <= 1:
        predicted = _saving(savings.predicted_saving_ns, savings.predicted_range_ns)
    elif least_ns == 0:
        predicted = f"up to {short_ms(-largest_ns)}"
    elif largest_ns - least_ns < MIN_RANGE_SHARE_TO_SHOW * largest_ns:
        predicted = short_ms(-savings.predicted_saving_ns)
    else:
        predicted = _range(least_ns, largest_ns)
    return f"Change '{savings.change}': predicted {predicted} {unit}"


def _measurement(savings: SavingCheck) -> str:
    """Return the measured saving and how it compares."""
    saving_ns = savings.measured_saving_ns
    sign = "+" if saving_ns < 0 else ""
    measured = f", measured {sign}{short_ms(-saving_ns)}"
    outcome = savings.outcome
    if outcome == "not_comparable":
        return "; not compared with the measured time, because the steps do different work"
    if outcome != "undecided":
        return f"{measured}: {OUTCOME_WORDS[outcome]}"
    if savings.measured_range_ns is None:
        return f"{measured}: not decided, because there are too few steps"
    return f"{measured}: not decided, because the steps vary by more than that"


def _additions(savings: SavingCheck) -> str:
    """Return what new and worse findings cost, which is in the measured time too; empty if nothing."""
    if savings.added_cost_ns <= 0:
        return ""
    return f"; new and worse findings cost {short_ms(savings.added_cost_ns)} of it"
