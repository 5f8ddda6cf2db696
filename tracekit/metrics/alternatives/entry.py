"""Entries of the catalogue: alternatives to work that a rank does.

An entry finds the work by its sites or loops, says what each GPU event of it would take instead, and has
the words of its finding. Its text is the change that what-if knows. What is not recorded is unknown, never
false: an entry then finds nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import ClassVar

import msgspec
import polars as pl

from tracekit.metrics.alternatives.remedy import REMEDIES, new_durations
from tracekit.metrics.rank_work import RankWork


class Alternative(msgspec.Struct, frozen=True, kw_only=True):
    """An alternative to work that a rank does."""

    change: ClassVar[str]
    """Its text as a change: ``--change "sparse table"``."""
    rests_on: ClassVar[str]
    """What is assumed if the change is replayed."""
    code: ClassVar[str]
    case: ClassVar[str]
    title: ClassVar[str]
    """What its finding is about in a few words, without figures."""
    training_only: ClassVar[bool] = False
    """Whether only training has it."""
    says: ClassVar[str]
    """What costs time and why; ``{work_ns}`` and other values of the evidence are filled in."""
    advises: ClassVar[str]
    """What to do about it."""
    caveat: ClassVar[str] = ""
    """When it is wrong, or what it costs."""
    min_saved_share: ClassVar[float] = 0.05
    """Share of the step that it must save to be advised: predictions are not more exact than that."""

    def find(self, rank: RankWork) -> Iterator[pl.DataFrame]:
        """Yield the remedies of a rank's GPU events (``alternatives.remedy.REMEDIES``)."""
        raise NotImplementedError

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
