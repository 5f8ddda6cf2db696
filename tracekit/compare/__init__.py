"""The trace compared with its ideal, and what something else would have saved.

``compare_pipelines`` takes every rank's pipeline tables, finds stages and micro-batches, names the schedule, simulates
its ideal from the run's own times and gives every part of the gap a cause.
"""

from __future__ import annotations

from tracekit.compare.alternatives import WhatIf
from tracekit.compare.comparison import Held, ScheduleComparison
from tracekit.compare.gap import PARTS
from tracekit.compare.hold import compare_pipelines
from tracekit.compare.identify import Match

__all__ = ["PARTS", "Held", "Match", "ScheduleComparison", "WhatIf", "compare_pipelines"]
