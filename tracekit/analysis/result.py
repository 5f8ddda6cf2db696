"""The frozen result of an analysis: what every report, gate and plot is made from."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from os import PathLike
from typing import TYPE_CHECKING, Any

import polars as pl

from tracekit._util.text import json_text
from tracekit._version import __version__
from tracekit.align.clocks import Clocks
from tracekit.analysis.figures import Figures
from tracekit.analysis.measured import RankResult
from tracekit.analysis.plots import Plots
from tracekit.errors import Notice
from tracekit.metrics.overlap_cost import OverlapCost
from tracekit.metrics.reload import Reload
from tracekit.schema import Source

if TYPE_CHECKING:
    from tracekit.analysis.by import By
    from tracekit.analysis.memory import RunMemory
    from tracekit.analysis.rates import RunRates
    from tracekit.compare import ScheduleComparison
    from tracekit.critical_path.path import CriticalPath

FORMAT = "tracekit.analysis/1"
LARGEST_KERNELS = 200
"""Kernels that go into the JSON; the table holds all."""


@dataclass(frozen=True, eq=False, repr=False)
class Analysis(Figures):
    """Where the step went, on every rank. ``tables`` holds it all as polars tables; ``to_dict`` is the JSON.

    >>> from tracekit.run.analyze import analyze
    >>> analysis = analyze("sample_traces/reload", schedule="none")
    >>> analysis.ranks[0].whole.budget.span_ns
    104587652
    >>> analysis.to_dict()["source"]["ranks"]
    [0, 1, 2, 3]
    """

    sources: tuple[Source, ...]
    ranks: tuple[RankResult, ...]
    tables: Mapping[str, pl.DataFrame]
    clocks: Clocks
    reload: Reload | None = None
    rates: RunRates | None = None
    """How fast products and communication ran, where shapes and sizes were recorded."""
    memory: RunMemory | None = None
    """What the ranks' allocators held; None where that was not recorded."""
    schedule: ScheduleComparison | None = None
    """How the run compares with its ideal (``tracekit.compare``); None with the reason among the notices."""
    hiding: OverlapCost | None = None
    """What hiding communication saved and cost; None where no compute ran beside any."""
    critical: CriticalPath | None = None
    """The critical path across ranks, where it was asked for."""
    by: By | None = None
    """The step by layer, module, annotation or shape, where that was asked for."""
    notices: tuple[Notice, ...] = ()
    paths: tuple[str, ...] = field(default=())
    shapes: tuple[str, ...] = ()
    """Input shapes of the model's products, where they were recorded."""

    @property
    def world_size(self) -> int | None:
        """Number of ranks in the run, as far as the files show."""
        return max((s.world_size for s in self.sources if s.world_size is not None), default=None)

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON object (``format: tracekit.analysis/1``) as plain data."""
        return self._document(list)

    def json_pieces(self) -> Iterator[str]:
        """Yield the text of ``to_json`` in pieces, so that the text of many ranks is never in memory as a whole.

        The long lists of the document are iterators; each becomes a list when the encoder reaches it.
        """
        encoder = json.JSONEncoder(indent=1, ensure_ascii=False, allow_nan=False, default=list)
        return map(json_text, encoder.iterencode(self._document(iter)))

    def _document(self, rows: Callable[[Iterable[Any]], Any]) -> dict[str, Any]:
        """Return the JSON object; *rows* (``list`` or ``iter``) is applied to its longest lists."""
        readers = sorted({source.reader for source in self.sources})
        return {
            "tracekit": __version__,
            "format": FORMAT,
            "source": {
                "paths": list(self.paths) or [source.path for source in self.sources],
                "reader": "+".join(readers),
                "ranks": [result.rank for result in self.ranks],
                "world_size": self.world_size,
                "devices": sorted({name for source in self.sources for name in source.devices}),
                "shapes": list(self.shapes),
            },
            "ranks": rows(result.to_dict() for result in self.ranks),
            "total": self.total.to_dict(),
            "schedule": self.schedule.to_dict(rows) if self.schedule is not None else None,
            **self._lanes(rows),
            **(self.critical.to_dict() if self.critical is not None else {}),
            **({"by": self.by.to_dict()} if self.by is not None else {}),
            "hiding": self.hiding.to_dict() if self.hiding is not None else None,
            "stragglers": self.tables["stragglers"].to_dicts(),
            "clocks": {
                "residual_ns": self.clocks.residual_ns,
                "worst_ns": self.clocks.worst_ns,
                "ranks": self.clocks.table.to_dicts(),
            },
            "kernels": self._kernels(),
            "copies": self.tables["copies"].drop("step").to_dicts(),
            "reload": self.reload.to_dict() if self.reload is not None else None,
            "rates": self.rates.to_dict() if self.rates is not None else None,
            "memory": self.memory.to_dict() if self.memory is not None else None,
            "warnings": [{"code": note.code, "message": note.message} for note in self.notices],
        }

    def _lanes(self, rows: Callable[[Iterable[Any]], Any]) -> dict[str, Any]:
        """Return what ran beside what, where no schedule holds it."""
        if self.schedule is not None or "lanes" not in self.tables:
            return {}
        return {"lanes": rows(self.tables["lanes"].iter_rows(named=True))}

    def _kernels(self) -> list[dict[str, Any]]:
        """Return the largest kernels, per step, averaged over ranks."""
        largest = self.tables["kernels"].head(LARGEST_KERNELS)
        return largest.with_columns(pl.col("count").round(3), pl.col("ns").round().cast(pl.Int64)).to_dicts()

    @property
    def plot(self) -> Plots:
        """Its pictures: ``analysis.plot.schedule()`` and the others, each a matplotlib ``Figure``."""
        return Plots(self)

    def save(self, path: str | PathLike[str], *, plot: str | None = None) -> None:
        """Write it to *path* as its extension says: .html .json .md .parquet .csv, or a picture .png .svg .pdf.

        *plot* names what a picture shows; by default the schedule where there is one, else the budget.

        >>> import tempfile
        >>> from tracekit import analyze, read_analysis
        >>> file = tempfile.mkdtemp() + "/reload.json"
        >>> analyze("sample_traces/reload", schedule="none").save(file)
        >>> read_analysis(file).ranks[0].whole.budget.span_ns
        104587652
        """
        from tracekit.report.write import write

        write(self, path, plot=plot)
