"""Layers of GPU events where neither module calls nor ranges name them, found by repetition.

Every layer of a forward launches the same sequence of kernels. Work of the backward pass is
launched by autograd's engine: it belongs to the layer of the forward operator that created its
node, else to the layer that its own repetition shows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import msgspec
import numpy as np
import polars as pl

from tracekit._util.arrays import Bools, Ints, find_ids
from tracekit._util.categories import CategoryColumn, search_all
from tracekit._util.columns import to_int64, with_nulls
from tracekit.classify.autograd import read_autograd
from tracekit.classify.host_ranges import Ranges, read_ranges
from tracekit.classify.matmul import MATMUL_KERNELS
from tracekit.classify.model_position import (
    MIN_COMPUTE_SHARE,
    UNKNOWN_FRAME,
    Frames,
    Placement,
    node_creators,
    sort_frames,
)
from tracekit.classify.names import HOST_CALLS
from tracekit.classify.product_shapes import product_dims
from tracekit.pipeline.reconstruct.kernels import prepare
from tracekit.pipeline.reconstruct.segment import segment_steps
from tracekit.schema import COMMUNICATION_LABELS, COMPUTE_LABELS

FORWARD_LABELS = ("forward",)
ENGINE_LABELS = ("dgrad", "wgrad", "backward", "recompute")
MESSAGE_LABELS = ("pp_comm", "comm")
"""Labels of work that may carry a micro-batch's output to the next stage."""
MIN_FORWARD_SHARE = 0.5
"""Share of the forwards' kernels that must lie in forwards whose layers were found."""
MIN_LAUNCHING_SHARE = 0.5
"""Share of the layers that must launch communication of a label and pass: layers that repeat are
alike."""
MAX_KERNELS_PER_OPERATOR = 4
"""Kernels of one operator up to which they are identified by the operator; compiled graphs launch
all in one."""
_NORM = r"(?i)norm"
_PLAIN_PRODUCTS = ("aten::mm", "aten::addmm", "aten::_scaled_mm")
"""Operators that multiply activations by a weight."""

LAYER_FRAMES = pl.Schema(
    {
        "tid": pl.Int64(),
        "start_ns": pl.Int64(),
        "end_ns": pl.Int64(),
        "layer": pl.Int64(),
        "stage": pl.Int64(),
    }
)
"""Stretches of host time in which one layer was launched."""
LAYER_KERNELS = pl.Schema({"id": pl.Int64(), "layer": pl.Int64(), "stage": pl.Int64()})
_CHUNK_COLUMNS = (
    "id",
    "name",
    "op",
    "op_id",
    "shapes",
    "host_ns",
    "launch_tid",
    "label",
    "stage",
    "chunk",
    "part",
    "turn",
    "number",
)


class RepeatedLayers(msgspec.Struct, frozen=True, eq=False):
    """Layers of a rank's forwards and backwards."""

    forward: pl.DataFrame
    """``LAYER_FRAMES`` of the forwards."""
    backward: pl.DataFrame
    """``LAYER_FRAMES`` of the backwards."""
    kernels: pl.DataFrame
    """``LAYER_KERNELS``: the kernels that repeat, with their layers."""
    spare: int
    """Kernels by which the starts of layers may be off."""


class _LayeredChunk(msgspec.Struct, frozen=True, eq=False):
    """The kernels of one forward or backward of a micro-batch, in launch order, and the layers among them."""

    kernels: pl.DataFrame
    layers: Layers

    @property
    def stage(self) -> int | None:
        stages = self.kernels["stage"].drop_nulls()
        return int(stages[0]) if len(stages) else None


def repeated_layers(labelled: pl.DataFrame, host: Host) -> RepeatedLayers | None:
    """Return the layers of a rank's forwards, and of the backwards that have as many, in reverse.

    Forwards and backwards of micro-batches are cut as in the reconstruction of the pipeline. A
    layer starts where the host started the operator of its first kernel. None if forwards do not
    repeat, or have different numbers of layers.
    """
    kernels = _compute_kernels(labelled)
    if kernels.is_empty():
        return None
    forwards, share = _chunks_with_layers(kernels, "F", host.sync_ns)
    counts = {chunk.layers.count for chunk in forwards}
    if len(counts) != 1 or share < MIN_FORWARD_SHARE:
        return None
    all_backwards = _chunks_with_layers(kernels, "B", host.sync_ns)[0]
    backwards = [chunk for chunk in all_backwards if chunk.layers.count in counts]
    return RepeatedLayers(
        forward=_layer_frames(forwards, host, reverse=False),
        backward=_layer_frames(backwards, host, reverse=True),
        kernels=pl.concat(
            [_layer_kernels(forwards, reverse=False), _layer_kernels(backwards, reverse=True)]
        ),
        spare=max(chunk.layers.spare for chunk in forwards),
    )


def _compute_kernels(labelled: pl.DataFrame) -> pl.DataFrame:
    """Return the kernels of forwards and backwards in launch order, with the number and kind (F, B) of their chunk.

    Empty if launches of messages were lost, because messages separate the forwards of two
    micro-batches.
    """
    rows = prepare(labelled)
    is_message = rows["label"].cast(pl.String).is_in(MESSAGE_LABELS)
    rows = rows.with_columns(turn=is_message.cum_sum().cast(pl.Int64))
    if (is_message & rows["launch_ns"].is_null()).any():
        rows = rows.clear()
    rows = rows.filter(pl.col("launch_ns").is_not_null())
    if rows["step"].null_count() == rows.height:
        rows = rows.with_columns(step=pl.lit(0, pl.Int64))
    chunks_before = 0
    parts = []
    for _, row_numbers, cut in segment_steps(rows):
        # Kind of each chunk; other kinds than F and B, and kernels in no chunk (-1, the last
        # entry), are empty.
        kinds = pl.Series([op if op in ("F", "B") else "" for op in cut.op] + [""], dtype=pl.String)
        kernels = rows[row_numbers].with_columns(
            chunk=pl.Series(cut.chunk) + chunks_before, part=kinds.gather(cut.chunk % len(kinds))
        )
        parts.append(kernels.filter(pl.Series(cut.chunk >= 0)).select(_CHUNK_COLUMNS))
        chunks_before += len(cut.op)
    if not parts:
        return pl.DataFrame(schema=dict.fromkeys(_CHUNK_COLUMNS, pl.Null))
    return pl.concat(parts).with_columns(pl.col("name", "op", "label").cast(pl.String))


def _chunks_with_layers(
    kernels: pl.DataFrame, kind: str, sync_ns: Ints
) -> tuple[list[_LayeredChunk], float]:
    """Return the chunks of a kind that have layers, and their share of the kernels of all chunks of the kind.

    Chunks that launched the same kernels are searched once. Where the host waits for the GPU before
    each repetition (*sync_ns*), these are whole passes.
    """
    layers_of_tokens: dict[bytes, Layers | None] = {}
    all_chunks = split_chunks(kernels, kind)
    chunks = []
    for chunk in all_chunks:
        tokens = chunk["token"].to_numpy()
        key = tokens.tobytes()
        if key not in layers_of_tokens:
            is_product = search_all(MATMUL_KERNELS, chunk["name"].to_list())
            is_norm = chunk["name"].str.contains(_NORM) | chunk["op"].fill_null("").str.contains(
                _NORM
            )
            layers = find_layers(tokens, is_product, is_norm.to_numpy())
            if (
                kind == "F"
                and layers
                and not _is_chained(chunk[layers.first : layers.first + layers.period])
            ):
                layers = None
            layers_of_tokens[key] = layers
        layers = layers_of_tokens[key]
        if layers is not None and kind == "F":
            first_kernels = layers.first + layers.period * np.arange(1, layers.count)
            # Waits of the host before the last kernel of each repetition, and before the first of
            # the next.
            waits = np.searchsorted(
                sync_ns, chunk["host_ns"].to_numpy()[np.stack([first_kernels - 1, first_kernels])]
            )
            layers = None if (waits[0] < waits[1]).all() else layers
        if layers is not None:
            chunks.append(_LayeredChunk(chunk, layers))
    return chunks, sum(len(chunk.kernels) for chunk in chunks) / max(sum(map(len, all_chunks)), 1)


def _is_chained(layer: pl.DataFrame) -> bool:
    """Return whether kernels that repeat can follow each other as layers: a product returns to the first one's width.

    A whole model that runs several times ends in another width than it begins with. True where
    shapes do not tell.
    """
    shapes = (
        layer.filter(pl.col("op").is_in(_PLAIN_PRODUCTS))["shapes"].cast(pl.String).drop_nulls()
    )
    widths = [(inner, columns) for _, inner, columns, _ in map(product_dims, shapes) if inner]
    return not widths or widths[0][0] in {columns for _, columns in widths}


def split_chunks(kernels: pl.DataFrame, kind: str) -> list[pl.DataFrame]:
    """Return the kernels of each chunk of a kind, with a ``token`` that is equal for equal kernels."""
    labels = FORWARD_LABELS if kind == "F" else ENGINE_LABELS
    rows = kernels.filter((pl.col("part") == kind) & pl.col("label").is_in(labels))
    # A kernel is identified by its operator, unless that launches many: then by its own name.
    few_kernels = (pl.len().over("op_id") <= MAX_KERNELS_PER_OPERATOR) & pl.col(
        "op_id"
    ).is_not_null()
    token = (
        pl.when(pl.col("op").is_not_null() & few_kernels)
        .then(pl.col("op"))
        .otherwise(pl.col("name"))
    )
    rows = rows.with_columns(token=token.cast(pl.Categorical()).to_physical().cast(pl.Int64))
    if kind == "F":
        # Without sequence numbers several micro-batches may be one chunk: the messages between them
        # separate them.
        turn = pl.when(pl.col("number").is_null().all().over("chunk")).then("turn").otherwise(0)
        rows = rows.with_columns(chunk=pl.struct("chunk", turn).rank("dense").cast(pl.Int64))
    return rows.sort("chunk", "host_ns", maintain_order=True).partition_by(
        "chunk", maintain_order=True
    )


def _layer_kernels(chunks: Sequence[_LayeredChunk], *, reverse: bool) -> pl.DataFrame:
    """Return ``LAYER_KERNELS`` of the chunks; backwards run their layers in reverse order."""
    parts = [LAYER_KERNELS.to_frame()]
    for chunk in chunks:
        layers = chunk.layers
        kernels = chunk.kernels[layers.first : layers.first + layers.period * layers.count]
        number = np.arange(len(kernels)) // layers.period
        layer = pl.Series(layers.count - 1 - number if reverse else number)
        parts.append(
            kernels.select("id", layer=layer, stage=pl.lit(chunk.stage, pl.Int64)).cast(
                LAYER_KERNELS
            )
        )
    return pl.concat(parts)


def _layer_frames(chunks: Sequence[_LayeredChunk], host: Host, *, reverse: bool) -> pl.DataFrame:
    """Return ``LAYER_FRAMES`` of the chunks; backwards run their layers in reverse order."""
    parts = [LAYER_FRAMES.to_frame()]
    for chunk in chunks:
        layers = chunk.layers
        host_ns = chunk.kernels["host_ns"].to_numpy()
        # First kernel of each layer, and the kernel after the last layer, which may not exist.
        edges = layers.first + layers.period * np.arange(layers.count + 1)
        edge_kernels = chunk.kernels[np.minimum(edges, len(host_ns) - 1)]
        launch_before_ns = np.append(0, host_ns)[edges]
        edge_ns = host.outermost_start_ns(
            edge_kernels["op_id"].fill_null(-1).to_numpy(),
            edge_kernels["host_ns"].to_numpy(),
            launch_before_ns,
        )
        if edges[-1] >= len(host_ns):
            edge_ns[-1] = host_ns[-1] + 1
        start_ns = edge_ns[:-1]
        end_ns = edge_ns[1:]
        # One launch of all layers, as of a graph: no time separates them.
        if (start_ns >= end_ns).any():
            continue
        layer = pl.Series(np.arange(layers.count))
        frames = edge_kernels[:-1].select(
            tid=pl.col("launch_tid").fill_null(-1),
            start_ns=start_ns,
            end_ns=end_ns,
            layer=layer.reverse() if reverse else layer,
            stage=pl.lit(chunk.stage, pl.Int64),
        )
        parts.append(frames.cast(LAYER_FRAMES))
    return pl.concat(parts)


# ---- operators of the host


class Host(msgspec.Struct, frozen=True, eq=False):
    """The operators of one rank's host."""

    ranges: Ranges
    creators: pl.DataFrame
    """Operators that created nodes of autograd's graph (``model_position.node_creators``)."""
    sync_ns: Ints
    """Times at which the host began to wait for the GPU."""

    @classmethod
    def of(cls, events: pl.DataFrame) -> Host:
        """Return the operators among one rank's events."""
        _, ranges, launches = read_ranges(events)
        waits = events.filter(
            pl.col("kind").is_in(("runtime", "driver"))
            & pl.col("name").cast(pl.String).str.contains(HOST_CALLS["synchronize"])
        )
        return cls(
            ranges,
            node_creators(read_autograd(ranges, launches)),
            waits["start_ns"].sort().to_numpy(),
        )

    def outermost_start_ns(self, op_id: Ints, launch_ns: Ints, after_ns: Ints) -> Ints:
        """Return for each launch the start of the outermost operator around it that started after a given time.

        Args:
            op_id: Event of the innermost operator around the launch; -1 if not known.
            launch_ns: Time of the launch, which is returned if no operator qualifies.
            after_ns: Operators that started at or before this time do not count.

        """
        row = find_ids(op_id, self.ranges.column("id", np.arange(len(self.ranges))).to_numpy())
        # The entries appended at the end belong to row -1: no operator.
        start_ns = np.append(self.ranges.start(), np.iinfo(np.int64).max)
        operator_around = np.append(self.ranges.op_of, -1)
        outermost_ns = launch_ns.copy()
        while (row >= 0).any():  # climb all stacks of operators together, one level per round
            row = np.where(start_ns[row] > after_ns, row, -1)
            outermost_ns = np.where(row >= 0, np.minimum(outermost_ns, start_ns[row]), outermost_ns)
            row = operator_around[row]
        return outermost_ns


# ---- layers of GPU events


def repeated_positions(
    events: pl.DataFrame, gpu_events: pl.DataFrame
) -> tuple[pl.DataFrame, int] | None:
    """Return ``layer`` and ``stage`` of every GPU event by repetition, and by how many kernels layers may be off.

    None if there are no layers, or they hold too little of the forward. Forward work is placed by
    its launch or its node, backward work by its launch.
    """
    host = Host.of(events)
    repeated = repeated_layers(gpu_events, host)
    if repeated is None:
        return None
    label = gpu_events["label"].cast(pl.String)
    is_backward = gpu_events["pass"].cast(pl.String) == "backward"
    may_be_forward = ((label == "forward") | ~label.is_in((*COMPUTE_LABELS, "other"))).to_numpy()
    by_engine = (
        is_backward.fill_null(False) | label.is_in(ENGINE_LABELS) | gpu_events["node"].is_not_null()
    )
    placement = Placement(
        tid=to_int64(gpu_events["launch_tid"]),
        launch_ns=to_int64(gpu_events["launch_ns"]),
        by_engine=by_engine.to_numpy(),
        node=CategoryColumn.from_series(gpu_events["node"]),
        sequence=to_int64(gpu_events["autograd_sequence"]),
        creators=host.creators,
    )
    forward_frames = Frames.of(repeated.forward.with_columns(name=pl.format("layer {}", "layer")))
    frame = placement.frames(forward_frames, by_launch=may_be_forward & ~placement.by_engine)
    backward_frames = Frames.of(repeated.backward.with_columns(name=pl.format("layer {}", "layer")))
    if len(backward_frames):
        by_launch = placement.by_engine & (frame == UNKNOWN_FRAME)
        backward_frame = placement.frames(backward_frames, by_launch=by_launch, by_sequence=False)
        # Backward frames come after the forward frames in the table of both.
        frame = np.where(backward_frame >= 0, backward_frame + len(forward_frames), frame)
    forward_rows = sort_frames(repeated.forward.select(LAYER_FRAMES.names()))
    backward_rows = sort_frames(repeated.backward.select(LAYER_FRAMES.names()))
    both = pl.concat([forward_rows, backward_rows])
    positions = _without_shared_communication(
        gpu_events, _by_kernel(gpu_events, frame, both, repeated)
    )
    forward_ns = (gpu_events["end_ns"] - gpu_events["start_ns"]).filter(label == "forward")
    placed_ns = forward_ns.filter(positions["layer"].is_not_null().filter(label == "forward"))
    return (
        (positions, repeated.spare)
        if placed_ns.sum() >= MIN_COMPUTE_SHARE * int(forward_ns.sum())
        else None
    )


def _by_kernel(
    gpu_events: pl.DataFrame, frame: Ints, frames: pl.DataFrame, repeated: RepeatedLayers
) -> pl.DataFrame:
    """Place kernels that repeat by their position in the repetition, and all other events by their frame.

    For the backward, the frame is preferred: it rests on sequence numbers. Without these it is
    unknown, and a kernel's position in the repetition is all there is.
    """
    by_frame = frames.select(pl.col("layer", "stage").gather(with_nulls(frame, frame >= 0)))
    by_frame = by_frame.with_columns(gpu_events["id"], frame=frame)
    both = by_frame.join(
        repeated.kernels.unique("id"),
        on="id",
        how="left",
        maintain_order="left",
        suffix="_in_repetition",
    )
    is_forward = pl.lit(gpu_events["label"].cast(pl.String) == "forward")
    use_repetition = pl.col("layer_in_repetition").is_not_null() & (
        is_forward | (pl.col("frame") == UNKNOWN_FRAME)
    )
    names = ("layer", "stage")
    return both.select(
        pl.when(use_repetition).then(f"{name}_in_repetition").otherwise(name).alias(name)
        for name in names
    )


def _without_shared_communication(
    gpu_events: pl.DataFrame, positions: pl.DataFrame
) -> pl.DataFrame:
    """Take communication that few layers launch out of them: it serves others too, as parameters gathered ahead."""
    table = positions.with_columns(gpu_events["label"].cast(pl.String), gpu_events["pass"])
    layer_and_stage = pl.struct("layer", "stage")
    has_layer = pl.col("layer").is_not_null()
    layer_count = table.filter(has_layer).select(layer_and_stage.n_unique()).item()
    launching_layers = layer_and_stage.filter(has_layer).n_unique().over("label", "pass")
    is_shared = pl.col("label").is_in(COMMUNICATION_LABELS) & (
        launching_layers < MIN_LAUNCHING_SHARE * layer_count
    )
    return table.select(pl.when(~is_shared).then("layer").alias("layer"), "stage")


# ---- Layers found by repetition: a forward launches the same kernels once per layer, so its sequence has a period.


MIN_LAYER_KERNELS = 4
"""Kernels of the shortest layer; a shorter period is a loop inside a layer."""
MIN_REPEATED_SHARE = 0.5
"""Share of a sequence's kernels that its repeated part must contain."""
MAX_SHARE_BESIDE = 0.5
"""Share of a layer's kernels that, found before or after the repeated part, may be one more layer
that ran a little differently: the number of layers is then unknown."""
MAX_CANDIDATE_PERIODS = 64
"""Periods tried: those at which most kernels equal the kernel one period later."""
RANDOM_SIGNS = 16
"""Random signs per kind of kernel in the search for periods; more make chance agreement less
likely."""


class Layers(msgspec.Struct, frozen=True):
    """Equal layers in a sequence: *count* layers of *period* kernels each, the first at index *first*."""

    first: int
    period: int
    count: int
    spare: int
    """Kernels by which all layers may be shifted: what follows the last one looks like the start of
    another."""


def find_layers(tokens: Ints, heavy: Bools, begins: Bools | None = None) -> Layers | None:
    """Return the layers of a sequence of kernels; None where it does not repeat, or is ambiguous.

    Args:
        tokens: Number of each kernel's kind.
        heavy: Mask of matrix products; every layer has one.
        begins: Mask of kernels that layers usually begin with; it decides where layers start where
            that is open.

    >>> names = np.array([9, 1, 2, 3, 4, 1, 2, 3, 4, 1, 2, 3, 4, 1, 8])
    >>> find_layers(names, names == 2)
    Layers(first=1, period=4, count=3, spare=1)
    >>> find_layers(np.arange(20), np.ones(20, bool)) is None
    True

    """
    covered, period, first = _find_period(tokens, heavy)
    if covered < MIN_REPEATED_SHARE * len(tokens) or not covered:
        return None
    spare = covered % period
    layers = Layers(_choose_start(first, spare, begins), period, covered // period, spare)
    if _may_have_one_more(tokens, layers):
        return None
    # If a layer repeats inside as well, the outer period may be whole forwards and the inner one
    # the layers.
    layer = slice(layers.first, layers.first + period)
    return None if find_layers(tokens[layer], heavy[layer]) is not None else layers


def _find_period(tokens: Ints, heavy: Bools) -> tuple[int, int, int]:
    """Return the number of kernels in the longest repeated part, its period and its first kernel.

    Zeros if none.

    Of several parts as long, the one with the shortest period counts.
    """
    best = (0, 0, 0)
    for period in _candidate_periods(tokens):
        first, length = _longest_run(tokens[period:] == tokens[:-period])
        covered = length + period
        if length >= period and heavy[first : first + period].any() and covered > best[0]:
            best = (covered, period, first)
    return best


def _candidate_periods(tokens: Ints) -> list[int]:
    """Return the periods at which most kernels equal the kernel one period later, ascending.

    Each kind of kernel is replaced by a random sign. The autocorrelation of the signs counts up
    where equal kernels meet and cancels out elsewhere; an FFT computes it for all periods at once.
    So the work does not grow with the number of kinds. The mean over several choices of signs
    reduces chance agreement.
    """
    count = len(tokens)
    if count < 2 * MIN_LAYER_KERNELS:
        return []
    kinds, kind, occurrences = np.unique(tokens, return_inverse=True, return_counts=True)
    signs = np.random.default_rng(0).choice((-1.0, 1.0), (RANDOM_SIGNS, len(kinds)))
    signs[:, occurrences == 1] = 0.0  # a kind that occurs once equals no other kernel
    size = 1 << (2 * count - 1).bit_length()
    power = np.zeros(size // 2 + 1)
    for sign_of_kind in signs:
        power += np.abs(np.fft.rfft(sign_of_kind[kind], size)) ** 2
    agreement = np.fft.irfft(power, size)[: count // 2 + 1] / RANDOM_SIGNS
    agreement[:MIN_LAYER_KERNELS] = 0
    likely = np.argsort(-agreement, kind="stable")[:MAX_CANDIDATE_PERIODS]
    return sorted(int(period) for period in likely if period >= MIN_LAYER_KERNELS)


def _longest_run(mask: Bools) -> tuple[int, int]:
    """Return start and length of the longest run of True; zeros if there is none."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], mask.astype(np.int8), [0]])))
    starts = edges[::2]
    lengths = edges[1::2] - edges[::2]
    if not len(lengths):
        return 0, 0
    longest = int(lengths.argmax())
    return int(starts[longest]), int(lengths[longest])


def _choose_start(first: int, spare: int, begins: Bools | None) -> int:
    """Return the start of the first layer: the first possible one that layers usually begin with, if there is one."""
    if begins is None:
        return first
    likely = np.flatnonzero(begins[first : first + spare + 1])
    return first + int(likely[0]) if len(likely) else first


def _may_have_one_more(tokens: Ints, layers: Layers) -> bool:
    """Return whether the kernels before or after the layers are nearly one more layer."""
    end = layers.first + layers.period * layers.count
    layer = tokens[layers.first : layers.first + layers.period]
    sides = (tokens[: layers.first], tokens[end:])
    return any(_count_shared(layer, side) >= MAX_SHARE_BESIDE * layers.period for side in sides)


def _count_shared(layer: Ints, side: Ints) -> int:
    """Return how many kernels of a layer occur in *side* too.

    A kind counts as often as it occurs in both.
    """
    shared = Counter(layer.tolist()) & Counter(side.tolist())
    return shared.total()
