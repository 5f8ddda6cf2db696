"""Findings about a pipeline: its gap to the ideal by cause, and the bubble that its schedule has by itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tracekit._util.text import percent, short_ms
from tracekit.documents.analysis import ChangedStep
from tracekit.findings.communication import Remedy, longest_operations
from tracekit.findings.context import Context
from tracekit.findings.kind import FindingKind
from tracekit.findings.phrases import communication_log, faster_links, graphs, or_unknown
from tracekit.graph.change import Balanced, Change, Hidden, NoHostDelay, Scaled, Together

NOT_REMOVABLE = ("unexplained", "early_output", "profiler")
"""Parts of a gap that no change removes."""
COMMUNICATION_CAUSES = ("exposed_ep", "exposed_comm")
"""Parts of a gap that are findings of their own, about the exposed label."""
MIN_BUBBLE_SHARE = 0.05
"""Share of ranks × makespan outside cells from which a schedule's own bubble is a finding."""
MIN_MADE_UP_SHARE = 0.1
"""Share of a part of the gap by which other parts must shorten the run to be mentioned."""
EARLIER_HOST = NoHostDelay()
CHANGES: Mapping[str, Change] = {"imbalance": Balanced(), "host": EARLIER_HOST}
"""Change that removes a part of the gap, for its predicted saving; messages have several."""
HIDDEN_MESSAGES = Hidden("pp_comm")
FASTER_MESSAGES = Scaled("pp_comm", 0.5)


class ScheduleGap(FindingKind, frozen=True, kw_only=True):
    """A pipeline that takes longer than its schedule needs, or a schedule that leaves its stages idle."""

    code = "schedule_gap"
    title = "pipeline"
    section = "gap"
    training_only = True
    names_vendor = True

    @classmethod
    def find(cls, context: Context) -> Iterator[FindingKind]:
        schedule = context.analysis.comparison
        if schedule is None:
            return
        gap_ns = schedule.gap_ns or {}
        for cause, part_ns in gap_ns.items():
            if part_ns <= 0 or cause in NOT_REMOVABLE or cause in COMMUNICATION_CAUSES:
                continue
            if cause == "p2p":
                yield _messages(context, gap_ns)
            else:
                yield _gap_part(context, gap_ns, cause)
        head = schedule.head
        if head.match.exact and head.gap_ns is not None and head.ideal_bubble > MIN_BUBBLE_SHARE:
            bubble_ns = round(head.ideal_bubble * head.ideal_ns)
            yield OwnBubble(
                cost_ns=bubble_ns,
                share=context.share(bubble_ns),
                gap_part="own_bubble",
                bubble_share=round(head.ideal_bubble, 4),
                schedule=schedule.compared_with,
                certain="possible",
            )


class OwnBubble(ScheduleGap, frozen=True, kw_only=True):
    """The time in which the schedule itself leaves stages idle."""

    case = "own_bubble"
    stated_times = ("cost_ns",)

    gap_part: str
    bubble_share: float
    schedule: str | None

    def text(self) -> str:
        return (
            f"even without delays {or_unknown(self.schedule)} leaves each stage idle for "
            f"{short_ms(self.cost_ns)} ({percent(self.bubble_share, digits=0)} of its ideal), while the "
            "pipeline fills and drains (its bubble, part of exposed pp_comm and idle)"
        )

    def advice(self) -> str:
        return "more micro-batches, more chunks per rank, or another schedule (`--what-if`)"


class GapPart(ScheduleGap, frozen=True, kw_only=True):
    """A part of the gap to the ideal: other work between the computations of the stages."""

    stated_times = ("part_ns",)

    gap_ns: int
    gap_part: str
    part_ns: int
    schedule: str | None
    framework: str | None

    def text(self) -> str:
        return self._longer_because("other work runs between the stages' computations")

    def advice(self) -> str:
        return "shorten or move the work between the stages' computations"

    def _longer_because(self, reason: str) -> str:
        schedule = or_unknown(self.schedule)
        longer = f"the pipeline takes {short_ms(self.part_ns)} longer than {schedule} needs, because {reason}"
        return f"{longer}{self._made_up_for}"

    @property
    def _made_up_for(self) -> str:
        """What of this part is no part of the run's distance to its ideal, because others shorten the run."""
        shorter_ns = self.part_ns - max(self.gap_ns, 0)
        if shorter_ns < MIN_MADE_UP_SHARE * self.part_ns:
            return ""
        return f" (other differences from the ideal make up for {short_ms(shorter_ns)} of that)"

    @property
    def _wait_for_messages(self) -> str:
        return (
            f"pipeline stages wait {short_ms(self.part_ns)} longer for each other's messages than "
            f"{or_unknown(self.schedule)} needs{self._made_up_for}"
        )


class OtherOrder(GapPart, frozen=True, kw_only=True):
    """Operations run in another order."""

    case = "order"

    def text(self) -> str:
        return self._longer_because("operations run in another order")

    def advice(self) -> str:
        return f"run the operations in the order of {or_unknown(self.schedule)}"


class UnequalStages(GapPart, frozen=True, kw_only=True):
    """Stages take unequal time."""

    case = "imbalance"
    is_about_stages = True

    def text(self) -> str:
        return self._longer_because("its stages take unequal time")

    def advice(self) -> str:
        return "move layers between stages until they take the same time"


class UnequalMicrobatches(GapPart, frozen=True, kw_only=True):
    """Micro-batches take unequal time."""

    case = "variation"

    def text(self) -> str:
        return self._longer_because("micro-batches take unequal time")

    def advice(self) -> str:
        return "give every micro-batch the same work"


class Messages(GapPart, frozen=True, kw_only=True):
    """Stages wait for each other's messages."""

    case = "p2p"

    messages_alone_ns: int | None = None
    """What earlier messages alone save, where the host must be faster as well."""

    def text(self) -> str:
        return self._wait_for_messages

    def advice(self) -> str:
        return "check the links; send and receive earlier (`isend`, `irecv`)"


class MessagesAndHost(Messages, frozen=True, kw_only=True):
    """The same, and the host takes nearly as long for a step."""

    case = "p2p_and_host"

    def text(self) -> str:
        return f"{self._wait_for_messages}, and the CPU takes nearly as long for a step"

    def advice(self) -> str:
        return (
            "do both: send and receive earlier and asynchronously (`isend`, `irecv`), which "
            f"alone saves only {short_ms(self.messages_alone_ns)}, and start kernels earlier "
            f"({graphs(self.run.vendor)}, less Python)"
        )


class SlowMessages(Messages, frozen=True, kw_only=True):
    """The same, and there is too little compute to hide them."""

    case = "p2p_transfer"
    with_faster_links = True

    def text(self) -> str:
        return (
            f"{self._wait_for_messages}, and there is too little compute to hide "
            f"them{faster_links(self.saving_ns)}"
        )

    def advice(self) -> str:
        return (
            f"check links and transport{communication_log(self.run.vendor)}, or send fewer bytes (a "
            "narrower type, fewer chunks per rank)"
        )


class StopsForCopies(GapPart, frozen=True, kw_only=True):
    """Compute stops for copies between GPU and host."""

    case = "offload"

    def text(self) -> str:
        return self._longer_because("compute stops for copies between GPU and host")

    def advice(self) -> str:
        return "copy earlier, or less"


class LateLaunches(GapPart, frozen=True, kw_only=True):
    """The host starts the stages' work late."""

    case = "host"

    def text(self) -> str:
        return self._longer_because("the CPU starts its work late")

    def advice(self) -> str:
        own_graphs = graphs(self.run.vendor)
        return f"start it earlier: {own_graphs}, fewer small kernels, or less Python in the step"


class LateLaunchesUnderGraphs(LateLaunches, frozen=True, kw_only=True):
    """The same although graphs of kernels are used."""

    case = "host_under_graphs"

    def text(self) -> str:
        own_graphs = graphs(self.run.vendor)
        return self._longer_because(f"the CPU starts its work late although {own_graphs} are used")

    def advice(self) -> str:
        return "use fewer and larger graphs, and less Python between their launches"


KINDS_OF_PART: dict[str, type[GapPart]] = {
    kind.case: kind
    for kind in (OtherOrder, UnequalStages, UnequalMicrobatches, StopsForCopies, LateLaunches)
}
"""Class by the part of the gap; other parts have the words of ``GapPart``."""
KINDS_OF_MESSAGES: dict[str, type[Messages]] = {
    kind.case: kind for kind in (Messages, MessagesAndHost, SlowMessages)
}
"""Class by what is to be done about messages."""


def _gap_part(context: Context, gap_ns: Mapping[str, int], cause: str) -> GapPart:
    """Return the finding about one part of the gap other than messages."""
    cost_ns = _cost(context, gap_ns, cause)
    change = CHANGES.get(cause)
    predicted = context.predict(change) if change is not None else None
    saves_ns = None if predicted is None else _saving(predicted)
    kind = KINDS_OF_PART.get(cause, GapPart)
    if kind is LateLaunches and context.uses_cuda_graphs:
        kind = LateLaunchesUnderGraphs
    return kind(
        variant=cause if kind is GapPart else "",
        cost_ns=cost_ns,
        share=context.share(cost_ns),
        **_facts_of_part(context, gap_ns, cause),
        change=None if predicted is None else change,
        saves_ns=saves_ns,
        saves_range_ns=None if saves_ns is None else (0, saves_ns),
        certain="bounded",
    )


def _messages(context: Context, gap_ns: Mapping[str, int]) -> Messages:
    """Return the finding about messages between stages, with what would save most of their time.

    Messages under compute save little where something else takes as long: the hosts, which must then
    be faster as well, or the messages themselves, for which there is too little compute.
    """
    hidden = context.predict(HIDDEN_MESSAGES)
    remedy = Remedy()
    if hidden is not None:
        remedy = _remedy_of_messages(context, hidden)
    cost_ns = _cost(context, gap_ns, "p2p")
    alone_ns = None
    kind = KINDS_OF_MESSAGES[remedy.case or "p2p"]
    if hidden is not None and kind is MessagesAndHost:
        cost_ns = _cost(context, gap_ns, "p2p", "host")
        alone_ns = _saving(hidden)
    return kind(
        cost_ns=cost_ns,
        share=context.share(cost_ns),
        where=longest_operations(context, "pp_comm"),
        **_facts_of_part(context, gap_ns, "p2p"),
        messages_alone_ns=alone_ns,
        change=remedy.change,
        saves_ns=remedy.saves_ns,
        saves_range_ns=remedy.saves_range_ns,
        certain=remedy.certain,
    )


def _remedy_of_messages(context: Context, hidden: ChangedStep) -> Remedy:
    """Return what to do about messages: the change that shortens what takes longest once they are hidden."""
    saves_ns = _saving(hidden)
    longest = _longest_on_path(hidden)
    other_remedy = None
    if longest == "host":
        other_remedy = _with_earlier_host(context, hidden)
    elif longest == "pp_comm":
        other_remedy = _faster_messages(context, saves_ns)
    return other_remedy or Remedy(HIDDEN_MESSAGES, saves_ns, (0, saves_ns), case="p2p")


def _with_earlier_host(context: Context, hidden: ChangedStep) -> Remedy | None:
    """Return what hidden messages and earlier launches save together; None unless it is more than both do alone."""
    host = context.predict(EARLIER_HOST)
    both = context.predict(HIDDEN_MESSAGES, EARLIER_HOST)
    if host is None or both is None:
        return None
    alone_ns = (hidden.saves_ns or 0) + (host.saves_ns or 0)
    if (both.saves_ns or 0) <= alone_ns:
        return None
    saves_ns = _saving(both)
    both_changes = Together((HIDDEN_MESSAGES, EARLIER_HOST))
    return Remedy(both_changes, saves_ns, (0, saves_ns), case="p2p_and_host")


def _faster_messages(context: Context, hidden_saves_ns: int) -> Remedy | None:
    """Return what messages twice as fast save; None if hiding them saves as much."""
    faster = context.predict(FASTER_MESSAGES)
    saves_ns = 0 if faster is None else _saving(faster)
    if saves_ns <= hidden_saves_ns:
        return None
    return Remedy(FASTER_MESSAGES, saves_ns, (0, saves_ns), "possible", case="p2p_transfer")


def _longest_on_path(predicted: ChangedStep) -> str | None:
    """Return what takes longest on the critical path of a changed step: a label, or the host."""
    by_label: dict[str, int] = {}
    for part in predicted.critical_path:
        label = part.label or "host"
        by_label[label] = by_label.get(label, 0) + part.ns
    return max(by_label, key=lambda label: by_label[label], default=None)


def _cost(context: Context, gap_ns: Mapping[str, int], *causes: str) -> int:
    """Return what parts of the gap cost in a step, whose time the gap's may exceed."""
    return min(sum(max(gap_ns.get(cause, 0), 0) for cause in causes), context.step_ns)


def _saving(predicted: ChangedStep) -> int:
    """Return the predicted saving; 0 if the step would take longer."""
    return max(predicted.saves_ns or 0, 0)


def _facts_of_part(context: Context, gap_ns: Mapping[str, int], cause: str) -> dict[str, Any]:
    """Return the fields of every finding about a part of the gap."""
    schedule = context.analysis.comparison
    return {
        "gap_ns": sum(gap_ns.values()),
        "gap_part": cause,
        "part_ns": gap_ns[cause],
        "schedule": None if schedule is None else schedule.compared_with,
        "framework": context.framework,
    }
