"""Pipeline cells, reconstructed from the events of one rank (``rank_pipeline``) and of many (``assemble``)."""

from tracekit.pipeline.reconstruct.parallel_groups import find_parallel_groups
from tracekit.pipeline.reconstruct.pipeline import Pipeline
from tracekit.pipeline.reconstruct.pipeline_steps import assemble
from tracekit.pipeline.reconstruct.rank_pipeline import RankPipeline, rank_pipeline

__all__ = ["Pipeline", "RankPipeline", "assemble", "find_parallel_groups", "rank_pipeline"]
