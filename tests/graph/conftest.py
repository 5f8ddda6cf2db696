"""Fixtures of comparisons, with predictions if asked for."""

from tests.pipeline.against_ideal.conftest import compare_recipe, compare_sample, sample_ranks

__all__ = ["compare_recipe", "compare_sample", "sample_ranks"]
