"""Pipeline cells from the events of one rank (``rank_pipeline``) and of many (``assemble``)."""

from __future__ import annotations

from tracekit.reconstruct.pipeline import Pipeline
from tracekit.reconstruct.rank import RankPipeline, rank_pipeline
from tracekit.reconstruct.roles import find_roles
from tracekit.reconstruct.steps import assemble

__all__ = ["Pipeline", "RankPipeline", "assemble", "find_roles", "rank_pipeline"]
