"""From one rank's events to its GPU events with labels: ``classify``."""

from __future__ import annotations

import polars as pl

from tracekit._util.coded import Text
from tracekit.classify._nest import Ints
from tracekit.classify._p2p import point_to_point
from tracekit.classify.engine import Decisions, decide_all, find_passes
from tracekit.classify.evidence import Evidence, gather
from tracekit.classify.microbatch import Places, find_places
from tracekit.classify.modules import find_modules
from tracekit.classify.ranges import op_facts
from tracekit.classify.rules import RuleBook, builtin_rules
from tracekit.schema import LABELLED, conform


def classify(events: pl.DataFrame, *, rules: RuleBook | None = None) -> pl.DataFrame:
    """Label one rank's GPU events: all kinds of events in, GPU events out, sorted by start.

    >>> from tracekit.schema import EVENTS
    >>> launch = {"id": 0, "kind": "runtime", "name": "cudaLaunchKernel", "start_ns": 1, "end_ns": 2, "correlation": 7}
    >>> copy = {"id": 1, "kind": "memset", "name": "Memset (Device)", "start_ns": 5, "end_ns": 9, "correlation": 7}
    >>> classify(conform(pl.DataFrame([launch, copy]), EVENTS)).select("id", "label", "rule").rows()
    [(1, 'memory', 'memset')]
    """
    book = rules.before(builtin_rules()) if rules else builtin_rules()
    evidence = gather(events, book.groups)
    decisions = decide_all(evidence, book)
    modules, places = find_modules(evidence, decisions, book), find_places(evidence, decisions)
    labelled = _table(evidence, decisions, modules, places)
    return conform(labelled.join(point_to_point(events), on="id", how="left", maintain_order="left"), LABELLED)


def _table(evidence: Evidence, decisions: Decisions, modules: Text, places: Places) -> pl.DataFrame:
    comm, own = evidence.collectives, evidence.gpu.frame
    words = ("op", "chain", "annotation", "annotations", "node", "fwd_op")
    passes = find_passes(evidence, decisions)
    return own.with_columns(
        *op_facts(evidence.ranges, evidence.launches),
        **{name: evidence.text(name).series(name) for name in words},
        collective=pl.coalesce("collective", comm.call.series("call")),
        group=pl.coalesce("group", comm.group.series("asked")),
        group_desc=pl.coalesce("group_desc", comm.group_desc.series("asked")),
        group_ranks=pl.coalesce("group_ranks", comm.group_ranks.series("asked")),
        peer=_nullable("peer", comm.peer),
        launch_ns=_nullable("launch_ns", evidence.launches.at),
        launch_tid=_nullable("launch_tid", evidence.launches.tid),
        autograd_sequence=_nullable("autograd_sequence", evidence.autograd.sequence),
        label=decisions.label.series("label").cast(pl.String),
        rule=decisions.rule.series("rule"),
        stage=_nullable("stage", places.stage),
        microbatch=_nullable("microbatch", places.microbatch),
        confidence=pl.Series(decisions.confidence),
        **{"pass": passes.series("pass").cast(pl.String), "module": modules.series("module")},
    )


def _nullable(name: str, values: Ints) -> pl.Series:
    return pl.Series(name, values).replace(-1, None)
