"""What one rank contributes to the pipeline: small tables that can be sent from where its trace lies.

``rank_pipeline`` is the per-rank half of reconstruction. It knows chunks of work and messages, but no stages:
those come when the ranks of a pipeline meet in ``assemble``.
"""

from __future__ import annotations

from dataclasses import field
from functools import cached_property

import numpy as np
import numpy.typing as npt
import polars as pl

from tracekit._util.records import dataclass
from tracekit.errors import Notice
from tracekit.intervals import Intervals, union
from tracekit.reconstruct.beside import beside
from tracekit.reconstruct.chunks import POSITION, SURE
from tracekit.reconstruct.contention import CONTENTION, contention
from tracekit.reconstruct.kernels import LOOSE, prepare
from tracekit.reconstruct.lanes import LANES, lanes
from tracekit.reconstruct.messages import read_messages
from tracekit.reconstruct.repeats import repeats
from tracekit.reconstruct.segment import segment_steps
from tracekit.reconstruct.stalls import Timeline, find_stalls
from tracekit.schema import COMPUTE_LABELS, STALL_CAUSES, ProcessGroup, Source

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
    labelled, sampled = sample_steps(labelled)
    rows = prepare(labelled)
    if rows["step"].null_count() == rows.height:  # the whole trace is one step
        rows = rows.with_columns(step=pl.lit(0, pl.Int64))
    cut = _cut(rows)
    used = np.zeros(rows.height, bool)
    used[cut.at] = True
    ran, chunks = Timeline.of(rows), cut.chunks
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


def _contention(rows: pl.DataFrame, cut: _Cut, ran: Timeline) -> pl.DataFrame:
    """Return what communication cost the kernels of the chunks of all steps."""
    if not len(cut.at):
        return pl.DataFrame(schema=CONTENTION)
    used = rows.select("host_ns", "start_ns", "end_ns")[cut.at]
    named = used.with_columns(chunk=pl.Series(cut.chunk), op=cut.chunks["op"].gather(cut.chunk))
    return contention(named, ran.time(("pp_comm",)))


def sample_steps(labelled: pl.DataFrame, *, most: int = MOST_STEPS) -> tuple[pl.DataFrame, tuple[Notice, ...]]:
    """Return at most *most* steps, evenly spread, with a notice where some were left out.

    The stride is a power of two and counts step numbers, so that ranks which differ in a step or two keep the same.

    >>> rows = pl.DataFrame({"step": [1, 2, 3, 4, 5, None]})
    >>> kept, (notice,) = sample_steps(rows, most=2)
    >>> kept["step"].to_list(), notice.code
    ([4, None], 'steps-sampled')
    """
    steps = labelled["step"].drop_nulls().unique().sort()
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


@dataclass(frozen=True, eq=False)
class _Cut:
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
    used = rows.select(*_IN_CHUNKS)[at].with_columns(chunk=pl.Series(chunk))
    chunks = _held(used).with_columns(
        step=pl.Series(np.repeat([step for step, _, _ in segmented], counts)),
        op=pl.Series([op for _, _, cut in segmented for op in cut.op], dtype=pl.String),
        pair=pl.Series(np.concatenate([cut.pair for _, _, cut in segmented])),
        confidence=pl.Series([sure for _, _, cut in segmented for sure in cut.confidence], dtype=pl.Float64),
    )
    chunks = _shared_names(chunks)
    partners = [
        beside(chunks[a:b], from_ranges=cut.from_ranges)
        for a, b, (_, _, cut) in zip(first, first[1:], segmented, strict=False)
    ]
    return _Cut(chunks.with_columns(beside=pl.concat(partners)), at, chunk)


_IN_CHUNKS = ("name", "host_ns", "side", "start_ns", "end_ns", "stage", "microbatch", "block")
"""What is asked of a chunk's rows."""


def _held(used: pl.DataFrame) -> pl.DataFrame:
    """Return for every chunk when its rows were launched and ran, what they are called and how often they repeat."""
    host = pl.col("host_ns")
    return (
        used.group_by("chunk")
        .agg(
            host.min().alias("launch_ns"),
            pl.coalesce(host.filter(pl.col("side") != LOOSE).max(), host.max()).alias("last_ns"),
            pl.col("start_ns").min(),
            pl.col("end_ns").max(),
            pl.col("stage", "microbatch", "block").drop_nulls().first(),
        )
        .join(repeats(used), on="chunk", how="left")
        .sort("chunk")
    )


def _shared_names(chunks: pl.DataFrame) -> pl.DataFrame:
    """Return the chunks; a backward without a name of its own has its forward's."""
    names, key = ("stage", "microbatch"), ["step", "pair"]
    has_names = pl.all_horizontal(pl.col(names).is_not_null())
    own = chunks.filter(has_names & (pl.col("op") == "F")).group_by(key).agg(pl.col(n).first() for n in names)
    if not chunks.select(has_names.any()).item():
        return chunks
    joined = chunks.join(own, on=key, how="left", suffix="_of_f", maintain_order="left")
    named = joined.with_columns(pl.coalesce(n, f"{n}_of_f").alias(n) for n in names).drop(f"{n}_of_f" for n in names)
    return named.with_columns(confidence=pl.when(has_names).then(pl.lit(SURE)).otherwise("confidence"))


def _stall_table(stalls: dict[str, Intervals]) -> pl.DataFrame:
    """Return the stalls as one table, so that they travel."""
    start, end = (np.concatenate([getattr(s, n) for s in stalls.values()]) for n in ("start_ns", "end_ns"))
    cause = np.repeat(np.array(list(stalls), dtype=np.str_), [len(s) for s in stalls.values()])
    return pl.DataFrame({"cause": cause, "start_ns": start, "end_ns": end}, schema_overrides={"cause": STALLS["cause"]})


def _measured(chunks: pl.DataFrame, ran: Timeline, stalls: dict[str, Intervals]) -> pl.DataFrame:
    """Return the chunks with what was inside them; inside the whole block where two ran as one."""
    if chunks.is_empty():
        return chunks
    start, end = _spans(chunks)
    compute = ran.time((*COMPUTE_LABELS, "other"))
    inside = {f"{cause}_ns": pl.Series(s.covered_ns(start, end)) for cause, s in stalls.items()}
    return chunks.with_columns(
        busy_ns=pl.Series(compute.covered_ns(start, end)),
        wgrad_ns=pl.Series(ran.time(("wgrad",)).covered_ns(start, end)),
        **inside,
    ).select(pl.col(name).cast(kind) for name, kind in CHUNKS.items())


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
    message = (pl.col("label").cast(pl.String) == "pp_comm") & pl.col("group").is_not_null()
    words = rows.filter(message).select(pl.col("group", "group_desc", "group_ranks").cast(pl.String))
    named = words.filter(pl.col("group_ranks").str.contains(r"^\[\d+(,\d+)*\]$")).unique("group", maintain_order=True)
    more = [
        ProcessGroup(name, text, tuple(map(int, members[1:-1].split(","))))
        for name, text, members in named.rows()
        if name not in listed
    ]
    return (*source.groups, *more)


def _group(rows: pl.DataFrame) -> str | None:
    part = rows.filter((pl.col("label").cast(pl.String) == "pp_comm") & pl.col("group").is_not_null())
    return None if part.is_empty() else str(part["group"].cast(pl.String).mode()[0])


def _notices(rows: pl.DataFrame, chunks: pl.DataFrame) -> tuple[Notice, ...]:
    notices = []
    if chunks.height and not rows["number"].is_not_null().any():
        notices.append(
            Notice("no-sequence-numbers", "no autograd sequence numbers: backwards are tied to forwards by order alone")
        )
    guessed = chunks.filter((pl.col("op") == "B") & (pl.col("confidence") <= POSITION))
    if guessed.height and not notices:
        text = "backwards share no sequence number with a forward (as with recomputed layers): tied by order alone"
        notices.append(Notice("pairs-by-order", text))
    alone = chunks.filter(pl.col("op") == "F").join(chunks.filter(pl.col("op") != "F"), on=["step", "pair"], how="anti")
    if alone.height and alone.height < chunks.filter(pl.col("op") == "F").height:
        notices.append(Notice("forward-without-backward", "some forwards have no backward in the trace"))
    return tuple(notices)
