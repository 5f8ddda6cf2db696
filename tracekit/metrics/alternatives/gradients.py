"""Alternatives of backwards: gradients that nothing uses, and checks of every gradient."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator

import numpy as np
import polars as pl

from tracekit._util.shapes import is_shape, parse_list
from tracekit.intervals import Intervals, union
from tracekit.metrics.alternatives.entry import Alternative
from tracekit.metrics.alternatives.remedy import without_events
from tracekit.metrics.alternatives.stalls import without_stalls
from tracekit.metrics.rank_work import RankWork
from tracekit.metrics.sites import Inputs, count_elements
from tracekit.schema import COMMUNICATION_LABELS

Size = tuple[int, ...]

ACCUMULATION = "^torch::autograd::AccumulateGrad$"
"""Operator that keeps the gradient of a leaf: of a weight, or of an input that asks for one."""
MAX_UPDATED_SHARE = 0.5
"""Elements that optimizers update over those of which there are gradients, above which tensors may stand for others:
optimizers that keep flat or sharded copies update tensors of other sizes."""
MIN_BYTES_OF_UPDATE = 6
"""Bytes that an update of one element moves at least: gradient and weight of 16 bits are read, the weight
is written."""
USUAL_BYTES_OF_UPDATE = {"adam": 14, "sgd": 6}
"""Bytes that an update moves per element of 16 bits: Adam reads and writes two states as well."""
MIN_CHECKS = 16
"""Gradients that a step checks for NaN, from which PyTorch's anomaly mode does."""
MIN_ADDED_GRADIENTS_SHARE = 0.9
"""Gradients that are added to others over all, from which each is."""
VIEWS = r"^aten::(view|_unsafe_view|transpose|permute|t|unbind|select|slice|expand|unsqueeze|squeeze|detach|alias)$"
"""Operators that compute nothing: what they take is what autograd and the profiler add."""
MIN_TRACEBACK_NS = 20_000
"""Time of a view from which something else happens in it: stacks of Python are stored."""


class UnusedGradients(Alternative, frozen=True, kw_only=True):
    """A backward computes gradients of weights, or of an input, that no optimizer uses."""

    change = "used gradients"
    rests_on = "the backward computes only gradients that an optimizer uses"
    code = "unused_gradients"
    case = ""
    title = "unused gradients"
    training_only = True
    says = (
        "each backward computes gradients of {what} that no optimizer uses: {work}, "
        "and what the CPU takes to launch it"
    )
    advises = (
        "call `requires_grad_(False)` on what is not trained, and run what lies in front of the first trained "
        "weight under `torch.no_grad()`"
    )
    min_saved_share = 0.02
    caveat = (
        "Gradients that are looked at, or that something else than an optimizer uses, are needed."
    )

    def find(self, rank: RankWork) -> Iterator[pl.DataFrame]:
        is_communication = rank.events["label"].is_in(COMMUNICATION_LABELS).any()
        gradients = _gradients(rank)
        # Ranks that share weights update parts of them.
        if is_communication or gradients.is_empty():
            return
        unused = _unused_sizes(rank, gradients)
        if not unused:
            return
        unused_text = pl.Series([str(list(size)) for size in unused], dtype=pl.String)
        is_unused = pl.col("size").is_in(unused_text.implode())
        per_step = gradients.filter(is_unused).height / gradients["part"].n_unique()
        last_used = (
            gradients.filter(~is_unused).group_by("part").agg(last_ns=pl.col("end_ns").max())
        )
        backward = rank.events.filter(pl.col("node").is_not_null())
        backward = backward.join(last_used, on="part", how="left", maintain_order="left")
        # Behind the last gradient that is used nothing of the backward is.
        is_behind = (pl.col("launch_ns") > pl.col("last_ns")).fill_null(value=True)
        makes_unused = _result_sizes(backward).is_in(unused_text.implode()) & (
            backward["label"] == "wgrad"
        )
        needless = backward.filter(is_behind | makes_unused)
        if not _is_used_outside(rank, unused):
            tensors = "tensor" if round(per_step) == 1 else "tensors"
            yield without_events(needless, self.change, what=f"{round(per_step):,} {tensors}")


def _gradients(rank: RankWork) -> pl.DataFrame:
    """Return part, end and size of each gradient that a backward keeps."""
    kept = rank.operators_named(ACCUMULATION).drop_nulls("shapes")
    texts = kept["shapes"].cast(pl.String)
    sizes = {text: (parse_list(text) or [[]])[0] for text in texts.unique()}
    named = {text: str(size) for text, size in sizes.items() if is_shape(size)}
    size = texts.replace_strict(named, default=None, return_dtype=pl.String).alias("size")
    return kept.select("part", "end_ns", size).drop_nulls()


def _unused_sizes(rank: RankWork, gradients: pl.DataFrame) -> set[Size]:
    """Return the sizes of gradients that no optimizer takes; empty if these are not known."""
    parts = gradients["part"].n_unique()
    counts = Counter(tuple(parse_list(size)) for size in gradients["size"])
    updated: set[Size] = set()
    is_known = True
    updates = rank.sites.filter(pl.col("label") == "optimizer")
    for site in updates.iter_rows(named=True):
        inputs = Inputs.of(site)
        sizes = inputs.tensors(0) or [inputs.size(0)]
        op = site["op"] or ""
        is_list = "_fused_" in op or "_foreach_" in op
        is_known &= bool(inputs.tensors(0)) or not is_list
        updated.update(tuple(size) for size in sizes)
    if updates.is_empty():
        return set()
    of_gradients = sum(count_elements(list(size)) * count for size, count in counts.items()) / parts
    if is_known:
        elements = sum(count_elements(list(size)) for size in updated)
        return set(counts) - updated if elements < MAX_UPDATED_SHARE * of_gradients else set()
    # Long lists lose their sizes; in their time optimizers can have moved so much.
    in_optimizer = rank.events.filter(pl.col("label") == "optimizer")
    if rank.speeds.bandwidth is None:
        return set()
    moved = float(in_optimizer["ns"].sum()) / parts * rank.speeds.bandwidth
    left = of_gradients
    unused: set[Size] = set()
    if moved >= MAX_UPDATED_SHARE * MIN_BYTES_OF_UPDATE * left:
        return set()
    is_adam = updates["op"].str.contains("adam").any()
    per_element = USUAL_BYTES_OF_UPDATE["adam" if is_adam else "sgd"]
    for size in sorted(counts, key=lambda size: count_elements(list(size)), reverse=True):
        if left * per_element <= moved * rank.speeds.share("memory").likely:
            break
        unused.add(size)
        left -= count_elements(list(size)) * counts[size] / parts
    return unused


def _result_sizes(events: pl.DataFrame) -> pl.Series:
    """Return the size of what each event of a backward makes as text: of a product, a convolution or a copy."""
    sizes = {}
    for op, shapes in events.select("op", "shapes").unique().drop_nulls().iter_rows():
        inputs = parse_list(shapes)
        tensors = [size for size in inputs if size and is_shape(size)]
        if op == "aten::mm" and len(tensors) == 2:
            result = [tensors[0][0], tensors[1][-1]]
        elif op == "aten::sum" and tensors:
            result = tensors[0][-1:]
        elif "conv" in op and len(tensors) > 2:
            result = tensors[2]
        else:
            result = tensors[0] if tensors else []
        sizes[op, shapes] = str(result)
    keys = list(zip(events["op"], events["shapes"], strict=True))
    return pl.Series([sizes.get(key) for key in keys], dtype=pl.String)


def _is_used_outside(rank: RankWork, sizes: Collection[Size]) -> bool:
    """Return whether something outside of backward, forward and optimizer works on tensors of gradients' sizes."""
    backward = (
        rank.events.drop_nulls("node").group_by("part").agg(last_ns=pl.col("launch_ns").max())
    )
    later = rank.events.filter(pl.col("node").is_null() & (pl.col("label") != "optimizer"))
    later = later.join(backward, on="part", how="inner")
    later = later.filter(pl.col("launch_ns") > pl.col("last_ns")).drop_nulls(["shapes", "op"])
    # What is zeroed, or averaged for later, uses no gradients.
    later = later.filter(~pl.col("op").str.contains("zero_|fill_|lerp"))
    found: set[Size] = set()
    for shapes in later["shapes"].unique():
        found.update(tuple(size) for size in parse_list(shapes) if size and is_shape(size))
    return bool(found & set(sizes))


class AnomalyMode(Alternative, frozen=True, kw_only=True):
    """Anomaly mode is on: forwards store their stacks, and backwards check each gradient for NaN."""

    change = "no anomaly mode"
    rests_on = "gradients are not checked one by one, and forwards store no stacks"
    code = "debug_mode"
    case = "anomaly"
    title = "checks for debugging"
    training_only = True
    says = (
        "autograd checks every gradient for NaN and waits for the answer: anomaly detection is on"
    )
    advises = "leave out `torch.autograd.set_detect_anomaly(True)` (Lightning: `detect_anomaly`) when it is found"

    def find(self, rank: RankWork) -> Iterator[pl.DataFrame]:
        is_check = pl.col("chain").str.contains("aten::isnan|aten::_is_any_true") | (
            pl.col("chain").str.contains("evaluate_function.* > aten::item")
        )
        checks = rank.events.filter(pl.col("node").is_not_null() & is_check.fill_null(value=False))
        checks = checks.filter(pl.len().over("part") >= MIN_CHECKS)
        if checks.is_empty():
            return
        is_answer = checks["name"].str.contains("(?i)DtoH|DeviceToHost")
        yield without_events(checks, self.change).with_columns(waits=~is_answer)
        yield from without_stalls(rank, _tracebacks(rank), self.change)


def _tracebacks(rank: RankWork) -> Intervals | None:
    """Return when forwards store stacks, by how long operators take that compute nothing."""
    views = rank.operators_named(VIEWS)
    took_ns = pl.col("end_ns") - pl.col("start_ns")
    with_node = views.filter(pl.col("sequence").is_not_null()).select(took_ns.median()).item()
    without_node = views.filter(pl.col("sequence").is_null()).select(took_ns.median()).item()
    stored_ns = (with_node or 0) - (without_node or 0)
    if stored_ns < MIN_TRACEBACK_NS:
        return None
    forward = rank.operators_named("^aten::").drop_nulls("sequence")
    # An operator and the first that it calls have the same number: the inner one makes the node.
    nodes = forward.sort("start_ns").unique(["tid", "sequence"], keep="last").sort("start_ns")
    start_ns = nodes["start_ns"].to_numpy()
    end_ns = start_ns + np.int64(stored_ns)
    return union(start_ns, end_ns)


class ZeroedGradients(Alternative, frozen=True, kw_only=True):
    """Gradients are set to zero, and the next ones added to them."""

    change = "dropped gradients"
    rests_on = "gradients are dropped after each update, and the next ones take their place"
    code = "zeroed_gradients"
    case = ""
    title = "gradients"
    training_only = True
    says = (
        "gradients are set to zero and the next ones added to them, {kernels_per_step} kernels a step: {work_ns} of "
        "GPU time"
    )
    advises = "drop them (`zero_grad(set_to_none=True)`)"

    def find(self, rank: RankWork) -> Iterator[pl.DataFrame]:
        op = pl.col("op").fill_null("")
        outside = pl.col("node").is_null()
        zeroes = op.str.contains("^aten::_foreach_zero_$") | (
            (op.is_in(["aten::zero_", "aten::fill_"]))
            & pl.col("chain").str.contains("^aten::zero_")
        )
        zeroed = rank.events.filter(zeroes & outside)
        adds = rank.events.filter((pl.col("node") == "AccumulateGrad") & op.str.contains("add_?$"))
        kept = rank.operators_named(ACCUMULATION)
        in_several = _runs_several_backwards(rank)
        is_loop = zeroed.height >= MIN_CHECKS or (zeroed["op"] == "aten::_foreach_zero_").any()
        # Each gradient is added to one that is there, and none was before the only backward of the step.
        if (
            zeroed.is_empty()
            or not is_loop
            or in_several
            or adds.height < MIN_ADDED_GRADIENTS_SHARE * kept.height
        ):
            return
        yield without_events(zeroed, self.change)
        yield without_events(adds, self.change)


def _runs_several_backwards(rank: RankWork) -> bool:
    """Return whether a forward runs between gradients of a step that are kept."""
    kept = rank.events.filter(pl.col("node") == "AccumulateGrad")
    spans = kept.group_by("part").agg(
        first=pl.col("launch_ns").min(), last=pl.col("launch_ns").max()
    )
    forward = rank.events.filter((pl.col("label") == "forward") & pl.col("node").is_null())
    between = forward.join(spans, on="part", how="inner").filter(
        pl.col("launch_ns").is_between("first", "last")
    )
    return between.height > MIN_CHECKS


class ScalerWithoutHalf(Alternative, frozen=True, kw_only=True):
    """Losses are scaled although nothing computes in float16."""

    change = "no loss scale"
    rests_on = "gradients are neither scaled nor checked"
    code = "needless_scaler"
    case = ""
    title = "loss scale"
    training_only = True
    says = "gradients are unscaled and checked, and the CPU waits for the answer, though nothing runs in float16"
    advises = "leave the `GradScaler` out: bf16 has the range of float32"

    def find(self, rank: RankWork) -> Iterator[pl.DataFrame]:
        scaler = rank.events.filter(
            pl.col("op").str.contains("^aten::_amp_").fill_null(value=False)
        )
        uses_half = rank.events.select(pl.col("dtypes").str.contains("Half").any()).item()
        has_types = rank.events.select((pl.col("kind") == "product").any()).item()
        if not scaler.is_empty() and has_types and not uses_half:
            waits = rank.events.filter(
                pl.col("chain").str.contains("aten::item").fill_null(value=False)
            )
            first = scaler.group_by("part").agg(scaled_ns=pl.col("launch_ns").min())
            waits = waits.join(first, on="part").filter(pl.col("launch_ns") > pl.col("scaled_ns"))
            yield without_events(scaler, self.change)
            yield without_events(waits, self.change).with_columns(waits=pl.lit(value=False))
