"""Pure functions from one rank's labelled table to times: budget, overlap, bubbles, rates.

>>> from tracekit import load
>>> from tracekit.classify import classify
>>> from tracekit.metrics import Lanes, budgets
>>> labelled = classify(load("sample_traces/reload", ranks=[0]).rank(0).events)
>>> budgets(Lanes.of(labelled))[0].conserved
True
"""

from tracekit.documents.analysis import Bubble, Budget
from tracekit.metrics.budget import budgets, phases
from tracekit.metrics.flop import flop
from tracekit.metrics.label_intervals import Lanes, weak_ns
from tracekit.metrics.overlap import hidden, label_times
from tracekit.metrics.peaks import Gpu, find_gpu, peak_tflop_s
from tracekit.metrics.rates import ProductTotals, products

__all__ = [
    "Bubble",
    "Budget",
    "Gpu",
    "Lanes",
    "ProductTotals",
    "budgets",
    "find_gpu",
    "flop",
    "hidden",
    "label_times",
    "peak_tflop_s",
    "phases",
    "products",
    "weak_ns",
]
