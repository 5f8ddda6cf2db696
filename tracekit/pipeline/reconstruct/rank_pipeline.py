"""Part of one rank in a pipeline: small tables that can be sent from the machine that has the trace.

``rank_pipeline`` is the per-rank half of reconstruction. It finds chunks of work and messages, but
no stages: those are found when the ranks of a pipeline are put together (``pipeline_steps``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import polars as pl

from tracekit.classify.messages import parse_group_ranks
from tracekit.errors import Notice, NoticeValues
from tracekit.intervals import EMPTY, Intervals
from tracekit.metrics.peaks import find_gpu
from tracekit.pipeline.reconstruct.chunk_table import cut_chunks, measure_chunks
from tracekit.pipeline.reconstruct.kernels import prepare
from tracekit.pipeline.reconstruct.messages import CONTENTION, measure_contention, read_messages
from tracekit.pipeline.reconstruct.segment import CONFIDENCE_POSITION
from tracekit.pipeline.reconstruct.stalls import LANES, find_stalls, measure_lanes, time_of
from tracekit.schema import STALL_CAUSES, ProcessGroup, Source

START_AND_END = pl.Schema({"start_ns": pl.Int64(), "end_ns": pl.Int64()})
STALLS = pl.Schema({"cause": pl.Enum(STALL_CAUSES), "start_ns": pl.Int64(), "end_ns": pl.Int64()})

MAX_STEPS = 32
"""Steps whose pipeline is reconstructed; a run follows one schedule, so more of them only cost
time."""


@dataclass(frozen=True, eq=False)
class RankPipeline:
    """Chunks, messages, stalls and lanes of one rank; picklable and small."""

    rank: int
    chunks: pl.DataFrame  # CHUNKS
    messages: pl.DataFrame  # MESSAGES
    stalls: pl.DataFrame  # STALLS
    lanes: pl.DataFrame  # LANES
    groups: tuple[ProcessGroup, ...]
    group: str | None  # the communicator of most of its messages
    world_size: int | None
    # Peers are counted within the communicator, as NCCL does in Nsight's traces.
    peers_local: bool = False
    # Peers were derived from the order and times of messages, not recorded.
    peers_by_order: bool = False
    # Steps recorded only in part; None: the trace has no step marks.
    cut: tuple[int | None, ...] = ()
    notices: tuple[Notice, ...] = ()
    contention: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=CONTENTION))
    shares_gpu: bool = False  # its process may use a part of the GPU's multiprocessors only
    # When the host waited for room in the GPU's queue.
    full_queue: pl.DataFrame = field(default_factory=START_AND_END.to_frame)

    @cached_property
    def by_step(self) -> dict[int, tuple[pl.DataFrame, pl.DataFrame]]:
        """Chunks and messages of each step that has chunks."""
        messages = _partition_by_step(self.messages)
        no_messages = self.messages.clear()
        return {
            step: (chunks, messages.get(step, no_messages))
            for step, chunks in _partition_by_step(self.chunks).items()
        }

    @property
    def has_work(self) -> bool:
        """Whether any forward or backward was found."""
        return self.chunks.height > 0

    @property
    def peers(self) -> tuple[int | None, ...]:
        """Ranks it exchanged messages with.

        None among them if some message does not name its peer.
        """
        return tuple(self.messages["peer"].unique().to_list())


def _partition_by_step(table: pl.DataFrame) -> dict[int, pl.DataFrame]:
    """Return the rows of each step; rows without a step are left out."""
    partitions = table.drop_nulls("step").partition_by("step", maintain_order=True)
    return {int(rows["step"][0]): rows for rows in partitions}


_LABELLED_COLUMNS = (
    "id",
    "name",
    "label",
    "pass",
    "step",
    "start_ns",
    "end_ns",
    "launch_ns",
    "stream",
    "autograd_sequence",
    "node",
    "annotation",
    "annotations",
    "stage",
    "microbatch",
    "p2p",
    "group",
    "group_desc",
    "group_ranks",
    "bytes",
)
"""Columns of labelled events that reconstruction reads."""


def _has_part_of_gpu(source: Source) -> bool:
    """Return whether the process may use a part of its GPU's multiprocessors only, so that others may use the rest."""
    gpus = [find_gpu(device) for device in source.devices]
    whole = max((gpu.multiprocessors for gpu in gpus if gpu is not None), default=0)
    return source.multiprocessors is not None and source.multiprocessors < whole


def rank_pipeline(
    labelled: pl.DataFrame,
    source: Source,
    *,
    around: pl.DataFrame | None = None,
    lost: pl.DataFrame | None = None,
    full_queue: Intervals = EMPTY,
) -> RankPipeline:
    """Return the chunks of work and the messages of one rank.

    Args:
        labelled: The rank's labelled GPU events in the steps to look at.
        source: Header of the rank's trace.
        around: More of the rank's GPU events, such as all of them: work of the step before can
            stall this one.
        lost: Communication kernels that were launched and not recorded: they keep their place in
            the order.
        full_queue: When the host waited for room in the GPU's queue.

    >>> from tracekit.schema import LABELLED, conform
    >>> rows = [
    ...     {"label": "forward", "start_ns": 0, "end_ns": 5, "autograd_sequence": 1},
    ...     {"label": "dgrad", "start_ns": 6, "end_ns": 9, "autograd_sequence": 1, "node": "MmBackward0"},
    ... ]
    >>> done = rank_pipeline(conform(pl.DataFrame(rows), LABELLED), Source("a.json", "kineto", 3, "name"))
    >>> done.chunks.select("op", "pair", "start_ns", "end_ns").rows()
    [('F', 0, 0, 5), ('B', 0, 6, 9)]

    """
    all_events = labelled if around is None else around
    with_lost = labelled.select(_LABELLED_COLUMNS)
    if lost is not None and len(lost):
        tables = [table for table in (with_lost, lost.select(_LABELLED_COLUMNS)) if len(table)]
        with_lost = pl.concat(tables)
    sampled, notices = sample_steps(with_lost)
    rows = prepare(sampled)
    if rows["step"].null_count() == rows.height:  # the whole trace is one step
        rows = rows.with_columns(step=pl.lit(0, pl.Int64))
    chunks, kernels, chunk = cut_chunks(rows)
    in_chunk = np.zeros(rows.height, bool)
    in_chunk[kernels] = True
    stalls = find_stalls(rows, in_chunk, all_events, chunks)
    chunks = measure_chunks(chunks, rows, stalls)
    times = rows.select("host_ns", "start_ns", "end_ns")[kernels]
    timed_kernels = times.select(
        pl.Series("chunk", chunk), chunks["op"][chunk], "host_ns", "start_ns", "end_ns"
    )
    # With known communicator.
    named = rows.filter((pl.col("label") == "pp_comm") & pl.col("group").is_not_null())
    most_used_group = None
    if not named.is_empty():
        most_used_group = str(named["group"].cast(pl.String).mode().sort()[0])
    lanes = pl.DataFrame(schema=LANES)
    if chunks.height:
        lanes = measure_lanes(rows, chunks)
    return RankPipeline(
        rank=source.rank,
        shares_gpu=_has_part_of_gpu(source),
        chunks=chunks,
        messages=read_messages(rows, chunks),
        stalls=_stall_table(stalls),
        lanes=lanes,
        groups=_process_groups(source, named),
        group=most_used_group,
        world_size=source.world_size,
        peers_local=source.reader == "nsight",
        notices=(*notices, *_pairing_notices(rows, chunks)),
        contention=measure_contention(timed_kernels, time_of(rows, ("pp_comm",))),
        full_queue=pl.DataFrame(
            {"start_ns": full_queue.start_ns, "end_ns": full_queue.end_ns}, schema=START_AND_END
        ),
    )


def sample_steps(
    labelled: pl.DataFrame, *, most: int = MAX_STEPS
) -> tuple[pl.DataFrame, tuple[Notice, ...]]:
    """Return at most *most* steps, evenly spread, and a notice if some were left out.

    The stride is a power of two and counts step numbers, so that ranks which differ in a step or
    two keep the same.

    >>> rows = pl.DataFrame({"step": [1, 2, 3, 4, 5, None]})
    >>> sampled, (notice,) = sample_steps(rows, most=2)
    >>> sampled["step"].to_list(), notice.code
    ([4, None], 'sampled')
    """
    steps = labelled["step"].unique().drop_nulls().sort()
    stride = 1
    while len(steps) > most * stride:
        stride *= 2
    if stride == 1:
        return labelled, ()
    wanted = steps.filter(steps % stride == 0)
    if wanted.is_empty():  # step numbers skip, for example only every second step was marked
        wanted = steps.gather_every(stride)
    sampled = labelled.filter(pl.col("step").is_null() | pl.col("step").is_in(wanted.implode()))
    values: NoticeValues = {
        "case": "steps",
        "stride": stride,
        "compared": len(wanted),
        "steps": len(steps),
    }
    return sampled, (
        Notice(
            "sampled",
            (
                f"one step in {stride} is compared with its ideal, {len(wanted)} "
                f"of {len(steps)}; choose others with --steps"
            ),
            values=values,
            severity="note",
        ),
    )


def _stall_table(stalls: Mapping[str, Intervals]) -> pl.DataFrame:
    """Return the stalls of all causes as one table (``STALLS``)."""
    tables = []
    for cause, stall in stalls.items():
        causes = [cause] * len(stall)
        columns = {"cause": causes, "start_ns": stall.start_ns, "end_ns": stall.end_ns}
        tables.append(pl.DataFrame(columns, schema=STALLS))
    return pl.concat(tables)


def _process_groups(source: Source, messages: pl.DataFrame) -> tuple[ProcessGroup, ...]:
    """Return the process groups the file lists, and those whose ranks only messages name."""
    listed = {group.name for group in source.groups if group.ranks}
    members = parse_group_ranks(messages["group_ranks"]).filter("all_listed")
    groups = messages.select(pl.col("group", "group_desc", "group_ranks").cast(pl.String))
    groups = groups.join(members, on="group_ranks", maintain_order="left").unique(
        "group", maintain_order=True
    )
    more = [
        ProcessGroup(name, description, tuple(ranks))
        for name, description, ranks in groups.select("group", "group_desc", "members").rows()
        if name not in listed
    ]
    return (*source.groups, *more)


def _pairing_notices(rows: pl.DataFrame, chunks: pl.DataFrame) -> tuple[Notice, ...]:
    """Return notices about forwards and backwards that are paired without evidence, or not at all."""
    notices = []
    is_whole_backward = pl.col("op") == "B"
    if chunks.height and rows["number"].null_count() == len(rows):
        notices.append(
            Notice(
                "pairs-by-order",
                ("no autograd sequence numbers: backwards are tied to forwards by order alone"),
                values={"case": "no_numbers"},
                severity="note",
            )
        )
    elif chunks.filter(is_whole_backward & (pl.col("confidence") <= CONFIDENCE_POSITION)).height:
        notices.append(
            Notice(
                "pairs-by-order",
                (
                    "backwards share no sequence number with a forward (as with "
                    "recomputed layers): tied by order alone"
                ),
                values={"case": "no_shared_numbers"},
                severity="note",
            )
        )
    forwards = chunks.filter(pl.col("op") == "F")
    with_backward = forwards.join(
        chunks.filter(pl.col("op") != "F"), on=["step", "pair"], how="semi"
    )
    if 0 < with_backward.height < forwards.height:
        notices.append(
            Notice("forward-without-backward", ("some forwards have no backward in the trace"))
        )
    return tuple(notices)
