"""Advice: what to do next, from a table of entries (``advice.toml``) that each name the evidence they rest on."""

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

import msgspec
from msgspec.structs import asdict

from tracekit._util.text import ms, percent
from tracekit.report.evidence import Evidence


class Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One row of the table; see the head of ``advice.toml``."""

    name: str
    text: str
    needs: tuple[str, ...]
    when: Mapping[str, tuple[str | bool, ...]] = {}
    unless: Mapping[str, tuple[str | bool, ...]] = {}
    absent: tuple[str, ...] = ()
    weight: str | float = 0.0
    flag: str | None = None
    """The text ends with the framework's option for this (``label``: for the label that the entry is about)."""
    command: str | None = None
    change: str | None = None
    """The what-if change that does what the text advises: the text ends with what it would save, if that is known."""

    def fires(self, facts: Mapping[str, object]) -> bool:
        """Return whether the facts support this entry."""
        return (
            all(facts[name] is not None for name in self.needs)
            and all(facts[name] in values for name, values in self.when.items())
            and not any(facts[name] in values for name, values in self.unless.items())
            and not any(facts[name] for name in self.absent)
        )


class AdviceTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All entries, and the options of frameworks by what they change."""

    entries: tuple[Entry, ...]
    flags: Mapping[str, Mapping[str, str]]


class Advice(msgspec.Struct, frozen=True):
    """One thing to do next."""

    text: str
    command: str | None = None
    """The whole command to copy, if there is one."""


class _Supported(NamedTuple):
    """Advice that the evidence supports."""

    weight: float
    saves_ns: int | None
    advice: Advice


@cache
def advice_table() -> AdviceTable:
    """Return the table of advice."""
    return msgspec.toml.decode(Path(__file__).with_name("advice.toml").read_bytes(), type=AdviceTable)


def advise(evidence: Evidence, *, path: str | None = None) -> list[Advice]:
    """Return the advice that the evidence supports, the most important first; *path* is the input in commands.

    >>> [advice.text for advice in advise(Evidence(unlabelled_share=0.02))]
    ['2.0 % of the span has no label: `--explain other` lists it, a rules file names it']
    """
    table, facts = advice_table(), asdict(evidence)
    fact_texts = {name: _format(name, fact) for name, fact in facts.items()}
    supported: list[_Supported] = []
    for entry in table.entries:
        if not entry.fires(facts):
            continue
        topic = evidence.label if entry.flag == "label" else entry.flag
        option = table.flags.get(evidence.framework or "", {}).get(topic or "")
        text = entry.text.format_map(fact_texts) + (f" ({evidence.framework}: {option})" if option else "")
        change = "" if entry.change is None else entry.change.format_map(fact_texts)
        saves_ns = evidence.savings_ns.get(change)
        if saves_ns is not None:
            text += f" (saves up to {ms(saves_ns)} per step)"
        weight = facts[entry.weight] if isinstance(entry.weight, str) else entry.weight
        # Entries about a label or about a part of the gap are about exposed time. If hardly any of it is on the
        # critical path, and no saving was predicted, the entry says so and comes last.
        is_about_label = "label" in entry.needs or "gap_cause" in entry.needs
        if is_about_label and evidence.blocks_step is False and saves_ns is None:
            text, weight = f"{text} (hardly any of it is on the critical path)", 0.0
        command = entry.command.format(path=path) if entry.command and path else None
        supported.append(_Supported(weight, saves_ns, Advice(text, command)))
    if evidence.savings_ns and not any(item.weight for item in supported):
        change, saves_ns = max(evidence.savings_ns.items(), key=lambda item: item[1])
        text = f"of the changes that were tried `{change}` would save most (up to {ms(saves_ns)} per step)"
        supported.insert(0, _Supported(0.0, saves_ns, Advice(text)))  # the sort below keeps it first
    supported.sort(key=lambda item: -item.weight)
    # Advice with a predicted saving keeps the places that it has by weight, but fills them by saving, largest first.
    saving = [item for item in supported if item.saves_ns is not None]
    by_saving = iter(sorted(saving, key=lambda item: -(item.saves_ns or 0)))
    return [(item if item.saves_ns is None else next(by_saving)).advice for item in supported]


def _format(name: str, fact: object) -> str:
    """Return a fact as text, by the unit in its name."""
    if isinstance(fact, float) and name.endswith("_share"):
        return percent(fact)
    return ms(fact) if isinstance(fact, int) and name.endswith("_ns") else str(fact)
