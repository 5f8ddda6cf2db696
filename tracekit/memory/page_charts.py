"""Data of the memory charts: all allocations of GPUs, from which the page tells every moment."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
import polars as pl

from tracekit._util.text import counted, size
from tracekit.analysis import Analysis
from tracekit.documents.page import Coloured, MemoryCharts, MemoryTrack, PackedColumns
from tracekit.memory.combine import contents_by_rank
from tracekit.memory.measures import RankContents
from tracekit.memory.measures.contents import CATEGORIES
from tracekit.memory.measures.history import AllocationHistory
from tracekit.memory.snapshots import RankSnapshot
from tracekit.report.html.packed_columns import MAX_VALUE, pack_columns, pack_json
from tracekit.report.html.source_paths import shorten_source_paths
from tracekit.report.palette import LEAK_COLOUR, MEMORY_COLOURS
from tracekit.report.words import WORDS

CURVE_ORDER = (
    "before_recording",
    "weights",
    "optimizer_state",
    "gradients",
    "communication",
    "program",
    "cache",
    "activations",
    "workspace",
    "other",
)
"""Categories from the bottom of the curves up: what stays stands below what comes and goes."""
LEAKED = "left behind by steps"
"""Name of the topmost curve."""
MAX_GPUS_ON_PAGE = 16
"""GPUs whose allocations are on the page, those with the highest peak."""
MAX_ALLOCATIONS_ON_PAGE = 400_000
"""Allocations on the page over all GPUs; of more, the smallest are left out."""
MEGA = 20
"""Bits of the smaller units that sizes are packed in."""


class GpuHistory(msgspec.Struct, frozen=True, eq=False):
    """Allocations of one GPU, and what it is called."""

    name: str
    contents: RankContents


def charts_of_analysis(analysis: Analysis) -> MemoryCharts | None:
    """Return the allocations of an analysis' ranks; None where single ones are not known."""
    if analysis.memory is None:
        return None
    peaks = {rank.rank: rank.peak_bytes for rank in analysis.memory.ranks}
    contents = contents_by_rank(analysis)
    fullest = sorted(contents, key=lambda rank: -peaks[rank])[:MAX_GPUS_ON_PAGE]
    return memory_charts([GpuHistory(f"rank {rank}", contents[rank]) for rank in fullest])


def charts_of_snapshots(
    snapshots: Sequence[RankSnapshot], names: Sequence[str]
) -> MemoryCharts | None:
    """Return the allocations of memory snapshots, those with the highest peak first."""
    gpus = [
        GpuHistory(name, snapshot.contents) for name, snapshot in zip(names, snapshots, strict=True)
    ]
    gpus.sort(key=lambda gpu: -gpu.contents.figures.peak.bytes)
    return memory_charts(gpus[:MAX_GPUS_ON_PAGE])


def memory_charts(gpus: Sequence[GpuHistory], *, compares: bool = False) -> MemoryCharts | None:
    """Return the data of the charts; None without a GPU."""
    if not gpus:
        return None
    texts = _FrameTexts()
    budget = MAX_ALLOCATIONS_ON_PAGE // len(gpus)
    tracks = [_track(gpu, texts, budget) for gpu in gpus]
    categories = [
        Coloured(WORDS.memory_categories[name], MEMORY_COLOURS[name]) for name in CURVE_ORDER
    ]
    return MemoryCharts(
        tracks=tracks,
        categories=[*categories, Coloured(LEAKED, LEAK_COLOUR)],
        frames=pack_json({"texts": list(texts.numbers), "kinds": list(texts.numbers.values())}),
        compares=compares,
    )


class _FrameTexts:
    """Texts of frames, numbered over all GPUs, with their kinds."""

    def __init__(self) -> None:
        self.numbers: dict[str, str] = {}
        self._by_text: dict[str, int] = {}

    def number(self, text: str, kind: str) -> int:
        """Return the number of a text. The same text has the same kind."""
        shown = shorten_source_paths(text)
        number = self._by_text.setdefault(shown, len(self._by_text))
        self.numbers.setdefault(shown, kind)
        return number


def _track(gpu: GpuHistory, texts: _FrameTexts, budget: int) -> MemoryTrack:
    history = gpu.contents.history
    kept, left_out = _largest(history, budget)
    segments = history.segments.sort("made", "address")
    return MemoryTrack(
        name=gpu.name,
        levels=_pack_levels(history.levels),
        lives=_pack_lives(kept, segments, history),
        segments=_pack_segments(segments) if segments.height else None,
        stacks=_pack_stacks(history, texts),
        steps=_steps(gpu.contents),
        peak=-1 if history.peak_row is None else history.peak_row,
        failed=history.failed_row,
        left_out=left_out,
    )


def _largest(history: AllocationHistory, budget: int) -> tuple[pl.DataFrame, str]:
    """Return the allocations that are shown, and a remark about the others: the smallest."""
    lives = history.lives
    if lives.height <= budget:
        return lives, ""
    kept = lives.with_row_index("i").sort("bytes", descending=True).head(budget).sort("i").drop("i")
    smallest = int(kept["bytes"].min() or 0)  # type: ignore[arg-type]
    rest = counted(lives.height - budget, "allocation")
    return kept, f"{rest} of at most {size(smallest)} are not in the chart, and are in the tables"


def _pack_levels(levels: pl.DataFrame) -> PackedColumns:
    times = levels["at_ns"].to_numpy()
    if not len(times):
        return pack_columns(pl.DataFrame(schema={"time": pl.Int64(), "reserved": pl.Int64()}))
    times = times - times[0]
    longest_ns = int(np.diff(times, prepend=0).max())
    unit_ns = max(1000, longest_ns // (MAX_VALUE // 2) + 1)
    kib = (levels["reserved"] // 1024 + 1).fill_null(0).clip(0, MAX_VALUE // 2)
    table = pl.DataFrame({"time": times // unit_ns, "reserved": kib})
    return pack_columns(table, differences=["time", "reserved"], unit_ns=unit_ns)


def _pack_lives(
    lives: pl.DataFrame, segments: pl.DataFrame, history: AllocationHistory
) -> PackedColumns:
    """Return the allocations, in the order in which they were made."""
    events = history.levels.height
    clipped = lives.with_columns(pl.col("made").clip(-1, events), pl.col("freed").clip(0, events))
    ordered = clipped.sort("made", maintain_order=True)
    stacks = history.stacks["stack"]
    stack_rows = pl.col("stack").replace_strict(
        stacks, range(1, len(stacks) + 1), default=0, return_dtype=pl.Int64
    )
    segment, offset = _places(ordered, segments)
    size_bytes = pl.col("bytes")
    codes = dict(zip(CURVE_ORDER, range(len(CURVE_ORDER)), strict=True))
    category = pl.col("category").cast(pl.String).replace_strict(codes, return_dtype=pl.Int64)
    table = ordered.select(
        "made",
        (pl.col("freed") - pl.col("made")).alias("length"),
        (size_bytes // (1 << 2 * MEGA)).alias("tera"),
        (size_bytes // (1 << MEGA) % (1 << MEGA)).alias("mega"),
        (size_bytes % (1 << MEGA)).alias("rest"),
        category.alias("category"),
        stack_rows.fill_null(0).alias("stack"),
        pl.col("is_leaked").cast(pl.Int64).alias("leak"),
        pl.Series("segment", segment),
        pl.Series("at_mega", offset >> MEGA),
        pl.Series("at_rest", offset & ((1 << MEGA) - 1)),
    )
    return pack_columns(table, differences=["made"])


def _places(lives: pl.DataFrame, segments: pl.DataFrame) -> tuple[np.ndarray, np.ndarray]:
    """Return for each allocation the number of its segment from 1 (0: unknown), and its place in it.

    Of the segments that were reserved at its address one after the other, it is in the last that
    was there when it was made.
    """
    count = lives.height
    none = np.zeros(count, np.int64)
    if not segments.height or lives["address"].is_null().all():
        return none, none
    numbered = segments.with_row_index("segment", offset=1).sort("address", "made")
    reservations = numbered.select(
        pl.col("segment").cast(pl.Int64), "bytes", "freed", base="address", reserved_at="made"
    )
    # First the nearest address at which a segment ever began, then the last segment that was
    # reserved there before the allocation was made.
    bases = reservations.select(pl.col("base").unique().sort()).with_columns(address="base")
    with_bases = (
        lives.select("address", "made")
        .with_row_index("i")
        .drop_nulls("address")
        .sort("address")
        .join_asof(bases, on="address", check_sortedness=False)
        .drop_nulls("base")
        .sort("made")
    )
    with_segments = with_bases.join_asof(
        reservations.sort("reserved_at"),
        left_on="made",
        right_on="reserved_at",
        by="base",
        check_sortedness=False,
    )
    is_reserved = pl.col("made") < pl.col("freed")
    is_inside = pl.col("address") < pl.col("base") + pl.col("bytes")
    inside = with_segments.filter(is_reserved & is_inside)
    segment = none.copy()
    offset = none.copy()
    rows = inside["i"].to_numpy()
    segment[rows] = inside["segment"].to_numpy()
    offset[rows] = (inside["address"] - inside["base"]).to_numpy()
    return segment, offset


def _pack_segments(segments: pl.DataFrame) -> PackedColumns:
    streams = segments["stream"].unique().sort()
    number = segments["stream"].replace_strict(streams, range(len(streams)), return_dtype=pl.Int64)
    table = segments.select(
        "made",
        (pl.col("freed") - pl.col("made")).alias("length"),
        (pl.col("bytes") // (1 << MEGA)).alias("mega"),
        (pl.col("bytes") % (1 << MEGA)).alias("rest"),
        number.alias("stream"),
    )
    return pack_columns(table, differences=["made"])


def _pack_stacks(history: AllocationHistory, texts: _FrameTexts) -> str:
    """Return texts of the frames of every stack, and of its line (-1: none), in the order of the table."""
    numbers = [texts.number(*row) for row in history.frames.iter_rows()]
    frames = []
    lines = []
    for line, own_frames in history.stacks.select("line", "frames").iter_rows():
        # A table of a store may be forged, and name frames that are not there.
        frames.append([numbers[frame] for frame in own_frames or () if 0 <= frame < len(numbers)])
        lines.append(-1 if line is None else texts.number(line, "own"))
    return pack_json({"frames": frames, "lines": lines})


def _steps(contents: RankContents) -> list[tuple[int, int]]:
    """Return number and first event of each step."""
    times = contents.history.levels["at_ns"].to_numpy()
    steps = contents.step_starts
    rows = np.searchsorted(times, steps["start_ns"].to_numpy(), side="left")
    return list(zip(steps["step"].to_list(), rows.tolist(), strict=True))


assert set(CURVE_ORDER) == set(CATEGORIES), "every category has a curve"
