"""Phases of one process: stretches of training, generation and weight synchronisation, and its decoding.

Annotations of RL frameworks (``phase_names.toml``) decide where there are any. Otherwise labels do:
the forward of a process that trains is training, that of one that does not is generation, and
broadcasts, reloads and copies of weights to the device are weight synchronisation. Other events
(communication, small copies, fills) belong to the stretch beside them.
"""

import tomllib
from functools import cache
from importlib.resources import files
from itertools import chain

import numpy as np
import polars as pl

from tracekit.intervals import union
from tracekit.schema import COMMUNICATION_LABELS, PATH_SEPARATOR, conform

ROLLOUT = "rollout"
TRAIN = "train"
WEIGHT_SYNC = "weight_sync"
STRETCHES = pl.Schema(
    {
        "phase": pl.String(),
        "annotated": pl.Boolean(),  # True if an annotation names the phase
        "start_ns": pl.Int64(),
        "end_ns": pl.Int64(),
        "busy_ns": pl.Int64(),  # union of its GPU events
        "device": pl.Int32(),
    }
)
DECODE_STEPS = pl.Schema({"start_ns": pl.Int64(), "keys": pl.Int64()})
"""Attention over a cache: start of the operator, and the number of key positions it reads."""
TRAINING_LABELS = ("dgrad", "wgrad", "backward", "optimizer", "recompute")
MAX_AGREEMENT_BYTES = 4096
"""Bytes up to which a collective agrees on a status or a count; a barrier has none."""
_ATTENTION = r"(?i)attention|flash_attn|fmha|sdpa"
MODEL_LABELS = ("forward", *TRAINING_LABELS)
_SYNC_LABELS = ("broadcast", "reload", "onload")


@cache
def phase_names() -> dict[str, str]:
    """Return the regular expression of each phase's annotations.

    >>> sorted(phase_names())
    ['rollout', 'train', 'weight_sync']
    """
    data = tomllib.loads(files("tracekit.metrics").joinpath("phase_names.toml").read_text("utf-8"))
    patterns: dict[str, str] = {}
    for phase, names_of_frameworks in data.items():
        names = set(chain.from_iterable(names_of_frameworks.values()))
        patterns[phase] = rf"(^|{PATH_SEPARATOR})({'|'.join(sorted(names))})($| > )"
    return patterns


def find_stretches(labelled: pl.DataFrame) -> pl.DataFrame:
    """Return the stretches of each phase of one process in order of time (``STRETCHES``).

    >>> rows = [("forward", 0, 4), ("wgrad", 4, 6), ("memory", 6, 7), ("broadcast", 8, 9), ("comm", 9, 10)]
    >>> gpu = pl.DataFrame(rows, schema=["label", "start_ns", "end_ns"], orient="row")
    >>> find_stretches(gpu.with_columns(annotations=pl.lit(None, pl.String), bytes=0, device=0)).select(
    ...     "phase", "start_ns", "end_ns").rows()
    [('train', 0, 6), ('weight_sync', 6, 10)]
    """
    trains = bool(labelled["label"].is_in(TRAINING_LABELS).any())
    is_model = pl.col("label").is_in(MODEL_LABELS)
    is_sync = pl.col("label").is_in(_SYNC_LABELS)
    by_label = (
        pl.when(is_model)
        .then(pl.lit(TRAIN if trains else ROLLOUT))
        .when(is_sync)
        .then(pl.lit(WEIGHT_SYNC))
    )
    named = _annotated_phases(labelled["annotations"])
    is_agreement = pl.col("label").is_in(COMMUNICATION_LABELS) & (
        pl.col("bytes") <= MAX_AGREEMENT_BYTES
    )
    events = labelled.select(
        named,
        by_label.alias("by_label"),
        is_agreement.fill_null(False).alias("agreement"),
        "start_ns",
        "end_ns",
        "device",
    ).sort("start_ns")
    events = events.with_columns(
        phase=pl.coalesce("named", "by_label"), annotated=pl.col("named").is_not_null()
    )
    # A stretch is a run of events of one phase.
    runs = events.with_columns(fill_neutral_phases(events, trains=trains)).filter(
        pl.col("phase").is_not_null()
    )
    runs = runs.with_columns(run=pl.col("phase").rle_id())
    table = runs.group_by("run", maintain_order=True).agg(
        pl.col("phase").first(),
        pl.col("annotated").any(),
        pl.col("start_ns").min(),
        pl.col("end_ns").max(),
        pl.col("device").first(),
    )
    busy = union(runs["start_ns"], runs["end_ns"], runs["run"]).totals_ns(len(table))
    return conform(table.with_columns(busy_ns=pl.Series(busy)), STRETCHES)


def _annotated_phases(annotations: pl.Series) -> pl.Series:
    """Return the phase that each event's annotations name.

    The expressions are matched once per distinct text.
    """
    texts = annotations.unique().drop_nulls().cast(pl.String)
    phases: dict[str, str] = {}
    for phase, pattern in phase_names().items():
        for text in texts.filter(texts.str.contains(pattern)):
            phases[text] = phase
    if not phases:
        return pl.Series("named", [None], pl.String).new_from_index(0, len(annotations))
    return (
        annotations.cast(pl.String)
        .replace_strict(phases, default=None, return_dtype=pl.String)
        .alias("named")
    )


def fill_neutral_phases(events: pl.DataFrame, *, trains: bool) -> pl.Series:
    """Return the phase of every event; events without one get that of a neighbour.

    The longest pause between two stretches divides what lies between them, with two exceptions:
    after training, everything prepares the weight synchronisation, and after that, barriers and
    collectives of a few bytes end it.
    """
    phase = events["phase"]
    before = phase.forward_fill()
    after = phase.backward_fill()
    takes_before = before.eq_missing(after) | after.is_null()
    filled = pl.select(pl.when(takes_before).then(before).otherwise(phase)).to_series()
    is_open = filled.is_null() & before.is_not_null()
    open_rows = np.flatnonzero(is_open.to_numpy())
    if not len(open_rows):
        return filled.alias("phase")
    start = events["start_ns"].to_numpy()
    end = events["end_ns"].cum_max().to_numpy()
    is_agreement = events["agreement"].to_numpy()
    phases = filled.to_list()
    # One group of neighbouring rows per change of phase.
    for rows in np.split(open_rows, np.flatnonzero(np.diff(open_rows) > 1) + 1):
        first = int(rows[0])
        end_row = int(rows[-1]) + 1
        previous_phase = before[first]
        next_phase = after[first]
        divide = first  # rows from here on belong to the next phase
        if previous_phase == WEIGHT_SYNC:
            agreements = np.flatnonzero(is_agreement[first:end_row])
            divide = first + int(agreements[-1]) + 1 if len(agreements) else first
        prepares_sync = trains and next_phase == WEIGHT_SYNC
        if not prepares_sync:
            pauses = start[divide : end_row + 1] - end[divide - 1 : end_row]
            divide += int(pauses.argmax())
        phases[first:divide] = [previous_phase] * (divide - first)
        phases[divide:end_row] = [next_phase] * (end_row - divide)
    return pl.Series("phase", phases, pl.String)


def find_decode_steps(events: pl.DataFrame) -> pl.DataFrame:
    """Return the calls of attention in which fewer queries than keys are given: a cache is read (``DECODE_STEPS``).

    >>> from tracekit.schema import EVENTS
    >>> op = {"kind": "cpu_op", "name": "aten::scaled_dot_product_attention", "start_ns": 5, "end_ns": 6}
    >>> ops = pl.DataFrame([{**op, "shapes": "[[8,16,1,64],[8,16,129,64],[8,16,129,64]]"}])
    >>> find_decode_steps(conform(ops, EVENTS)).rows()
    [(5, 129)]
    """
    names = events["name"].unique().cast(pl.String)
    attention = names.filter(names.str.contains(_ATTENTION)).to_list()
    is_call = (
        (pl.col("kind") == "cpu_op")
        & pl.col("shapes").is_not_null()
        & pl.col("name").is_in(attention)
    )
    calls = events.filter(is_call).select("start_ns", "shapes").sort("start_ns")
    # The first two inputs are the queries and the keys, as in "[[8,16,1,64],[8,16,129,64]".
    shapes = pl.col("shapes").cast(pl.String).str.replace_all(" ", "")

    def dimensions(number: int) -> pl.Expr:
        text = shapes.str.extract(r"^\[\[([\d,]+)\],\[([\d,]+)\]", number)
        return text.str.split(",").cast(pl.List(pl.Int64), strict=False)

    lengths = calls.select("start_ns", queries=dimensions(1), key_shape=dimensions(2))
    lengths = lengths.filter(pl.col("queries").list.len() == pl.col("key_shape").list.len())
    # Attention with the same number of dimensions: positions are in the one dimension where keys
    # exceed queries.
    longer = lengths.explode("queries", "key_shape").filter(pl.col("key_shape") > pl.col("queries"))
    table = longer.group_by("start_ns", maintain_order=True).agg(keys=pl.col("key_shape").max())
    return conform(table, DECODE_STEPS)
