"""What one rank contributes to the pipeline: small tables that can be sent from where its trace lies.

``rank_pipeline`` is the per-rank half of reconstruction. It knows chunks of work and messages, but no stages:
those come when the ranks of a pipeline meet in ``assemble``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import msgspec
import numpy as np
import numpy.typing as npt
import polars as pl

from tracekit._loops.interval_sets import NEVER
from tracekit._util.columns import present, to_int64
from tracekit.errors import Notice
from tracekit.intervals import Intervals, union
from tracekit.reconstruct.beside import COLUMNS, partners
from tracekit.reconstruct.chunks import POSITION, SURE
from tracekit.reconstruct.contention import CONTENTION, contention
from tracekit.reconstruct.kernels import LOOSE, prepare
from tracekit.reconstruct.lanes import LANES, lanes
from tracekit.reconstruct.messages import read_messages
from tracekit.reconstruct.repeats import repeats
from tracekit.reconstruct.segment import segment_steps
from tracekit.reconstruct.stalls import Timeline, find_stalls
from tracekit.schema import COMPUTE_LABELS, LABELS, STALL_CAUSES, ProcessGroup, Source, conform

Ints = npt.NDArray[np.int64]

CHUNKS = pl.Schema(
    {
        "step": pl.Int64(),
        "op": pl.String(),  # F, I, W or B
        "pair": pl.Int64(),  # numbers the forwards of a step in launch order; a backward has its forward's
        "beside": pl.Int64(),  # row, within its step, of the chunk it overlaps with (FB), else -1
        "launch_ns": pl.Int64(),  # of its first kernel
        "last_ns": pl.Int64(),  # launch of the last its output needs: delayed weight gradients do not count
        "start_ns": pl.Int64(),
        "end_ns": pl.Int64(),
        "busy_ns": pl.Int64(),  # union of compute inside it
        "wgrad_ns": pl.Int64(),  # of that, weight gradients
        **{f"{cause}_ns": pl.Int64() for cause in STALL_CAUSES},
        "layers": pl.Int64(),  # how many times its kernels come again
        "stage": pl.Int32(),
        "microbatch": pl.Int32(),
        "confidence": pl.Float64(),
    }
)
STALLS = pl.Schema({"cause": pl.Enum(STALL_CAUSES), "start_ns": pl.Int64(), "end_ns": pl.Int64()})


MOST_STEPS = 32
"""Steps whose pipeline is reconstructed; a run follows one schedule, so more of them only cost time."""


@dataclass(frozen=True, eq=False)
class RankPipeline:
    """Chunks, messages, stalls and lanes of one rank; picklable and small."""

    rank: int
    chunks: pl.DataFrame
    messages: pl.DataFrame
    stalls: pl.DataFrame
    lanes: pl.DataFrame
    groups: tuple[ProcessGroup, ...]
    group: str | None  # the communicator its messages went through
    world_size: int | None
    peers_local: bool = False  # peers are counted within the communicator, as NCCL does in Nsight's traces
    peers_by_order: bool = False  # nothing recorded says to whom messages went: order and time do
    cut: tuple[int | None, ...] = ()  # steps the recording holds only a part of; None: the trace has no step marks
    notices: tuple[Notice, ...] = ()
    contention: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=CONTENTION))

    @cached_property
    def by_step(self) -> dict[int, tuple[pl.DataFrame, pl.DataFrame]]:
        """Chunks and messages of each step that has chunks, cut once for all."""
        chunks, messages = (
            {int(part["step"][0]): part for part in table.drop_nulls("step").partition_by("step", maintain_order=True)}
            for table in (self.chunks, self.messages)
        )
        none = self.messages.clear()
        return {step: (part, messages.get(step, none)) for step, part in chunks.items()}

    @property
    def has_work(self) -> bool:
        """Whether any forward or backward was found."""
        return self.chunks.height > 0

    def loaded(self) -> RankPipeline:
        """Return it with its tables in memory; here they are."""
        return self

    @property
    def peers(self) -> tuple[int | None, ...]:
        """Whom it exchanged messages with; None among them where some message does not say."""
        return tuple(self.messages["peer"].unique().to_list())

    @property
    def stalled(self) -> dict[str, Intervals]:
        """Stalls by cause, ready to be measured."""
        stalls = self.stalls
        code, *times = (stalls[name].to_physical().to_numpy() for name in STALLS)
        there = np.unique(code).tolist()
        return {STALL_CAUSES[number]: union(*(time[code == number] for time in times)) for number in there}


def rank_pipeline(labelled: pl.DataFrame, source: Source, *, around: pl.DataFrame | None = None) -> RankPipeline:
    """Return the chunks of work and the messages of one rank's labelled events.

    *around* may hold more of the rank's GPU events than the steps asked for: what of them stood in the way is counted.

    >>> from tracekit.schema import LABELLED, conform
    >>> rows = [
    ...     {"label": "forward", "start_ns": 0, "end_ns": 5, "autograd_sequence": 1},
    ...     {"label": "dgrad", "start_ns": 6, "end_ns": 9, "autograd_sequence": 1, "node": "MmBackward0"},
    ... ]
    >>> done = rank_pipeline(conform(pl.DataFrame(rows), LABELLED), Source("a.json", "kineto", 3, "name"))
    >>> done.chunks.select("op", "pair", "start_ns", "end_ns").rows()
    [('F', 0, 0, 5), ('B', 0, 6, 9)]
    """
    everything = labelled if around is None else around
    labelled, sampled = sample_steps(labelled.select(_ASKED))
    rows = prepare(labelled)
    if rows["step"].null_count() == rows.height:  # the whole trace is one step
        rows = rows.with_columns(step=pl.lit(0, pl.Int64))
    cut = _cut(rows)
    used = np.zeros(rows.height, bool)
    used[cut.at] = True
    ran = Timeline(rows["code"].to_numpy(), rows["start_ns"].to_numpy(), rows["end_ns"].to_numpy())
    chunks = cut.chunks
    stalls = find_stalls(ran, used, everything, chunks)
    chunks = _measured(chunks, ran, stalls)
    messages = read_messages(rows, chunks)
    return RankPipeline(
        rank=source.rank,
        chunks=chunks,
        messages=messages,
        stalls=_stall_table(stalls),
        lanes=lanes(rows, chunks) if chunks.height else pl.DataFrame(schema=LANES),
        groups=_groups(source, rows),
        group=_group(rows),
        world_size=source.world_size,
        peers_local=source.reader == "nsight",
        notices=(*sampled, *_notices(rows, chunks)),
        contention=_contention(rows, cut, ran),
    )


_ASKED = ("id", "name", "label", "pass", "step", "start_ns", "end_ns", "launch_ns", "stream", "autograd_sequence",
          "node", "annotation", "annotations", "stage", "microbatch", "p2p", "group", "group_desc", "group_ranks",
          "bytes")  # fmt: skip
"""What is asked of GPU events."""


def _contention(rows: pl.DataFrame, cut: _Cut, ran: Timeline) -> pl.DataFrame:
    """Return what communication cost the kernels of the chunks of all steps."""
    host, start, end = (rows[name].to_numpy()[cut.at] for name in ("host_ns", "start_ns", "end_ns"))
    return contention(cut.chunk, cut.chunks["op"].to_list(), (host, start, end), ran.time(("pp_comm",)))


def sample_steps(labelled: pl.DataFrame, *, most: int = MOST_STEPS) -> tuple[pl.DataFrame, tuple[Notice, ...]]:
    """Return at most *most* steps, evenly spread, with a notice where some were left out.

    The stride is a power of two and counts step numbers, so that ranks which differ in a step or two keep the same.

    >>> rows = pl.DataFrame({"step": [1, 2, 3, 4, 5, None]})
    >>> kept, (notice,) = sample_steps(rows, most=2)
    >>> kept["step"].to_list(), notice.code
    ([4, None], 'steps-sampled')
    """
    steps = labelled["step"].unique().drop_nulls().sort()
    stride = 1
    while len(steps) > most * stride:
        stride *= 2
    if stride == 1:
        return labelled, ()
    wanted = steps.filter(steps % stride == 0)
    if wanted.is_empty():  # numbers that skip: every second step marked, say
        wanted = steps.gather_every(stride)
    kept = labelled.filter(pl.col("step").is_null() | pl.col("step").is_in(wanted.implode()))
    text = f"one step in {stride} is compared with its ideal, {len(wanted)} of {len(steps)}; choose others with --steps"
    return kept, (Notice("steps-sampled", text),)


class _Cut(msgspec.Struct, frozen=True, eq=False):
    """Chunks of all steps, the rows they are made of, and which chunk each of these rows is in."""

    chunks: pl.DataFrame
    at: Ints
    chunk: Ints


def _cut(rows: pl.DataFrame) -> _Cut:
    """Return all steps' chunks: each step is cut alone, and what its chunks hold is counted for all steps at once."""
    segmented = [(step, at, cut) for step, at, cut in segment_steps(rows) if (cut.chunk >= 0).any()]
    if not segmented:
        return _Cut(pl.DataFrame(schema=CHUNKS), np.zeros(0, np.int64), np.zeros(0, np.int64))
    counts = [len(cut.op) for _, _, cut in segmented]
    first = np.cumsum([0, *counts]).tolist()
    at = np.concatenate([at[cut.chunk >= 0] for _, at, cut in segmented])
    chunk = np.concatenate(
        [cut.chunk[cut.chunk >= 0] + before for before, (_, _, cut) in zip(first, segmented, strict=False)]
    )
    chunks = _held(rows, at, chunk).with_columns(
        pl.Series("step", np.repeat([step for step, _, _ in segmented], counts)),
        pl.Series("op", [op for _, _, cut in segmented for op in cut.op], dtype=pl.String),
        pl.Series("pair", np.concatenate([cut.pair for _, _, cut in segmented])),
        pl.Series("confidence", [sure for _, _, cut in segmented for sure in cut.confidence], dtype=pl.Float64),
    )
    chunks = _shared_names(chunks)
    columns = [chunks[name].to_list() for name in COLUMNS]
    found: list[int] = []
    for a, b, (_, _, cut) in zip(first, first[1:], segmented, strict=False):
        found += partners([column[a:b] for column in columns], from_ranges=cut.from_ranges)
    return _Cut(chunks.with_columns(pl.Series("beside", found, dtype=pl.Int64)), at, chunk)


def _held(rows: pl.DataFrame, at: Ints, chunk: Ints) -> pl.DataFrame:
    """Return for every chunk when its rows were launched and ran, what they are called and how often they repeat."""
    order = np.argsort(chunk, kind="stable")
    first = np.flatnonzero(np.diff(chunk[order], prepend=-1))
    host, start, end = (rows[name].to_numpy()[at] for name in ("host_ns", "start_ns", "end_ns"))
    needed = np.where(rows["side"].to_numpy()[at] != LOOSE, host, NEVER)
    last = np.maximum.reduceat(needed[order], first)
    return pl.DataFrame(
        {
            "launch_ns": np.minimum.reduceat(host[order], first),
            "last_ns": np.where(last == NEVER, np.maximum.reduceat(host[order], first), last),
            "start_ns": np.minimum.reduceat(start[order], first),
            "end_ns": np.maximum.reduceat(end[order], first),
            **{name: _first_known(rows[name], at, chunk, len(first)) for name in ("stage", "microbatch", "block")},
            "layers": repeats(chunk, to_int64(rows["name"].to_physical())[at], end - start),
        }
    )


def _first_known(column: pl.Series, at: Ints, chunk: Ints, count: int) -> pl.Series:
    """Return of each chunk the first value among its rows *at*; null where none has one."""
    if column.null_count() == len(column):
        return column.clear(count)
    known = np.flatnonzero(present(column)[at])[::-1]
    row = np.full(count, -1, np.int64)
    row[chunk[known]] = at[known]  # backwards: the first one stays
    return column[np.maximum(row, 0)].scatter(np.flatnonzero(row < 0), None)


def _shared_names(chunks: pl.DataFrame) -> pl.DataFrame:
    """Return the chunks; a backward without a name of its own has its forward's."""
    names, key = ("stage", "microbatch"), ["step", "pair"]
    if any(chunks[name].null_count() == len(chunks) for name in names):
        return chunks
    has_names = pl.all_horizontal(pl.col(names).is_not_null())
    if not chunks.select(has_names.any()).item():
        return chunks
    own = chunks.filter(has_names & (pl.col("op") == "F")).group_by(key).agg(pl.col(n).first() for n in names)
    joined = chunks.join(own, on=key, how="left", suffix="_of_f", maintain_order="left")
    named = joined.with_columns(pl.coalesce(n, f"{n}_of_f").alias(n) for n in names).drop(f"{n}_of_f" for n in names)
    return named.with_columns(confidence=pl.when(has_names).then(pl.lit(SURE)).otherwise("confidence"))


def _stall_table(stalls: dict[str, Intervals]) -> pl.DataFrame:
    """Return the stalls as one table, so that they travel."""
    start, end = (np.concatenate([getattr(s, n) for s in stalls.values()]) for n in ("start_ns", "end_ns"))
    cause = np.repeat([STALL_CAUSES.index(name) for name in stalls], [len(s) for s in stalls.values()])
    named = pl.Series(STALL_CAUSES, dtype=STALLS["cause"])[cause]
    return pl.DataFrame({"cause": named, "start_ns": start, "end_ns": end})


def _measured(chunks: pl.DataFrame, ran: Timeline, stalls: dict[str, Intervals]) -> pl.DataFrame:
    """Return the chunks with what was inside them; inside the whole block where two ran as one."""
    if chunks.is_empty():
        return chunks
    start, end = _spans(chunks)
    compute = ran.time((*COMPUTE_LABELS, "other"))
    inside = {
        "busy_ns": compute.covered_ns(start, end),
        "wgrad_ns": ran.time(("wgrad",)).covered_ns(start, end),
        **{f"{cause}_ns": stall.covered_ns(start, end) for cause, stall in stalls.items()},
    }
    return conform(chunks.with_columns(pl.Series(name, ns) for name, ns in inside.items()), CHUNKS)


def _spans(chunks: pl.DataFrame) -> tuple[Ints, Ints]:
    start, end = chunks["start_ns"].to_numpy().copy(), chunks["end_ns"].to_numpy().copy()
    step, beside = chunks["step"].to_numpy(), chunks["beside"].to_numpy()
    paired = np.flatnonzero(beside >= 0)
    other = beside[paired] + np.searchsorted(step, step[paired])
    both = np.minimum(start[paired], start[other]), np.maximum(end[paired], end[other])
    start[paired], end[paired] = both
    return start, end


def _groups(source: Source, rows: pl.DataFrame) -> tuple[ProcessGroup, ...]:
    """Return the process groups the file lists, and those that only its messages name the ranks of."""
    listed = {group.name for group in source.groups if group.ranks}
    words = _named(rows).select(pl.col("group", "group_desc", "group_ranks").cast(pl.String))
    named = words.filter(pl.col("group_ranks").str.contains(r"^\[\d+(,\d+)*\]$")).unique("group", maintain_order=True)
    more = [
        ProcessGroup(name, text, tuple(map(int, members[1:-1].split(","))))
        for name, text, members in named.rows()
        if name not in listed
    ]
    return (*source.groups, *more)


def _named(rows: pl.DataFrame) -> pl.DataFrame:
    """Return the pipeline's messages whose communicator is known."""
    message = rows["code"].to_numpy() == LABELS.index("pp_comm")
    return rows[np.flatnonzero(message & present(rows["group"]))]


def _group(rows: pl.DataFrame) -> str | None:
    part = _named(rows)
    return None if part.is_empty() else str(part["group"].cast(pl.String).mode()[0])


def _notices(rows: pl.DataFrame, chunks: pl.DataFrame) -> tuple[Notice, ...]:
    notices = []
    if chunks.height and rows["number"].null_count() == len(rows):
        notices.append(
            Notice("no-sequence-numbers", "no autograd sequence numbers: backwards are tied to forwards by order alone")
        )
    cells = list(zip(*(chunks[name].to_list() for name in ("op", "step", "pair", "confidence")), strict=True))
    if not notices and any(op == "B" and sure <= POSITION for op, _, _, sure in cells):
        text = "backwards share no sequence number with a forward (as with recomputed layers): tied by order alone"
        notices.append(Notice("pairs-by-order", text))
    backs = {(step, pair) for op, step, pair, _ in cells if op != "F"}
    forwards = [(step, pair) in backs for op, step, pair, _ in cells if op == "F"]
    if any(forwards) and not all(forwards):
        notices.append(Notice("forward-without-backward", "some forwards have no backward in the trace"))
    return tuple(notices)
