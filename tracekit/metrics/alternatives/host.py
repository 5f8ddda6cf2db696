"""Alternatives of what the host computes or makes for the GPU in every step."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import polars as pl

from tracekit._util.shapes import parse_list
from tracekit.intervals import EMPTY, Intervals, union
from tracekit.metrics.alternatives.entry import Alternative
from tracekit.metrics.alternatives.remedy import REMEDIES, new_durations, without_events
from tracekit.metrics.alternatives.stalls import without_stalls
from tracekit.metrics.rank_work import RankWork

MAKES_TENSOR = r"^aten::lift_fresh$"
"""Operator of tensors that are made of Python's numbers."""
MAX_CONSTANT_BYTES = 1 << 12
MIN_CONSTANTS = 4
"""Constants that a step copies, from which it is a habit."""
MIN_MOVED_BYTES = 1 << 20
"""Bytes of a copy from which it is of data, not of figures."""
MIN_SHARE_THAT_COPIES = 0.8
"""Share of the steps that copy results, from which all do."""
MIN_COMPUTING_NS = 100_000
"""Time of an operator that launches nothing, from which it computes on the CPU."""
WITHOUT_COMPUTING = (
    r"^aten::(item|_local_scalar_dense|is_nonzero|pin_memory|cat|stack|set_|empty.*|resize_|reshape|_?(unsafe_)?view|t|"
    r"transpose|permute|expand|slice|select|unbind|alias|detach_?|as_strided|squeeze|unsqueeze|narrow|split.*|chunk|"
    r"linear|matmul|lift_fresh|to|_to_copy|contiguous|flatten|resolve_(conj|neg)|numpy_T)$|^detach$"
)
"""Operators that may wait for the GPU, only take memory or look at it otherwise, or put a batch together."""
MAX_APART_NS = 1_000_000
"""Time between an operator of the CPU and a copy up to which it is about the data that is copied, or its own time."""
IMAGE_DIMENSIONS = 4
CHANNELS_OF_IMAGES = (1, 3, 4)
FLOAT_BYTES = 4
ONLY_COPYING = tuple(
    f"aten::{name}" for name in ("clone", "copy_", "contiguous", "to", "_to_copy", "fill_", "zero_")
)
UPDATES_OR_BACKWARD = r"_foreach_|_fused_|addc(mul|div)|lerp|[bB]ackward"
"""Operators of an optimizer or a backward that live on the CPU: they prepare nothing."""
KEPT_SHARE_OF_COPY = (0.0, 0.25, 0.5)
"""Bytes that are copied over those of what the CPU made of them: images are of 8 bits before they are of 32."""
MAX_SMALL_COPY_BYTES = 1 << 16
"""Bytes up to which a copy from the host takes its calls, not its bytes."""
MIN_SMALL_COPIES = 16
"""Small copies of a step from which one copy of all is worth it."""


class HostConstants(Alternative, frozen=True, kw_only=True):
    """Tensors are made of Python's numbers and copied to the GPU in every step."""

    change = "constants on the GPU"
    rests_on = "tensors made of Python's numbers are on the GPU from the beginning"
    code = "small_copies"
    case = "constants"
    title = "small copies"
    says = "{kernels_per_step} tensors a step are made of Python's numbers and copied to the GPU one by one"
    advises = (
        "make constants once (`register_buffer`), or on the GPU (`torch.full`, `torch.arange(…, device=…)`); plain "
        "numbers need no tensor"
    )
    min_saved_share = 0.02

    def find(self, rank: RankWork) -> Iterator[pl.DataFrame]:
        constants = copied_constants(rank)
        if len(constants):
            yield without_events(constants, self.change).with_columns(waits=pl.lit(value=False))


def copied_constants(rank: RankWork) -> pl.DataFrame:
    """Return the copies from the host of tensors that were just made of Python's numbers, of steps with several."""
    from_host = pl.col("name").str.contains("(?i)HtoD|HostToDevice")
    copies = rank.events.filter(from_host & (pl.col("copied_bytes") <= MAX_CONSTANT_BYTES))
    made = rank.operators_named(MAKES_TENSOR).select("part", made_ns="start_ns").sort("made_ns")
    copies = copies.sort("launch_ns").drop_nulls("launch_ns")
    if copies.is_empty() or made.is_empty():
        return copies.clear()
    # Each tensor is copied before or behind the mark that it is new, and before the next one is made.
    copied_at = copies["launch_ns"].to_numpy()
    made_at = made["made_ns"].to_numpy()
    before = np.searchsorted(made_at, copied_at) - 1
    is_near = np.zeros(len(copied_at), np.bool_)
    for offset in (0, 1):
        index = np.clip(before + offset, 0, len(made_at) - 1)
        is_near |= np.abs(made_at[index] - copied_at) < MIN_COMPUTING_NS
    constants = copies.filter(pl.Series(is_near))
    return constants.filter(pl.len().over("part") >= MIN_CONSTANTS)


class MetricsOnHost(Alternative, frozen=True, kw_only=True):
    """Whole tensors are copied to the host in every step, and something is computed of them there."""

    change = "metrics on the GPU"
    rests_on = (
        "what is computed of the GPU's tensors is computed on the GPU, and figures alone are copied"
    )
    code = "work_on_host"
    case = "results"
    title = "compute on the CPU"
    says = "whole tensors are copied to the CPU in every step, and figures are computed of them there ({what})"
    advises = "compute the figures on the GPU and copy these, once every N steps"
    caveat = "Results that are written or sent somewhere have to be copied: from pinned memory, beside the next step."

    def find(self, rank: RankWork) -> Iterator[pl.DataFrame]:
        to_host = pl.col("name").str.contains("(?i)DtoH|DeviceToHost")
        copies = rank.events.filter(to_host & (pl.col("copied_bytes") >= MIN_MOVED_BYTES))
        # What is done in few of the steps is done rarely already.
        if copies["part"].n_unique() < MIN_SHARE_THAT_COPIES * rank.events["part"].n_unique():
            return
        if copies.is_empty():
            return
        calls = _calls(rank, copies)
        computing = _computing(rank)
        behind = _near(computing, calls["end_ns"], behind=True)
        names = behind["name"].cast(pl.String)
        # What changes tensors there, or goes backward, is a part of the model that lives on the CPU.
        if names.str.contains(f"_$|embedding|{UPDATES_OR_BACKWARD}").any():
            return
        spans = _intervals(behind)
        named = ", ".join(names.str.strip_prefix("aten::").unique().sort().head(2))
        # What is offloaded on purpose goes to pinned memory; `.cpu()` and `.numpy()` take ordinary memory.
        if behind.is_empty() and copies["name"].str.contains("(?i)pageable").all():
            spans = _without_operators(rank, calls["end_ns"])
            named = "Python or NumPy"
        if not spans.total_ns:
            return
        gone = without_events(copies, self.change, what=named)
        yield gone.with_columns(waits=pl.lit(value=False))
        # The host waits for the copy and then computes: neither is left before the next launch.
        yield from without_stalls(rank, spans | _intervals(calls), self.change, what=named)


def _without_operators(rank: RankWork, times_ns: pl.Series) -> Intervals:
    """Return when behind one of the times no operator runs for long: what was copied is worked on there.

    Operators that take memory or look at it otherwise may run before.
    """
    end_before = pl.col("end_ns").cum_max().shift(1).over("tid")
    outermost = (
        rank.operators.sort("tid", "start_ns", -pl.col("end_ns"))
        .with_columns(end_before=end_before)
        .filter((pl.col("start_ns") >= pl.col("end_before")).fill_null(value=True))
        .sort("start_ns")
    )
    looks = outermost["name"].cast(pl.String).str.contains(WITHOUT_COMPUTING).to_numpy()
    start_ns, end_ns = outermost["start_ns"].to_numpy(), outermost["end_ns"].to_numpy()
    found: list[tuple[int, int]] = []
    for time_ns in times_ns.unique().sort().to_list():
        edge = time_ns
        row = int(np.searchsorted(start_ns, edge))
        while row < len(start_ns):
            if start_ns[row] - edge >= MIN_COMPUTING_NS:
                found.append((edge, int(start_ns[row])))
                break
            if not looks[row]:
                break
            edge = max(edge, int(end_ns[row]))
            row += 1
    if not found:
        return EMPTY
    starts, ends = np.array(found, np.int64).T
    return union(starts, ends)


class HostPreparation(Alternative, frozen=True, kw_only=True):
    """The CPU computes what is then copied to the GPU, where it could be computed."""

    change = "preparation on the GPU"
    rests_on = "what the CPU computes of a batch is computed on the GPU, of what it was made of"
    code = "work_on_host"
    case = "preparation"
    title = "compute on the CPU"
    says = "the CPU computes what is then copied to the GPU, mostly {what}"
    advises = (
        "copy what it is made of (images as `uint8`, indices instead of rows of a table) from pinned memory, and "
        "compute on the GPU"
    )
    caveat = "What has to be computed on the CPU can run in a worker, beside the step before."

    def find(self, rank: RankWork) -> Iterator[pl.DataFrame]:
        from_host = pl.col("name").str.contains("(?i)HtoD|HostToDevice")
        copies = rank.events.filter(from_host & (pl.col("copied_bytes") >= MIN_MOVED_BYTES))
        if copies.is_empty():
            return
        computing = _near(_computing(rank), _calls(rank, copies)["start_ns"], behind=False)
        names = computing["name"].cast(pl.String)
        if computing.is_empty() or names.str.contains(UPDATES_OR_BACKWARD).any():
            return
        took = computing.group_by("name").agg(ns=(pl.col("end_ns") - pl.col("start_ns")).sum())
        named = took.sort("ns", descending=True)["name"].cast(pl.String).head(1).item()
        if named in ONLY_COPYING:  # buffers of messages, batches put together
            return
        low, likely, high = KEPT_SHARE_OF_COPY
        priced = copies.with_columns(
            group="row",
            low_ns=low * pl.col("ns"),
            likely_ns=likely * pl.col("ns"),
            high_ns=high * pl.col("ns"),
        )
        remedies = new_durations(priced, self.change, what=named)
        yield remedies.with_columns(waits=pl.lit(value=False)).cast(REMEDIES)
        yield from without_stalls(rank, _intervals(computing), self.change, what=named)


def _computing(rank: RankWork) -> pl.DataFrame:
    """Return the outermost operators that compute on the CPU: they take long, and launch nothing."""
    took_ns = pl.col("end_ns") - pl.col("start_ns")
    operators = rank.operators.filter(took_ns >= MIN_COMPUTING_NS)
    names = operators["name"].unique()
    text = names.cast(pl.String)
    kept = names.filter(text.str.starts_with("aten::") & ~text.str.contains(WITHOUT_COMPUTING))
    operators = operators.filter(pl.col("name").is_in(kept.implode())).sort("start_ns")
    launched_ns = rank.events["launch_ns"].drop_nulls().sort().to_numpy()
    first = np.searchsorted(launched_ns, operators["start_ns"].to_numpy())
    last = np.searchsorted(launched_ns, operators["end_ns"].to_numpy())
    operators = operators.filter(pl.Series(first == last))
    end_before = pl.col("end_ns").cum_max().shift(1)
    return operators.filter((pl.col("start_ns") >= end_before).fill_null(value=True))


def _calls(rank: RankWork, copies: pl.DataFrame) -> pl.DataFrame:
    """Return the outermost operators that launch copies."""
    launches = copies.select("launch_ns").drop_nulls().sort("launch_ns")
    end_before = pl.col("end_ns").cum_max().shift(1).over("tid")
    outermost = rank.operators.sort("tid", "start_ns", -pl.col("end_ns")).filter(
        (pl.col("start_ns") >= end_before).fill_null(value=True)
    )
    calls = launches.join_asof(
        outermost.select("start_ns", "end_ns").sort("start_ns"),
        left_on="launch_ns",
        right_on="start_ns",
        coalesce=False,
    )
    return calls.filter(pl.col("launch_ns") < pl.col("end_ns"))


def _near(computing: pl.DataFrame, times_ns: pl.Series, *, behind: bool) -> pl.DataFrame:
    """Return operators in a row behind, or in front of, one of the times, each to where the next one begins.

    Between them memory of what they made before is freed.
    """
    starts = computing["start_ns"].to_numpy()
    ends = computing["end_ns"].to_numpy()
    first_ns, last_ns = starts.copy(), ends.copy()
    kept = np.zeros(len(starts), np.bool_)
    for time_ns in times_ns.sort().to_list():
        edge = time_ns
        step = 1 if behind else -1
        row = int(np.searchsorted(starts, edge)) - (0 if behind else 1)
        while 0 <= row < len(starts):
            gap_ns = starts[row] - edge if behind else edge - ends[row]
            if gap_ns > max(MAX_APART_NS, ends[row] - starts[row]):
                break
            kept[row] = True
            first_ns[row] = min(starts[row], edge)
            last_ns[row] = max(ends[row], edge)
            edge = int(ends[row] if behind else starts[row])
            row += step
    spans = computing.with_columns(start_ns=pl.Series(first_ns), end_ns=pl.Series(last_ns))
    return spans.filter(pl.Series(kept))


def _intervals(operators: pl.DataFrame) -> Intervals:
    return union(operators["start_ns"].to_numpy(), operators["end_ns"].to_numpy())


class WideInputs(Alternative, frozen=True, kw_only=True):
    """Inputs are copied to the GPU in 32 bits and narrowed there."""

    change = "narrow inputs"
    rests_on = "inputs are copied in the type that they are used in; images in 8 bits"
    code = "wide_inputs"
    case = ""
    title = "inputs"
    says = "inputs are copied to the GPU in 32 bits and converted to 16 there: the copies take {work_ns}"
    advises = "copy images as `uint8` and scale them on the GPU; convert other inputs before they are copied"
    caveat = "A copy that runs beside compute costs nothing."

    def find(self, rank: RankWork) -> Iterator[pl.DataFrame]:
        from_host = pl.col("name").str.contains("(?i)HtoD|HostToDevice")
        copies = rank.events.filter(from_host & (pl.col("copied_bytes") >= MIN_MOVED_BYTES))
        to_narrow = (pl.col("op") == "aten::copy_") & pl.col("dtypes").str.contains(
            r'^\["(c10::Half|c10::BFloat16)","float"'
        )
        narrowed = rank.events.filter(to_narrow.fill_null(value=False) & ~pl.col("is_backward"))
        sizes = (narrowed["elements"].unique() * FLOAT_BYTES).implode()
        wide = copies.filter(pl.col("copied_bytes").is_in(sizes))
        if wide.is_empty():
            return
        size = wide["shapes"].drop_nulls().head(1)
        first: list[int] = next(iter(parse_list(size.item()) if len(size) else []), [])
        is_image = len(first) == IMAGE_DIMENSIONS and first[1] in CHANNELS_OF_IMAGES
        likely = 1 / 4 if is_image else 1 / 2
        priced = wide.with_columns(
            group="row",
            low_ns=pl.col("ns") / 4,
            likely_ns=pl.col("ns") * likely,
            high_ns=pl.col("ns") / 2,
        )
        yield new_durations(priced, self.change)


class OneCopy(Alternative, frozen=True, kw_only=True):
    """Small copies from the host, one by one: the first of each step would do, for all."""

    change = "one copy"
    rests_on = "small copies from the host are one copy of pinned memory"
    code = "small_copies"
    title = "small copies"
    says = "{kernels_per_step} small copies from the host {per_step}, one by one"
    advises = "put them into one pinned tensor, copy it once with `non_blocking=True`, and split it on the GPU"

    def find(self, rank: RankWork) -> Iterator[pl.DataFrame]:
        small = rank.events.filter(pl.col("copied_bytes") <= MAX_SMALL_COPY_BYTES)
        from_host = pl.col("name").str.contains("(?i)HtoD|HostToDevice")
        # Constants need no copy at all, which is another entry's advice.
        constants = copied_constants(rank).select("start_ns", "launch_ns")
        copies = small.filter(from_host).join(constants, on=["start_ns", "launch_ns"], how="anti")
        copies = copies.sort("start_ns")
        many = copies.filter(pl.len().over("part") >= MIN_SMALL_COPIES)
        if many.is_empty():
            return
        is_first = pl.int_range(pl.len()).over("part") == 0
        remains = new_durations(
            many.filter(is_first).with_columns(
                group="row", low_ns="ns", likely_ns="ns", high_ns="ns"
            ),
            self.change,
        )
        disappear = without_events(many.filter(~is_first), self.change)
        yield pl.concat([remains, disappear]).with_columns(waits=pl.lit(value=False))
