"""Catalogue of alternatives: what else could do work that a rank does, and what it would take."""

from tracekit.metrics.alternatives.attention import CausalKernel
from tracekit.metrics.alternatives.entry import Alternative
from tracekit.metrics.alternatives.images import ChannelsFirst
from tracekit.metrics.alternatives.loops import (
    BatchedIndex,
    ClipLoop,
    GroupedProducts,
    RareResults,
    RecurrentModule,
    TensorLoop,
)
from tracekit.metrics.alternatives.tables import SparseTable, StaticCache

__all__ = ["ALTERNATIVES", "Alternative"]

ALTERNATIVES: tuple[Alternative, ...] = (
    CausalKernel(),
    SparseTable(),
    StaticCache(),
    ChannelsFirst(),
    RecurrentModule(),
    GroupedProducts(),
    BatchedIndex(),
    ClipLoop(),
    TensorLoop(),
    RareResults(),
)
"""Its entries."""
