"""Pipeline cells from a trace, the trace against its ideal, and what something else would have bought.

``rank_pipeline`` turns one rank's labelled events into small tables; ``compare_pipelines`` takes those of all ranks,
finds stages and micro-batches, names the schedule, simulates its ideal from the run's own times and gives every part
of the gap a cause.
"""

from __future__ import annotations

from tracekit.compare.comparison import Held, ScheduleComparison
from tracekit.compare.gap import PARTS
from tracekit.compare.hold import compare_pipelines
from tracekit.compare.identify import Match
from tracekit.compare.pipeline import Pipeline, assemble
from tracekit.compare.rank import RankPipeline, rank_pipeline
from tracekit.compare.roles import find_roles
from tracekit.compare.whatif import WhatIf

__all__ = [
    "PARTS",
    "Held",
    "Match",
    "Pipeline",
    "RankPipeline",
    "ScheduleComparison",
    "WhatIf",
    "assemble",
    "compare_pipelines",
    "find_roles",
    "rank_pipeline",
]
