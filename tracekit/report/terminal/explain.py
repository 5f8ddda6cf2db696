"""The explanation of an event's label, and the largest kernels of a label."""

from pathlib import Path

import polars as pl

from tracekit._util.text import terminal
from tracekit.classify import classify, explain, load_rules
from tracekit.errors import OptionError
from tracekit.schema import LABELS, RankEvents

MAX_KERNELS = 12


def explain_text(rank: RankEvents, selector: str, *, rules: str | Path | None = None) -> str:
    """Return the explanation of one event of a rank.

    Args:
        rank: The events of the rank.
        selector: The id of an event, part of a kernel's name, or a label. Of a label the largest kernels are listed,
            and the longest event is explained.
        rules: A file of further rules.

    >>> from tracekit.run.load import load
    >>> print(explain_text(load("sample_traces/reload", ranks=[0]).rank(0), "broadcast").splitlines()[0])
    broadcast: 8 events, 103.131 ms on rank 0
    """
    rule_book = load_rules(rules) if rules is not None else None
    if selector not in LABELS:
        return explain(rank.events, int(selector) if selector.isdecimal() else selector, rule_book).render()
    labelled = classify(rank.events, rules=rule_book)
    rows = labelled.filter(pl.col("label") == selector).with_columns(ns=pl.col("end_ns") - pl.col("start_ns"))
    if rows.is_empty():
        raise OptionError(
            f"no event of rank {rank.source.rank} is labelled {selector}", hint="leave --explain out to see"
        )
    longest = int(rows.sort("ns", descending=True)["id"][0])
    head = f"{selector}: {len(rows):,} events, {int(rows['ns'].sum()) / 1e6:.3f} ms on rank {rank.source.rank}"
    kernels = (
        rows.group_by(pl.col("name").cast(pl.String), pl.col("rule").cast(pl.String))
        .agg(pl.col("ns").sum(), count=pl.len())
        .sort("ns", "name", descending=[True, False])
    )
    lines = [
        f"  {row['ns'] / 1e6:10.3f} ms  {row['count']:6,}  {row['rule'] or '-':28} {terminal(row['name'][:90])}"
        for row in kernels.head(MAX_KERNELS).iter_rows(named=True)
    ]
    return "\n".join([head, *lines, "", explain(rank.events, longest, rule_book).render()])
