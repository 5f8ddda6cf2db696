"""Published results beside tracekit's own, from the same input: ``make proof`` writes ``docs/proof.md``.

Results that need nothing but the repository are computed every time. Those of public inputs are
computed where ``TRACEKIT_CORPUS`` names the folder that holds them, and kept in ``docs/proof.json``
for everyone else. Figures of other tools are measured with ``--hta PYTHON`` and ``--tracelens
PYTHON``, which name interpreters that have them.
"""

from __future__ import annotations

import argparse
import gzip
import math
import os
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import msgspec
import polars as pl

from tests.published_jobs import Job, groups_of
from tracekit import Analysis, analyze, load
from tracekit.classify import classify
from tracekit.graph.change import parse_change
from tracekit.intervals import union_of
from tracekit.metrics.label_intervals import Lanes
from tracekit.pipeline.against_ideal import compare_timeline
from tracekit.pipeline.against_ideal.replay import measure_slowdown
from tracekit.pipeline.schedules import Times, generate, simulate
from tracekit.results import AnalysisResult
from tracekit.schema import COMMUNICATION_LABELS

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs/proof.md"
KEPT = ROOT / "docs/proof.json"
PREDICTIONS = ROOT / "docs/maintainers/predictions.csv"
PROGRAMS = Path(__file__).with_name("programs.toml")
CORPUS = Path(os.environ["TRACEKIT_CORPUS"]) / "public" if "TRACEKIT_CORPUS" in os.environ else None

ZERO_BUBBLE = "[zero-bubble-pipeline-parallelism](https://github.com/sail-sg/zero-bubble-pipeline-parallelism)"
ZERO_BUBBLE_PAPER = "[Qi et al. 2023](https://arxiv.org/abs/2401.10241), table 5"
DEEPSEEK = "[DeepSeek-V3](https://arxiv.org/abs/2412.19437), table 2"
DUALPIPE = "[DualPipe](https://github.com/deepseek-ai/DualPipe)"
STRAGGLERS = "[StragglerAnalysis](https://github.com/ByteDance-Seed/StragglerAnalysis)"
HTA = "[HTA](https://github.com/facebookresearch/HolisticTraceAnalysis) 0.6.1"
TRACELENS = "[TraceLens](https://github.com/AMD-AGI/TraceLens) of 2026-08-21"
NANOGPT = "[modded-nanogpt](https://github.com/KellerJordan/modded-nanogpt)"
AICONFIGURATOR = "[aiconfigurator](https://github.com/ai-dynamo/aiconfigurator)"
AMD_SHEET = "[HPCTrainingExamples](https://github.com/amd/HPCTrainingExamples), TraceLens' sheet"
PROFILE_DATA = "[profile-data](https://github.com/deepseek-ai/profile-data)"

HTA_TRACES = (
    "hta/nccl_data.json.gz",
    "hta/rank-0.Apr_03_18_51_38.1102.pt.trace.json.gz",
    "hta/mi250_minitoy_train_ROCm6_2_kineto.json.gz",
)
TRACELENS_TRACES = {
    "tracelens/resnet_act_checkpoint.json.gz": False,
    "tracelens/qwen3_30b_a3b_B300_TP-0-DECODE.trace.json.gz": True,
}
"""Traces of TraceLens' tests, and whether memsets have a flow from their launch: it links GPU
events by flows."""

FiguresOf = Callable[[Path], tuple[dict[str, float], pl.DataFrame]]
"""Returns a tool's figures for a trace, and the labelled events as the tool counts them."""


class Result(msgspec.Struct, frozen=True):
    """One published figure and tracekit's own."""

    what: str
    source: str
    """Who published it, as a link."""
    unit: str
    published: float
    ours: float
    within: float
    """Largest difference that the table promises, as a share of the published figure."""
    reason: str = ""
    """Why the figures differ by more than *within*; empty where they do not."""
    own: float | None = None
    """Tracekit's own figure, where its definition is another one."""

    @property
    def difference(self) -> float:
        """Difference as a share of the published figure; of two zeros, zero."""
        if self.published == self.ours:
            return 0.0
        return math.inf if self.published == 0 else self.ours / self.published - 1

    @property
    def is_shown(self) -> bool:
        """Return whether the figures agree, or a reason says why they do not."""
        return abs(self.difference) <= self.within or bool(self.reason)


class Section(msgspec.Struct, frozen=True):
    """Results under one heading."""

    title: str
    text: str
    results: tuple[Result, ...]
    below: str = ""
    """Text below the table."""


def schedule_section() -> Section:
    """Return bubbles of published schedules, computed from formulas and simulated from the orders."""
    results = []
    for pp, microbatches in ((4, 8), (8, 24), (16, 64)):
        done = simulate(generate("1f1b", pp=pp, microbatches=microbatches), Times(F=1, I=1, W=1))
        share = (pp - 1) / (microbatches + pp - 1)
        what = f"1F1B, p = {pp}, m = {microbatches}: bubble (p−1)/(m+p−1)"
        results.append(Result(what, ZERO_BUBBLE, "", share, done.bubble_fraction, 1e-9))
        third = simulate(generate("zb-h1", pp=pp, microbatches=microbatches), Times(F=1, I=1, W=1))
        what = f"ZB-H1, p = {pp}, m = {microbatches}: a third of the bubble of 1F1B"
        results.append(
            Result(what, ZERO_BUBBLE, "F", 3 * (pp - 1) / 3, max(third.span) - third.busy[0], 1e-9)
        )
        none = simulate(generate("zb-v", pp=pp, microbatches=microbatches), Times(F=1, I=1, W=1))
        what = f"ZB-V, p = {pp}, m = {microbatches}: bubble of each rank's own time"
        results.append(Result(what, ZERO_BUBBLE, "", 0.0, none.bubble_rate_zb, 0.0))
    results += [*_paper_rates(), *_deepseek_formulas()]
    return Section(
        "Schedules",
        "Formulas of the publications beside orders that tracekit generates and simulates. Nothing is measured here.",
        tuple(results),
    )


def _paper_rates() -> Iterator[Result]:
    """Yield bubble rates of the zero-bubble paper at its measured durations, 8 stages and 24 micro-batches."""
    times = Times(F=18.522, I=18.086, W=9.337, P2P=0.601)
    published = {"1f1b": 0.2431, "zb-h1": 0.1585, "zb-h2": 0.1083, "zb-1p": 0.1585, "zb-2p": 0.0433}
    for name, rate in published.items():
        done = simulate(generate(name, pp=8, microbatches=24, times=times), times)
        yield Result(
            f"{name}, measured durations: bubble rate",
            ZERO_BUBBLE_PAPER,
            "",
            rate,
            done.bubble_rate_zb,
            0.002,
        )


def _deepseek_formulas() -> Iterator[Result]:
    """Yield the bubbles of DeepSeek-V3's comparison at F = I = W = 2 and F&B = 5, eight ranks and 24 micro-batches."""
    times = Times(F=2, I=2, W=2, FB=5)
    forward, backward, weights, both, pp = 2, 4, 2, 5, 8
    dual = simulate(generate("dualpipe", pp=pp, microbatches=24), times)
    wanted = (pp // 2 - 1) * (both + backward - 3 * weights)
    yield Result(
        "DualPipe, p = 8: (p/2−1)(F&B+B−3W)", DEEPSEEK, "F/2", wanted, max(dual.bubble), 1e-9
    )
    one = simulate(generate("1f1b", pp=pp, microbatches=24), times)
    wanted = (pp - 1) * (forward + backward)
    yield Result("1F1B, p = 8: (p−1)(F+B)", DEEPSEEK, "F/2", wanted, one.bubble[0], 1e-9)


def dualpipe_section() -> Section:
    """Return the formula at the durations of the sample's measured run, beside its simulated ideal."""
    comparison = analyze(ROOT / "sample_traces/dualpipe").comparison
    if comparison is None:
        raise SystemExit("sample_traces/dualpipe: no schedule was recognised")
    durations = pl.col("ideal_end_ns") - pl.col("ideal_start_ns")
    by_kind = comparison.head.cells.group_by(pl.col("op").cast(pl.String)).agg(durations.median())
    cell_ns = dict(by_kind.iter_rows())
    # The overlapped pair of the formula is one cell; in the recording its forward and its backward
    # are two.
    cell_ns["FB"] = cell_ns["F"] + cell_ns["B"]
    wanted_ns = (comparison.pp // 2 - 1) * (cell_ns["FB"] + cell_ns["B"] - 3 * cell_ns["W"])
    schedule = generate("dualpipe", pp=comparison.pp, microbatches=comparison.microbatches)
    ideal = simulate(schedule, Times(**cell_ns))
    size = f"p = {comparison.pp}, m = {comparison.microbatches}"
    what = f"recorded run, {size}: (p/2−1)(F&B+B−3W) at its own durations"
    return Section(
        "DualPipe as recorded",
        "The sample `dualpipe` is DeepSeek's own code on eight ranks. Its durations go into the published formula and "
        "into the schedule that tracekit generates. The formula takes the gradient of the input to be as long as the "
        "forward; in this run it is a tenth longer.",
        (Result(what, DUALPIPE, "ms", wanted_ns / 1e6, max(ideal.bubble) / 1e6, 0.05),),
    )


MAX_FREE_STEP_ERROR = 0.08
"""Error that is promised of a step without the profiler that is modelled."""
MAX_LINK_RATE_ERROR = 0.2
"""Difference that is promised between link rates of two machines of one kind."""


def eight_gpus_section() -> Section:
    """Return the step and the link rates of eight H100 beside logs without a profiler and rates of NCCL."""
    folder = ROOT / "sample_traces/h100-ddp"
    logged_ms = _read_truth(folder)["logs"]["step_ms"]
    analysis = analyze(folder)
    graph = analysis.graph
    free_ns = analysis.step.free_ns
    if graph is None or free_ns is None or analysis.rates is None:
        raise SystemExit(
            f"{folder}: no events to replay, no step without the profiler, or no rates"
        )
    without_delay_ns = graph.predict([parse_change("no host delay")]).predicted_ns or 0
    results = [
        Result(
            "step without the profiler, modelled from the recording",
            f"{NANOGPT}: logs of 14 runs",
            "ms",
            logged_ms,
            free_ns / 1e6,
            MAX_FREE_STEP_ERROR,
        ),
        Result(
            "the recording's step with `no host delay`",
            f"{NANOGPT}: logs of 14 runs",
            "ms",
            logged_ms,
            without_delay_ns / 1e6,
            MAX_FREE_STEP_ERROR,
        ),
    ]
    compared = analysis.rate_tables.communication.filter(
        pl.col("share_of_measured").is_not_null() & (pl.col("bytes") > pl.col("count") * 10**6)
    )
    for row in compared.iter_rows(named=True):
        results.append(
            Result(
                f"`{row['what']}` of {row['size']}: bus bandwidth",
                f"{AICONFIGURATOR}: NCCL on 8 H100",
                "GB/s",
                row["measured_bus_gb_s"],
                row["bus_gb_s"],
                MAX_LINK_RATE_ERROR,
            )
        )
    recorded_ms = (analysis.step.time_ns or 0) / 1e6
    return Section(
        "Eight H100",
        "The sample `h100-ddp`, which its author recorded. The logs without a profiler are of nearly the same code, "
        f"about 1 % faster overall; with the profiler a step takes {recorded_ms:.1f} ms. Sums of bf16 and fp32 are "
        "compared with those of fp16.",
        tuple(results),
    )


def amd_section() -> Section:
    """Return TraceLens' own sheet for a rank of the sample beside that rank's budget."""
    folder = ROOT / "sample_traces/mi300-ddp"
    sheet = _read_truth(folder)["tracelens"]
    figures = next(rank for rank in analyze(folder).ranks if rank.rank == 0)
    exposed_ns = figures.budget.exposed_ns
    communication_ns = sum(exposed_ns.get(label, 0) for label in COMMUNICATION_LABELS)
    ours_ns = {
        "compute": figures.budget.compute_ns,
        "exposed_communication": communication_ns,
        "exposed_copies": sum(exposed_ns.values()) - communication_ns,
        "idle": figures.budget.idle or 0,
        "whole": figures.span_ns,
    }
    results = [
        # The sheet has microseconds.
        Result(name.replace("_", " "), AMD_SHEET, "ms", sheet[f"{name}_ms"], round(ns / 1e6, 3), 0)
        for name, ns in ours_ns.items()
    ]
    return Section(
        "Four MI300",
        "The sample `mi300-ddp`, rank 0: the sheet that AMD published with the recording, in milliseconds with three "
        "decimals, and tracekit's figures rounded likewise.",
        tuple(results),
    )


def _read_truth(folder: Path) -> dict[str, Any]:
    """Return the known answers of a sample."""
    truth: dict[str, Any] = msgspec.json.decode((folder / "truth.json").read_bytes())
    return truth


def hook_section(corpus: Path) -> Section:
    """Return what a change of modded-nanogpt did, by its author and by the recordings before and after it."""
    folder = corpus / "modded-nanogpt/hook"
    before = analyze(folder / "current-rank0.json.gz")
    after = analyze(folder / "hook-rank0.json.gz")
    ratio = (after.step.time_ns or 0) / (before.step.time_ns or 1)
    reductions = {"before": _smaller_reductions(before), "after": _smaller_reductions(after)}
    first = {name: rows.unique("step", keep="first") for name, rows in reductions.items()}
    reason = (
        f"{_median_us(first['after']['hidden_ns'])} µs of it run beside compute "
        f"({_median_us(first['before']['hidden_ns'])} before the change), and others of its size take "
        f"{_median_us(reductions['before']['ns'])}; with one rank of eight, the rest may be waiting"
    )
    return Section(
        "A change of modded-nanogpt",
        "Rank 0 of 8 before and after gradients were reduced in hooks of the backward. The author gives training times "
        "of 4 and 10 runs and says that the first reduce-scatter is hidden now. `diff` calls the change of the step "
        "inconclusive: there are four steps of each.",
        (
            Result("step after the change / before", NANOGPT, "×", 140.81 / 141.51, ratio, 0.01),
            Result(
                "first large reduce-scatter after the change: share beside compute",
                NANOGPT,
                "",
                1.0,
                first["after"]["hidden_ns"].sum() / first["after"]["ns"].sum(),
                0.01,
                reason,
            ),
        ),
    )


def _smaller_reductions(analysis: Analysis) -> pl.DataFrame:
    """Return the reduce-scatters of bf16 gradients in order, the smaller of the large ones, with their ``ns``."""
    reductions = analysis.tables["operations"].filter(
        pl.col("what").cast(pl.String).str.contains("reduce_scatter"), pl.col("bytes") > 10**6
    )
    smaller = reductions.filter(pl.col("bytes") == pl.col("bytes").min())
    return smaller.with_columns(ns=pl.col("end_ns") - pl.col("start_ns")).sort("start_ns")


def _median_us(column: pl.Series) -> int:
    """Return the median of times in ns, in whole microseconds."""
    return round(median(column.to_list()) / 1000)


def prediction_section() -> Section:
    """Return the schedules of two recordings of one model, each predicted from the other, and all documented pairs."""
    folder = ROOT / "sample_traces/schedules"
    comparisons = {}
    for name in ("1f1b", "interleaved"):
        comparison = analyze(folder / name, what_if=True).comparison
        if comparison is None:
            raise SystemExit(f"{folder / name}: no schedule was recognised")
        comparisons[name] = comparison
    results = []
    for name, other in (("interleaved", "1f1b"), ("1f1b", "interleaved")):
        recorded_ns = comparisons[other].head.measured_ns
        predicted = next(change for change in comparisons[name].what_if if change.name == other)
        lowest_ns, highest_ns = predicted.predicted_range_ns
        half_width = (highest_ns - lowest_ns) / 2 / predicted.predicted_ns
        what = f"`schedules/{name}` under {other}, predicted from its recording: schedule span"
        source = f"recorded: `schedules/{other}`"
        figures_ms = recorded_ns / 1e6, predicted.predicted_ns / 1e6
        results.append(Result(what, source, "ms", *figures_ms, within=half_width))
    return Section(
        "Predictions against recordings",
        "What a recording is predicted to take after a change, beside the recording of the changed program. Promised "
        "is half of the predicted range. The samples hold one model under two schedules; their figures are computed "
        "here:",
        tuple(results),
        documented_predictions(pl.read_csv(PREDICTIONS)),
    )


PREDICTED_KINDS = {
    "change": "a change of the run (`--change`)",
    "microbatches": "another number of micro-batches",
    "schedule": "another schedule, the GPU-bound size",
}
"""What is predicted, by the column ``kind`` of ``docs/maintainers/predictions.csv``."""


def documented_predictions(pairs: pl.DataFrame) -> str:
    """Return one table of all pairs of recordings that ``docs/maintainers/predictions.csv`` lists.

    >>> pairs = pl.DataFrame({"kind": "schedule", "predicted_ms": [90.0, 51.0], "lowest_ms": [80, 45],
    ...                       "highest_ms": [95, 55], "after_ms": [100.0, 50.0]})
    >>> print(documented_predictions(pairs).splitlines()[-1])
    | another schedule, the GPU-bound size | 2 | 6.0 % | 10.0 % | 1 of 2 |
    """
    kinds = (
        pairs.with_columns(
            error=(pl.col("predicted_ms") / pl.col("after_ms") - 1).abs(),
            in_range=pl.col("after_ms").is_between("lowest_ms", "highest_ms"),
        )
        .group_by("kind", maintain_order=True)
        .agg(
            pl.len(),
            pl.col("error").median(),
            largest=pl.col("error").max(),
            in_range=pl.col("in_range").sum(),
        )
    )
    lines = [
        "All pairs of [predictions and recordings](maintainers/predictions.md), too large to keep here:",
        "",
        "| predicted | pairs | median error | largest | in the predicted range |",
        "|---|--:|--:|--:|--:|",
    ]
    for row in kinds.iter_rows(named=True):
        figures = f"{100 * row['error']:.1f} % | {100 * row['largest']:.1f} %"
        in_range = f"{row['in_range']} of {row['len']}"
        lines.append(f"| {PREDICTED_KINDS[row['kind']]} | {row['len']} | {figures} | {in_range} |")
    return "\n".join(lines)


def straggler_section(corpus: Path) -> Section:
    """Return the slowdowns of three published jobs."""
    results = []
    for name in ("ST", "SE", "AR"):
        job = Job(corpus / "bytedance-stragglers", name)
        done = measure_slowdown(
            job.graph.step_times, job.durations, job.usual, groups_of(job), min_ratio=1.0
        )
        published = float(job.published["blocking_slowdown"])
        results.append(
            Result(
                f"job {name}: slowdown by stragglers", STRAGGLERS, "×", published, done.ratio, 0.02
            )
        )
    return Section(
        "Stragglers",
        "Operation tables of three jobs, and the slowdown that the authors' simulator found in each.",
        tuple(results),
    )


def timeline_section(corpus: Path) -> Section:
    """Return the ideals of two published timelines."""
    results = []
    for name in ("ST", "SE"):
        measured = compare_timeline(corpus / f"bytedance-timelines/timeline-{name}.json.gz")
        ideal = compare_timeline(corpus / f"bytedance-timelines/ideal-timeline-{name}.json.gz")
        published_ns = max(step.measured_ns for step in ideal.comparison.all)
        comparison = measured.comparison
        what = f"job {name} ({comparison.name}, {comparison.pp} stages): ideal step of average durations"
        ours_ms = measured.average_ideal_ns / 1e6
        results.append(Result(what, STRAGGLERS, "ms", published_ns / 1e6, ours_ms, 0.02))
    return Section(
        "Operation timelines",
        "Their ideal gives every operation of a kind its average duration, messages included; simulated with the same "
        "averages tracekit's must agree. Tracekit's own ideal has the run's durations and free messages, and stands in "
        "`compare_timeline(...).comparison`.",
        tuple(results),
    )


EXPOSED_REASONS = {
    "ep_dispatch": "1.8 of its 2.2 ms without compute are one dispatch near the end, when the other chunk is done; "
    "the rest are gaps of microseconds between kernels",
    "ep_combine": "of its 2.0 ms without compute 0.7 ms lie in the first two, before both chunks are under way; the "
    "rest are gaps of microseconds between kernels",
}
"""Why the exchanges of DeepSeek's profile, published as overlapped, are not so for all of their
time."""


def deepseek_section(corpus: Path) -> Section:
    """Return how much of DeepSeek's dispatch and combine runs beside compute."""
    labelled = classify(load(corpus / "deepseek/train.json.gz").events)
    lanes = Lanes.of(labelled)
    results = []
    for label, reason in EXPOSED_REASONS.items():
        set_of_label = lanes.label(label)
        hidden_share = (set_of_label & lanes.compute).total_ns / set_of_label.total_ns
        what = f"{label}: share beside compute"
        results.append(Result(what, PROFILE_DATA, "", 1.0, hidden_share, 0.01, reason))
    return Section(
        "DeepSeek's training profile",
        "One forward and one backward chunk as published, without pipeline communication.",
        tuple(results),
    )


HTA_SCRIPT = """
import json, sys, warnings
warnings.simplefilter("ignore")
from hta.trace_analysis import TraceAnalysis
analysis = TraceAnalysis(trace_files={0: sys.argv[1]}, trace_dir="/", include_last_profiler_step=True)
breakdown = analysis.get_temporal_breakdown(visualize=False).iloc[0]
overlap = analysis.get_comm_comp_overlap(visualize=False).iloc[0]
print("FIGURES", json.dumps({
    "idle_ms": float(breakdown["idle_time(us)"]) / 1e3,
    "compute_ms": float(breakdown["compute_time(us)"]) / 1e3,
    "overlap": float(overlap["comp_comm_overlap_pctg"]) / 100,
}))
"""
TRACELENS_SCRIPT = """
import json, sys, warnings
warnings.simplefilter("ignore")
from TraceLens import TreePerfAnalyzer
table = TreePerfAnalyzer.from_file(sys.argv[1]).get_df_gpu_timeline()
times = dict(zip(table["type"], table["time ms"]))
print("FIGURES", json.dumps({
    "idle_ms": times["idle_time"], "compute_ms": times["computation_time"], "exposed_ms": times["exposed_comm_time"],
}))
"""


def peer_figures(python: Path, script: str, trace: Path) -> dict[str, float]:
    """Return the figures that another tool prints for a trace."""
    done = subprocess.run(
        [python, "-c", script, trace], capture_output=True, text=True, check=False
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("FIGURES ")]
    if not lines:
        raise SystemExit(f"{python} printed no figures for {trace}:\n{done.stderr[-500:]}")
    figures: dict[str, float] = msgspec.json.decode(
        lines[-1].removeprefix("FIGURES ").replace("NaN", "null")
    )
    return {name: value for name, value in figures.items() if value is not None}


MISSED_SAVINGS = {
    "buckets": "messages of equal size took 5 % less in the twin's recording, and those of 25 MB are "
    "faster per byte than any of this one; the predicted range is 0 to 19.6 ms",
    "checkpointed": "the step with recomputation is taken for 21.3 ms without the profiler, which was 18.5 in "
    "a new process; without it 15.1 are predicted, and 15.0 measured",
    "starved": "other processes took another share of the core when the loop was timed; the saving is "
    "stated as a bound, between nothing and this",
}
"""Why predicted savings of planted faults differ from what the recorded twin saves."""
PATTERN_MATCHER = (
    "PyTorch's own `torch.profiler._pattern_matcher` reads no file: it needs the process that records. It knows four "
    "of these kinds of faults, and in three loops with a fault it matched one (PyTorch 2.11): AdamW with "
    "`foreach=False`."
)


def savings_section(corpus: Path) -> Section:
    """Return what findings about planted faults are predicted to save, beside what their recorded twins do."""
    folder = corpus.parent / "everyday-free"
    truth = msgspec.json.decode((folder / "truth.json").read_bytes())["runs"]
    results = []
    for name, run in truth.items():
        if not run.get("saves_ms"):
            continue
        analysis = analyze(folder / name, schedule="none")
        saving = next(
            (finding.saves_ns for finding in analysis.findings if finding.code == run["code"]), None
        )
        what = f"`{run['code']}`: {run['planted']}"
        within = max(0.3, 0.05 * run["free_ms"] / run["saves_ms"])
        source = f"recorded: `{run['twin']}`"
        ours = 0.0 if saving is None else saving / 1e6
        reason = MISSED_SAVINGS.get(name, "")
        results.append(Result(what, source, "ms", run["saves_ms"], ours, within, reason))
    return Section(
        "Savings of planted faults",
        "Loops with one fault on one H200, each beside the same loop without it: what tracekit's finding is "
        "predicted to save from the recording of the first alone, and the difference of the two steps, timed "
        "without a profiler. Promised are 30 % or 5 % of the step, whichever is larger.",
        tuple(results),
        PATTERN_MATCHER,
    )


def programs_section(corpus: Path) -> Section:
    """Return the steps of other people's programs after advice was followed, beside what the advice predicted."""
    results = []
    for program in tomllib.loads(PROGRAMS.read_text(encoding="utf-8"))["program"]:
        analysis = analyze(corpus.parent / "programs" / program["name"], what_if=True)
        for change in program["changes"]:
            predicted_ms = program["free_ms"] - _saving_ms(analysis, change)
            saved_ms = abs(program["free_ms"] - change["after_ms"])
            within_ms = max(0.3 * saved_ms, 0.05 * program["free_ms"])
            results.append(
                Result(
                    f"{program['is']}, {program['free_ms']} ms: {change['made']}",
                    "us, timed with `benchmarks/programs.py`",
                    "ms",
                    change["after_ms"],
                    predicted_ms,
                    within_ms / change["after_ms"],
                    change.get("why", ""),
                )
            )
    return Section(
        "Advice followed on other people's programs",
        "Programs as their authors wrote them, and loops of libraries on made-up data, on one H200 "
        "(`benchmarks/programs.py`): the step after one change, timed without a profiler, and as predicted from a "
        "recording of the program before it. Promised are 30 % of what is saved or 5 % of the step, whichever is "
        "larger. Steps that the host limits vary by a quarter between runs.",
        tuple(results),
    )


def _saving_ms(analysis: AnalysisResult, change: Mapping[str, Any]) -> float:
    """Return what a change is predicted to save: by the finding that advises it, or by ``--change``; 0 without one."""
    if "change" in change:
        saves_ns = analysis.what_if(change["change"]).saves_ns
    else:
        of_code = [each for each in analysis.findings if each.code == change["finding"]]
        saves_ns = of_code[0].saves_ns if of_code else 0
    return (saves_ns or 0) / 1e6


ROOFLINE_TRACES = (
    "public/models/h100_Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz",
    "public/models/h100_facebook_timesformer-base-finetuned-k400__1016002.json.gz",
    "everyday-free/fp32",
    "everyday-free/math-attention",
)
ROOFLINE_SCRIPT = """
import json, sys, warnings
warnings.simplefilter("ignore")
from TraceLens import TreePerfAnalyzer
analyzer = TreePerfAnalyzer.from_file(sys.argv[1])
names = {"aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm"}
calls = [
    event for event in analyzer.tree.events
    if analyzer.event_to_category(event) == "cpu_op" and event.get("name") in names
]
table = analyzer.build_df_perf_metrics(calls, bwd=False)
print("FIGURES", json.dumps(table.groupby("name")["GFLOPS"].sum().to_dict()))
"""
PRODUCT_KINDS = ("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm")


def roofline_section(corpus: Path, python: Path) -> Section:
    """Return the FLOP of matrix products by TraceLens' roofline beside tracekit's."""
    results = []
    for name in ROOFLINE_TRACES:
        path = corpus.parent / name
        file = next(path.glob("*.json.gz")) if path.is_dir() else path
        theirs = peer_figures(python, ROOFLINE_SCRIPT, file)
        rates = analyze(path, schedule="none").rates
        if rates is None:
            raise SystemExit(f"{path} has no products that could be counted")
        products = rates.products.filter(pl.col("op").is_in(PRODUCT_KINDS))
        sums = dict(products.group_by("op").agg(pl.col("flop").sum()).sort("op").iter_rows())
        for op, flop in sums.items():
            what = f"`{path.name.removesuffix('.json.gz')}`: `{op}`"
            results.append(Result(what, TRACELENS, "GFLOP", theirs[op], flop / 1e9, 0.001))
    return Section(
        "Work of products by TraceLens' roofline",
        "The work that both compare with a GPU's peak. TraceLens adds the bias of `addmm` (below 0.1 %). It states how "
        "far each operator is from the roof, tracekit what another type, kernel or call would make of the step: of "
        "`fp32` TraceLens says that its products reach 76 % of the peak without tensor cores.",
        tuple(results),
    )


def has_launch(events: pl.DataFrame) -> pl.Expr:
    """Return whether the trace holds the call that launched a GPU event."""
    calls = events.filter(pl.col("kind") == "runtime")["correlation"].drop_nulls().unique()
    return pl.col("correlation").is_in(calls.implode())


def gpu_times_ms(labelled: pl.DataFrame) -> dict[str, float]:
    """Return idle, compute and exposed communication, and the overlap, as HTA and TraceLens define them.

    Compute is every kernel that does not communicate; idle is what no GPU event covers between the
    first and the last.
    """
    is_communication = pl.col("label").cast(pl.String).is_in(COMMUNICATION_LABELS)
    busy = union_of(labelled)
    communication = union_of(labelled.filter(is_communication))
    compute = union_of(labelled.filter(~is_communication, pl.col("kind") == "kernel"))
    beside_ns = (communication & compute).total_ns
    times = {
        "idle_ms": busy.hull().total_ns - busy.total_ns,
        "compute_ms": compute.total_ns,
        "exposed_ms": communication.total_ns - beside_ns,
    }
    figures = {name: ns / 1e6 for name, ns in times.items()}
    if communication.total_ns:
        figures["overlap"] = beside_ns / communication.total_ns
    return figures


class TraceHeader(msgspec.Struct):
    """The part of a trace file beside its events."""

    baseTimeNanoseconds: int = 0  # noqa: N815 (as the file spells it)


def shrink_to_microseconds(labelled: pl.DataFrame, base_ns: int) -> pl.DataFrame:
    """Return the events from the first to the last whole microsecond in each, as HTA reads them.

    HTA holds a file's times as 64-bit floating-point microseconds. Where they count from 1970 and
    not from the file's own base, these are multiples of a quarter of a microsecond.

    Args:
        labelled: Labelled GPU events.
        base_ns: Base of the times in the file, which tracekit has added.
    """
    in_file_ns = pl.col("start_ns") - base_ns
    start_us = (in_file_ns // 1000).cast(pl.Float64) + (in_file_ns % 1000) / 1000
    duration_us = (pl.col("end_ns") - pl.col("start_ns")) / 1000
    first_us = start_us.ceil().cast(pl.Int64)
    last_us = (start_us + duration_us).floor().cast(pl.Int64)
    return labelled.with_columns(
        start_ns=first_us * 1000, end_ns=pl.max_horizontal(first_us, last_us) * 1000
    )


FIGURE_NAMES = {
    "idle_ms": "idle",
    "compute_ms": "compute",
    "exposed_ms": "communication that nothing hides",
    "overlap": "share of communication beside compute",
}


def peer_section(
    title: str, text: str, source: str, traces: Sequence[Path], figures_of: FiguresOf
) -> Section:
    """Return another tool's figures beside tracekit's by the same definition, and tracekit's own.

    Args:
        title: Heading.
        text: How the tool's definitions differ from tracekit's.
        source: Link to the tool.
        traces: Traces to run it on.
        figures_of: Returns the tool's figures, and the events as the tool counts them.
    """
    results = []
    for trace in traces:
        theirs, counted = figures_of(trace)
        ours = gpu_times_ms(counted)
        own = gpu_times_ms(classify(load(trace).events))
        for name, value in theirs.items():
            unit = "ms" if name.endswith("_ms") else ""
            what = f"`{trace.name}`: {FIGURE_NAMES[name]}"
            results.append(Result(what, source, unit, value, ours[name], 0.001, own=own[name]))
    return Section(title, text, tuple(results))


def hta_section(corpus: Path, python: Path) -> Section:
    """Return HTA's breakdown and overlap beside tracekit's."""

    def figures_of(trace: Path) -> tuple[dict[str, float], pl.DataFrame]:
        header = msgspec.json.decode(gzip.decompress(trace.read_bytes()), type=TraceHeader)
        counted = shrink_to_microseconds(classify(load(trace).events), header.baseTimeNanoseconds)
        return peer_figures(python, HTA_SCRIPT, trace), counted

    return peer_section(
        "HTA on its own test traces",
        "HTA holds times as floating-point microseconds and rounds starts up and ends down to whole ones, so that "
        "kernels become shorter and what lies between them longer; tracekit's figure of the same definition does the "
        "same, its own figure keeps nanoseconds. HTA was asked for the last step too "
        "(`include_last_profiler_step`), which it leaves out by default.",
        HTA,
        [corpus / name for name in HTA_TRACES],
        figures_of,
    )


def tracelens_section(corpus: Path, python: Path) -> Section:
    """Return TraceLens' GPU timeline beside tracekit's."""

    def figures_of(trace: Path) -> tuple[dict[str, float], pl.DataFrame]:
        events = load(trace).events
        counted = classify(events).filter(has_launch(events))
        if not TRACELENS_TRACES[trace.relative_to(corpus).as_posix()]:
            counted = counted.filter(pl.col("kind") != "memset")
        as_kernels = (
            pl.when(pl.col("kind") == "memset").then(pl.lit("kernel")).otherwise(pl.col("kind"))
        )
        return peer_figures(python, TRACELENS_SCRIPT, trace), counted.with_columns(kind=as_kernels)

    return peer_section(
        "TraceLens on its own test traces",
        "TraceLens counts memsets as compute and leaves out GPU events without a flow from their launch: those "
        "launched before the recording, and every memset of the ResNet trace. Tracekit's figure of the same "
        "definition does the same, its own figure counts every GPU event.",
        TRACELENS,
        [corpus / name for name in TRACELENS_TRACES],
        figures_of,
    )


def sections(*, hta: Path | None, tracelens: Path | None) -> list[Section]:
    """Return all sections: computed now, or as they were kept when their inputs were at hand."""
    kept = {section.title: section for section in read_kept()}
    computed = [
        eight_gpus_section(),
        amd_section(),
        schedule_section(),
        dualpipe_section(),
        prediction_section(),
    ]
    if CORPUS is not None:
        computed += [hook_section(CORPUS)]
        computed += [straggler_section(CORPUS), timeline_section(CORPUS), deepseek_section(CORPUS)]
        computed += [savings_section(CORPUS), programs_section(CORPUS)]
        computed += [] if hta is None else [hta_section(CORPUS, hta)]
        if tracelens is not None:
            computed += [tracelens_section(CORPUS, tracelens)]
            computed += [roofline_section(CORPUS, tracelens)]
    return list((kept | {section.title: section for section in computed}).values())


def read_kept() -> list[Section]:
    """Return the sections as they were last computed."""
    return msgspec.json.decode(KEPT.read_bytes(), type=list[Section]) if KEPT.exists() else []


HEAD = """# Proof

What others published, and what tracekit computes from the same input (`make proof`). A difference is
a share of the published figure. Each is within what the last column promises, or a line below the
table says why it is not.
"""


def page(all_sections: Sequence[Section]) -> str:
    """Return the page.

    >>> print(page([Section("A", "B.", (Result("x", "S", "ms", 2.0, 2.1, 0.1),))]).partition("## ")[2])
    A
    <BLANKLINE>
    B.
    <BLANKLINE>
    Published by S.
    <BLANKLINE>
    | what | published | tracekit | difference | promised |
    |---|--:|--:|--:|--:|
    | x | 2 ms | 2.1 ms | +5 % | 10 % |
    <BLANKLINE>
    """
    return HEAD + "".join(_section_text(section) for section in all_sections)


def _section_text(section: Section) -> str:
    has_own = any(result.own is not None for result in section.results)
    sources = list(dict.fromkeys(result.source for result in section.results))
    columns = ["what", "published", "tracekit", "difference", "promised"]
    alignment = ["---", "--:", "--:", "--:", "--:"]
    if has_own:
        columns[2] = "tracekit, same definition"
        columns.append("tracekit's own")
        alignment.append("--:")
    if len(sources) > 1:
        columns.append("published by")
        alignment.append("---")
    lines = [f"| {' | '.join(columns)} |", f"|{'|'.join(alignment)}|"]
    notes = []
    for result in section.results:
        cells = [
            result.what,
            _figure(result.published, result.unit),
            _figure(result.ours, result.unit),
            "0"
            if result.difference == 0
            else f"{result.difference:+.2g}"
            if result.published == 0
            else _percent(result),
            f"{100 * result.within:.2g} %" if result.within > 1e-6 else "exact",
        ]
        if has_own:
            cells.append("" if result.own is None else _figure(result.own, result.unit))
        if len(sources) > 1:
            cells.append(result.source)
        lines.append(f"| {' | '.join(cells)} |")
        if abs(result.difference) > result.within:
            notes.append(f"- {result.what}: {result.reason}.")
    text = "\n".join(lines) + "\n"
    if notes:
        text += "\n" + "\n".join(dict.fromkeys(notes)) + "\n"
    if section.below:
        text += f"\n{section.below}\n"
    published = f"Published by {sources[0]}.\n\n" if len(sources) == 1 else ""
    return f"\n## {section.title}\n\n{section.text}\n\n{published}{text}"


def _percent(result: Result) -> str:
    percent = 100 * result.difference
    return "0" if abs(percent) < 5e-7 else f"{percent:+.2g} %"


def _figure(value: float, unit: str) -> str:
    return f"{value:.5g} {unit}".rstrip()


def main() -> None:
    """Write the page.

    Exit with 1 if a figure differs by more than promised and no reason is given.
    """
    parser = argparse.ArgumentParser(description="Write docs/proof.md.")
    parser.add_argument("--hta", type=Path, help="a Python that has HTA (traceinsight)")
    parser.add_argument("--tracelens", type=Path, help="a Python that has TraceLens")
    options = parser.parse_args()
    all_sections = sections(hta=options.hta, tracelens=options.tracelens)
    KEPT.write_bytes(msgspec.json.format(msgspec.json.encode(all_sections), indent=1) + b"\n")
    PAGE.write_text(page(all_sections), encoding="utf-8")
    missed = [
        result for section in all_sections for result in section.results if not result.is_shown
    ]
    for result in missed:
        sys.stderr.write(f"{result.what}: {result.ours:.6g}, published {result.published:.6g}\n")
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
