"""Fixtures that compare runs with their ideal: recorded samples, whole or with evidence removed, and synthetic runs."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest
from msgspec.structs import replace

from tests.kept import kept, labelled_of
from tracekit.align.clocks import align
from tracekit.align.matching import match
from tracekit.classify import classify
from tracekit.graph.pipeline import fit_to_comparison, with_predictions
from tracekit.metrics.label_intervals import Lanes
from tracekit.metrics.operations import operations
from tracekit.pipeline.against_ideal import compare_pipelines
from tracekit.pipeline.reconstruct import rank_pipeline
from tracekit.run.load import load
from tracekit.schema import Source
from tracekit.synthetic import rank_events

SAMPLES = Path(__file__).parents[3] / "sample_traces"


def strip(events, source):
    """Return the events without pipeline ranges, shapes and group descriptions."""
    ranges = pl.col("kind").is_in(["annotation", "gpu_annotation"]) & pl.col("name").cast(
        pl.String
    ).str.contains(r"^PP:|^Forward |^Backward ")
    stripped = events.filter(~ranges).with_columns(
        shapes=pl.lit(None, events.schema["shapes"]),
        group_desc=pl.lit(None, events.schema["group_desc"]),
    )
    return stripped, replace(
        source, groups=tuple(replace(g, description=None) for g in source.groups)
    )


def pipelines(name, bare=False, pattern="*.gz"):
    """Return the rank tables of a sample."""
    return kept(f"pipelines {name} {bare} {pattern}", lambda: _pipelines(name, bare, pattern))


def _pipelines(name, bare, pattern):
    if not bare and pattern == "*.gz":
        return tuple(
            rank_pipeline(table, source) for table, source in labelled_of(SAMPLES / name).values()
        )
    trace = load(sorted((SAMPLES / name).glob(pattern)))
    tables = []
    for rank in trace.ranks:
        rank_trace = trace.rank(rank)
        events, source = (
            strip(rank_trace.events, rank_trace.source)
            if bare
            else (rank_trace.events, rank_trace.source)
        )
        tables.append(rank_pipeline(classify(events), source))
    return tuple(tables)


def synthetic_ranks(recipe, recorded):
    """Return the labelled events of the recorded ranks of a synthetic run."""
    key = f"ranks {recipe} {recipe.schedule.orders()} {recorded}"
    return kept(key, lambda: {rank: classify(rank_events(recipe, rank)) for rank in recorded})


@pytest.fixture(scope="session")
def sample_ranks():
    """Return the rank tables of a sample: ``sample_ranks(name, bare=False)``."""
    return pipelines


def compare_with_options(ranks, *, what_if=False, **options):
    """Compare ranks with their ideal; with *what_if*, predict other schedules as well."""
    comparison, notices = compare_pipelines(ranks, **options)
    if comparison is None or not what_if:
        return comparison, notices
    comparison, more_notices = with_predictions(
        comparison, fit_to_comparison(comparison), rows=True
    )
    return comparison, notices + more_notices


@pytest.fixture(scope="session")
def compare_sample():
    """Compare a sample with its ideal: ``compare_sample(name, bare=False, …)`` returns the comparison and notices."""

    def compare(name, *, bare=False, pattern="*.gz", only=None, **options):
        ranks = [r for r in pipelines(name, bare, pattern) if only is None or r.rank in only]
        return compare_with_options(ranks, **options)

    return compare


def clocks(labelled):
    """Return the clocks of ranks from their labelled events."""
    collectives = pl.concat([operations(table, Lanes.of(table)) for table in labelled.values()])
    return align(match(collectives).members, labelled)


@pytest.fixture(scope="session")
def compare_recipe():
    """Compare a synthetic run with its ideal: ``compare_recipe(recipe, …)`` returns the comparison and notices."""

    def compare_synthetic(recipe, *, only=None, **options):
        labelled = synthetic_ranks(
            recipe, tuple(range(recipe.world_size) if only is None else only)
        )
        ranks = [
            rank_pipeline(table, Source(f"rank{r}", "kineto", r, "name"))
            for r, table in labelled.items()
        ]
        return compare_with_options(ranks, clocks=clocks(labelled), **options)

    return compare_synthetic
