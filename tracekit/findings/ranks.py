"""Findings about ranks that others wait for."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median
from typing import ClassVar

from tracekit._util.text import ranks_named, short_ms
from tracekit.analysis.combine.stragglers import MIN_LATE_SHARE, SlowGpu
from tracekit.documents.analysis import Straggler, WaitCause
from tracekit.documents.findings import Finding
from tracekit.findings.communication import free_wait_share
from tracekit.findings.context import Context, saved_range_ns
from tracekit.findings.kind import FindingKind
from tracekit.findings.phrases import NEARLY_ALL, number, steps_named
from tracekit.graph.change import Change, LikeOthers, LinksLikeOthers

SAME_TIME_SHARE = 0.95
"""Waiting without the profiler over the recorded one, from which they are the same to a reader."""


class RankFinding(FindingKind, frozen=True, kw_only=True):
    """A rank that is late, or slow by itself."""

    @classmethod
    def find(cls, context: Context) -> Iterator[FindingKind]:
        """Yield a finding for each rank that is certainly late for a known reason; a rank once.

        Ranks that are late together for the same reason have one: mending one of them saves little.

        Stages of a pipeline wait for each other, and unequal stages are a part of the gap to the ideal:
        there only a slow GPU or a late host counts, with the part of the waiting that it explains.

        A slow GPU that makes no step of the run longer still makes its own steps longer: of a rank that
        nobody waits for, and of one of several replicas, for which only its own replica waits.
        """
        analysis = context.analysis
        slow_gpus = {gpu.rank: gpu for gpu in analysis.waiting.slow_gpus}
        seen: set[int] = set()
        for row in analysis.stragglers:  # those that cause most waiting first
            in_pipeline = row.label == "pp_comm"  # the times that prove its causes need no clock
            if row.rank in seen or not row.steps or (row.uncertain and not in_pipeline):
                continue
            cause = main_cause(context, row)
            if cause is None or cause.cause not in KINDS_OF_CAUSE:
                continue
            ranks = ranks_late_together(context, row, cause, seen)
            finding = _late_rank(context, row, cause, ranks)
            if finding.saves_ns == 0 and row.rank in slow_gpus:
                continue  # below, with what its own steps lose
            seen.update(ranks)
            yield finding
        for rank, gpu in slow_gpus.items():
            own_steps = None if rank in seen else SlowAlone.of(context, gpu)
            if own_steps is not None:
                yield own_steps


class LateRank(RankFinding, frozen=True, kw_only=True):
    """The others wait for a rank, or for several that are late together."""

    stated_times: ClassVar[tuple[str, ...]] = ("late_ns",)

    late_ns: int
    recorded_late_ns: int | None = None
    """The same as recorded, where the profiler makes it longer."""
    explained_share: float
    late_steps: int
    recorded_steps: int
    label: str
    ratio: float | None = None
    multiprocessors: int | None = None
    multiprocessors_of_others: int | None = None
    tokens: int | None = None
    tokens_of_others: int | None = None

    @classmethod
    def stated_ns(cls, finding: Finding) -> int | None:
        late_ns = super().stated_ns(finding)
        share = finding.evidence.get("explained_share")
        if late_ns is None or not isinstance(share, float):
            return None
        # Else its text says how much of the waiting has the cause.
        return late_ns if share >= NEARLY_ALL else round(share * late_ns)

    @property
    def _rank(self) -> str:
        return f"rank {self.ranks[0]}"

    @property
    def _wait_for(self) -> str:
        return f"the others wait {self._lateness} in {self.label}"

    @property
    def _lateness(self) -> str:
        """Time that others wait; what was recorded too, where the profiler made it longer."""
        late = short_ms(self.late_ns)
        if self.recorded_late_ns is None:
            return late
        return f"{late} ({short_ms(self.recorded_late_ns)} as recorded)"

    @property
    def _is_late_in_all(self) -> bool:
        return self.late_steps == self.recorded_steps or not self.steps

    @property
    def _in_steps(self) -> str:
        """In which of the recorded steps."""
        return " in every step" if self._is_late_in_all else f" in {steps_named(self.steps)}"

    @property
    def _in_some_steps(self) -> str:
        """The same; empty if in all."""
        return "" if self._is_late_in_all else self._in_steps

    @property
    def _ratio(self) -> str:
        return number(self.ratio)

    def _because(self, relative: str, clause: str) -> str:
        """Return why ranks are waited for: a relative clause, or how much of the waiting is because of *clause*."""
        if self.explained_share >= NEARLY_ALL:
            return f", {relative}"
        return f", {short_ms(self.explained_share * self.late_ns)} of it because {clause}"


class SlowRank(LateRank, frozen=True, kw_only=True):
    """Its GPU runs the same kernels slower."""

    code = "slow_rank"
    title = "slow rank"

    def text(self) -> str:
        return (
            f"{self._wait_for}{self._in_some_steps} for {self._rank}: the same kernels take "
            f"{self._ratio} times as long"
        )

    def advice(self) -> str:
        return "check that GPU's clocks, temperature and power limit, and what else runs on it"


class FewerMultiprocessors(SlowRank, frozen=True, kw_only=True):
    """The same because it may use a smaller part of its GPU."""

    case = "fewer_multiprocessors"

    def text(self) -> str:
        return (
            f"{SlowRank.text(self)} ({number(self.multiprocessors)} SMs, others "
            f"{number(self.multiprocessors_of_others)})"
        )

    def advice(self) -> str:
        return f"give {self._rank} as many SMs as the others (MIG profile, MPS percentage)"


class SlowRanks(SlowRank, frozen=True, kw_only=True):
    """The GPUs of several ranks run the same kernels slower."""

    case = "together"
    stated_times = ()

    def text(self) -> str:
        return (
            f"the others wait for {ranks_named(self.ranks)}, which are late together: the same kernels "
            f"take {self._ratio} times as long"
        )

    def advice(self) -> str:
        return (
            "mend all of them, one alone saves little: check clocks, temperature and power "
            "limit of these GPUs"
        )


class SlowAlone(RankFinding, frozen=True, kw_only=True):
    """A slow GPU that costs only the steps of its own rank."""

    code = "slow_rank"
    case = "own_steps"
    stated_times = ("slower_by_ns",)
    title = "slow rank"

    slower_by_ns: int
    own_step_ns: int
    ratio: float | None = None
    multiprocessors: int | None = None
    multiprocessors_of_others: int | None = None

    @classmethod
    def of(cls, context: Context, gpu: SlowGpu) -> SlowAlone | None:
        """Return the finding about a GPU.

        None if its rank's steps are as long as those of the other ranks: who waits for it is then unknown.
        """
        step_ns_by_rank = context.step.time_ns_by_rank
        own_ns = step_ns_by_rank.get(gpu.rank, 0)
        others_ns = [ns for rank, ns in step_ns_by_rank.items() if rank != gpu.rank]
        if not others_ns:
            return None
        cost_ns = min(round(own_ns - median(others_ns)), gpu.slower_ns)
        if context.share(cost_ns) < MIN_LATE_SHARE:
            return None
        return cls(
            cost_ns=cost_ns,
            share=context.share(cost_ns),
            ranks=(gpu.rank,),
            slower_by_ns=cost_ns,
            own_step_ns=own_ns,
            ratio=gpu.evidence.ratio,
            multiprocessors=gpu.evidence.multiprocessors,
            multiprocessors_of_others=gpu.evidence.multiprocessors_of_others,
            saves_ns=cost_ns,
            saves_range_ns=(cost_ns, cost_ns),
            certain="measured",
        )

    def text(self) -> str:
        return (
            f"the steps of rank {self.ranks[0]} take {short_ms(self.slower_by_ns)} longer than those of "
            f"other ranks: the same kernels take {number(self.ratio)} times as long"
        )

    def advice(self) -> str:
        return "check that GPU's clocks, temperature and power limit, and what else runs on it"


class UnevenWork(LateRank, frozen=True, kw_only=True):
    """It has more work than the others."""

    code = "uneven_work"
    title = "uneven work"

    def text(self) -> str:
        reason = self._because(f"which has {self._more_work}", f"it has {self._more_work}")
        return f"{self._wait_for}{self._in_some_steps} for {self._rank}{reason}"

    def advice(self) -> str:
        return "give all ranks the same number of tokens (sort or pack by length), or move layers"

    @property
    def _more_work(self) -> str:
        """That there is more work, and the tokens where both are known and differ."""
        if not self.tokens or not self.tokens_of_others or self.tokens == self.tokens_of_others:
            return "more work"
        return f"more work ({self.tokens:,} tokens, the others {self.tokens_of_others:,})"


class UnevenRanks(UnevenWork, frozen=True, kw_only=True):
    """Several ranks have more work than the others."""

    case = "together"

    def text(self) -> str:
        reason = self._because(f"which have {self._more_work}", f"they have {self._more_work}")
        return f"{self._wait_for}{self._in_some_steps} for {ranks_named(self.ranks)}{reason}"

    def advice(self) -> str:
        return (
            "give all ranks the same number of tokens (sort or pack by length), or move layers; "
            "one rank alone saves little"
        )


class LateHost(LateRank, frozen=True, kw_only=True):
    """Its process starts its work late."""

    code = "late_host"
    title = "late process"
    rests_on_launches = True

    def text(self) -> str:
        if self.run.is_inference:
            return (
                f"the others wait {short_ms(self.late_ns)}{self._in_steps} for {self._rank}, whose "
                "process starts its work late"
            )
        late = "process starts its work late"
        reason = self._because(f"whose {late}", f"its {late}")
        return f"{self._wait_for}{self._in_steps} for {self._rank}{reason}"

    def advice(self) -> str:
        if self.run.is_inference:
            return f"see what that process does then: {self._host_activities}"
        return "see what that process does then: data loading, a checkpoint, garbage collection"

    @property
    def _host_activities(self) -> str:
        """What keeps the host of a program that only runs its model forward."""
        if self.run.generates:
            return "scheduling, sampling, detokenizing, garbage collection"
        return "preparing inputs, garbage collection"


class LateHosts(LateHost, frozen=True, kw_only=True):
    """The processes of several ranks start their work late."""

    case = "together"

    def text(self) -> str:
        late = "start their work late together"
        if self.run.is_inference:
            return (
                f"the others wait {short_ms(self.late_ns)}{self._in_steps} for "
                f"{ranks_named(self.ranks)}, whose processes {late}"
            )
        reason = self._because(f"whose processes {late}", f"their processes {late}")
        return f"{self._wait_for}{self._in_steps} for {ranks_named(self.ranks)}{reason}"

    def advice(self) -> str:
        alone = "mend all of them, one alone saves little: see what they do then"
        if self.run.is_inference:
            return f"{alone} ({self._host_activities})"
        return f"{alone} (data loading, a checkpoint)"


class RankWithSlowLink(LateRank, frozen=True, kw_only=True):
    """Its transfers take longer than others of their size."""

    code = "slow_link"
    stated_times = ()
    title = "slow link"

    def text(self) -> str:
        return f"transfers of {self._rank} take {self._ratio} times as long as others of their size"

    def advice(self) -> str:
        return f"check the links of {self._rank} and its place in the topology"


class RanksWithSlowLinks(RankWithSlowLink, frozen=True, kw_only=True):
    """The transfers of several ranks do."""

    case = "together"

    def text(self) -> str:
        return (
            f"transfers of {ranks_named(self.ranks)} take {self._ratio} times as long as others of "
            "their size"
        )

    def advice(self) -> str:
        return (
            "check the links of these ranks and their place in the topology; one alone saves little"
        )


KINDS_OF_CAUSE: dict[str, tuple[type[LateRank], type[LateRank]]] = {
    "slow_gpu": (SlowRank, SlowRanks),
    "more_work": (UnevenWork, UnevenRanks),
    "host_late": (LateHost, LateHosts),
    "slow_link": (RankWithSlowLink, RanksWithSlowLinks),
}
"""Classes by the cause of a rank's lateness: of one rank, and of several together."""


def main_cause(context: Context, row: Straggler) -> WaitCause | None:
    """Return the largest known cause of a rank's lateness; None if none is known."""
    if row.label == "pp_comm":
        cause = context.analysis.waiting.pipeline_cause(row.rank)
        return cause if cause is not None and cause.cause in ("slow_gpu", "host_late") else None
    known_causes = [cause for cause in row.why if cause.cause != "unknown"]
    return max(known_causes, key=lambda cause: cause.ns, default=None)


def ranks_late_together(
    context: Context, row: Straggler, cause: WaitCause, named: set[int]
) -> tuple[int, ...]:
    """Return the rank and those that are late together with it for the same reason, ascending.

    Ranks that have a finding (*named*) are left out.
    """
    ranks = [row.rank]
    for other in context.analysis.stragglers:
        is_together = other.rank in row.late_with and row.rank in other.late_with
        if not is_together or other.label != row.label or other.rank in named:
            continue
        if not other.steps or other.uncertain:
            continue
        cause_of_other = main_cause(context, other)
        if cause_of_other is not None and cause_of_other.cause == cause.cause:
            ranks.append(other.rank)
    return tuple(sorted(ranks))


def _late_rank(
    context: Context, row: Straggler, cause: WaitCause, ranks: tuple[int, ...]
) -> LateRank:
    """Return the finding about a late rank, or about *ranks* that are late together, of which it is the latest."""
    largest = max(row.why, key=lambda part: part.ns)
    is_all = largest is cause and row.label != "pp_comm"
    explained_share = 1.0 if is_all else cause.ns / max(row.caused_ns, 1)
    recorded_ns: float = row.late_ns
    if row.label == "pp_comm":  # stages also wait by design: only what is explained counts
        recorded_ns *= explained_share
        explained_share = 1.0
    free_share = free_wait_share(context, row.label)
    late_ns = recorded_ns * free_share
    steps_share = len(row.steps) / max(len(context.step.per_step), 1)
    cost_ns = late_ns * explained_share * steps_share
    change: Change = LikeOthers(ranks)
    if cause.cause == "slow_link":
        change = LinksLikeOthers(ranks)
    # The change is made in every step: it says nothing of a rank that is late in one of them.
    predicted = None if row.kind == "one_off" else context.predict(change)
    saves_ns = None
    saves_range_ns = None
    if predicted is not None:
        saves_ns = max(predicted.saves_ns or 0, 0)
        saves_range_ns = saved_range_ns(predicted)
    one_rank, together = KINDS_OF_CAUSE[cause.cause]
    kind = one_rank
    if len(ranks) > 1:
        kind = together
    elif kind is SlowRank and cause.evidence.multiprocessors:
        kind = FewerMultiprocessors
    return kind(
        cost_ns=round(cost_ns),
        share=context.share(cost_ns),
        ranks=ranks,
        steps=tuple(step for step in row.steps if step is not None),
        late_ns=round(late_ns),
        recorded_late_ns=None if free_share >= SAME_TIME_SHARE else round(recorded_ns),
        explained_share=round(explained_share, 4),
        late_steps=len(row.steps),
        recorded_steps=len(context.step.per_step),
        label=row.label,
        ratio=cause.evidence.ratio,
        multiprocessors=cause.evidence.multiprocessors,
        multiprocessors_of_others=cause.evidence.multiprocessors_of_others,
        tokens=cause.evidence.tokens,
        tokens_of_others=cause.evidence.tokens_of_others,
        change=None if predicted is None else change,
        saves_ns=saves_ns,
        saves_range_ns=saves_range_ns,
        certain="measured",
    )
