"""From one rank's events to its GPU events with labels: ``classify``."""

from __future__ import annotations

import polars as pl

from tracekit._util.categories import CategoryColumn
from tracekit._util.columns import with_nulls
from tracekit._util.machine import give_back_memory
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
    table = _table(evidence, decisions, modules, places)
    del evidence, decisions, modules, places
    give_back_memory()  # labelling takes several times what it leaves
    return table


def _table(evidence: Evidence, decisions: Decisions, modules: CategoryColumn, places: Places) -> pl.DataFrame:
    gpu, launches, comm = evidence.gpu, evidence.launches, evidence.collectives
    words = ("op", "chain", "annotation", "annotations", "node", "fwd_op")
    texts = {
        **{name: evidence.text(name) for name in words},
        "p2p": point_to_point(gpu, evidence.ranges, launches),
        "collective": gpu.text("collective").fill(comm.call),
        "group": gpu.text("group").fill(comm.group),
        "group_desc": gpu.text("group_desc").fill(comm.group_desc),
        "group_ranks": gpu.text("group_ranks").fill(comm.group_ranks),
        "label": decisions.label,
        "pass": find_passes(evidence, decisions),
        "rule": decisions.rule,
        "module": modules,
    }
    numbers = {
        "peer": comm.peer,
        "launch_ns": launches.at,
        "launch_tid": launches.tid,
        "autograd_sequence": evidence.autograd.sequence,
        "stage": places.stage,
        "microbatch": places.microbatch,
    }
    table = gpu.frame.with_columns(
        *op_facts(evidence.ranges, launches),
        *(text.series(name, LABELLED[name]) for name, text in texts.items()),
        *(with_nulls(values, values != -1).alias(name) for name, values in numbers.items()),
        pl.Series("confidence", decisions.confidence),
    )
    return conform(table, LABELLED)
