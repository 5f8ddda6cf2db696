"""What a recording can lack: each lack with its cost in answers, and the words that would record it.

Lacks are data. A new one is a new entry in ``LACKS`` and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from tracekit._util.notices import strip_rank
from tracekit._util.text import listing
from tracekit.errors import Notice
from tracekit.parsers.ranks import absent
from tracekit.schema import Source

KINETO_CALL = """\
from torch.profiler import ProfilerActivity, profile, schedule

with profile(
    activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA],
    schedule=schedule(wait=5, warmup=2, active=3),
    record_shapes=True,
    on_trace_ready=lambda p: p.export_chrome_trace(f"rank{rank}.json.gz"),
) as prof:
    for batch in batches:
        train_step(batch)
        prof.step()"""
NSIGHT_CALL = """\
# around the steps, in train.py:
torch.cuda.profiler.start()
with torch.autograd.profiler.emit_nvtx(record_shapes=True):
    for step in range(3):
        with torch.cuda.nvtx.range(f"ProfilerStep#{step}"):
            train_step()
torch.cuda.profiler.stop()
# and in the shell:
nsys profile --trace=cuda,nvtx --cuda-graph-trace=node \\
    --capture-range=cudaProfilerApi -o rank%q{RANK} python train.py
nsys export --type=sqlite --include-blobs=true rank0.nsys-rep"""
RECIPES = {"kineto": KINETO_CALL, "nsight": NSIGHT_CALL}


class RankFacts(msgspec.Struct, frozen=True):
    """What one rank's events say about how it was recorded."""

    source: Source
    counts: Mapping[str, int]  # events by kind
    start_ns: int | None
    end_ns: int | None
    steps: tuple[int, ...]
    devices: tuple[int, ...]
    streams: int
    gpu_events: int
    launched: int  # GPU events whose launch is in the trace
    in_graphs: int  # GPU events that a CUDA graph launched
    graph_launches: int
    cpu_ops: int
    with_shapes: int
    with_sequence: int
    collectives: int  # NCCL or RCCL kernels
    groups: Mapping[str, str | None] = {}  # name → description
    lost: tuple[Notice, ...] = ()  # launches without their GPU events
    nccl_calls: int = 0  # calls of NCCL's own that were recorded
    messages: int = 0  # sends and receives among the calls
    peers: int = 0  # of these, those that say to whom
    allocations: int = 0  # of GPU memory, and frees
    with_totals: int = 0  # of these, those that say what was held after them


class Finding(msgspec.Struct, frozen=True):
    """One thing the trace lacks: what, on which ranks, which answers that rules out, and what would record it."""

    code: str
    severity: str  # "blocks": no answer without it; "limits": fewer or weaker answers; "note": good to know
    problem: str
    ranks: tuple[int, ...]
    rules_out: tuple[str, ...]
    fix: str


class Lack(msgspec.Struct, frozen=True):
    """A kind of finding: when it holds for a rank, and what to say then, per tool."""

    code: str
    severity: str
    holds: Callable[[RankFacts], bool]
    problem: str
    rules_out: tuple[str, ...]
    fixes: dict[str, str]


def _undescribed(fact: RankFacts) -> bool:
    described = {g.name: g.description for g in fact.source.groups} | dict(fact.groups)
    several = [text for name, text in described.items() if text != "default_pg"]
    return bool(fact.collectives and several) and all(text in (None, "", "undefined") for text in several)


LACKS = (
    Lack(
        "no-gpu-events",
        "blocks",
        lambda f: f.gpu_events == 0,
        "no GPU work was recorded",
        ("every answer about GPU time: budget, overlap, bubbles, pipeline",),
        {
            "kineto": "profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA])",
            "nsight": "nsys profile --trace=cuda,nvtx",
        },
    ),
    Lack(
        "graphs-unseen",
        "blocks",
        lambda f: f.counts.get("graph", 0) > 0,
        "CUDA graphs were recorded whole, without their kernels",
        ("labels, overlap and pipeline inside graphs",),
        {
            "kineto": "run the profiled steps without CUDA graphs",
            "nsight": "nsys profile --cuda-graph-trace=node",
        },
    ),
    Lack(
        "cuda-graphs",
        "limits",
        lambda f: f.gpu_events > 0 and not f.counts.get("graph", 0) and (f.in_graphs or f.graph_launches) > 0,
        "kernels were launched by CUDA graphs: no operation of their own is around them",
        ("labels by evidence inside graphs (kernel names alone decide)",),
        {
            "kineto": "run the profiled steps without CUDA graphs",
            "nsight": "run the profiled steps without CUDA graphs",
        },
    ),
    Lack(
        "no-cpu-ops",
        "limits",
        lambda f: f.gpu_events > 0 and f.cpu_ops == 0 and f.source.reader == "kineto",
        "no CPU operations were recorded",
        ("forward, dgrad and wgrad told apart by evidence", "modules", "pipeline cells"),
        {"kineto": "profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA])"},
    ),
    Lack(
        "no-nvtx",
        "limits",
        lambda f: f.gpu_events > 0 and f.source.reader == "nsight" and not (f.counts.get("annotation", 0) or f.cpu_ops),
        "no NVTX ranges were recorded",
        ("forward, dgrad and wgrad told apart by evidence", "modules", "steps", "pipeline cells"),
        {"nsight": "nsys profile --trace=cuda,nvtx, with torch.autograd.profiler.emit_nvtx(record_shapes=True)"},
    ),
    Lack(
        "no-operators",
        "limits",
        lambda f: f.source.reader == "nsight" and f.gpu_events > 0 and f.with_sequence == 0 and f.nccl_calls > 0,
        "no operators were recorded (emit_nvtx was off)",
        ("modules and layers", "rates from shapes", "dgrad and wgrad told apart by shape"),
        {"nsight": "with torch.autograd.profiler.emit_nvtx(record_shapes=True): around the steps"},
    ),
    Lack(
        "no-launches",
        "limits",
        lambda f: f.gpu_events > 0 and not (f.in_graphs or f.graph_launches) and f.launched < 0.8 * f.gpu_events,
        "for more than a fifth of the GPU work the call that launched it was not recorded",
        ("labels by evidence for that work", "launch delay"),
        {
            "kineto": "profile(schedule=torch.profiler.schedule(wait=5, warmup=2, active=3)), and CPU activity on",
            "nsight": "torch.cuda.synchronize() before torch.cuda.profiler.start()",
        },
    ),
    Lack(
        "no-shapes",
        "limits",
        lambda f: f.with_shapes == 0 and (f.cpu_ops > 0 if f.source.reader == "kineto" else f.with_sequence > 0),
        "input shapes were not recorded",
        (
            "dgrad and wgrad told apart by shape (order and kernel names decide)",
            "modules by shape",
            "rates: FLOP, TFLOP/s, share of the GPU's peak, model FLOP utilisation",
        ),
        {"kineto": "profile(record_shapes=True)", "nsight": "emit_nvtx(record_shapes=True)"},
    ),
    Lack(
        "no-autograd",
        "limits",
        lambda f: (
            f.with_sequence == 0
            and f.gpu_events > 0
            and not f.nccl_calls
            and (f.cpu_ops > 0 or f.counts.get("annotation", 0) > 0)
        ),
        "no autograd sequence numbers: inference, or operations that autograd did not see",
        ("forward and backward of one micro-batch paired without annotations",),
        {
            "kineto": "for inference, nothing; otherwise profile the steps that call backward()",
            "nsight": "with torch.autograd.profiler.emit_nvtx(record_shapes=True): around the steps",
        },
    ),
    Lack(
        "no-steps",
        "limits",
        lambda f: f.gpu_events > 0 and not f.steps,
        "no step marks: steps are told apart by their optimizer, and without one the whole trace is one step",
        ("the program's own step numbers",),
        {
            "kineto": "call prof.step() after each step",
            "nsight": 'with torch.cuda.nvtx.range(f"ProfilerStep#{step}"): around each step',
        },
    ),
    Lack(
        "no-groups",
        "limits",
        lambda f: f.collectives > 0 and not f.groups and not f.source.groups,
        "NCCL kernels were recorded, and nothing says which process group they belong to",
        ("expert, tensor, data and pipeline traffic told apart by group", "waits of matched operations"),
        {
            "kineto": "PyTorch 2.4 or newer, with the profiler started after init_process_group",
            "nsight": "nsys export --type=sqlite --include-blobs=true: it names NCCL's communicators",
        },
    ),
    Lack(
        "no-group-descriptions",
        "limits",
        _undescribed,
        "process groups have no descriptions",
        ("expert, tensor and data traffic told apart by the group's name (its ranks and use decide)",),
        {
            "kineto": 'dist.new_group(ranks, group_desc="EXPERT_MODEL_PARALLEL_GROUP")',
            "nsight": "name the ranges around them",
        },
    ),
    Lack(
        "stacks-recorded",
        "note",
        lambda f: (f.source.skipped.get("python", 0) or f.counts.get("python", 0)) > 0,
        "Python stacks were recorded: they slow the run they measure, and only --by layer and --by module use them",
        (),
        {"kineto": "profile(with_stack=False)", "nsight": "nsys profile without --python-backtrace"},
    ),
)


def findings(
    facts: Sequence[RankFacts],
    *,
    unreadable: Sequence[tuple[str, str]] = (),
    ranks: Sequence[int] | None = None,
) -> list[Finding]:
    """Return what the ranks lack, the gravest first; a lack that several ranks share is one finding."""
    unsorted = [*_unreadable(unreadable), *_missing(facts, ranks), *_damaged(facts), *_lost(facts), *_lacking(facts)]
    order = {"blocks": 0, "limits": 1, "note": 2}
    return sorted(unsorted, key=lambda finding: order[finding.severity])


def _lacking(facts: Sequence[RankFacts]) -> Iterable[Finding]:
    for lack in LACKS:
        having = [fact for fact in facts if lack.holds(fact)]
        if having:
            ranks = tuple(fact.source.rank for fact in having)
            fix = lack.fixes.get(having[0].source.reader, "")
            yield Finding(lack.code, lack.severity, lack.problem, ranks, lack.rules_out, fix)


MOST_LISTED = 1000
"""Missing ranks that are named one by one; of more, only their number is told."""


def _missing(facts: Sequence[RankFacts], asked: Sequence[int] | None) -> Iterable[Finding]:
    size = max((fact.source.world_size or 0 for fact in facts), default=0)
    have = {fact.source.rank for fact in facts}
    count, first = absent(have, size, most=MOST_LISTED)
    if count and asked is None:
        yield Finding(
            "missing-ranks",
            "limits",
            f"{count} of {size} ranks {'is' if count == 1 else 'are'} not here: {listing(map(str, first))}",
            tuple(first),
            ("waits inside communication of absent peers", "bubble fraction (a lower bound)", "a whole pipeline"),
            "record every rank: export_chrome_trace(f'rank{dist.get_rank()}.json.gz') on each",
        )


NOTICED = {
    "no-peers": (
        ("peers as recorded: order and time tell who spoke to whom",),
        "nsys export --type=sqlite --include-blobs=true",
    ),
    "no-clock": (("ranks aligned by the clock (matched collectives decide)",), "export with a newer nsys"),
}
"""What some notices of the readers cost, and what would help; all others are damage."""
_SAID_ABOVE = frozenset(("no-gpu-events", "graph-mode", "no-launch", "no-ranges"))


def _damaged(facts: Sequence[RankFacts]) -> Iterable[Finding]:
    """Report what a reader noticed while it read: truncation, damage, lost events."""
    about: dict[tuple[str, str], list[int]] = {}
    for fact in facts:
        for notice in fact.source.notices:
            if notice.code not in _SAID_ABOVE:
                about.setdefault((notice.code, strip_rank(notice.message)), []).append(fact.source.rank)
    damage = (("whatever was in the lost part",), "record again, and let the export finish before the process ends")
    for (code, message), ranks in about.items():
        rules_out, fix = NOTICED.get(code, damage)
        yield Finding(code, "limits", message, tuple(ranks), rules_out, fix)


LOST: Mapping[str, tuple[str, tuple[str, ...], str]] = {
    "gpu-events-lost": (
        "limits",
        ("idle time (a bound, or null)", "causes of the gap"),
        "record fewer steps, or less beside the GPU (no stacks, no memory)",
    ),
    "recording-cut": ("note", ("the part of the step that is not there",), "synchronize before the profiler stops"),
    "graph-captured": ("note", (), "nothing to change: a captured launch runs later, in its graph"),
    "graphs-unseen": ("blocks", ("idle time and the bubble",), "nsys profile --cuda-graph-trace=node"),
    "graph-nodes-missing": ("limits", ("idle time (a bound)",), "nsys profile --cuda-graph-trace=node"),
}
"""What launches without a GPU event cost, and what would help."""


def _lost(facts: Sequence[RankFacts]) -> Iterable[Finding]:
    """Report launches whose work is not in the file: one finding for each kind, in the first rank's numbers."""
    about: dict[str, list[tuple[int, str]]] = {}
    for fact in facts:
        for notice in fact.lost:
            about.setdefault(notice.code, []).append((fact.source.rank, notice.message))
    for code, messages in about.items():
        severity, rules_out, fix = LOST[code]
        yield Finding(code, severity, messages[0][1], tuple(rank for rank, _ in messages), rules_out, fix)


def _unreadable(files: Sequence[tuple[str, str]]) -> Iterable[Finding]:
    for path, message in files:
        text = message if path in message else f"{path}: {message}"
        yield Finding("unreadable", "blocks", text, (), ("every answer about this rank",), "record this rank again")
