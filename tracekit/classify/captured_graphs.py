"""Captured graphs: the launches that a trace of a capture recorded, and which node of a replay each of them became.

A replay of a CUDA or HIP graph has kernels, copies and memsets, and no operators: those ran once,
while the graph was captured. The capture's trace has their launches, with operators and shapes
around them, and no GPU events.

A launch is joined with a node of a replay by the first of these that the recordings allow:

1. by the name of the kernel and the order, where launches record the name (HIP);
2. by the order alone, where all nodes of the replay started in the order of the launches;
3. by the order within each stream of the replay: graphs with branches run on several streams, whose
   kernels overlap. Of the interleavings of the streams, the one is taken in which the same launch
   of the same operator with the same shapes always is the same kernel (``merge_streams``).

A join is accepted only if that last condition holds for the repeated launches, and if operators and
kernels share words (``aten::gelu_backward``, ``GeluBackwardCUDAKernelImpl``). Launches that
contradict either stay without a node.
"""

from collections import Counter, defaultdict
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import polars as pl

from tracekit._util.arrays import Bools, Ints
from tracekit.classify.captured_sizes import find_other_size
from tracekit.classify.host_ranges import ranges_around_calls
from tracekit.classify.kernel_words import find_related
from tracekit.classify.names import HOST_CALLS, LIBRARIES
from tracekit.classify.stream_merge import merge_streams
from tracekit.schema import GPU_KINDS, GraphCapture

MIN_AGREEMENT = 0.9
"""Minimum share of repeated launches that are the same kernel as their repetitions, to accept a
join."""
MIN_RELATED_SHARE = 0.8
"""Minimum share of launches whose kernel shares a word with the operator, of those whose operator
shares one with any kernel of the replay, to accept a join by order."""
MIN_NAMED_SHARE = 0.95
"""Minimum share of launches whose recorded kernel name is the node's, to accept a join by names."""
_NODE_KINDS = {"launch_kernel": "kernel", "copy": "memcpy", "memset": "memset"}
"""Kinds of graph nodes by the calls that launch them."""
_LIBRARY_KERNELS = "|".join(f"(?:{pattern})" for pattern in LIBRARIES.values())


@dataclass(frozen=True, eq=False, repr=False)
class CapturedGraph:
    """One captured graph: its launches in order, and the host's events during the capture."""

    host: pl.DataFrame
    """Operators, annotations, calls of modules and launches during the capture, cut to its time
    (``EVENTS``)."""
    main_tid: int | None
    """Thread that captured; others, such as those of the autograd engine, launched for it."""
    launches: pl.DataFrame
    """In order: ``correlation``, ``kind`` of node, ``key`` (number of the operator, its shapes and
    the launch in it), ``op``, ``shapes``, ``communicates``, ``kernel`` (name of the kernel, where
    it was recorded)."""

    def __len__(self) -> int:
        return len(self.launches)

    @cached_property
    def kinds(self) -> Counter[str]:
        """Number of launches by kind of node."""
        return Counter(self.launches["kind"].to_list())

    @cached_property
    def moments(self) -> int:
        """Number of different times at which the host's events start or end."""
        return int(pl.concat([self.host["start_ns"], self.host["end_ns"]]).n_unique())

    @cached_property
    def has_names(self) -> bool:
        """Whether the launches record the names of their kernels."""
        is_kernel = self.launches["kind"] == "kernel"
        return bool(self.launches["kernel"].is_not_null().filter(is_kernel).all())

    @cached_property
    def contents(self) -> tuple[tuple[object, ...], ...]:
        """What the launches are, without their times: equal for graphs that cannot be told apart."""
        return tuple(self.launches.select("kind", "op", "shapes", "kernel").iter_rows())


@dataclass(frozen=True, slots=True)
class NodeMatch:
    """Nodes of one replay, joined with the launches of a captured graph."""

    launch: Ints
    """Launch of each node; -1 where it cannot be told."""
    agreement: float | None
    """Share of repeated launches that are the same kernel as their repetitions; None without
    repetitions."""
    related: float | None
    """Share of kernels that share a word with their operator; None if no operator shares one with
    any kernel."""


@dataclass(frozen=True, slots=True)
class Mismatch:
    """Reason why a replay is not one of a captured graph, as a code with figures."""

    case: str
    captured: int = 0
    replayed: int = 0
    share: float | None = None


def read_captured_graphs(capture: GraphCapture) -> tuple[CapturedGraph, ...]:
    """Return the graphs whose capture was recorded, in order.

    Graphs without launches are left out.
    """
    events = capture.events
    is_call = pl.col("kind").is_in(("runtime", "driver"))
    name = pl.col("name").cast(pl.String)
    ran = events.filter(pl.col("kind").is_in(GPU_KINDS))["correlation"].drop_nulls()
    kinds_by_call = []
    for call, kind in _NODE_KINDS.items():
        has_name = name.str.contains(HOST_CALLS[call])
        kinds_by_call.append(pl.when(has_name).then(pl.lit(kind)))
    node_kind = pl.coalesce(kinds_by_call)
    launches = (
        events.with_row_index("row")
        .filter(is_call & pl.col("correlation").is_not_null())
        .with_columns(node_kind=node_kind)
        .filter(pl.col("node_kind").is_not_null() & ~pl.col("correlation").is_in(ran.implode()))
        .sort("start_ns", "id")
        .unique("correlation", keep="first", maintain_order=True)
        .select("row", "correlation", "start_ns", "end_ns", kind="node_kind")
    )
    graphs = []
    for window in _capture_windows(events):
        inside = launches.filter(pl.col("start_ns").is_between(window.start_ns, window.end_ns))
        if len(inside):
            graphs.append(_captured_graph(events, inside, window, capture.kernels))
    return tuple(graphs)


@dataclass(frozen=True, slots=True)
class _Window:
    """Time of one capture."""

    start_ns: int
    end_ns: int
    tid: int | None


def _capture_windows(events: pl.DataFrame) -> list[_Window]:
    """Return the times between the begin and the end of each capture.

    The whole recording if it has neither.
    """
    name = pl.col("name").cast(pl.String)
    is_edge = pl.col("kind").is_in(("runtime", "driver")) & name.str.contains(HOST_CALLS["capture"])
    edges = events.filter(is_edge).sort("start_ns")
    edges = edges.select("tid", "start_ns", "end_ns", begins=name.str.contains("Begin"))
    if edges.is_empty():
        if events.is_empty():
            return []
        first_ns = int(events["start_ns"].to_numpy().min())
        last_ns = int(events["end_ns"].to_numpy().max())
        return [_Window(first_ns, last_ns, None)]
    windows = []
    begun: dict[int, int] = {}  # by thread: end of the call that began its capture
    for tid, start_ns, end_ns, begins in edges.iter_rows():
        if begins:
            begun[tid] = end_ns
        elif tid in begun:
            windows.append(_Window(begun.pop(tid), start_ns, tid))
    return windows


def _captured_graph(
    events: pl.DataFrame, launches: pl.DataFrame, window: _Window, kernels: pl.DataFrame
) -> CapturedGraph:
    """Return the graph that was captured during *window* with these launches."""
    calls = launches["row"].to_numpy().astype(np.int64)
    ranges, op = ranges_around_calls(events, calls)
    outermost = op.copy()
    parent = np.append(ranges.op_of, -1)
    while True:  # climb from all ops together, one level per round
        enclosing = parent[outermost]
        if not (enclosing >= 0).any():
            break
        outermost = np.where(enclosing >= 0, enclosing, outermost)
    op_text = ranges.name.take(op)
    shapes = ranges.text("shapes", op)
    dtypes = ranges.text("dtypes", op)
    table = launches.select("correlation", "kind", "row", "start_ns").with_columns(
        op_text.series("op", pl.String()),
        shapes.series("shapes", pl.String()),
        dtypes.series("dtypes", pl.String()),
        ranges.name.take(outermost).series("outermost", pl.String()),
        pl.Series("call", np.where(outermost >= 0, outermost, -1)),
        pl.Series("path", np.append(ranges.path, 0)[op]),
        pl.Series(
            "communicates",
            _communicates(ranges.text("collective", op).present, op_text.matches(_COMM_OPS)),
        ),
    )
    # The n-th launch of an outermost operator with its path, shapes and types; without an operator,
    # no launch is known to repeat another.
    nth = pl.int_range(pl.len()).over("call", "kind")
    identity = pl.struct("kind", "outermost", "path", "shapes", "dtypes", "nth")
    number = identity.rank("dense").cast(pl.Int64)
    own_number = -pl.int_range(1, pl.len() + 1, dtype=pl.Int64)
    has_operator = pl.col("call") >= 0
    table = table.with_columns(nth=nth)
    table = table.with_columns(key=pl.when(has_operator).then(number).otherwise(own_number))
    table = table.join(kernels, on="correlation", how="left", maintain_order="left")
    columns = ("correlation", "kind", "key", "op", "shapes", "communicates", "kernel")
    return CapturedGraph(_host_events(events, launches, window), window.tid, table.select(columns))


_COMM_OPS = r"record_param_comms|^c10d::|^nccl:"
"""Operators that hand work to a communication library."""


def _communicates(*evidence: Bools) -> Bools:
    """Return which launches belong to a communication library."""
    mask: Bools = np.logical_or.reduce(evidence)
    return mask


def _host_events(events: pl.DataFrame, launches: pl.DataFrame, window: _Window) -> pl.DataFrame:
    """Return the host's events of a capture: what lies in it, and the calls of modules around it, cut to it."""
    is_inside = (pl.col("start_ns") >= window.start_ns) & (pl.col("end_ns") <= window.end_ns)
    overlaps = (pl.col("start_ns") < window.end_ns) & (pl.col("end_ns") > window.start_ns)
    is_launch = pl.col("id").is_in(events["id"].gather(launches["row"]).implode())
    is_range = pl.col("kind").is_in(("cpu_op", "annotation"))
    is_module = pl.col("kind") == "python"
    kept = events.filter(is_launch | (is_range & is_inside) | (is_module & overlaps))
    return kept.with_columns(
        start_ns=pl.col("start_ns").clip(lower_bound=window.start_ns),
        end_ns=pl.col("end_ns").clip(upper_bound=window.end_ns),
    )


def match_nodes(graph: CapturedGraph, nodes: pl.DataFrame) -> NodeMatch | Mismatch:
    """Join the nodes of one replay with the launches of a captured graph.

    Args:
        graph: The captured graph.
        nodes: GPU events of the replay by start, with ``kind``, ``name``, ``device``, ``stream``,
            ``bytes`` and, of kernels, thread ``blocks``.

    """
    replayed = Counter(nodes["kind"].cast(pl.String).to_list())
    for kind in ("kernel", "memset", "memcpy"):
        if replayed[kind] != graph.kinds[kind]:
            return Mismatch(f"{kind}_count", graph.kinds[kind], replayed[kind])
    match = _match_by_evidence(graph, nodes)
    if (
        isinstance(match, NodeMatch)
        and (sizes := _find_other_size(graph, nodes, match)) is not None
    ):
        return Mismatch("sizes", *sizes)
    return match


def _find_other_size(
    graph: CapturedGraph, nodes: pl.DataFrame, match: NodeMatch
) -> tuple[int, int] | None:
    """Return the blocks that the captured shapes ask for and those replayed, if these differ.

    None if not.
    """
    is_joined = match.launch >= 0
    shapes = graph.launches["shapes"].gather(match.launch[is_joined])
    joined = nodes.filter(pl.Series(is_joined)).select(
        pl.col("name").cast(pl.String), shapes, "blocks"
    )
    return find_other_size(joined.rows())


def _match_by_evidence(graph: CapturedGraph, nodes: pl.DataFrame) -> NodeMatch | Mismatch:
    """Join nodes with launches by names where these are recorded, else by order."""
    names = nodes["name"].cast(pl.String).to_list()
    if graph.has_names:
        return _match_names(graph, nodes, names)
    launch_kinds = graph.launches["kind"].to_list()
    best: NodeMatch | None = None
    if nodes["kind"].cast(pl.String).to_list() == launch_kinds:
        best = _checked(graph, nodes, np.arange(len(graph)))
    if nodes.select(pl.struct("device", "stream").n_unique()).item() > 1 and not is_match_accepted(
        best
    ):
        best = _checked(graph, nodes, _match_streams(graph, nodes))
    if best is None:
        return Mismatch("order")
    if not is_match_accepted(best):
        shares = [share for share in (best.agreement, best.related) if share is not None]
        return Mismatch("kernels", share=min(shares, default=None))
    return best


def is_match_accepted(match: NodeMatch | None) -> bool:
    """Return whether a match agrees with itself well enough.

    Without anything to check it by it does not.
    """
    if match is None or (match.agreement is None and match.related is None):
        return False
    repeats_agree = match.agreement is None or match.agreement >= MIN_AGREEMENT
    words_agree = match.related is None or match.related >= MIN_RELATED_SHARE
    return repeats_agree and words_agree


def _match_names(
    graph: CapturedGraph, nodes: pl.DataFrame, names: list[str]
) -> NodeMatch | Mismatch:
    """Join the n-th node of each name with the n-th launch of that name.

    Copies and memsets by kind.
    """
    launch_names = graph.launches.select(pl.coalesce("kernel", "kind")).to_series().to_list()
    is_kernel = pl.col("kind") == "kernel"
    kind = pl.col("kind").cast(pl.String)
    node_name = pl.when(is_kernel).then(pl.Series(names, dtype=pl.String)).otherwise(kind)
    node_names = nodes.select(node_name).to_series().to_list()
    launches_of: dict[str, list[int]] = defaultdict(list)
    for row in range(len(launch_names) - 1, -1, -1):
        launches_of[launch_names[row]].append(row)
    launch = np.full(len(nodes), -1, np.int64)
    for node, name in enumerate(node_names):
        if launches_of[name]:
            launch[node] = launches_of[name].pop()
    share = float((launch >= 0).mean())
    if share < MIN_NAMED_SHARE:
        return Mismatch("names", share=share)
    return NodeMatch(launch, share, None)


def _checked(graph: CapturedGraph, nodes: pl.DataFrame, launch: Ints) -> NodeMatch:
    """Return a match without the nodes that contradict it, and the shares of those that agree with it."""
    is_kernel = pl.col("kind") == "kernel"
    size = pl.format("{} {}", pl.col("kind").cast(pl.String), pl.col("bytes").fill_null(-1))
    launch_row = pl.Series(np.maximum(launch, 0))
    table = nodes.select(
        name=pl.when(is_kernel).then(pl.col("name").cast(pl.String)).otherwise(size),
        kernel=is_kernel,
    )
    table = table.with_columns(
        graph.launches.select("key", "op").select(pl.all().gather(launch_row)),
        matched=pl.Series(launch >= 0),
    )
    matched = table.filter("matched").with_columns(
        times=pl.len().over("key"),
        same=pl.len().over("key", "name"),
    )
    usual_name = pl.col("name").sort_by("same", "name", descending=True).first().over("key")
    matched = matched.with_columns(is_usual=pl.col("name") == usual_name)
    repeated = matched.filter(pl.col("times") > 1)
    agreement = None if repeated.is_empty() else float(repeated["is_usual"].to_numpy().mean())
    related = _related_share(matched.filter("kernel"))
    contradicts = np.zeros(len(launch), np.bool_)
    is_minority = (
        (pl.col("times") > 2) & ~pl.col("is_usual") & (pl.col("same") * 2 < pl.col("times"))
    )
    contradicts[np.flatnonzero(launch >= 0)] = matched.select(is_minority).to_series().to_numpy()
    return NodeMatch(np.where(contradicts, -1, launch), agreement, related)


def _related_share(kernels: pl.DataFrame) -> float | None:
    """Return how many kernels share a word with their operator, of those whose operator shares one with any kernel."""
    pairs = kernels.select("op", "name").drop_nulls()
    related = find_related(pairs["op"].unique().to_list(), pairs["name"].unique().to_list())
    ops_with_words = {op for op, _ in related}
    tried = [(op, name) in related for op, name in pairs.iter_rows() if op in ops_with_words]
    return sum(tried) / len(tried) if tried else None


def _match_streams(graph: CapturedGraph, nodes: pl.DataFrame) -> Ints:
    """Return the launch of each node of a replay on several streams, kind by kind.

    Communication kernels are apart from compute: they have streams of their own, during the capture
    too.
    """
    is_kernel = nodes["kind"] == "kernel"
    by_library = (
        nodes["name"].cast(pl.String).str.contains(_LIBRARY_KERNELS) & is_kernel
    ).to_numpy()
    node_kind = nodes["kind"].cast(pl.String).to_numpy()
    launch_kind = graph.launches["kind"].to_numpy()
    communicates = graph.launches["communicates"].to_numpy() & (launch_kind == "kernel")
    keys = graph.launches["key"].to_numpy()
    texts = nodes["name"].cast(pl.String)
    distinct = texts.unique().sort()
    names = texts.cast(pl.Enum(distinct)).to_physical().to_numpy()
    number_of = {name: number for number, name in enumerate(distinct.to_list())}
    keys_of_op: dict[str, set[int]] = defaultdict(set)
    for key, op in zip(keys.tolist(), graph.launches["op"].to_list(), strict=True):
        keys_of_op[op].add(key)
    ops = [op for op in keys_of_op if op is not None]
    related = []
    for op, name in find_related(ops, distinct.to_list()):
        related += [(key, number_of[name]) for key in keys_of_op[op]]
    streams = nodes.select(pl.struct("device", "stream").rank("dense")).to_series().to_numpy()
    launch = np.full(len(nodes), -1, np.int64)
    for kind in ("kernel", "memset", "memcpy"):
        for is_comm in (False, True):
            rows = np.flatnonzero((node_kind == kind) & (by_library == is_comm))
            launches = np.flatnonzero((launch_kind == kind) & (communicates == is_comm))
            if len(rows) != len(launches):
                continue
            if kind == "kernel" and not is_comm:
                order = merge_streams(keys[launches], names[rows], streams[rows], related)
                launch[rows[order]] = launches
            else:
                launch[rows] = launches
    return launch
