"""Findings about a recording: what it lacks, which answers that rules out, and how to record it.

Texts are in ``findings.toml``. A new finding is a condition in ``FINDING_RULES`` and its texts
there, a new optional recording a condition in ``EXTRA_RULES`` and its texts.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from tracekit._util.text import listing
from tracekit.documents.analysis import TimedStep
from tracekit.documents.doctor import DoctorFinding, Extra, RecordedRank
from tracekit.errors import Notice
from tracekit.findings.recorded import absent_ranks, lacks_groups
from tracekit.metrics.peaks import find_gpu
from tracekit.report.notices import notice_sentence
from tracekit.schema import PYTORCH_READERS, Source, has_stacks
from tracekit.store.sources import copied_ranks_notices

MIN_LAUNCHED_SHARE = 0.8
"""Share of GPU events whose launch must be recorded for answers that need launches."""


class RankFacts(RecordedRank, frozen=True, kw_only=True):
    """Facts about how one rank was recorded, from its events."""

    source: Source
    start_ns: int | None
    end_ns: int | None
    in_graphs: int  # GPU events launched by a CUDA graph
    graph_launches: int
    cpu_ops: int
    with_shapes: int
    with_sequence: int
    collectives: int  # NCCL or RCCL kernels
    timed_steps: tuple[TimedStep, ...] = ()  # marked steps with their times, without a budget
    groups: Mapping[str, str | None] = {}  # name → description
    lost: tuple[Notice, ...] = ()  # launches without their GPU events, GPU events without launches
    nccl_calls: int = 0  # recorded calls of the NCCL library
    messages: int = 0  # sends and receives among the calls
    peers: int = 0  # messages with a recorded peer
    allocations: int = 0  # allocations and frees of GPU memory
    with_totals: int = 0  # allocations with the total allocated after them
    generates: bool = False  # its steps are prefill and decode
    is_xpu: bool = False  # its GPU is one of Intel's


def for_accelerator(text: str, facts: Iterable[RankFacts]) -> str:
    """Return a text about PyTorch's profiler in the words of the GPU that was recorded: AMD's are "CUDA" there, too.

    >>> for_accelerator("activities=[ProfilerActivity.CUDA]", [])
    'activities=[ProfilerActivity.CUDA]'
    """
    is_xpu = any(fact.is_xpu for fact in facts)
    return text.replace("ProfilerActivity.CUDA", "ProfilerActivity.XPU") if is_xpu else text


class FindingText(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Texts of a finding; those made from a notice have its words for the problem."""

    severity: Literal["blocks", "limits", "note"]
    fix: str | Mapping[str, str]
    """How to record better; by recording tool where that differs."""
    problem: str = ""
    rules_out: tuple[str, ...] = ()

    def finding(
        self, code: str, problem: str, ranks: Sequence[int], reader: str = ""
    ) -> DoctorFinding:
        """Return the finding on some ranks, recorded by the tool *reader*."""
        tool = "kineto" if reader in PYTORCH_READERS else reader
        fix = self.fix if isinstance(self.fix, str) else self.fix.get(tool, "")
        return DoctorFinding(code, self.severity, problem, tuple(ranks), self.rules_out, fix)


class _Texts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``findings.toml``: texts of rules and notices by code, optional recordings, and a whole recording by tool."""

    rules: Mapping[str, FindingText]
    notices: Mapping[str, FindingText]
    extras: tuple[Extra, ...]
    recipes: Mapping[str, str]


DOCTOR_TEXTS = msgspec.toml.decode(
    Path(__file__).with_name("findings.toml").read_bytes(), type=_Texts
)
RECIPES = {**DOCTOR_TEXTS.recipes, **dict.fromkeys(PYTORCH_READERS, DOCTOR_TEXTS.recipes["kineto"])}
"""Code that makes a whole recording, by recording tool."""


def _lacks_group_descriptions(fact: RankFacts) -> bool:
    """Return whether collectives ran and no process group except the default one has a description."""
    descriptions = {group.name: group.description for group in fact.source.groups}
    descriptions.update(fact.groups)
    without_default = set(descriptions.values()) - {"default_pg"}
    if not fact.collectives or not without_default:
        return False
    return without_default <= {None, "", "undefined"}


FINDING_RULES: dict[str, Callable[[RankFacts], bool]] = {
    "no-gpu-events": lambda f: f.gpu_events == 0,
    "graphs-unseen": lambda f: f.counts.get("graph", 0) > 0,
    "cuda-graphs": lambda f: (
        f.gpu_events > 0 and not f.counts.get("graph", 0) and (f.in_graphs or f.graph_launches) > 0
    ),
    "no-cpu-ops": lambda f: (
        f.gpu_events > 0 and f.cpu_ops == 0 and f.source.reader in (*PYTORCH_READERS, "rocm")
    ),
    "no-nvtx": lambda f: (
        f.gpu_events > 0
        and f.source.reader == "nsight"
        and not (f.counts.get("annotation", 0) or f.cpu_ops)
    ),
    "no-operators": lambda f: (
        f.source.reader == "nsight"
        and f.gpu_events > 0
        and f.with_sequence == 0
        and f.nccl_calls > 0
    ),
    "no-shapes": lambda f: (
        f.with_shapes == 0
        and (f.cpu_ops > 0 if f.source.reader in PYTORCH_READERS else f.with_sequence > 0)
    ),
    "no-autograd": lambda f: (
        f.with_sequence == 0
        and not f.generates
        and f.gpu_events > 0
        and not f.nccl_calls
        and (f.cpu_ops > 0 or f.counts.get("annotation", 0) > 0)
    ),
    "no-steps": lambda f: f.gpu_events > 0 and not f.steps,
    "no-groups": lambda f: lacks_groups(f.source, collectives=f.collectives, named=len(f.groups)),
    "no-group-descriptions": _lacks_group_descriptions,
    "stacks-recorded": lambda f: has_stacks(f.source),
}
"""Condition on a rank by the code of the finding, in the order they are reported."""


def find_problems(
    facts: Sequence[RankFacts],
    *,
    unreadable: Sequence[str] = (),
    ranks: Collection[int] | None = None,
) -> list[DoctorFinding]:
    """Return the findings over all ranks, the most severe first.

    A problem shared by several ranks is one finding.

    Args:
        facts: Facts about each rank that could be read.
        unreadable: Message about each file that could not be read.
        ranks: Ranks the user selected; other ranks are then not reported as missing.
    """
    read: list[tuple[int, Notice]] = []
    lost: list[tuple[int, Notice]] = []
    for fact in facts:
        # Notices of the readers are about truncation, damage and lost events.
        for notice in fact.source.notices:
            if notice.code not in _COVERED_BY_RULES:
                read.append((fact.rank, notice))
        lost += [(fact.rank, notice) for notice in fact.lost]
    findings = list(_unreadable_files(unreadable))
    if ranks is None:
        findings += _missing_ranks(facts)
    copies = copied_ranks_notices([fact.source for fact in facts])
    for notice in copies:
        findings += _from_notices([(rank, notice) for rank in notice.ranks])
    findings += _from_notices(read)
    # Launches without their GPU work have numbers of their own on every rank.
    reader = facts[0].source.reader if facts else ""
    findings += _from_notices(lost, numbers_differ=True, reader=reader)
    findings += _apply_rules(facts)
    order = {"blocks": 0, "limits": 1, "note": 2}
    return sorted(findings, key=lambda finding: order[finding.severity])


def _apply_rules(facts: Sequence[RankFacts]) -> Iterable[DoctorFinding]:
    for code, applies in FINDING_RULES.items():
        affected = [fact for fact in facts if applies(fact)]
        if affected:
            text = DOCTOR_TEXTS.rules[code]
            ranks = [fact.rank for fact in affected]
            yield text.finding(code, text.problem, ranks, affected[0].source.reader)


MAX_MISSING_RANKS_LISTED = 1000
"""Missing ranks listed in a finding; of more, only the number is given."""


def _missing_ranks(facts: Sequence[RankFacts]) -> Iterable[DoctorFinding]:
    size = max((fact.source.world_size or 0 for fact in facts), default=0)
    sources = [fact.source for fact in facts]
    count, first = absent_ranks(sources, most=MAX_MISSING_RANKS_LISTED)
    if count:
        problem = f"{count} of {size} ranks {'is' if count == 1 else 'are'} not here: {listing(map(str, first))}"
        yield DOCTOR_TEXTS.notices["missing-ranks"].finding("missing-ranks", problem, first)


_COVERED_BY_RULES = frozenset(("no-gpu-events", "graphs-whole", "no-launches", "no-ranges"))


def _from_notices(
    notices: Iterable[tuple[int, Notice]], *, numbers_differ: bool = False, reader: str = ""
) -> Iterable[DoctorFinding]:
    """Return findings from the notices of ranks: one for equal notices.

    If the numbers of ranks differ, there is one finding for each code, with the numbers of the
    first rank.
    """
    groups: dict[Notice | str, list[tuple[int, Notice]]] = {}
    for rank, notice in notices:
        key = notice.code if numbers_differ else notice
        groups.setdefault(key, []).append((rank, notice))
    for members in groups.values():
        ranks = [rank for rank, _ in members]
        first = members[0][1]
        text = DOCTOR_TEXTS.notices.get(first.code, DOCTOR_TEXTS.notices["damaged"])
        yield text.finding(first.code, notice_sentence(first), ranks, reader)


def _unreadable_files(messages: Sequence[str]) -> Iterable[DoctorFinding]:
    for message in messages:
        yield DOCTOR_TEXTS.notices["unreadable"].finding("unreadable", message, ())


EXTRA_RULES: dict[str, Callable[[RankFacts], bool]] = {
    "memory": lambda f: (
        f.source.reader in PYTORCH_READERS and f.gpu_events > 0 and f.allocations == 0
    ),
    "memory-totals": lambda f: f.gpu_events > 0 and f.allocations > 0 and f.with_totals == 0,
    "peaks": lambda f: (
        f.gpu_events > 0 and f.with_shapes > 0 and not any(map(find_gpu, f.source.devices))
    ),
}
"""Whether a rank lacks an optional recording, by its code."""


def find_extras(facts: Sequence[RankFacts]) -> list[Extra]:
    """Return the optional recordings that some rank lacks."""
    return [extra for extra in DOCTOR_TEXTS.extras if any(map(EXTRA_RULES[extra.code], facts))]
