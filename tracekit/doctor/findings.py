"""Findings about a recording: what it lacks, which answers that rules out, and how to record it.

Rules are data: a new finding is an entry in ``FINDING_RULES``, a new optional recording an entry in ``EXTRAS``.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from tracekit._util.notices import strip_rank
from tracekit._util.text import listing
from tracekit.documents.doctor import Finding
from tracekit.errors import Notice
from tracekit.metrics.peaks import PEAKS_VARIABLE, find_gpu
from tracekit.parsers.source_refs import missing_ranks
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
MIN_LAUNCHED_SHARE = 0.8
"""Share of GPU events whose launch must be recorded for answers that need launches."""
RECIPES = {"kineto": KINETO_CALL, "nsight": NSIGHT_CALL}


class RankFacts(msgspec.Struct, frozen=True):
    """Facts about how one rank was recorded, from its events."""

    source: Source
    counts: Mapping[str, int]  # events by kind
    start_ns: int | None
    end_ns: int | None
    steps: tuple[int, ...]
    devices: tuple[int, ...]
    streams: int
    gpu_events: int
    launched: int  # GPU events whose launch is in the trace
    in_graphs: int  # GPU events launched by a CUDA graph
    graph_launches: int
    cpu_ops: int
    with_shapes: int
    with_sequence: int
    collectives: int  # NCCL or RCCL kernels
    groups: Mapping[str, str | None] = {}  # name → description
    lost: tuple[Notice, ...] = ()  # launches without their GPU events
    nccl_calls: int = 0  # recorded calls of the NCCL library
    messages: int = 0  # sends and receives among the calls
    peers: int = 0  # messages with a recorded peer
    allocations: int = 0  # allocations and frees of GPU memory
    with_totals: int = 0  # allocations with the total allocated after them


class FindingRule(msgspec.Struct, frozen=True):
    """A kind of finding: the condition on a rank, and the texts; ``fixes`` by recording tool."""

    code: str
    severity: str
    applies: Callable[[RankFacts], bool]
    problem: str
    rules_out: tuple[str, ...]
    fixes: dict[str, str]


def _lacks_group_descriptions(fact: RankFacts) -> bool:
    """Return whether collectives ran and no process group except the default one has a description."""
    descriptions = {group.name: group.description for group in fact.source.groups} | dict(fact.groups)
    own = [text for text in descriptions.values() if text != "default_pg"]
    return bool(fact.collectives and own) and all(text in (None, "", "undefined") for text in own)


FINDING_RULES = (
    FindingRule(
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
    FindingRule(
        "graphs-unseen",
        "blocks",
        lambda f: f.counts.get("graph", 0) > 0,
        "CUDA graphs were recorded whole, without their kernels",
        ("labels, overlap and pipeline inside graphs",),
        {"kineto": "run the profiled steps without CUDA graphs", "nsight": "nsys profile --cuda-graph-trace=node"},
    ),
    FindingRule(
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
    FindingRule(
        "no-cpu-ops",
        "limits",
        lambda f: f.gpu_events > 0 and f.cpu_ops == 0 and f.source.reader == "kineto",
        "no CPU operations were recorded",
        ("forward, dgrad and wgrad told apart by evidence", "modules", "pipeline cells"),
        {"kineto": "profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA])"},
    ),
    FindingRule(
        "no-nvtx",
        "limits",
        lambda f: f.gpu_events > 0 and f.source.reader == "nsight" and not (f.counts.get("annotation", 0) or f.cpu_ops),
        "no NVTX ranges were recorded",
        ("forward, dgrad and wgrad told apart by evidence", "modules", "steps", "pipeline cells"),
        {"nsight": "nsys profile --trace=cuda,nvtx, with torch.autograd.profiler.emit_nvtx(record_shapes=True)"},
    ),
    FindingRule(
        "no-operators",
        "limits",
        lambda f: f.source.reader == "nsight" and f.gpu_events > 0 and f.with_sequence == 0 and f.nccl_calls > 0,
        "no operators were recorded (emit_nvtx was off)",
        ("modules and layers", "rates from shapes", "dgrad and wgrad told apart by shape"),
        {"nsight": "with torch.autograd.profiler.emit_nvtx(record_shapes=True): around the steps"},
    ),
    FindingRule(
        "no-launches",
        "limits",
        lambda f: (
            f.gpu_events > 0
            and not (f.in_graphs or f.graph_launches)
            and f.launched < MIN_LAUNCHED_SHARE * f.gpu_events
        ),
        "for more than a fifth of the GPU work the call that launched it was not recorded",
        ("labels by evidence for that work", "launch delay"),
        {
            "kineto": "profile(schedule=torch.profiler.schedule(wait=5, warmup=2, active=3)), and CPU activity on",
            "nsight": "torch.cuda.synchronize() before torch.cuda.profiler.start()",
        },
    ),
    FindingRule(
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
    FindingRule(
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
    FindingRule(
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
    FindingRule(
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
    FindingRule(
        "no-group-descriptions",
        "limits",
        _lacks_group_descriptions,
        "process groups have no descriptions",
        ("expert, tensor and data traffic told apart by the group's name (its ranks and use decide)",),
        {
            "kineto": 'dist.new_group(ranks, group_desc="EXPERT_MODEL_PARALLEL_GROUP")',
            "nsight": "name the ranges around them",
        },
    ),
    FindingRule(
        "stacks-recorded",
        "note",
        lambda f: (f.source.skipped.get("python", 0) or f.counts.get("python", 0)) > 0,
        "Python stacks were recorded: they slow the run they measure, and only --by layer and --by module use them",
        (),
        {"kineto": "profile(with_stack=False)", "nsight": "nsys profile without --python-backtrace"},
    ),
)


def find_problems(
    facts: Sequence[RankFacts], *, unreadable: Sequence[tuple[str, str]] = (), ranks: Sequence[int] | None = None
) -> list[Finding]:
    """Return the findings over all ranks, the most severe first; a problem shared by several ranks is one finding.

    Args:
        facts: Facts about each rank that could be read.
        unreadable: Path and message of each file that could not be read.
        ranks: Ranks the user selected; other ranks are then not reported as missing.
    """
    findings = [
        *_unreadable_files(unreadable),
        *(_missing_ranks(facts) if ranks is None else ()),
        *_reader_notices(facts),
        *_lost_launches(facts),
        *_apply_rules(facts),
    ]
    order = {"blocks": 0, "limits": 1, "note": 2}
    return sorted(findings, key=lambda finding: order[finding.severity])


def _apply_rules(facts: Sequence[RankFacts]) -> Iterable[Finding]:
    for rule in FINDING_RULES:
        affected = [fact for fact in facts if rule.applies(fact)]
        if affected:
            ranks = tuple(fact.source.rank for fact in affected)
            fix = rule.fixes.get(affected[0].source.reader, "")
            yield Finding(rule.code, rule.severity, rule.problem, ranks, rule.rules_out, fix)


MAX_MISSING_RANKS_LISTED = 1000
"""Missing ranks listed in a finding; of more, only the number is given."""


def _missing_ranks(facts: Sequence[RankFacts]) -> Iterable[Finding]:
    size = max((fact.source.world_size or 0 for fact in facts), default=0)
    present = {fact.source.rank for fact in facts}
    count, first = missing_ranks(present, size, most=MAX_MISSING_RANKS_LISTED)
    if count:
        yield Finding(
            "missing-ranks",
            "limits",
            f"{count} of {size} ranks {'is' if count == 1 else 'are'} not here: {listing(map(str, first))}",
            tuple(first),
            ("waits inside communication of absent peers", "bubble fraction (a lower bound)", "a whole pipeline"),
            "record every rank: export_chrome_trace(f'rank{dist.get_rank()}.json.gz') on each",
        )


NOTICE_REMEDIES = {
    "no-peers": (
        ("peers as recorded: order and time tell who spoke to whom",),
        "nsys export --type=sqlite --include-blobs=true",
    ),
    "no-clock": (("ranks aligned by the clock (matched collectives decide)",), "export with a newer nsys"),
}
"""Answers ruled out and fix, by the code of a reader's notice; every other notice is about damage."""
_COVERED_BY_RULES = frozenset(("no-gpu-events", "graph-mode", "no-launch", "no-ranges"))


def _reader_notices(facts: Sequence[RankFacts]) -> Iterable[Finding]:
    """Return findings from the notices of the readers: truncation, damage, lost events."""
    ranks_by_notice: dict[tuple[str, str], list[int]] = {}
    for fact in facts:
        for notice in fact.source.notices:
            if notice.code not in _COVERED_BY_RULES:
                key = (notice.code, strip_rank(notice.message))
                ranks_by_notice.setdefault(key, []).append(fact.source.rank)
    damage = (("whatever was in the lost part",), "record again, and let the export finish before the process ends")
    for (code, message), ranks in ranks_by_notice.items():
        rules_out, fix = NOTICE_REMEDIES.get(code, damage)
        yield Finding(code, "limits", message, tuple(ranks), rules_out, fix)


LOST_LAUNCH_REMEDIES: Mapping[str, tuple[str, tuple[str, ...], str]] = {
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
"""Severity, answers ruled out and fix, by the code of a notice about launches without a GPU event."""


def _lost_launches(facts: Sequence[RankFacts]) -> Iterable[Finding]:
    """Return findings about launches whose GPU work is not in the file: one per kind, with the first rank's numbers."""
    notices: dict[str, list[tuple[int, str]]] = {}  # by code: (rank, message)
    for fact in facts:
        for notice in fact.lost:
            notices.setdefault(notice.code, []).append((fact.source.rank, notice.message))
    for code, messages in notices.items():
        severity, rules_out, fix = LOST_LAUNCH_REMEDIES[code]
        yield Finding(code, severity, messages[0][1], tuple(rank for rank, _ in messages), rules_out, fix)


def _unreadable_files(files: Sequence[tuple[str, str]]) -> Iterable[Finding]:
    for path, message in files:
        text = message if path in message else f"{path}: {message}"
        yield Finding("unreadable", "blocks", text, (), ("every answer about this rank",), "record this rank again")


class Extra(msgspec.Struct, frozen=True):
    """An optional recording: whether a rank lacks it, what it would add, and how to get it."""

    code: str
    lacks: Callable[[RankFacts], bool]
    adds: str
    how: str


EXTRAS = (
    Extra(
        "memory",
        lambda f: f.source.reader == "kineto" and f.gpu_events > 0 and f.allocations == 0,
        "memory by phase and rank, GB a chunk, and which schedules would not fit",
        "profile(profile_memory=True) or tracekit.profiler(…, memory=True): one event more per allocation, about a "
        "fifth more of a trace",
    ),
    Extra(
        "memory-totals",
        lambda f: f.gpu_events > 0 and f.allocations > 0 and f.with_totals == 0,
        "memory by phase and rank: allocations were recorded without their totals, as PyTorch did in 2021",
        "record with a newer PyTorch",
    ),
    Extra(
        "peaks",
        lambda f: f.gpu_events > 0 and f.with_shapes > 0 and not any(map(find_gpu, f.source.devices)),
        "share of the GPU's peak and model FLOP utilisation: this GPU's peak is not known",
        f"name the GPU and its peaks in a file, and that file in {PEAKS_VARIABLE}",
    ),
)
"""Optional recordings that no answer needs, in the order they are reported."""


def find_extras(facts: Sequence[RankFacts]) -> list[Extra]:
    """Return the optional recordings that some rank lacks."""
    return [extra for extra in EXTRAS if any(map(extra.lacks, facts))]
