"""Catalogue of alternatives: what else could do work that a rank does, and what it would take."""

from tracekit.metrics.alternatives.attention import CausalKernel
from tracekit.metrics.alternatives.entry import NOTHING, Alternative, SitePrice
from tracekit.metrics.alternatives.gradients import (
    AnomalyMode,
    ScalerWithoutHalf,
    UnusedGradients,
    ZeroedGradients,
)
from tracekit.metrics.alternatives.host import (
    HostConstants,
    HostPreparation,
    MetricsOnHost,
    WideInputs,
)
from tracekit.metrics.alternatives.images import BiasBeforeNorm, ChannelsFirst
from tracekit.metrics.alternatives.inference import (
    DequantisedWeights,
    FullSort,
    TrainingMode,
    UnfoldedNorms,
    UnmergedAdapters,
    UnusedLogits,
    WeightsMadeAgain,
)
from tracekit.metrics.alternatives.loops import (
    BatchedIndex,
    ClipLoop,
    GroupedProducts,
    RareResults,
    RecurrentModule,
    TensorLoop,
)
from tracekit.metrics.alternatives.tables import RebuiltTables, SparseTable, StaticCache
from tracekit.metrics.alternatives.transforms import AwkwardLength

__all__ = ["ALTERNATIVES", "NOTHING", "Alternative", "SitePrice"]

ALTERNATIVES: tuple[Alternative, ...] = (
    CausalKernel(),
    SparseTable(),
    StaticCache(),
    RebuiltTables(),
    ChannelsFirst(),
    RecurrentModule(),
    GroupedProducts(),
    BatchedIndex(),
    ClipLoop(),
    TensorLoop(),
    RareResults(),
    UnusedGradients(),
    AnomalyMode(),
    TrainingMode(),
    DequantisedWeights(),
    UnmergedAdapters(),
    AwkwardLength(),
    BiasBeforeNorm(),
    HostConstants(),
    MetricsOnHost(),
    HostPreparation(),
    WideInputs(),
    WeightsMadeAgain(),
    UnfoldedNorms(),
    UnusedLogits(),
    FullSort(),
    ZeroedGradients(),
    ScalerWithoutHalf(),
)
"""Its entries."""
