"""Everything known about every GPU event before any rule speaks, joined once."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from tracekit._util.arrays import Bools
from tracekit._util.categories import CategoryColumn
from tracekit.classify._nest import Ints
from tracekit.classify.asking import Column, first_met, met
from tracekit.classify.autograd import Autograd, read_autograd
from tracekit.classify.batched import feeding
from tracekit.classify.collectives import Collectives, read_collectives
from tracekit.classify.compiled import with_recomputed
from tracekit.classify.convolution import read_convolutions
from tracekit.classify.copies import read_copies
from tracekit.classify.directions import read_directions
from tracekit.classify.experts import Marks, comm_passes, read_exchanges
from tracekit.classify.gradients import read_gradients
from tracekit.classify.groups import group_holds, group_uses, reducing_groups
from tracekit.classify.matmul import Matmuls, read_matmuls
from tracekit.classify.ranges import Gpu, Launches, Ranges, read_ranges
from tracekit.classify.rules import Condition, Kind
from tracekit.classify.tallies import halves, turns
from tracekit.classify.threads import read_threads

_HOOKS = r"FSDP::post_backward|FullyShardedDataParallel\._post_backward"
_SHARDS = r"fsdp::(all_gather_copy_in|chunk_cat)"
"""What fills the buffer of a collective on sharded weights or gradients."""
COPY_KERNELS = r"^__amd_rocclr_(copy|fill)"
"""ROCm's runtime fills and copies buffers with kernels."""
ATTENTION = r"(?i)flash(?!infer)|fmha|sdpa|attention|attn|(Batch|Single)(Prefill|Decode)With"


@dataclass(frozen=True, eq=False, repr=False)
class Evidence:
    """Columns of evidence, one row for each GPU event, in order of start."""

    gpu: Gpu
    columns: dict[str, Column]
    ranges: Ranges
    launches: Launches
    autograd: Autograd
    collectives: Collectives

    @property
    def two_way(self) -> bool:
        """Forward work arrives over the pipeline from more than one rank."""
        arrives = self.text("comm_pass").any_of("forward") & self.text("call").any_of("recv")
        return len(np.unique(self.collectives.peer[arrives & (self.collectives.peer >= 0)])) > 1

    def __len__(self) -> int:
        return len(self.gpu)

    def text(self, column: str) -> CategoryColumn:
        """One of the text columns."""
        values = self.columns[column]
        assert isinstance(values, CategoryColumn)
        return values

    def test(self, column: str, condition: Condition) -> Bools:
        """Rows whose evidence meets one condition of a rule."""
        return met(self.columns[column], condition)

    def show(self, row: int) -> dict[str, str | int | bool]:
        """List the evidence of one event, without what is unknown."""
        shown: dict[str, str | int | bool] = {}
        for name, values in self.columns.items():
            if isinstance(values, CategoryColumn):
                if values.codes[row] >= 0:
                    shown[name] = values.values[values.codes[row]]
            elif values.dtype == np.bool_:
                shown[name] = bool(values[row])
            elif values[row] >= 0:
                shown[name] = int(values[row])
        return shown


def gather(events: pl.DataFrame, groups: Sequence[Kind] = ()) -> Evidence:
    """Join every GPU event of one rank to all that speaks for its label."""
    gpu, ranges, launches = read_ranges(events)
    comm = read_collectives(gpu, ranges, launches)
    communicates = comm.library.present
    autograd, doubtful = with_recomputed(ranges, launches, read_autograd(ranges, launches))
    autograd = read_threads(gpu, launches, autograd, comm=communicates)
    matmuls = read_matmuls(gpu, ranges, launches, autograd, doubtful=doubtful)
    matmuls = matmuls.with_convolutions(read_convolutions(gpu, ranges, launches))
    directions = read_directions(gpu, ranges, launches, autograd, matmuls, comm=communicates)
    passes = comm_passes(ranges, launches, autograd, comm, directions, kernel=gpu.is_kernel)
    copies = read_copies(gpu, launches, comm, engine=autograd.node_row >= 0)
    base: dict[str, Column] = {
        **_launch_columns(gpu, ranges, launches),
        "class": _classes(gpu, comm),
        "node": autograd.node,
        "fwd_op": autograd.fwd_op,
        "site": autograd.site,
        "feeds": feeding(ranges, autograd),
        "gemm": matmuls.is_gemm,
        "role": matmuls.role,
        "role_from": matmuls.evidence,
        "after_role": matmuls.after,
        "visit": _visits(launches, autograd, matmuls, communicates),
        "gemm_turn": turns(matmuls.whole, autograd.node_row, launches.at),
        "gemm_half": halves(matmuls.whole, autograd.node_row, launches.at),
        "gemm_share": matmuls.share,
        "deferred": np.full(len(gpu), _deferred(matmuls.role, directions.value, autograd.site, launches.at)),
        "gradient": read_gradients(gpu, launches, autograd, matmuls),
        "direction": directions.value,
        "direction_from": directions.source,
        "library": comm.library,
        "call": comm.call,
        "group": comm.group,
        "group_desc": comm.group_desc,
        "group_ranks": comm.group_ranks,
        "group_shape": _shapes(comm.group_ranks),
        "comm_pass": passes.known,
        "copy": copies.way,
        "host": copies.host,
        "copy_use": copies.use,
        "stream_use": copies.stream,
        "peer": comm.peer,
        "trained": np.full(len(gpu), autograd.active or _trained(directions.value)),
    }
    evidence = Evidence(gpu, base, ranges, launches, autograd, comm)
    kinds = decide(evidence, groups, np.flatnonzero(communicates))
    attention = gpu.names.matches(ATTENTION) | launches.chain.matches(ATTENTION)
    marks = Marks(attention, matmuls.is_gemm, kinds.any_of("ep"))
    exchanges = read_exchanges(gpu, launches, autograd, comm, passes=passes, marks=marks)
    summed = autograd.node.any_of("AccumulateGrad") | launches.annotations.matches(_HOOKS)
    summed &= comm.call.any_of("all_reduce", "reduce_scatter", "reduce")
    summed |= _after(launches, launches.chain.matches(_SHARDS)) & comm.call.any_of("all_gather", "reduce_scatter")
    reducing = None
    if not autograd.active and autograd.site.present.any():  # without operators: by who sums what, and when
        reducing = reducing_groups(comm, passes.known, autograd.site, gpu.int64("bytes"))
    uses = group_uses(gpu, comm, kinds, summed=summed, lost=launches.at < 0, reducing=reducing)
    base |= {
        "group_kind": kinds,
        "group_use": uses,
        "group_holds": group_holds(comm, kinds, uses),
        "exchange": exchanges.role,
        "exchange_pass": exchanges.direction,
        "leads_to": _leads_to(launches, comm, exchanges.role),
        "stream_pass": _stream_passes(gpu, exchanges.direction),
    }
    return evidence


def decide(evidence: Evidence, kinds: Sequence[Kind], rows: Ints) -> CategoryColumn:
    """Take, for *rows*, the value of the first kind whose conditions all hold."""
    found = first_met(evidence.columns, [(kind.when, {}) for kind in kinds], rows)
    chosen = CategoryColumn(tuple(kind.value for kind in kinds), found).spread(rows, len(evidence))
    return chosen.replace(chosen.values)


def _launch_columns(gpu: Gpu, ranges: Ranges, launches: Launches) -> dict[str, Column]:
    marked = ranges.name.answers(r"\(W\)$|(?i: wgrad$|^_\w+_wgrad$|\.wgrad_gemm|weight[-_ ]?grad)|^PP:\d+W\d+")
    annotated = marked.any() and bool((ranges.name.look_up(marked) & ~ranges.is_op).any())
    return {
        "kind": gpu.text("kind"),
        "name": gpu.names,
        "op": launches.op_name,
        "chain": launches.chain,
        "annotation": launches.ann_name,
        "annotations": launches.annotations,
        "domain": ranges.text("domain", launches.ann),
        "bytes": gpu.int64("bytes"),
        "stream": gpu.int64("stream"),
        "graph": gpu.int64("graph"),
        "launched": launches.at >= 0,
        "wgrad_annotated": np.full(len(gpu), annotated),
    }


def _classes(gpu: Gpu, comm: Collectives) -> CategoryColumn:
    copies = gpu.text("kind").any_of("memcpy", "memset") | gpu.names.matches(COPY_KERNELS)
    return CategoryColumn.choose(
        len(gpu),
        [
            ("communication", comm.library.present),
            ("copy", copies),
            ("compute", np.ones(len(gpu), np.bool_)),
        ],
    )


def _after(launches: Launches, mask: Bools) -> Bools:
    """Events launched right after one of *mask* on the same thread."""
    out = np.zeros(len(mask), np.bool_)
    if not mask.any():
        return out
    order = np.lexsort((launches.at, launches.thread))
    same = launches.thread[order[1:]] == launches.thread[order[:-1]]
    out[order[1:]] = mask[order[:-1]] & same & (launches.at[order[:-1]] >= 0)
    return out


def _leads_to(launches: Launches, comm: Collectives, role: CategoryColumn) -> CategoryColumn:
    """Of communication, the role of the next one launched, where that is on a group of the same ranks."""
    rows = launches.ordered(comm.library.present)
    out = np.full(len(role), -1, np.int64)
    ranks = comm.group_ranks.codes[rows]
    same = (ranks[1:] == ranks[:-1]) & (ranks[1:] >= 0)
    out[rows[:-1]] = np.where(same, role.codes[rows[1:]], -1)
    return CategoryColumn(role.values, out)


def _stream_passes(gpu: Gpu, direction: CategoryColumn) -> CategoryColumn:
    """Find the pass of the next exchange on each event's stream: what runs before it there prepares it."""
    if not direction.present.any():
        return direction
    code = pl.when(pl.col("code") >= 0).then("code").backward_fill().over("place").fill_null(-1)
    table = pl.DataFrame({"code": direction.codes, "place": gpu.place})
    return CategoryColumn(direction.values, table.select(code)["code"].to_numpy().astype(np.int64))


def _visits(launches: Launches, autograd: Autograd, matmuls: Matmuls, comm: Bools) -> CategoryColumn:
    """Mark what nodes do when they run a second time for the weights, and what the caller does right beside that.

    Only where products show that the second time is for the weights: a graph kept and run through twice is none.
    """
    n = len(launches.at)
    if not autograd.ran_before.any():
        return CategoryColumn.constant(None, n)
    inside = autograd.node_row >= 0
    later = inside & np.append(autograd.ran_before, False)[autograd.node_row]
    alone = np.bincount(autograd.node_row[matmuls.is_gemm & inside], minlength=len(autograd.node_of)) == 1
    paid = later & matmuls.role.any_of("wgrad") & np.append(alone, False)[autograd.node_row]
    if not paid.any():
        return CategoryColumn.constant(None, n)
    order = launches.order
    # A stretch of the caller's own launches ends at the engine, at communication and at forward work.
    cut = (autograd.site.present | comm)[order]
    rows = np.arange(len(order))
    before = np.maximum.accumulate(np.where(cut, rows, -1))
    after = np.minimum.accumulate(np.where(cut, rows, len(order))[::-1])[::-1]
    seen = np.append(later[order], False)
    beside = np.zeros(n, np.bool_)
    beside[order] = ~cut & (seen[before] | seen[after])
    return CategoryColumn.choose(n, [("second", later), ("beside", beside)])


def _shapes(ranks: CategoryColumn) -> CategoryColumn:
    """How a group's ranks lie: all of those any group names, neighbours, or every so many."""
    members = [[int(n) for n in re.findall(r"\d{1,18}", v)] for v in ranks.values]
    largest = max((len(m) for m in members), default=0)

    def shape(m: list[int]) -> str | None:
        if len(m) < 2:
            return None
        if len(m) == largest and min(m) == 0 and max(m) == len(m) - 1:
            return "all"
        return "contiguous" if max(m) - min(m) == len(m) - 1 else "strided"

    return ranks.replace([shape(m) for m in members])


def _trained(direction: CategoryColumn) -> bool:
    return bool(direction.any_of("backward", "wgrad", "recompute", "optimizer").any())


def _deferred(role: CategoryColumn, direction: CategoryColumn, site: CategoryColumn, at: Ints) -> bool:
    """Weight gradients run outside the engine, so what the engine runs is the input's."""
    outside = ~site.present & (at >= 0)  # of what the file lost the launch of, nobody knows who ran it
    return bool((outside & (role.any_of("wgrad") | direction.any_of("wgrad"))).any())
