"""The ``load`` call: traces read into one ``Trace``, with every rank's events in memory."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Literal

from tracekit._util.arguments import checked_path
from tracekit.classify.rules import RuleBook, load_rules
from tracekit.memory.snapshot_file import read_memory_snapshot
from tracekit.parsers.rank_numbers import RankChoice, chosen_ranks
from tracekit.run.driver import check_on_damage, check_run, find_sources
from tracekit.store.source_workers import map_sources
from tracekit.store.sources import OneRole, Paths, raise_failures, read_ref, span
from tracekit.store.trace import Trace


def load(
    paths: Paths | OneRole,
    *,
    ranks: RankChoice | None = None,
    file_rank: int | None = None,
    rules: str | Path | RuleBook | None = None,
    workers: int | None = None,
    stacks: bool = False,
    on_damage: Literal["warn", "error"] = "warn",
) -> Trace:
    """Read traces into a ``Trace``: a file, several, a folder, a glob, a URL or a store.

    Args:
        paths: Files, a folder, a glob, a URL or a store; for ranks with several processes also the
            paths of each role by its name.
        ranks: Ranks to read; by default all.
        file_rank: Rank of a single file that does not name it.
        rules: Rules file (or ``RuleBook``) to label with, before the built-in rules.
        workers: Number of worker processes; by default one per rank if the files are large, within
            cores and memory.
        stacks: Read Python frames too.
        on_damage: ``warn`` uses what can be read of a damaged file, with a notice; ``error``
            raises.

    >>> trace = load("sample_traces/reload")
    >>> trace.ranks
    (0, 1, 2, 3)

    """
    check_on_damage(on_damage)
    book = load_rules(checked_path(rules, "rules")) if isinstance(rules, str | Path) else rules
    ranks = chosen_ranks(ranks)
    discovery = find_sources(paths, ranks=ranks, rank=file_rank)
    read = partial(
        read_ref,
        ranks=ranks,
        stacks=stacks,
        lenient=on_damage == "warn",
        read_snapshot=read_memory_snapshot,
    )
    results = map_sources(read, discovery.refs, workers=workers, progress="reading")
    raise_failures(results)
    parts = []
    for result in results:
        parts.extend(result.unwrap())
    parts.sort(key=lambda part: (part.source.role or "", part.source.rank))
    run_notices = check_run(
        [span(part) for part in parts], ranks=ranks, named=isinstance(paths, Mapping)
    )
    return Trace(tuple(parts), (*discovery.notices, *run_notices), book)
