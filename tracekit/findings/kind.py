"""The base of all findings: a class per finding, with its evidence as fields, how it is found, and its words.

Whoever shows findings asks the class what is true of its kind; nothing else keeps lists of codes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from tracekit.documents.findings import Effect, EvidenceValue, Finding
from tracekit.graph.change import Change

if TYPE_CHECKING:
    from tracekit.findings.context import Context


class RunFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of every finding's run, and chooses its words."""

    is_inference: bool = False
    """Whether the program only runs its model forward."""
    generates: bool = False
    """Whether it generates tokens for sequences, as a server does."""
    vendor: str | None = None
    """Vendor of the GPUs; None if it is not known."""
    steps_marked: bool = True
    """Whether the recording has marks of steps; without them a time is of the whole recording."""
    between_steps_share: float | None = None
    """Share of the idle time that lies between two steps of inference, 0 to 1."""

    @property
    def per_step(self) -> str:
        """What a count is of: a step, or the whole recording where it has no marks of steps."""
        return "a step" if self.steps_marked else "in all"


class FindingKind(Effect, frozen=True, kw_only=True):
    """One finding, and by its class attributes what is true of all of its kind.

    A subclass names its code, and its case where the code has several. Its own fields are the evidence: they
    are the keys of ``evidence`` in the JSON, by their names. A field that has a default is left out where it
    has that value; one without a default is always there.
    """

    code: ClassVar[str]
    """Kind of finding; a code keeps its meaning."""
    case: ClassVar[str] = ""
    """Variant of the code."""
    title: ClassVar[str] = ""
    """What it is about in a few words, without figures; ``{label}`` is the label of its transfers."""
    section: ClassVar[str | None] = None
    """Section of the page that shows it where it has no place in the timeline."""
    label_of_kernels: ClassVar[str | None] = None
    """Label whose kernels it is about; of transfers the evidence names it."""
    is_about_operator: ClassVar[bool] = False
    """Whether it is about the kernels of the operator that its evidence names."""
    is_about_stages: ClassVar[bool] = False
    """Whether it is about stages of a pipeline that take unequal time."""
    absence: ClassVar[str] = ""
    """What is said of a run of which the host was recorded, and that does not have it; empty: nothing."""
    training_only: ClassVar[bool] = False
    """Whether only training has it: in inference such a pattern means something else."""
    independent_of_steps: ClassVar[bool] = False
    """Whether it is looked for also where all that was recorded is start-up or the capture of graphs, which
    say nothing of other steps."""
    of_iterations: ClassVar[bool] = False
    """Whether its times are of the iterations of an RL loop, or of a weight update."""
    time_is: ClassVar[str] = "per step"
    """What its times are of, in words."""
    states_moving_time: ClassVar[bool] = False
    """Whether its text says how long moving weights takes."""
    of_single_steps: ClassVar[bool] = False
    """Whether it is about a few slow steps: what it saves shows in the mean step, not in the typical one."""
    is_about_recording: ClassVar[bool] = False
    """Whether it is about what was not recorded, which costs the run nothing."""
    of_host: ClassVar[bool] = False
    """Whether the GPU is idle because of what the host does."""
    rests_on_launches: ClassVar[bool] = False
    """Whether it says that the host launches late: not known where a GPU's clock is doubtful, nor whether that is
    the profiler's cost."""
    names_vendor: ClassVar[bool] = False
    """Whether its words depend on the vendor of the GPUs: libraries and graphs have other names."""
    quick_to_try: ClassVar[bool] = False
    """Whether a changed line of the training loop mends it."""
    ended_run: ClassVar[bool] = False
    """Whether the run ended with it."""
    with_faster_links: ClassVar[bool] = False
    """Whether its saving is that of links twice as fast: no bound, but an assumption."""
    stated_times: ClassVar[tuple[str, ...]] = ()
    """Fields whose times its text states, each of which may be what it costs."""
    least_is_unknown: ClassVar[bool] = False
    """Whether its saving is that of a remedy that leaves nothing of the cause: how much of it is reached is
    up to the remedy, and its range may end above it."""

    variant: str = ""
    """Case that is written, of a class that stands for several; empty: that of the class."""
    run: RunFacts = RunFacts()
    """What is known of the run, filled in when it is listed."""
    change: Change | None = None
    """What-if change that does what is advised; None if no change can be replayed."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        has_words = cls.text is not FindingKind.text
        if has_words and isinstance(getattr(cls, "code", None), str):
            KINDS[cls.code, cls.case] = cls

    @classmethod
    def find(cls, context: Context) -> Iterator[FindingKind]:
        """Yield what is found of this kind; of all kinds of a family where one search finds them together."""
        raise NotImplementedError

    def text(self) -> str:
        """Return what costs time and why, as one sentence without a full stop."""
        raise NotImplementedError

    def advice(self) -> str:
        """Return what to do about it, as one sentence without a full stop."""
        raise NotImplementedError

    def evidence(self) -> dict[str, EvidenceValue]:
        """Return the figures that it rests on, by name: its own fields, and what its words take from the run."""
        own: dict[str, EvidenceValue] = {}
        for field in msgspec.structs.fields(type(self)):
            if field.name in FindingKind.__struct_fields__:
                continue
            value = getattr(self, field.name)
            if value != field.default:
                own[field.name] = value
        return own | self._evidence_of_run()

    def _evidence_of_run(self) -> dict[str, EvidenceValue]:
        evidence: dict[str, EvidenceValue] = {}
        if self.run.is_inference:
            evidence["workload"] = "inference"
            evidence["vendor"] = self.run.vendor
            evidence["generates"] = self.run.generates
            if self.of_host:
                evidence["between_steps_share"] = self.run.between_steps_share
        elif self.names_vendor:
            evidence["vendor"] = self.run.vendor
        if not self.run.steps_marked:
            evidence["steps_marked"] = False
        return evidence

    @classmethod
    def title_of(cls, finding: Finding) -> str:
        """Return a finding that was written in a few words: what it is about, without figures."""
        title = cls.title or finding.code.replace("_", " ")
        return title.format(label=finding.evidence.get("label"))

    @classmethod
    def stated_ns(cls, finding: Finding) -> int | None:
        """Return the longest time that the text of a finding that was written names; None if it names none."""
        of_texts = {**finding.evidence, "cost_ns": finding.cost_ns}
        times = [of_texts.get(name) for name in cls.stated_times]
        return max((round(ns) for ns in times if isinstance(ns, int | float)), default=None)

    @property
    def is_bound(self) -> bool:
        """Whether its effect is about the most that it can save: it may save nothing."""
        return is_bound(self, least_is_unknown=self.least_is_unknown)

    def to_document(self) -> Finding:
        """Return it as the JSON holds it."""
        effect = {name: getattr(self, name) for name in Effect.__struct_fields__}
        return Finding(
            code=self.code,
            case=self.variant or self.case,
            evidence=self.evidence(),
            text=self.text(),
            advice=self.advice(),
            change=None if self.change is None else str(self.change),
            **effect,
        )


KINDS: dict[tuple[str, str], type[FindingKind]] = {}
"""Every class of findings that was defined, by code and case; ``families.kind_of`` looks one up."""


def is_bound(effect: Effect, *, least_is_unknown: bool) -> bool:
    """Return whether an effect is about the most that can be saved: it may be nothing.

    >>> is_bound(Effect(cost_ns=4, share=0.2, saves_ns=3, saves_range_ns=(0, 3)), least_is_unknown=False)
    True
    """
    if effect.saves_ns is None or effect.saves_range_ns is None:
        return effect.saves_ns is None
    least_ns, most_ns = effect.saves_range_ns
    return least_ns == 0 and (most_ns <= effect.saves_ns or least_is_unknown)
