"""The step by layer, module, annotation or shape: every busy nanosecond in one row (``rank_rows``, ``combined``)."""

from __future__ import annotations

from tracekit.analysis.by.result import By, combined
from tracekit.analysis.by.rows import KINDS, RankRows, check_kind, rank_rows

__all__ = ["KINDS", "By", "RankRows", "check_kind", "combined", "rank_rows"]
