"""Classification of GPU events, rank by rank: evidence, rules, and the table of labelled events."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl

from tracekit._util.arrays import Ints
from tracekit._util.categories import CategoryColumn
from tracekit._util.columns import with_nulls
from tracekit._util.machine import give_back_memory
from tracekit.classify.collectives import find_shared_labels
from tracekit.classify.evidence import EventEvidence, gather_evidence
from tracekit.classify.graph_replays import (
    Replays,
    add_captured_launches,
    join_replays,
    restore_launches,
)
from tracekit.classify.host_ranges import launching_op_columns
from tracekit.classify.lost_kernels import find_lost_kernels
from tracekit.classify.messages import point_to_point_messages
from tracekit.classify.microbatch import find_places
from tracekit.classify.modules import find_modules
from tracekit.classify.row_order import FirstEvidence
from tracekit.classify.rules import Decisions, RuleBook, apply_rules, builtin_rules, load_rules
from tracekit.errors import OptionError
from tracekit.schema import LABELLED, RankEvents, conform


@dataclass(frozen=True, eq=False, repr=False)
class Classification:
    """Evidence and decisions for every GPU event of one rank."""

    book: RuleBook
    evidence: EventEvidence
    decisions: Decisions
    passes: CategoryColumn
    modules: FirstEvidence
    stage: Ints  # -1 where unknown
    microbatch: Ints  # -1 where unknown


def classify(events: pl.DataFrame, *, rules: str | Path | RuleBook | None = None) -> pl.DataFrame:
    """Label the GPU events of one or several ranks.

    Each rank is labelled by its own events alone, as if it had been given alone.

    Args:
        events: All events of the ranks (``EVENTS``).
        rules: Rules file (or ``RuleBook``) whose rules are tried before the built-in ones.

    Returns:
        The GPU events with their labels (``LABELLED``), sorted by rank and start.

    Raises:
        OptionError: A rank has the events of several processes.

    >>> from tracekit.schema import EVENTS
    >>> launch = {"id": 0, "kind": "runtime", "name": "cudaLaunchKernel", "start_ns": 1, "end_ns": 2, "correlation": 7}
    >>> copy = {"id": 1, "kind": "memset", "name": "Memset (Device)", "start_ns": 5, "end_ns": 9, "correlation": 7}
    >>> classify(conform(pl.DataFrame([launch, copy]), EVENTS)).select("id", "label", "rule").rows()
    [(1, 'memory', 'memset')]
    """
    book = load_rules(rules) if isinstance(rules, str | Path) else rules
    by_rank = events.partition_by("rank", as_dict=True)
    labelled = [LABELLED.to_frame()]
    for (rank,) in sorted(by_rank):
        rank_events = by_rank[rank,]
        if rank_events["id"].drop_nulls().is_duplicated().any():
            hint = "label one role after the other, trace.role(NAME).events, or use trace.labelled"
            raise OptionError(f"rank {rank} has events of several processes", hint=hint)
        labelled.append(classify_with_lost(rank_events, rules=book)[0])
    return pl.concat(labelled)


def classify_rank(rank: RankEvents, *, rules: RuleBook | None = None) -> pl.DataFrame:
    """Label the GPU events of one rank, with the operators of its capture where it has one."""
    if rank.capture is None:
        return classify(rank.events, rules=rules)
    replays = join_replays(rank.events, rank.capture)
    return classify_with_lost(rank.events, rules=rules, replays=replays)[0]


def classify_with_lost(
    events: pl.DataFrame, *, rules: RuleBook | None = None, replays: Replays | None = None
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return what ``classify`` does for one rank, and its kernels that were launched and not recorded, labelled.

    Args:
        events: All events of the rank.
        rules: Rules that are tried before the built-in ones.
        replays: Its replays of graphs, joined with the capture that their operators are in.

    """
    lost = find_lost_kernels(events)
    if len(lost):
        events = pl.concat([events, conform(lost, events.schema)])
    if replays is not None:
        events = add_captured_launches(events, replays)
    table = _labelled_table(decide(events, rules))
    if replays is not None:
        table = restore_launches(table, replays)
    give_back_memory()  # classification takes several times the memory of its result
    if lost.is_empty():
        return table, LABELLED.to_frame()
    return table.filter(pl.col("id") >= 0), table.filter(pl.col("id") < 0)


def classify_lost_kernels(events: pl.DataFrame, *, rules: RuleBook | None = None) -> pl.DataFrame:
    """Return the communication kernels that were launched and not recorded as GPU events (``LABELLED``)."""
    if find_lost_kernels(events).is_empty():
        return LABELLED.to_frame()
    return classify_with_lost(events, rules=rules)[1]


def decide(events: pl.DataFrame, rules: RuleBook | None) -> Classification:
    """Gather the evidence for one rank's GPU events and apply the rules to it."""
    book = rules.before(builtin_rules()) if rules else builtin_rules()
    evidence = gather_evidence(events, book.groups)
    decisions = apply_rules(evidence.columns, book, len(evidence))
    shared_label = find_shared_labels(
        evidence.gpu, evidence.launches, evidence.collectives, decisions.label
    )
    if shared_label.present.any():
        evidence.columns["shared_label"] = shared_label
        decisions = apply_rules(evidence.columns, book, len(evidence))
    passes = _find_passes(evidence, decisions)
    modules = find_modules(evidence, decisions, book)
    return Classification(
        book, evidence, decisions, passes, modules, *find_places(evidence, decisions)
    )


def _find_passes(evidence: EventEvidence, decisions: Decisions) -> CategoryColumn:
    """Return the pass of every event: as its rule says, else that of communication.

    Broadcast weights, and a norm or a loss on which the ranks of a pipeline agree, belong to no
    pass.
    """
    call = evidence.text("call")
    is_message = call.any_of("send", "recv", "sendrecv", "coalesced")
    is_agreement = decisions.label.any_of("pp_comm") & call.present & ~is_message
    comm_pass = evidence.text("exchange_pass").fill(evidence.text("comm_pass"))
    return decisions.passes.fill(
        comm_pass.where(~decisions.label.any_of("broadcast") & ~is_agreement)
    )


def _labelled_table(classification: Classification) -> pl.DataFrame:
    """Return the table of labelled events."""
    evidence = classification.evidence
    decisions = classification.decisions
    gpu = evidence.gpu
    launches = evidence.launches
    comm = evidence.collectives
    evidence_columns = ("op", "chain", "annotation", "annotations", "node", "fwd_op")
    texts = {
        **{name: evidence.text(name) for name in evidence_columns},
        "p2p": point_to_point_messages(gpu, evidence.ranges, launches),
        "collective": gpu.text("collective")
        .fill(comm.recorded_name.where(comm.library.present))
        .fill(comm.call),
        **{
            name: gpu.text(name).fill(getattr(comm, name))
            for name in ("group", "group_desc", "group_ranks")
        },
        "label": decisions.label,
        "pass": classification.passes,
        "rule": decisions.rule,
        "module": classification.modules.value,
        "module_from": classification.modules.evidence,
        "modules": evidence.positions.path,
        "layer_from": evidence.positions.layer_from,
    }
    numbers = {
        "peer": comm.peer,
        "collective_seq": comm.seq,
        "bytes": np.where(comm.bytes >= 0, comm.bytes, gpu.int64("bytes")),
        "received": np.where(comm.received >= 0, comm.received, gpu.int64("received")),
        "launch_ns": launches.start_ns,
        "launch_tid": launches.tid,
        "autograd_sequence": evidence.autograd.sequence,
        "stage": classification.stage,
        "microbatch": classification.microbatch,
        "layer": evidence.positions.layer,
    }
    table = gpu.frame.with_columns(
        *launching_op_columns(evidence.ranges, launches),
        *(text.series(name, LABELLED[name]) for name, text in texts.items()),
        *(with_nulls(values, values != -1).alias(name) for name, values in numbers.items()),
        pl.Series("confidence", decisions.confidence),
    )
    return conform(table, LABELLED)
