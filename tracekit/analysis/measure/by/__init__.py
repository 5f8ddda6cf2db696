"""Time of the step by layer, module, annotation or shape, of a rank (``rank_rows``) and of a run (``combined``)."""

from tracekit.analysis.measure.by.rows import KINDS, By, RankRows, check_kind, combined, rank_rows

__all__ = ["KINDS", "By", "RankRows", "check_kind", "combined", "rank_rows"]
