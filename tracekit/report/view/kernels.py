"""The longest kernels, with the evidence for their labels and the ranks they ran on."""

import shlex
from collections.abc import Mapping
from typing import Any

import msgspec

from tracekit._util.shapes import parse_list
from tracekit._util.text import counted, ms, percent, size
from tracekit.analysis import Analysis
from tracekit.report.view.rates import shape_words

MAX_KERNELS = 20
MAX_PLACES = 4
"""Ranks listed of one kernel, those on which it takes longest."""
MAX_DTYPES = 3
"""Operands whose types are named."""
MIN_SOLE_RULE_SHARE = 0.999
"""Share of a kernel's time above which one rule counts as the only one that decided its label."""


class Kernel(msgspec.Struct, frozen=True):
    """A kernel in a step, mean over ranks."""

    name: str
    label: str
    module: str | None
    count: float
    ns: float
    share: float
    """Share of the span."""
    command: str | None
    """Command that explains its label, rule by rule."""
    facts: tuple[tuple[str, str], ...]
    """Topic and text of the evidence for its label; empty if the analysis does not have it."""
    places: tuple[dict[str, Any], ...]
    """Rows of the table ``reasons``: the ranks on which it takes longest, and its longest event there."""


def kernels(analysis: Analysis, quoted_path: str | None) -> tuple[Kernel, ...]:
    """Return the kernels that took longest in a step, as a mean over ranks.

    Args:
        analysis: The result.
        quoted_path: The input as one path, for the command that explains a label.
    """
    rank_steps = max(1, sum(len(rank.per_step) for rank in analysis.rank_results))
    span_ns = max(1.0, analysis.total.budget.span_ns / rank_steps)
    table = analysis.tables["kernels"].sort("ns", descending=True).head(MAX_KERNELS)
    # The rows of each kernel, one per rank, the rank on which it takes longest first.
    reasons = analysis.tables["reasons"].rows_by_key(["name", "label", "module"], named=True, include_key=True)
    rows = []
    for row in table.iter_rows(named=True):
        on_ranks = reasons.get((row["name"], row["label"], row["module"]), [])
        facts = _facts(on_ranks[0]) if on_ranks else []
        rows.append(
            Kernel(
                **{name: row[name] for name in ("name", "label", "module", "count", "ns")},
                share=row["ns"] / span_ns,
                command=quoted_path and f"tracekit analyze {quoted_path} --explain {shlex.quote(row['name'])}",
                facts=tuple((topic, text) for topic, text in facts if text),
                places=tuple(on_ranks[:MAX_PLACES]),
            )
        )
    return tuple(rows)


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
