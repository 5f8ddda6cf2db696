"""The longest kernels, with the evidence for their labels and the ranks they ran on."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

import msgspec

from tracekit._util.shapes import parse_list
from tracekit._util.text import counted, ms, percent, size
from tracekit.analysis import Analysis
from tracekit.report.palette import LABEL_COLOURS
from tracekit.report.view.rates import shape_words

MAX_KERNELS = 20
MAX_PLACES = 4
"""Ranks listed of one kernel, those on which it takes longest."""
MAX_DTYPES = 3
"""Operands whose types are named."""
MIN_SOLE_RULE_SHARE = 0.999
"""Share of a kernel's time above which one rule counts as the only one that decided its label."""


class Place(msgspec.Struct, frozen=True):
    """One rank on which a kernel ran: count and time in all steps, and its longest event there."""

    rank: int
    count: int
    ns: int
    step: int | None
    start_ns: int
    end_ns: int

    @property
    def longest_ns(self) -> int:
        """Duration of its longest event."""
        return self.end_ns - self.start_ns


class Why(msgspec.Struct, frozen=True):
    """The explanation of one kernel."""

    facts: tuple[tuple[str, str], ...]
    """Topic and text."""
    places: tuple[Place, ...]


class Kernel(msgspec.Struct, frozen=True):
    """A kernel in a step, mean over ranks."""

    name: str
    label: str
    module: str | None
    colour: str
    count: float
    ns: float
    share: float
    """Share of the span."""
    command: str | None
    """Command that explains its label, rule by rule."""
    why: Why | None = None
    """Evidence for its label, and where it ran; None if the analysis does not have it."""


def kernels(analysis: Analysis, path: str | None) -> tuple[Kernel, ...]:
    """Return the kernels that took longest in a step, as a mean over ranks.

    Args:
        analysis: The result.
        path: The input as one path, for the command that explains a label.
    """
    rank_steps = max(1, sum(len(rank.per_step) for rank in analysis.rank_results))
    span_ns = max(1.0, analysis.total.budget.span_ns / rank_steps)
    table = analysis.tables["kernels"].sort("ns", descending=True).head(MAX_KERNELS)
    explanations = _explanations(analysis)
    return tuple(
        Kernel(
            name=row["name"],
            label=row["label"],
            module=row["module"],
            colour=LABEL_COLOURS[row["label"]],
            count=row["count"],
            ns=row["ns"],
            share=row["ns"] / span_ns,
            command=path and f"tracekit analyze {shlex.quote(path)} --explain {shlex.quote(row['name'])}",
            why=explanations.get((row["name"], row["label"], row["module"])),
        )
        for row in table.to_dicts()
    )


def _explanations(analysis: Analysis) -> dict[tuple[str, str, str | None], Why]:
    """Return the explanations by kernel name, label and module; empty if the analysis has none."""
    table = analysis.tables.get("reasons")
    rows_of: dict[tuple[str, str, str | None], list[dict[str, Any]]] = {}
    for row in table.iter_rows(named=True) if table is not None else ():
        rows_of.setdefault((row["name"], row["label"], row["module"]), []).append(row)
    return {key: _explain(rows) for key, rows in rows_of.items()}


def _explain(rows: list[dict[str, Any]]) -> Why:
    """Return the explanation of a kernel from its rows, one per rank, the rank on which it takes longest first."""
    fields = Place.__struct_fields__
    places = tuple(Place(**{field: row[field] for field in fields}) for row in rows[:MAX_PLACES])
    return Why(tuple((topic, text) for topic, text in _facts(rows[0]) if text), places)


def _facts(row: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the facts about the longest event of one rank; the text is empty if a fact is not known."""
    step = "" if row["step"] is None else f", step {row['step']}"
    stream = "" if row["stream"] is None else f", stream {row['stream']}; {counted(row['count'], 'event')} there"
    node = row["node"] or ""
    return [
        ("label", _label_decision(row)),
        ("the rule asks", row["asks"] or ""),
        ("launched by", row["chain"] or row["op"] or ""),
        ("inside", row["annotations"] or ""),
        ("autograd", f"{node}, of {row['fwd_op']}" if node and row["fwd_op"] else node),
        ("communication", _communication(row)),
        ("shapes", _shapes(row)),
        ("the longest", f"{ms(row['end_ns'] - row['start_ns'], 3)} on rank {row['rank']}{step}{stream}"),
    ]


def _label_decision(row: Mapping[str, Any]) -> str:
    """Return the label, the rule that decided it, and how sure it is."""
    label = f"{row['label']}, module {row['module']}" if row["module"] else str(row["label"])
    if row["tier"] is None and row["rule"] in (None, "other"):
        return f"{label}: no rule knows it"
    origin = f"{row['tier']} evidence, {row['pack']} rules" if row["tier"] else "of a rules file"
    decision = f"{label}: by rule {row['rule']} ({origin}), confidence {row['confidence']:.2f}"
    share = row["rule_ns"] / row["ns"] if row["ns"] else 1.0
    if share > MIN_SOLE_RULE_SHARE:
        return decision
    return f"{decision}; it decides {percent(share)} of its time, other rules the rest"


def _communication(row: Mapping[str, Any]) -> str:
    """Return the collective, its peer, its group and its size, as far as they are known."""
    members = row["group_ranks"]
    peer = "" if row["peer"] is None or members is None else f"with rank {row['peer']}"
    ranks = "" if members is None else f"(ranks {members.strip('[]').replace(',', ', ')})"
    group = " ".join(filter(None, (row["group_desc"], ranks)))
    bytes_moved = size(row["bytes"]) if row["bytes"] else ""
    return ", ".join(filter(None, (row["collective"], peer, group and f"group {group}", bytes_moved)))


def _shapes(row: Mapping[str, Any]) -> str:
    """Return the shapes and types of the operands; empty for a collective."""
    if not row["shapes"] or row["collective"]:
        return ""
    dtypes = [
        dtype.removeprefix("c10::") for dtype in parse_list(row["dtypes"] or "[]") if isinstance(dtype, str) and dtype
    ]
    return " ".join(filter(None, (shape_words(row["shapes"]), ", ".join(dict.fromkeys(dtypes[:MAX_DTYPES])))))
