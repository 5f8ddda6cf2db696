"""Comparison of a run with its ideal schedule, and predictions for other schedules.

``compare_pipelines`` takes the pipeline tables of every rank, finds stages and micro-batches, names
the schedule, simulates its ideal from the run's own times, and splits the gap between both by
cause.
"""

from tracekit.documents.analysis import WhatIf
from tracekit.pipeline.against_ideal.compare_run import compare_pipelines
from tracekit.pipeline.against_ideal.comparison import ScheduleComparison, StepComparison
from tracekit.pipeline.against_ideal.identify import Match
from tracekit.pipeline.against_ideal.replay import PARTS
from tracekit.pipeline.against_ideal.timelines import TimelineComparison, compare_timeline

__all__ = [
    "PARTS",
    "Match",
    "ScheduleComparison",
    "StepComparison",
    "TimelineComparison",
    "WhatIf",
    "compare_pipelines",
    "compare_timeline",
]
