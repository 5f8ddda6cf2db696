"""Pipeline cells, reconstructed from the events of one rank (``rank_pipeline``) and of many (``assemble``)."""

from tracekit.reconstruct.parallel_groups import find_parallel_groups
from tracekit.reconstruct.pipeline import Pipeline
from tracekit.reconstruct.pipeline_steps import assemble
from tracekit.reconstruct.rank_pipeline import RankPipeline, rank_pipeline

__all__ = ["Pipeline", "RankPipeline", "assemble", "find_parallel_groups", "rank_pipeline"]
