"""Everything known about every GPU event before any rule speaks, joined once."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import polars as pl

from tracekit._util.coded import Bools, Text
from tracekit._util.columns import whole_numbers
from tracekit._util.records import dataclass
from tracekit.classify._nest import Ints
from tracekit.classify.autograd import Autograd, Nodes, read_autograd
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
from tracekit.classify.ranges import Launches, Ranges, read_ranges, with_op_facts
from tracekit.classify.rules import COMPARISON, Condition, Kind
from tracekit.classify.tallies import halves, turns
from tracekit.classify.threads import read_threads

Column = Text | Bools | Ints
_HOOKS = r"FSDP::post_backward|FullyShardedDataParallel\._post_backward"
_SHARDS = r"fsdp::(all_gather_copy_in|chunk_cat)"
"""What fills the buffer of a collective on sharded weights or gradients."""
COPY_KERNELS = r"^__amd_rocclr_(copy|fill)"
"""ROCm's runtime fills and copies buffers with kernels."""
ATTENTION = r"(?i)flash(?!infer)|fmha|sdpa|attention|attn|(Batch|Single)(Prefill|Decode)With"


@dataclass(frozen=True)
class Evidence:
    """Columns of evidence, one row for each GPU event, in order of start."""

    gpu: pl.DataFrame
    columns: dict[str, Column]
    launch_at: Ints
    launch_tid: Ints
    launch_thread: Ints
    sequence: Ints
    node_row: Ints
    nodes: Nodes
    collectives: Collectives

    @property
    def two_way(self) -> bool:
        """Forward work arrives over the pipeline from more than one rank."""
        arrives = self.text("comm_pass").map(lambda v: v == "forward") & self.text("call").map(lambda v: v == "recv")
        return len(np.unique(self.collectives.peer[arrives & (self.collectives.peer >= 0)])) > 1

    def __len__(self) -> int:
        return len(self.gpu)

    def text(self, column: str) -> Text:
        """One of the text columns."""
        values = self.columns[column]
        assert isinstance(values, Text)
        return values

    def test(self, column: str, condition: Condition) -> Bools:
        """Rows whose evidence meets one condition of a rule."""
        values = self.columns[column]
        if isinstance(values, Text):
            if isinstance(condition, bool):
                return values.present if condition else ~values.present
            if isinstance(condition, tuple):
                return values.map(lambda v: v in condition)
            assert isinstance(condition, str), "numbers are compared with numbers"
            return values.matches(condition)
        if isinstance(condition, str):
            return _compare(values, condition)
        met: Bools = values == condition
        return met

    def show(self, row: int) -> dict[str, str | int | bool]:
        """List the evidence of one event, without what is unknown."""
        shown: dict[str, str | int | bool] = {}
        for name, values in self.columns.items():
            if isinstance(values, Text):
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
    gpu = with_op_facts(gpu, ranges, launches)
    comm = read_collectives(gpu, ranges, launches)
    autograd, doubtful = with_recomputed(ranges, launches, read_autograd(ranges, launches))
    autograd = read_threads(gpu, launches, autograd, comm=comm.library.present)
    matmuls = read_matmuls(gpu, ranges, launches, autograd, doubtful=doubtful)
    matmuls = matmuls.with_convolutions(read_convolutions(gpu, ranges, launches))
    directions = read_directions(gpu, ranges, launches, autograd, matmuls, comm=comm.library.present)
    kernel = (gpu["kind"] == "kernel").to_numpy()
    passes = comm_passes(ranges, launches, autograd, comm, directions, kernel=kernel)
    copies = read_copies(gpu, launches, comm, engine=autograd.node_row >= 0)
    names, chain = Text.of(gpu["name"]), ranges.paths(launches.op, ranges.op_of, ranges.op_path)
    base: dict[str, Column] = {
        **_launch_columns(gpu, ranges, launches, names, chain),
        "class": _classes(gpu, comm, names),
        "node": autograd.node,
        "fwd_op": autograd.fwd_op,
        "site": autograd.site,
        "feeds": feeding(ranges, autograd),
        "gemm": matmuls.is_gemm,
        "role": matmuls.role,
        "role_from": matmuls.evidence,
        "after_role": matmuls.after,
        "visit": _visits(launches, autograd, matmuls, comm.library.present),
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
    evidence = Evidence(
        gpu,
        base,
        launches.at,
        launches.tid,
        launches.thread,
        autograd.sequence,
        autograd.node_row,
        autograd.nodes(ranges),
        comm,
    )
    kinds = decide(evidence, groups).where(comm.library.present)
    attention = names.matches(ATTENTION) | chain.matches(ATTENTION)
    marks = Marks(attention, matmuls.is_gemm, kinds.map(lambda v: v == "ep"))
    exchanges = read_exchanges(gpu, launches, autograd, comm, passes=passes, marks=marks)
    summed = autograd.node.map(lambda v: v == "AccumulateGrad") | evidence.text("annotations").matches(_HOOKS)
    summed &= comm.call.map(lambda v: v in ("all_reduce", "reduce_scatter", "reduce"))
    summed |= _after(launches, chain.matches(_SHARDS)) & comm.call.map(lambda v: v in ("all_gather", "reduce_scatter"))
    reducing = None
    if not autograd.active and autograd.site.present.any():  # without operators: by who sums what, and when
        reducing = reducing_groups(comm, passes.known, autograd.site, whole_numbers(gpu["bytes"]))
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


def _compare(values: Column, condition: str) -> Bools:
    """Numbers that compare as asked; an unknown number never does."""
    match = COMPARISON.fullmatch(condition)
    assert match is not None
    compare = {">=": np.greater_equal, "<=": np.less_equal, ">": np.greater, "<": np.less}[match[1]]
    numbers = np.asarray(values)
    met: Bools = compare(numbers, int(match[2])) & (numbers >= 0)
    return met


def decide(evidence: Evidence, kinds: Sequence[Kind]) -> Text:
    """Take the value of the first kind whose conditions all hold."""
    cases: list[tuple[str, Bools]] = []
    for kind in kinds:
        mask = np.ones(len(evidence), np.bool_)
        for column, condition in kind.when.items():
            mask &= evidence.test(column, condition)
        cases.append((kind.value, mask))
    chosen = Text.choose(len(evidence), cases)
    return chosen.replace(chosen.values)


def _launch_columns(
    gpu: pl.DataFrame, ranges: Ranges, launches: Launches, names: Text, chain: Text
) -> dict[str, Column]:
    annotations = ranges.paths(launches.ann, ranges.ann_of, ranges.ann_path)
    marked = ranges.name.where(~ranges.is_op).matches(
        r"\(W\)$|(?i: wgrad$|^_\w+_wgrad$|\.wgrad_gemm|weight[-_ ]?grad)|^PP:\d+W\d+"
    )
    return {
        "kind": Text.of(gpu["kind"].cast(pl.String)),
        "name": names,
        "op": ranges.name.take(launches.op),
        "chain": chain,
        "annotation": ranges.name.take(launches.ann),
        "annotations": annotations,
        "domain": ranges.text("domain").take(launches.ann),
        "bytes": whole_numbers(gpu["bytes"]),
        "stream": whole_numbers(gpu["stream"]),
        "graph": whole_numbers(gpu["graph"]),
        "launched": launches.at >= 0,
        "wgrad_annotated": np.full(len(gpu), bool(marked.any())),
    }


def _classes(gpu: pl.DataFrame, comm: Collectives, names: Text) -> Text:
    kind = gpu["kind"].cast(pl.String)
    copies = kind.is_in(["memcpy", "memset"]).to_numpy() | names.matches(COPY_KERNELS)
    return Text.choose(
        len(gpu),
        [
            ("communication", comm.library.present),
            ("copy", copies),
            ("compute", np.ones(len(gpu), np.bool_)),
        ],
    )


def _after(launches: Launches, mask: Bools) -> Bools:
    """Events launched right after one of *mask* on the same thread."""
    order = np.lexsort((launches.at, launches.thread))
    out = np.zeros(len(mask), np.bool_)
    same = launches.thread[order[1:]] == launches.thread[order[:-1]]
    out[order[1:]] = mask[order[:-1]] & same & (launches.at[order[:-1]] >= 0)
    return out


def _leads_to(launches: Launches, comm: Collectives, role: Text) -> Text:
    """Of communication, the role of the next one launched, where that is on a group of the same ranks."""
    rows = np.flatnonzero(comm.library.present & (launches.at >= 0))
    rows = rows[np.argsort(launches.at[rows], kind="stable")]
    out = np.full(len(role), -1, np.int64)
    ranks = comm.group_ranks.codes[rows]
    same = (ranks[1:] == ranks[:-1]) & (ranks[1:] >= 0)
    out[rows[:-1]] = np.where(same, role.codes[rows[1:]], -1)
    return Text(role.values, out)


def _stream_passes(gpu: pl.DataFrame, direction: Text) -> Text:
    """Find the pass of the next exchange on each event's stream: what runs before it there prepares it."""
    code = pl.when(pl.col("code") >= 0).then("code").backward_fill().over("device", "stream").fill_null(-1)
    table = pl.DataFrame({"code": direction.codes, "device": gpu["device"], "stream": gpu["stream"]})
    return Text(direction.values, table.select(code)["code"].to_numpy().astype(np.int64))


def _visits(launches: Launches, autograd: Autograd, matmuls: Matmuls, comm: Bools) -> Text:
    """Mark what nodes do when they run a second time for the weights, and what the caller does right beside that.

    Only where products show that the second time is for the weights: a graph kept and run through twice is none.
    """
    n = len(launches.at)
    inside = autograd.node_row >= 0
    later = inside & np.append(autograd.ran_before, False)[autograd.node_row]
    alone = np.bincount(autograd.node_row[matmuls.is_gemm & inside], minlength=len(autograd.is_node)) == 1
    paid = later & matmuls.role.map(lambda v: v == "wgrad") & np.append(alone, False)[autograd.node_row]
    if not paid.any():
        return Text.constant(None, n)
    order = np.argsort(launches.at, kind="stable")
    order = order[launches.at[order] >= 0]
    # A stretch of the caller's own launches ends at the engine, at communication and at forward work.
    cut = (autograd.site.present | comm)[order]
    rows = np.arange(len(order))
    before = np.maximum.accumulate(np.where(cut, rows, -1))
    after = np.minimum.accumulate(np.where(cut, rows, len(order))[::-1])[::-1]
    seen = np.append(later[order], False)
    beside = np.zeros(n, np.bool_)
    beside[order] = ~cut & (seen[before] | seen[after])
    return Text.choose(n, [("second", later), ("beside", beside)])


def _shapes(ranks: Text) -> Text:
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


def _trained(direction: Text) -> bool:
    return bool(direction.map(lambda v: v in ("backward", "wgrad", "recompute", "optimizer")).any())


def _deferred(role: Text, direction: Text, site: Text, at: Ints) -> bool:
    """Weight gradients run outside the engine, so what the engine runs is the input's."""
    outside = ~site.present & (at >= 0)  # of what the file lost the launch of, nobody knows who ran it
    return bool((outside & (role.map(lambda v: v == "wgrad") | direction.map(lambda v: v == "wgrad"))).any())
