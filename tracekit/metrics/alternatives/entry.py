"""Entries of the catalogue: alternatives to work that a rank does.

An entry finds the work by its sites or loops, says what each GPU event of it would take instead, and has
the words of its finding. Its text is the change that what-if knows. What is not recorded is unknown, never
false: an entry then finds nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import ClassVar, NamedTuple, Protocol

import msgspec
import polars as pl

from tracekit.metrics.alternatives.remedy import REMEDIES, new_durations
from tracekit.metrics.rank_work import RankWork

FIGURES_IN_SENTENCES = ("work_ns", "work", "kernels", "kernels_per_step", "per_step", "what", "op")
"""What the sentence of an entry may hold in braces: the GPU time of the work; the same, and that the CPU launches it
where that is saved, too; its kernels with their number, and the number alone; what a count is of ("a step"); what is
changed; the operator that takes most of it."""


class Sentences(NamedTuple):
    """Sentences of a finding."""

    says: str
    advises: str


class WorkFound(Protocol):
    """What the words of an entry may depend on: the work that it changes, per step, and the run."""

    @property
    def case(self) -> str:
        """Case whose words are asked for."""

    @property
    def figures(self) -> Mapping[str, str]:
        """``FIGURES_IN_SENTENCES`` in words."""

    @property
    def work_ns(self) -> int:
        """GPU time of the work."""

    @property
    def what(self) -> str | None:
        """What is changed, that with most time first, separated by commas."""

    @property
    def further(self) -> str | None:
        """Change that saves more of the same work (``Alternative.further``)."""

    @property
    def further_ns(self) -> int | None:
        """What it saves."""

    @property
    def is_inference(self) -> bool:
        """Whether the program only runs its model forward."""

    @property
    def generates(self) -> bool:
        """Whether it generates tokens for sequences, as a server does."""

    def switch(self, topic: str) -> str:
        """Return what to switch on, in the words of the run's framework and of its GPUs' vendor."""


class Alternative(msgspec.Struct, frozen=True, kw_only=True):
    """An alternative to work that a rank does."""

    change: ClassVar[str]
    """Its text as a change: ``--change "sparse table"``."""
    rests_on: ClassVar[str]
    """What is assumed if the change is replayed."""
    parts: ClassVar[Mapping[str, str]] = {}
    """Changes that it is made of, each a change of its own, and what each rests on; none: it is one."""
    code: ClassVar[str]
    """Code of its finding; empty: another finding tells of it."""
    case: ClassVar[str] = ""
    title: ClassVar[str]
    """What its finding is about in a few words, without figures."""
    training_only: ClassVar[bool] = False
    """Whether only training has it."""
    says: ClassVar[str]
    """What costs time and why; ``{work_ns}`` and other ``FIGURES_IN_SENTENCES`` are filled in."""
    advises: ClassVar[str]
    """What to do about it; ``{switch}`` is what to switch on for ``topic``."""
    topic: ClassVar[str] = ""
    """What frameworks and vendors have switches of their own for."""
    in_inference: ClassVar[Sentences | None] = None
    """Sentences where the program only runs its model forward, if they are others."""
    case_is_what: ClassVar[bool] = False
    """Whether the case of its finding is what is changed, that with most time."""
    cases: ClassVar[Mapping[str, Sentences]] = {}
    """Sentences of these cases, where they are others."""
    caveat: ClassVar[str] = ""
    """When it is wrong, or what it costs."""
    min_saved_share: ClassVar[float] = 0.05
    """Share of the step that it must save to be advised: predictions are not more exact than that."""
    min_kernels: ClassVar[int] = 0
    """Kernels of a step that it must be about, to be advised."""
    further: ClassVar[tuple[str, ...]] = ()
    """Changes that save more of the same work: the first that can be made is named in its advice, and no advice
    of its own."""
    rests_on_rates: ClassVar[bool] = False
    """Whether its prices rest on what the GPU reaches (``speeds.Speeds.share``)."""
    is_bound: ClassVar[bool] = False
    """Whether it may as well save nothing, or at most what is predicted."""
    label_of_kernels: ClassVar[str | None] = None
    """Label whose kernels it is about."""
    section: ClassVar[str | None] = None
    """Section of the page that shows it where it has no place in the timeline."""
    is_about_operator: ClassVar[bool] = False
    """Whether it is about the kernels of one operator."""

    def find(self, rank: RankWork) -> Iterator[pl.DataFrame]:
        """Yield the remedies of a rank's GPU events (``remedy.REMEDIES``)."""
        raise NotImplementedError

    def text(self, work: WorkFound) -> str:
        """Return what costs time and why, as one sentence without a full stop."""
        return self._sentences(work).says.format(**work.figures)

    def advice(self, work: WorkFound) -> str:
        """Return what to do about it, as one sentence without a full stop."""
        advises = self._sentences(work).advises
        return advises.replace("{switch}", work.switch(self.topic)) if self.topic else advises

    def _sentences(self, work: WorkFound) -> Sentences:
        own = Sentences(self.says, self.advises)
        if self.in_inference is not None and work.is_inference:
            own = self.in_inference
        return self.cases.get(work.case, own)

    def of_sites(self, rank: RankWork, prices: Mapping[int, SitePrice]) -> pl.DataFrame:
        """Return the remedies of all events of sites, with the time that each site takes instead."""
        if not prices:
            return REMEDIES.to_frame()
        priced = pl.DataFrame(
            [{"group": site, **msgspec.structs.asdict(price)} for site, price in prices.items()],
            schema_overrides={"group": pl.Int32, "what": pl.String, "host_share": pl.Float64},
        )
        events = rank.events.select("row", "ns", group="site").join(
            priced, on="group", how="inner", maintain_order="left"
        )
        remedies = new_durations(events, self.change)
        return remedies.with_columns(events["what"], events["host_share"]).cast(REMEDIES)


class SitePrice(msgspec.Struct, frozen=True):
    """Time that a site takes instead, over all steps."""

    low_ns: float
    likely_ns: float
    high_ns: float
    what: str | None = None
    host_share: float = 1.0
    """What remains of the host's time before its launches; 0: they go."""


NOTHING = SitePrice(0.0, 0.0, 0.0, host_share=0.0)
"""Price of work that goes."""
