"""Purposes of allocations: weights, gradients, optimizer state, activations, communication buffers, workspace.

PyTorch does not say what a tensor is. It follows from what the host was doing when it was allocated
(the trace's launches, else the stack), and from how long it lived: what a forward leaves behind is
an activation, what a backward leaves behind for the optimizer is a gradient, and what is gone when
the work that made it ends was workspace.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl

from tracekit.documents.coding import rows
from tracekit.documents.memory import LineMemory
from tracekit.memory.measures.replay import Replay
from tracekit.memory.measures.stacks import Stack, is_of_program, source_line, stack_origin
from tracekit.schema import COMMUNICATION_LABELS, conform

CATEGORIES = (
    "weights",
    "gradients",
    "optimizer_state",
    "activations",
    "cache",  # grown by copying it whole each time, as `torch.cat` of keys and values does
    "communication",
    "workspace",
    "program",  # made by a line of the program outside of modules, backwards and optimizers: inputs, targets, caches
    "before_recording",  # allocated before the first event, without a stack: weights, optimizer state or anything else
    "other",
)
"""Kinds of contents."""

PURPOSES = pl.Schema(
    {
        "category": pl.Enum(CATEGORIES),
        "phase": pl.String(),  # forward, backward, recompute or optimizer: what the host was doing; null if unknown
        "step": pl.Int64(),  # in which it was allocated; null outside of steps
        "pair": pl.Int64(),  # its forward's index in the step (``reconstruct.chunk_table.CHUNKS``); null outside chunks
        "module": pl.String(),
        "operator": pl.String(),
        "steps_survived": pl.Int64(),  # starts of steps while it was allocated
    }
)
"""Columns that ``find_purposes`` adds to allocations."""

MAX_SOURCE_LINES = 20
"""Source lines in a document, those with the most memory."""
MIN_STEPS_TO_BE_KEPT = 2
"""Starts of steps that an allocation survives to count as kept: gradients are freed by the next
step at the latest."""
MIN_SHARE_OF_KEPT_GRADIENTS = 0.5
"""Kept allocations of backwards, over the number of weights, above which they are gradients that
are never freed."""

MIN_SIZES_OF_A_GROWING_TENSOR = 6
"""Sizes, each larger than those before, from which a place makes a tensor that grows."""
MIN_SHARE_REPLACED = 0.8
"""Share of such blocks, but for the largest, that go when the next larger one is there."""

_PERSISTENT_ORIGINS = (
    "weights",
    "gradients",
    "reduced_gradients",  # gradients if they outlive the backward, else buffers for reducing them
    "optimizer",
    "communication",
    "recompute",
)
"""Origins that a stack tells better than the launches around an allocation."""
_PHASES = ("forward", "backward", "recompute", "optimizer")


def find_purposes(
    replay: Replay,
    work: pl.DataFrame | None,
    *,
    stacks: Sequence[Stack] = (),
    chunks: pl.DataFrame | None = None,
    step_starts: pl.DataFrame,
    optimizer_times: pl.DataFrame | None = None,
) -> pl.DataFrame:
    """Return the allocations with what they are for (``ALLOCATIONS`` and ``PURPOSES``).

    Args:
        replay: Allocations and levels.
        work: What the host was doing at each event (``host_work.HOST_WORK``); None without a trace.
        stacks: Stacks by their number.
        chunks: The rank's pipeline chunks; None without a pipeline.
        step_starts: Columns ``step`` and ``start_ns``, in order of time.
        optimizer_times: Columns ``start_ns`` and ``end_ns`` of ranges around optimizer steps; None
            if there are none.

    """
    rows = _add_host_work(replay.allocations, work)
    rows = _add_optimizer_steps(rows, optimizer_times)
    rows = rows.with_columns(_origins(rows, stacks), _made_by_program(rows, stacks))
    rows = rows.with_columns(_grown_by_copying(rows))
    rows = _add_chunks(rows, chunks)
    rows = _add_steps(rows, step_starts, replay)
    is_older = pl.col("alloc_row").is_null()
    origin = pl.col("origin")
    is_freed = pl.col("free_ns").is_not_null()
    is_freed_in_work = (is_freed & (pl.col("free_ns") <= pl.col("work_end_ns"))).fill_null(False)
    survives_step = ~is_freed | (pl.col("steps_survived") > 0)
    # Gradients live until the optimizer has used them. Where its ranges were not recorded, the
    # phase tells.
    is_freed_in_phase = pl.col("free_phase").is_in(["forward", "backward", "recompute"])
    is_freed_before_optimizer = pl.coalesce(
        ~pl.col("lives_through_optimizer"), is_freed_in_phase & ~survives_step
    )
    # A state that is made before the first step, and replaced in it, survives no step.
    is_there_for_optimizer = pl.col("lives_through_optimizer").fill_null(False)
    is_communication = (
        origin.is_in(["communication", "reduced_gradients"])
        | pl.col("label").is_in(COMMUNICATION_LABELS)
        | pl.col("operator").str.contains("^(c10d::|nccl:|record_param_comms)")
    ).fill_null(False)
    is_freed_by_own_chunk = (pl.col("free_pair") == pl.col("pair")) & (
        pl.col("free_step") == pl.col("step")
    )
    # Libraries allocate workspaces once and keep them. Gradients may be kept as well, but then they
    # are as many as weights; and what every step leaves behind is no workspace.
    is_kept = (pl.col("steps_survived") >= MIN_STEPS_TO_BE_KEPT) & _is_of_one_step(rows)
    kept_in_backward = rows.filter(is_kept & (origin == "backward")).height
    weights = rows.filter(origin == "weights").height
    keeps_gradients = pl.lit(kept_in_backward > MIN_SHARE_OF_KEPT_GRADIENTS * weights)
    is_library = is_kept & ((origin == "forward") | ((origin == "backward") & ~keeps_gradients))
    # The first case that holds decides.
    cases: list[tuple[pl.Expr, str]] = [
        (is_older & origin.is_null(), "before_recording"),
        ((origin == "reduced_gradients") & ~is_freed_before_optimizer.fill_null(True), "gradients"),
        (origin == "gradients", "gradients"),
        (is_communication, "communication"),
        (origin == "weights", "weights"),
        ((origin == "optimizer") & (survives_step | is_there_for_optimizer), "optimizer_state"),
        (origin == "optimizer", "workspace"),
        (pl.col("is_grown_by_copying"), "cache"),
        (is_library, "workspace"),
        (origin.is_in(["forward", "recompute"]) & is_freed_in_work, "workspace"),
        (origin.is_in(["forward", "recompute"]), "activations"),
        ((origin == "backward") & is_freed_in_work, "workspace"),
        # Kept for the weight gradient.
        (
            (origin == "backward") & is_freed_by_own_chunk,
            "activations",
        ),
        ((origin == "backward") & is_freed & is_freed_before_optimizer, "workspace"),
        (origin == "backward", "gradients"),
        (origin.is_null() & pl.col("is_of_program"), "program"),
    ]
    category = pl.lit("other")
    for condition, name in reversed(cases):
        category = pl.when(condition.fill_null(False)).then(pl.lit(name)).otherwise(category)
    phase = pl.coalesce("phase", pl.when(origin.is_in(_PHASES)).then(origin))
    return conform(
        rows.with_columns(category=category, phase=phase),
        pl.Schema({**replay.allocations.schema, **PURPOSES}),
    )


def _add_optimizer_steps(rows: pl.DataFrame, times: pl.DataFrame | None) -> pl.DataFrame:
    """Add whether an optimizer's step made an allocation, and whether one began in its lifetime.

    Null if unknown.
    """
    if times is None or times.is_empty():
        return rows.with_columns(
            is_of_optimizer=pl.lit(None, pl.Boolean),
            lives_through_optimizer=pl.lit(None, pl.Boolean),
        )
    ordered = times.sort("start_ns")
    starts = ordered["start_ns"].to_numpy()
    ends = ordered["end_ns"].to_numpy()
    alloc_ns = rows["alloc_ns"].fill_null(np.iinfo(np.int64).min).to_numpy()
    free_ns = rows["free_ns"].fill_null(np.iinfo(np.int64).max).to_numpy()
    begun = np.searchsorted(starts, alloc_ns, side="right")
    is_inside = (begun > 0) & (alloc_ns <= ends[np.maximum(begun - 1, 0)])
    begins_later = np.searchsorted(starts, free_ns, side="right") > begun
    return rows.with_columns(
        is_of_optimizer=pl.Series(is_inside), lives_through_optimizer=pl.Series(begins_later)
    )


def _grown_by_copying(rows: pl.DataFrame) -> pl.Series:
    """Return whether each allocation is one of a tensor that is replaced again and again by a larger copy.

    A place makes larger and larger blocks, and each goes when the next larger one is there, at the latest before
    the one after that has gone. Activations go before the next ones are made.
    """
    indexed = rows.select("stack", "bytes", "alloc_ns", "free_ns").with_row_index("index")
    placed = indexed.drop_nulls(["stack", "alloc_ns"]).sort("alloc_ns", maintain_order=True)
    sizes = placed.group_by("stack", "bytes").agg(
        first_ns=pl.col("alloc_ns").min(), last_ns=pl.col("alloc_ns").max()
    )
    sizes = sizes.sort("stack", "bytes").with_columns(
        next_first_ns=pl.col("first_ns").shift(-1).over("stack"),
        later_last_ns=pl.col("last_ns").shift(-2).over("stack"),
        is_larger_later=(pl.col("first_ns") > pl.col("last_ns").shift(1).over("stack")).fill_null(
            True
        ),
    )
    growing = sizes.group_by("stack").agg(count=pl.len(), grows=pl.col("is_larger_later").all())
    growing = growing.filter(pl.col("grows") & (pl.col("count") >= MIN_SIZES_OF_A_GROWING_TENSOR))
    blocks = placed.join(growing, on="stack", how="semi").join(sizes, on=["stack", "bytes"])
    is_replaced = (pl.col("free_ns") >= pl.col("next_first_ns")) & (
        pl.col("later_last_ns").is_null() | (pl.col("free_ns") <= pl.col("later_last_ns"))
    )
    replaced = blocks.group_by("stack").agg(
        share=is_replaced.sum() / pl.col("next_first_ns").is_not_null().sum()
    )
    replaced = replaced.filter(pl.col("share") >= MIN_SHARE_REPLACED)
    grown = blocks.join(replaced, on="stack", how="semi")
    return indexed.select(
        is_grown_by_copying=pl.col("index").is_in(grown["index"].implode())
    ).to_series()


def _is_of_one_step(rows: pl.DataFrame) -> pl.Expr:
    """Return whether what survives steps, with the same stack and size, was allocated in one step alone."""
    key = ["stack", "bytes"]
    survivors = rows.filter(pl.col("steps_survived") >= MIN_STEPS_TO_BE_KEPT)
    repeated = (
        survivors.group_by(key)
        .agg(pl.col("step").n_unique().alias("steps"))
        .filter(pl.col("steps") > 1)
    )
    return ~pl.struct(key).is_in(repeated.select(key).to_struct().implode())


def _add_host_work(allocations: pl.DataFrame, work: pl.DataFrame | None) -> pl.DataFrame:
    """Add what the host was doing when each was allocated, and phase and chunk when it was freed."""
    if work is None:
        nothing = {
            name: pl.lit(None, pl.String)
            for name in ("operator", "phase", "label", "module", "free_phase")
        }
        numbers = {
            name: pl.lit(None, pl.Int64) for name in ("step", "chunk", "op_end_ns", "free_chunk")
        }
        return allocations.with_columns(**nothing, **numbers)
    at_free = work.select(free_row="row", free_phase="phase", free_chunk="chunk")
    rows = allocations.join(
        work, left_on="alloc_row", right_on="row", how="left", maintain_order="left"
    )
    return rows.join(at_free, on="free_row", how="left", maintain_order="left")


def _origins(rows: pl.DataFrame, stacks: Sequence[Stack]) -> pl.Series:
    """Return the origin of each allocation: by its stack where that tells a lasting purpose, else by the launches."""
    by_stack = pl.DataFrame(
        {"stack": range(len(stacks)), "stack_origin": [stack_origin(stack) for stack in stacks]},
        schema={"stack": pl.Int32(), "stack_origin": pl.String()},
    )
    joined = rows.select("stack", "phase", "alloc_row", "is_of_optimizer").join(
        by_stack, on="stack", how="left", maintain_order="left"
    )
    # Python stacks end at the thread of the autograd engine: where others have one, a missing one
    # tells a backward.
    is_engine = pl.lit(bool(stacks)) & pl.col("stack").is_null() & pl.col("alloc_row").is_not_null()
    lasting = pl.when(pl.col("stack_origin").is_in(_PERSISTENT_ORIGINS)).then("stack_origin")
    by_absence = pl.when(is_engine).then(pl.lit("backward"))
    by_range = pl.when("is_of_optimizer").then(pl.lit("optimizer"))
    return joined.select(
        origin=pl.coalesce(lasting, by_range, "phase", "stack_origin", by_absence)
    )["origin"]


def _made_by_program(rows: pl.DataFrame, stacks: Sequence[Stack]) -> pl.Series:
    """Return whether the program itself made each tensor (``is_of_program``)."""
    numbers = [number for number, stack in enumerate(stacks) if is_of_program(stack)]
    own = pl.Series(numbers, dtype=pl.Int32)
    return rows.select(is_of_program=pl.col("stack").is_in(own.implode()).fill_null(False))[
        "is_of_program"
    ]


def _add_chunks(rows: pl.DataFrame, chunks: pl.DataFrame | None) -> pl.DataFrame:
    """Add the pair of the chunk that allocated, and of the one that freed.

    And when the allocating work ended.
    """
    if chunks is None or chunks.is_empty():
        nothing = pl.lit(None, pl.Int64)
        return rows.with_columns(
            pair=nothing, free_pair=nothing, free_step=nothing, work_end_ns=pl.col("op_end_ns")
        )
    # What a chunk needs only while it runs is freed before the next one begins.
    numbered = chunks.with_row_index("chunk").select(
        pl.col("chunk").cast(pl.Int64), pl.col("pair", "launch_ns", "step").cast(pl.Int64)
    )
    following = numbered.sort("launch_ns").with_columns(chunk_end_ns=pl.col("launch_ns").shift(-1))
    own = following.select("chunk", "pair", "chunk_end_ns")
    freeing = numbered.select(free_chunk="chunk", free_pair="pair", free_step="step")
    joined = rows.join(own, on="chunk", how="left", maintain_order="left")
    joined = joined.join(freeing, on="free_chunk", how="left", maintain_order="left")
    return joined.with_columns(work_end_ns=pl.coalesce("chunk_end_ns", "op_end_ns"))


def _add_steps(rows: pl.DataFrame, step_starts: pl.DataFrame, replay: Replay) -> pl.DataFrame:
    """Add the step of each allocation where the launches do not tell it, and how many steps began in its lifetime."""
    starts = step_starts["start_ns"].to_numpy()
    numbers = step_starts["step"].to_numpy()
    last_ns = int(replay.levels["at_ns"][-1]) if len(replay.levels) else 0
    alloc_ns = rows["alloc_ns"].fill_null(np.iinfo(np.int64).min).to_numpy()
    free_ns = rows["free_ns"].fill_null(last_ns).to_numpy()
    begun = np.searchsorted(starts, alloc_ns, side="right")
    survived = np.searchsorted(starts, free_ns, side="right") - begun
    by_time = np.zeros(len(rows), np.int64)
    if len(numbers):
        by_time = numbers[begun - 1]
    step = pl.Series("by_time", by_time)
    is_in_step = pl.Series("is_in_step", begun > 0)
    return rows.with_columns(
        steps_survived=pl.Series(np.maximum(survived, 0)),
        step=pl.coalesce("step", pl.when(is_in_step).then(step)),
    )


CONTENTS = pl.Schema(
    {
        **{
            name: PURPOSES[name]
            for name in ("category", "phase", "step", "pair", "module", "operator")
        },
        "stack": pl.Int32(),
        "bytes": pl.Int64(),
        "count": pl.Int64(),
    }
)
"""What is allocated at one moment: one row per purpose and stack, the largest first."""


def contents_at(purposes: pl.DataFrame, row: int) -> pl.DataFrame:
    """Return ``CONTENTS`` after an event; *purposes* come from ``find_purposes``."""
    is_made = pl.col("alloc_row").is_null() | (pl.col("alloc_row") <= row)
    is_freed = (pl.col("free_row") <= row).fill_null(False)
    living = purposes.filter(is_made & ~is_freed)
    key = [name for name in CONTENTS if name not in ("bytes", "count")]
    table = living.group_by(key).agg(pl.sum("bytes"), count=pl.len().cast(pl.Int64))
    return conform(
        table.sort("bytes", *key, descending=[True, *[False] * len(key)], nulls_last=True), CONTENTS
    )


def bytes_by_category(contents: pl.DataFrame) -> dict[str, int]:
    """Return bytes by what they are for, the largest first; *contents* are ``CONTENTS``."""
    sums = contents.group_by("category").agg(pl.sum("bytes"))
    ordered = sums.sort("bytes", "category", descending=[True, False])
    return dict(ordered.cast({"category": pl.String}).iter_rows())


def largest_lines(contents: pl.DataFrame, stacks: Sequence[Stack]) -> list[LineMemory]:
    """Return the contents by source line and category, the largest first."""
    numbers = contents["stack"].drop_nulls().unique().to_list()
    lines = pl.DataFrame(
        {"stack": numbers, "line": [source_line(stacks[number]) for number in numbers]},
        schema={"stack": pl.Int32(), "line": pl.String()},
    )
    key = ["line", "category"]
    sums = contents.join(lines, on="stack", how="left").group_by(key).agg(pl.sum("bytes", "count"))
    ordered = sums.cast({"category": pl.String}).sort(
        "bytes", *key, descending=[True, False, False], nulls_last=True
    )
    return rows(ordered.head(MAX_SOURCE_LINES), LineMemory)
