"""Why a kernel has its label and where it ran, in words: the rule, the evidence around its longest event, its ranks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from tracekit._util.shapes import parse_list
from tracekit._util.text import counted, ms, percent, size
from tracekit.analysis import Analysis
from tracekit.report.view.rates import shape_words

MOST_PLACES = 4
"""Ranks listed of one kernel, where it takes longest."""
_OPERANDS = 3
"""Input types that are named."""


class Place(msgspec.Struct, frozen=True):
    """One rank on which a kernel ran: how often and how long in all steps, and its longest event there."""

    rank: int
    count: int
    ns: int
    step: int | None
    start_ns: int
    end_ns: int

    @property
    def longest_ns(self) -> int:
        """How long its longest event took."""
        return self.end_ns - self.start_ns


class Why(msgspec.Struct, frozen=True):
    """What explains one kernel."""

    facts: tuple[tuple[str, str], ...]
    places: tuple[Place, ...]


def reasons(analysis: Analysis) -> dict[tuple[str, str, str | None], Why]:
    """Return what explains the longest kernels, by name, label and module; nothing of an analysis that kept none."""
    table = analysis.tables.get("reasons")
    found: dict[tuple[str, str, str | None], list[dict[str, Any]]] = {}
    for row in table.iter_rows(named=True) if table is not None else ():
        found.setdefault((row["name"], row["label"], row["module"]), []).append(row)
    return {key: _why(rows) for key, rows in found.items()}


def _why(rows: list[dict[str, Any]]) -> Why:
    keys = ("rank", "count", "ns", "step", "start_ns", "end_ns")
    places = tuple(Place(*(row[key] for key in keys)) for row in rows[:MOST_PLACES])
    return Why(tuple((name, text) for name, text in _facts(rows[0]) if text), places)


def _facts(row: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return what is known of the longest event of the rank on which the kernel takes longest."""
    return [
        ("label", _decided(row)),
        ("the rule asks", row["asks"] or ""),
        ("launched by", row["chain"] or row["op"] or ""),
        ("inside", row["annotations"] or ""),
        ("autograd", _autograd(row)),
        ("communication", _communication(row)),
        ("shapes", _shapes(row)),
        ("the longest", f"{ms(row['end_ns'] - row['start_ns'], 3)} on rank {row['rank']}{_step(row)}{_stream(row)}"),
    ]


def _decided(row: Mapping[str, Any]) -> str:
    named = f"{row['label']}, module {row['module']}" if row["module"] else str(row["label"])
    if row["tier"] is None and row["rule"] in (None, "other"):
        return f"{named}: no rule knows it"
    where = f" ({row['tier']} evidence, {row['pack']} rules)" if row["tier"] else " (of a rules file)"
    said = f"{named}: by rule {row['rule']}{where}, confidence {row['confidence']:.2f}"
    share = row["rule_ns"] / row["ns"] if row["ns"] else 1.0
    return said if share > 0.999 else f"{said}; it decides {percent(share)} of its time, other rules the rest"


def _autograd(row: Mapping[str, Any]) -> str:
    return "" if row["node"] is None else str(row["node"]) + (f", of {row['fwd_op']}" if row["fwd_op"] else "")


def _communication(row: Mapping[str, Any]) -> str:
    peer = "" if row["peer"] is None or row["group_ranks"] is None else f"with rank {row['peer']}"
    ranks = "" if row["group_ranks"] is None else f"ranks {row['group_ranks'].strip('[]').replace(',', ', ')}"
    group = " ".join(filter(None, (row["group_desc"], f"({ranks})" if ranks else "")))
    moved = size(row["bytes"]) if row["bytes"] else ""
    return ", ".join(filter(None, (row["collective"], peer, group and f"group {group}", moved)))


def _shapes(row: Mapping[str, Any]) -> str:
    if not row["shapes"] or row["collective"]:
        return ""
    dtypes = parse_list(row["dtypes"] or "[]")
    types = [dtype.removeprefix("c10::") for dtype in dtypes if isinstance(dtype, str) and dtype]
    return " ".join(filter(None, (shape_words(row["shapes"]), ", ".join(dict.fromkeys(types[:_OPERANDS])))))


def _step(row: Mapping[str, Any]) -> str:
    return "" if row["step"] is None else f", step {row['step']}"


def _stream(row: Mapping[str, Any]) -> str:
    return "" if row["stream"] is None else f", stream {row['stream']}; {counted(row['count'], 'event')} there"
