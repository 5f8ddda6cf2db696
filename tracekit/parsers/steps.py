"""Assignment of steps to events: training steps, or the prefill and decode steps of an inference server."""

import re
from heapq import heappop, heappush

import numpy as np
import numpy.typing as npt
import polars as pl

from tracekit._util.arrays import Bools, Ints, find_ids, take_or_missing
from tracekit.errors import Notice
from tracekit.schema import GPU_KINDS, KINDS, conform

_PROFILER_STEP = r"^ProfilerStep#(\d+)$"

SERVER_STEP_FORMS = (
    # vLLM, and SGLang where it follows it: requests and tokens of both kinds. A bracket holds the
    # tokens, or sums over the requests of which the first (sq) is the tokens.
    r"^execute_(?:\d+_)?context_(?<prefills>\d+)\((?:sq)?(?<prefill_tokens>\d+)[^)]*\)"
    r"_generation_(?<decodes>\d+)\((?:sq)?(?<decode_tokens>\d+)[^)]*\)$",
    # vLLM up to 0.11: requests that are new (prefill) and cached (decode).
    r"^execute_new_(?<prefills>\d+)_cached_(?<decodes>\d+)$",
    # SGLang: the mode of the batch, its requests, and its tokens if they are not one each. With
    # detailed annotations also requests (c, g) and tokens (c_sq, g_sq) of both kinds.
    r"^step\[(?<mode>[A-Z_]+)(?: raw_bs=\d+)? bs=(?<requests>\d+)(?: toks=(?<tokens>\d+))?"
    r"(?: c=(?<prefills>\d+))?(?: g=(?<decodes>\d+))?"
    r"(?: c_sq=(?<prefill_tokens>\d+))?(?: c_[a-z]+=\d+)*"
    r"(?: g_sq=(?<decode_tokens>\d+))?(?: g_[a-z]+=\d+)*(?: topk=\d+)?\]$",
    # TensorRT-LLM's PyTorch backend: requests of both kinds, tokens of prefill in newer versions.
    r"^\[Executor\] _forward_step(?: \d+)?: (?<prefills>\d+) ctx reqs,"
    r"(?: (?<prefill_tokens>\d+) ctx (?:tokens|tkns),)? (?<decodes>\d+) gen reqs",
)
"""Marks that inference servers write around each step, with what they say about its batch."""
_MODES = {
    "EXTEND": "prefill",
    "PREFILL": "prefill",
    "SPLIT_PREFILL": "prefill",
    "DECODE": "decode",
    "TARGET_VERIFY": "decode",
    "MIXED": "mixed",
}
"""Kind of a step by SGLang's mode of its batch; other modes (drafting, idle) are of no kind."""
_LOOKUP = r"^aten::embedding$"
_LOOKUP_SHAPES = r"^\[\[(?<vocabulary>\d+),(?<width>\d+)\],\[(?:(?<sequences>\d+),)(?<length>\d+)\]"
_NO_GENERATION = r"^ProfilerStep#|^Optimizer\.|Backward\d*$|^autograd::engine"
"""Names in a trace whose steps are marked, or that trains."""
MAX_COUNT_IN_MARK = 10**9
"""Most requests or tokens that a mark may name; a larger number is damage, and unknown."""
SERVER_STEPS = pl.Schema(
    {
        "step": pl.Int64(),
        "start_ns": pl.Int64(),
        "end_ns": pl.Int64(),
        "kind": pl.String(),  # prefill, decode or mixed; null if the mark does not say it
        "requests": pl.Int64(),
        "tokens": pl.Int64(),  # computed in the step; null if unknown
    }
)
"""Steps of inference, numbered from 0 in order of time."""


def assign_steps(events: pl.DataFrame, marks: pl.DataFrame | None = None) -> pl.DataFrame:
    """Return *events* with the column ``step``.

    A CPU event belongs to the innermost step around its start, a GPU event to the step of its
    launch. Events outside every step, and GPU events whose launch is not recorded, get null.

    Args:
        events: Events of one rank.
        marks: When each step ran (``step``, ``start_ns``, ``end_ns``); by default those of
            inference (``find_inference_steps``), else the ``ProfilerStep#N`` annotations.

    >>> marks = pl.DataFrame({"step": [7], "start_ns": [10], "end_ns": [20]})
    >>> events = pl.DataFrame({"kind": ["runtime", "kernel"], "start_ns": [12, 25], "correlation": [1, 1]})
    >>> assign_steps(events, marks)["step"].to_list()
    [7, 7]
    """
    kind = events["kind"].cast(pl.Enum(KINDS)).to_physical().to_numpy()
    if marks is None:
        marks = find_inference_steps(events).select("step", "start_ns", "end_ns")
    if marks.is_empty():
        marks = find_profiler_steps(events).select("step", "start_ns", "end_ns")
    marks = marks.drop_nulls().sort("start_ns", "end_ns", "step", descending=[False, True, False])
    if marks.is_empty():
        return events.with_columns(step=pl.lit(None, pl.Int64))
    bounds, innermost = _innermost_marks(marks)
    # Step number from each bound on; owner -1 picks the appended value, which is masked out below.
    numbers = np.append(marks["step"].to_numpy(), -1)[innermost]
    starts = events["start_ns"].to_numpy()
    steps, inside = _steps_at(starts, bounds, numbers, innermost >= 0)
    # GPU events take the step at the start of their launch instead of their own start.
    gpu_rows = np.flatnonzero(_of_kind(kind, *GPU_KINDS, "gpu_annotation"))
    launch_rows = _find_launches(
        events["correlation"], _of_kind(kind, "runtime", "driver"), gpu_rows
    )
    inside[gpu_rows] = False
    # A launch that is not in the file: the operator that made it tells the time as well.
    is_lost = (launch_rows < 0) & _of_kind(kind[gpu_rows], *GPU_KINDS)
    if is_lost.any() and _names_operators(events, gpu_rows):
        launch_rows[is_lost] = _find_launches(
            events["external_id"], _of_kind(kind, "cpu_op"), gpu_rows[is_lost]
        )
    has_launch = launch_rows >= 0
    gpu_rows = gpu_rows[has_launch]
    launch_rows = launch_rows[has_launch]
    steps[gpu_rows], inside[gpu_rows] = _steps_at(
        starts[launch_rows], bounds, numbers, innermost >= 0
    )
    step = pl.Series("step", steps)
    return events.with_columns(step if inside.all() else step.set(pl.Series(~inside), None))


MAX_SHARE_OF_EQUAL_IDS = 0.9
"""Share of GPU events whose external id equals their correlation, above which such ids name no operators."""


def _names_operators(events: pl.DataFrame, gpu_rows: Ints) -> bool:
    """Return whether external ids of GPU events name operators; some files write the correlation there."""
    if "external_id" not in events.columns:
        return False
    ids = events.select("external_id", "correlation")[gpu_rows]
    equal = (ids["external_id"] == ids["correlation"]).sum()
    return equal <= MAX_SHARE_OF_EQUAL_IDS * len(ids)


def _steps_at(times: Ints, bounds: Ints, numbers: Ints, inside: Bools) -> tuple[Ints, Bools]:
    """Return the step at each of *times*, and whether there is one.

    *numbers* and *inside* hold the step, and whether there is one, from each of *bounds* up to the
    next.
    """
    interval = np.searchsorted(bounds, times, side="right") - 1  # -1 before the first bound
    return numbers[interval], inside[interval] & (interval >= 0)


def _of_kind(kind: npt.NDArray[np.uint8], *names: str) -> Bools:
    """Return the mask of events whose kind is one of *names*."""
    return np.isin(kind, [KINDS.index(name) for name in names])


def filter_by_name(frame: pl.DataFrame, pattern: str) -> pl.DataFrame:
    """Return the rows whose name matches *pattern*, which is matched once per distinct name."""
    names = frame["name"].unique()
    matching = names.filter(names.cast(pl.String).str.contains(pattern))
    return (
        frame.filter(pl.col("name").is_in(matching.implode())) if len(matching) else frame.clear()
    )


def find_profiler_steps(events: pl.DataFrame) -> pl.DataFrame:
    """Return the ``ProfilerStep#N`` annotations as marks, each with the ``number`` in its name.

    Files of 2021 list the steps among the operators. Copies of the marks on the GPU's tracks are
    not counted. Where a number comes back after its step has ended (a second profiler, another loop), all steps
    are numbered in order of time, from the lowest number.

    >>> names = ["ProfilerStep#3", "ProfilerStep#4", "ProfilerStep#3"]
    >>> rows = {"kind": "annotation", "name": names, "start_ns": [0, 10, 20], "end_ns": [10, 20, 30]}
    >>> find_profiler_steps(pl.DataFrame(rows))["step"].to_list()
    [3, 4, 5]
    """
    named = events.select("kind", "name", "start_ns", "end_ns").filter(
        pl.col("kind").is_in(["annotation", "cpu_op"])
    )
    number = pl.col("name").cast(pl.String).str.extract(_PROFILER_STEP).cast(pl.Int64, strict=False)
    marks = (
        filter_by_name(named, _PROFILER_STEP)
        .select("start_ns", "end_ns", number=number)
        .drop_nulls()
        .sort("start_ns", "end_ns")
    )
    ended_ns = pl.col("end_ns").cum_max().shift(1).over("number")
    comes_back = (pl.col("start_ns") >= ended_ns).fill_null(value=False)
    marks = marks.with_columns(times_before=comes_back.cum_sum().over("number"))
    step = pl.col("number")
    if (marks["times_before"] > 0).any():
        step_start_ns = pl.col("start_ns").min().over("number", "times_before")
        step = pl.col("number").min() + step_start_ns.rank("dense").cast(pl.Int64) - 1
    return marks.select("start_ns", "end_ns", "number", step=step)


def renumbering_notices(events: pl.DataFrame) -> tuple[Notice, ...]:
    """Return a notice if steps have other numbers than their marks, because these come more than once."""
    marks = find_profiler_steps(events)
    if (marks["step"] == marks["number"]).all():
        return ()
    steps_of_number = marks.group_by("number").agg(steps=pl.col("step").n_unique())
    repeated = steps_of_number.filter(pl.col("steps") > 1)["number"]
    return (
        Notice(
            "steps-renumbered",
            (
                f"several steps have the number {int(repeated.sort()[0])} (a second "
                "profiler, or another loop): all steps are numbered in order of time"
            ),
            values={"step": int(repeated.sort()[0])},
            severity="note",
        ),
    )


def find_inference_steps(events: pl.DataFrame) -> pl.DataFrame:
    """Return the steps of inference (``SERVER_STEPS``): those a server marked, else a generating loop's passes.

    Empty if there are neither.
    """
    marked = find_server_steps(events)
    return marked if marked.height else find_generating_passes(events)


def find_generating_passes(events: pl.DataFrame) -> pl.DataFrame:
    """Return the forward passes of a loop that generates tokens and marks no steps (``SERVER_STEPS``).

    A pass begins where the model looks up its tokens: a call of ``aten::embedding`` in the largest
    table of the run, [[vocabulary, width], [sequences, tokens]]. Passes over one token a sequence
    decode. Without any of these, with backward work, or where steps are marked, nothing is found.

    >>> from tracekit.schema import EVENTS
    >>> op = {"kind": "cpu_op", "name": "aten::embedding", "end_ns": 9}
    >>> rows = [{**op, "start_ns": 0, "shapes": "[[100,8],[2,5]]"}, {**op, "start_ns": 4, "shapes": "[[100,8],[2,1]]"}]
    >>> find_generating_passes(conform(pl.DataFrame(rows), EVENTS)).rows()
    [(0, 0, 4, 'prefill', 2, 10), (1, 4, 9223372036854775807, 'decode', 2, 2)]
    """
    no_passes = SERVER_STEPS.to_frame()
    # Few columns, because most events of a training run match one of the names.
    named = filter_by_name(events.select("kind", "name", "start_ns", "shapes"), _LOOKUP)
    lookups = named.filter(pl.col("kind") == "cpu_op")
    if lookups.is_empty() or filter_by_name(events.select("name"), _NO_GENERATION).height:
        return no_passes
    sizes = pl.col("shapes").cast(pl.String).str.replace_all(" ", "")
    groups = sizes.str.extract_groups(_LOOKUP_SHAPES)
    fields = ("vocabulary", "width", "sequences", "length")
    calls = lookups.select(
        "start_ns",
        *(groups.struct.field(field).cast(pl.Int64, strict=False) for field in fields),
    ).drop_nulls()
    table_size = pl.col("vocabulary") * pl.col("width")
    passes = calls.filter(table_size == table_size.max()).sort("start_ns")
    if not (passes["length"] == 1).any():
        return no_passes
    end_of_time = pl.Int64.max()
    decodes = pl.col("length") == 1
    steps = passes.select(
        "start_ns",
        step=pl.int_range(pl.len(), dtype=pl.Int64),
        end_ns=pl.col("start_ns").shift(-1).fill_null(end_of_time),
        kind=pl.when(decodes).then(pl.lit("decode")).otherwise(pl.lit("prefill")),
        requests="sequences",
        tokens=pl.col("sequences") * pl.col("length"),
    )
    return conform(steps, SERVER_STEPS)


def find_server_steps(ranges: pl.DataFrame) -> pl.DataFrame:
    """Return the steps that an inference server marked (``SERVER_STEPS``); empty if it marked none.

    A server may mark a step twice, one mark inside the other: the outer one is the step, and each
    tells what the other leaves open. Marks on the GPU's tracks are copies.

    Args:
        ranges: Events or ranges with ``name``, ``start_ns``, ``end_ns``, and ``kind`` if they are
            of several kinds.

    >>> names = ["execute_7_context_1(5)_generation_2(2)", "step[MIXED bs=3 toks=7]", "step[DECODE bs=4]"]
    >>> ranges = pl.DataFrame({"name": names, "start_ns": [0, 1, 9], "end_ns": [8, 7, 11]})
    >>> find_server_steps(ranges).rows()
    [(0, 0, 8, 'mixed', 3, 7), (1, 9, 11, 'decode', 4, 4)]
    """
    if "kind" in ranges.columns:
        ranges = ranges.filter(pl.col("kind") == "annotation")
    any_form = "|".join(f"(?:{_without_names(form)})" for form in SERVER_STEP_FORMS)
    marks = filter_by_name(ranges.select("name", "start_ns", "end_ns"), any_form)
    if marks.is_empty():
        return SERVER_STEPS.to_frame()
    texts = marks.select(pl.col("name").cast(pl.String)).unique()
    described = marks.with_columns(pl.col("name").cast(pl.String)).join(
        _describe_marks(texts), on="name"
    )
    ordered = described.sort("start_ns", "end_ns", descending=[False, True])
    # A mark that ends before an earlier one has ended lies inside it.
    latest_end_before = pl.col("end_ns").cum_max().shift(1)
    is_outer = (pl.col("end_ns") > latest_end_before).fill_null(True)
    steps = (
        ordered.with_columns(step=is_outer.cum_sum().cast(pl.Int64) - 1)
        .group_by("step", maintain_order=True)
        .agg(
            pl.col("start_ns", "end_ns").first(),
            pl.col("kind", "requests", "tokens").drop_nulls().first(),
        )
    )
    return conform(steps, SERVER_STEPS)


def _without_names(form: str) -> str:
    """Return a form whose groups have no names, so that several forms fit into one expression."""
    return re.sub(r"\(\?<\w+>", "(?:", form)


def _describe_marks(texts: pl.DataFrame) -> pl.DataFrame:
    """Return kind, requests and tokens of each mark (``name``); null where it does not say them."""
    fields = (
        "prefills",
        "prefill_tokens",
        "decodes",
        "decode_tokens",
        "mode",
        "requests",
        "tokens",
    )
    values = {}
    for field in fields:
        of_forms = []
        for form in SERVER_STEP_FORMS:
            if f"?<{field}>" in form:
                extracted = pl.col("name").str.extract_groups(form).struct.field(field)
                of_forms.append(extracted)
        values[field] = pl.coalesce(of_forms)
    numbers = [field for field in fields if field != "mode"]
    counts = pl.col(numbers).cast(pl.Int64, strict=False)
    is_possible = counts <= MAX_COUNT_IN_MARK
    parsed = texts.with_columns(**values).with_columns(pl.when(is_possible).then(counts))
    has_prefills = pl.col("prefills") > 0
    has_decodes = pl.col("decodes") > 0
    kind = (
        pl.when(has_prefills & has_decodes)
        .then(pl.lit("mixed"))
        .when(has_prefills)
        .then(pl.lit("prefill"))
        .when(has_decodes)
        .then(pl.lit("decode"))
        .otherwise(pl.col("mode").replace_strict(_MODES, default=None))
    )
    # Each sequence that decodes computes one token; how many a prefill computes must be said.
    decode_tokens = pl.coalesce("decode_tokens", "decodes")
    prefill_tokens = pl.when(pl.col("prefills") == 0).then(0).otherwise("prefill_tokens")
    of_both = pl.sum_horizontal("prefill_tokens", "decode_tokens")
    says_tokens = pl.any_horizontal(pl.col("prefill_tokens", "decode_tokens").is_not_null())
    in_detail = pl.when(pl.col("mode").is_not_null() & says_tokens).then(of_both)
    decodes_alone = pl.when(pl.col("mode") == "DECODE").then("requests")
    return parsed.select(
        "name",
        kind=kind,
        requests=pl.coalesce("requests", pl.col("prefills") + pl.col("decodes")),
        tokens=pl.coalesce("tokens", in_detail, prefill_tokens + decode_tokens, decodes_alone),
    )


def _innermost_marks(marks: pl.DataFrame) -> tuple[Ints, Ints]:
    """Return the times at which the step may change, and for each the row of the innermost mark, -1 for none.

    Marks may be nested: a trainer that marks steps too, or the copy of a mark among the operators.
    They come in order of their start, so that of those around a time the last one is the innermost.
    """
    starts = marks["start_ns"].to_numpy()
    ends = marks["end_ns"].to_numpy()
    bounds = np.unique(np.concatenate([starts, ends]))
    first = np.searchsorted(bounds, starts).tolist()
    behind = np.searchsorted(bounds, ends).tolist()
    innermost = np.full(len(bounds), -1, np.int64)
    # Marks that have begun, the last of them on top; one that has ended is dropped when it comes
    # there, so that each is pushed and dropped once, however many overlap.
    begun: list[int] = []
    next_row = 0
    for bound in range(len(bounds)):
        while next_row < len(marks) and first[next_row] == bound:
            heappush(begun, -next_row)
            next_row += 1
        while begun and behind[-begun[0]] <= bound:
            heappop(begun)
        if begun:
            innermost[bound] = -begun[0]
    return bounds, innermost


def _find_launches(correlation: pl.Series, is_launch: Bools, gpu_rows: Ints) -> Ints:
    """Return the row of each GPU event's launch, -1 for none.

    Of several launches with one id the last.
    """
    rows = np.flatnonzero(is_launch)[::-1]
    wanted = correlation.gather(pl.Series(gpu_rows)).fill_null(-1).to_numpy()
    ids = correlation.gather(pl.Series(rows)).fill_null(-1).to_numpy()
    return take_or_missing(rows, find_ids(wanted, ids))
