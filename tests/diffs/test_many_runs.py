"""Several runs in one table."""

from __future__ import annotations

import polars as pl

from tests.kept import analysis_of
from tracekit.diffs.many_runs import compare


def test_each_run_is_a_row_with_the_figures_of_its_analysis(samples):
    runs = [analysis_of(samples / "reload"), analysis_of(samples / "1f1b")]
    table = compare(runs)
    assert table["time_ns"].to_list() == [run.step.time_ns for run in runs]
    assert table["free_ns"].to_list() == [run.to_document().step.free_ns for run in runs]
    assert table["finding"].to_list() == [run.findings[0].text for run in runs]
    # Only the second has a pipeline.
    assert table["bubble_fraction"].is_null().to_list() == [True, False]
    labels = [name for name in table.columns if name.startswith("exposed_ns.")]
    assert table.select(labels).sum_horizontal().to_list() == table["exposed_ns"].to_list()
    whole = table.select(pl.sum_horizontal("compute_ns", "exposed_ns", "idle_ns"))
    recorded_ns = [run.step.time_ns - run.step.budget_ns.unrecorded_ns for run in runs]
    assert whole.to_series().to_list() == recorded_ns
