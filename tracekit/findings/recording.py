"""Findings about what a recording lacks, and what that would answer.

What is there is decided by ``recorded``, for these findings and for the doctor.
"""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from tracekit._util.text import join_with_and, ranks_named, short_ms
from tracekit._util.values import first_that_holds
from tracekit.analysis.measure.recording_checks import COARSE_RESOLUTION_NS
from tracekit.errors import Notice
from tracekit.findings.context import Context
from tracekit.findings.kind import FindingKind
from tracekit.findings.recorded import absent_ranks, lacks_groups

MAX_MISSING_NAMED = 64
"""Missing ranks that are looked for to be named."""
MIN_UNEXPLAINED_IDLE_SHARE = 0.05
"""Share of the step from which idle time that no finding explains is stated."""


def is_about_unnamed_peers(notice: Notice) -> bool:
    """Return whether waits are unknown because messages do not name their peers."""
    return notice.code == "wait-unknown" and notice.values.get("case") in (
        "unnamed",
        "peers_unnamed",
    )


def _rounded_idle_ns(context: Context) -> int:
    """Return how much of a step's idle time may be rounding: whole microseconds put one between two events.

    0 where times are finer.
    """
    steps = context.analysis.tables["steps"].select("start_ns", "end_ns")
    is_coarse = pl.all_horizontal((pl.all() % COARSE_RESOLUTION_NS == 0).all())
    if steps.is_empty() or not steps.select(is_coarse).item():
        return 0
    counts = context.analysis.tables["steps"].group_by("rank").len("steps")
    steps_of_rank: int = max(counts["steps"].to_list())
    events = max(sum(result.whole.label_count.values()) for result in context.analysis.ranks)
    return events * COARSE_RESOLUTION_NS // steps_of_rank


def _idle_ns(context: Context) -> int:
    """Return the idle time of the step without the profiler; of the recorded one where that is not known."""
    return (context.step.free_budget_ns or context.step.budget_ns).idle_ns


class LackOfRecording(FindingKind, frozen=True, kw_only=True):
    """Something that the recording does not tell."""

    code = "recording"
    title = "what the recording lacks"
    is_about_recording = True


class GraphsCaptured(LackOfRecording, frozen=True, kw_only=True):
    """A recording that shows how graphs are captured: what the host and the GPU do in it says nothing of steps."""

    case = "capture"

    captured_launches: int

    @classmethod
    def find(cls, context: Context) -> Iterator[FindingKind]:
        if not context.captured_launches:
            return
        idle_ns = _idle_ns(context)
        yield cls(
            cost_ns=idle_ns,
            share=context.share(idle_ns),
            captured_launches=context.captured_launches,
            certain="possible",
        )

    def text(self) -> str:
        return (
            f"the recording shows how graphs are captured: {self.captured_launches:,} launches "
            "recorded a graph and ran nothing"
        )

    def advice(self) -> str:
        return "name it with `--capture` beside the recording of steps that replay the graphs"


class UnexplainedIdle(LackOfRecording, frozen=True, kw_only=True):
    """Time in which the GPU is idle, and no finding about the host says why.

    Idle time of a pipeline is its bubble, which the schedule explains; of several roles, their
    iterations.
    """

    case = "idle"

    idle_ns: int
    unexplained_ns: int
    steps_marked: bool

    @classmethod
    def find(cls, context: Context) -> Iterator[FindingKind]:
        analysis = context.analysis
        is_explained_elsewhere = analysis.total.pipeline or bool(analysis.role_results.roles)
        if is_explained_elsewhere or context.has_doubtful_clock:  # whose notice says why
            return
        if context.captured_launches or not analysis.total.idle_known:
            return
        idle_ns = _idle_ns(context)
        explained_ns = sum(finding.cost_ns for finding in context.found if finding.of_host)
        unexplained_ns = max(idle_ns - explained_ns - _rounded_idle_ns(context), 0)
        if context.share(unexplained_ns) <= MIN_UNEXPLAINED_IDLE_SHARE:
            return
        cases = [  # the first that holds decides
            (not context.has_host_calls, IdleWithUnknownHost),
            (context.has_stacks or context.has_unread_stacks, IdleWithStacks),
            (True, UnexplainedIdle),
        ]
        kind: type[UnexplainedIdle] = first_that_holds(cases)
        yield kind(
            cost_ns=unexplained_ns,
            share=context.share(unexplained_ns),
            idle_ns=idle_ns,
            unexplained_ns=unexplained_ns,
            steps_marked=context.step.marked,
            certain="possible",
        )

    def text(self) -> str:
        # Recorded, not idle: the time without the profiler counts as idle what the recording lacks.
        idle = short_ms(self.idle_ns)
        unexplained = short_ms(self.unexplained_ns)
        text = f"no GPU work is recorded for {idle}"
        if unexplained != idle:
            return f"{text}; for {unexplained} of that the recording does not show why"
        return f"{text}, and the recording does not show why"

    def advice(self) -> str:
        return (
            "look at the longest gaps in the timeline (`-o report.html`); stacks (`with_stack=True`) "
            "tell what the CPU does in them"
        )


class IdleWithStacks(UnexplainedIdle, frozen=True, kw_only=True):
    """The same where Python's stacks were recorded."""

    case = "idle_with_stacks"

    def advice(self) -> str:
        return (
            "look at the longest gaps in the timeline (`-o report.html`): the recorded stacks tell what "
            "the CPU does in them"
        )


class IdleWithUnknownHost(UnexplainedIdle, frozen=True, kw_only=True):
    """The same where the host's calls were not recorded."""

    case = "idle_host_unknown"

    def text(self) -> str:
        idle = short_ms(self.idle_ns)
        return f"the GPU is idle for {idle}; what the CPU does then is not in the recording"

    def advice(self) -> str:
        return "record CPU activities as well (`tracekit doctor` says how)"


class WaitingUnknown(LackOfRecording, frozen=True, kw_only=True):
    """Exposed communication of which it is not known how much is waiting: operations have no match.

    Its cost is the exposed time of these labels: what could be saved there is not known either.
    """

    case = "sides"
    independent_of_steps = True

    labels: str
    exposed_ns: int
    missing_ranks: int
    given_ranks: int
    world_size: int | None

    @classmethod
    def find(cls, context: Context) -> Iterator[FindingKind]:
        analysis = context.analysis
        total = analysis.total
        unknown_waits = [label for label, ns in total.wait_ns.items() if ns is None]
        unknown = [label for label in unknown_waits if total.budget.exposed_ns.get(label)]
        if not unknown:
            return
        count, missing = absent_ranks(analysis.sources, most=MAX_MISSING_NAMED)
        recorded_ranks = sorted({source.rank for source in analysis.sources})
        with_gpu_work = {result.rank for result in analysis.ranks if result.whole.budget.span_ns}
        without_gpu_work = [rank for rank in recorded_ranks if rank not in with_gpu_work]
        unnamed_peers = any(is_about_unnamed_peers(notice) for notice in analysis.notices)
        groups = analysis.tables["operations"]["group"]
        unnamed_groups = all(
            lacks_groups(source, collectives=len(groups), named=len(groups) - groups.null_count())
            for source in analysis.sources
        )
        no_ranks: list[int] = []
        cases = [  # the first that holds decides: the class, and the ranks that it is about
            (count > 0, (RanksMissing, missing)),
            (bool(without_gpu_work), (RanksWithoutGpuWork, without_gpu_work)),
            (len(recorded_ranks) == 1, (OneRankAlone, recorded_ranks)),
            (unnamed_peers, (PeersUnnamed, no_ranks)),
            (unnamed_groups, (GroupsUnnamed, no_ranks)),
            (True, (WaitingUnknown, no_ranks)),
        ]
        kind: type[WaitingUnknown]
        kind, ranks = first_that_holds(cases)
        cost_ns = sum(context.step.budget_ns.exposed_ns.get(label, 0) for label in unknown)
        yield kind(
            cost_ns=cost_ns,
            share=context.share(cost_ns),
            ranks=tuple(ranks),
            labels=", ".join(unknown),
            exposed_ns=cost_ns,
            missing_ranks=count,
            given_ranks=len(recorded_ranks),
            world_size=analysis.world_size,
            certain="possible",
        )

    def text(self) -> str:
        return f"{self._how_much_is_unknown()}: operations of some ranks have no match"

    def advice(self) -> str:
        return "record all ranks over the same time"

    def _how_much_is_unknown(self) -> str:
        labels = self.labels.split(", ")
        is_exposed = "is exposed (no compute beside it)"
        if len(labels) > 1:
            is_exposed = "are exposed (no compute beside them)"
        return (
            f"{short_ms(self.exposed_ns)} of {join_with_and(labels)} {is_exposed}; how much of that is "
            "waiting is not known"
        )


class RanksMissing(WaitingUnknown, frozen=True, kw_only=True):
    """The same because ranks have no trace."""

    case = "ranks"

    def text(self) -> str:
        are = "is" if self.given_ranks == 1 else "are"
        world_size = "unknown" if self.world_size is None else f"{self.world_size:,}"
        ranks = f"{self.given_ranks:,} of {world_size} ranks {are} here"
        return f"{self._how_much_is_unknown()}: only {ranks}"

    def advice(self) -> str:
        return "add the traces of the other ranks"


class OneRankAlone(WaitingUnknown, frozen=True, kw_only=True):
    """The same because there is one rank, and it is not known how many there are."""

    case = "one_rank"

    def text(self) -> str:
        return f"{self._how_much_is_unknown()}: only rank {self.ranks[0]} is here"

    def advice(self) -> str:
        return "add the traces of the other ranks"


class RanksWithoutGpuWork(WaitingUnknown, frozen=True, kw_only=True):
    """The same because ranks recorded no GPU work."""

    case = "gpu_work"

    def text(self) -> str:
        ranks = ranks_named(self.ranks)
        return f"{self._how_much_is_unknown()}: {ranks} has no GPU work in its trace"

    def advice(self) -> str:
        return "record GPU work on every rank (`tracekit doctor` says how)"


class PeersUnnamed(WaitingUnknown, frozen=True, kw_only=True):
    """The same because messages do not name their peers."""

    case = "peers"

    def text(self) -> str:
        return f"{self._how_much_is_unknown()}: messages do not name their peer"

    def advice(self) -> str:
        return "record to whom messages go: a newer PyTorch, or `nsys export --include-blobs=true`"


class GroupsUnnamed(WaitingUnknown, frozen=True, kw_only=True):
    """The same because process groups are not recorded."""

    case = "groups"

    def text(self) -> str:
        return f"{self._how_much_is_unknown()}: process groups are not recorded"

    def advice(self) -> str:
        return "record process groups (`tracekit doctor` says how)"
