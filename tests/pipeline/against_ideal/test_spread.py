"""Pipelines compared by several workers: the answer that one process gives, or one clear line that says why not."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from tests.dying_worker import die
from tracekit.analysis.combine.combine_ranks import combine
from tracekit.errors import MachineError
from tracekit.pipeline.against_ideal import compare_run
from tracekit.pipeline.schedules import generate
from tracekit.results import AnalysisResult
from tracekit.run.driver import find_sources
from tracekit.run.measure import SourceWorker
from tracekit.store.source_workers import pipeline_map
from tracekit.synthetic import Recipe
from tracekit.synthetic.files import write_run

PIPELINES = 4


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    """Four pipelines of two ranks and two steps.

    Pipeline 1 runs another schedule, and 3 is slower.
    """
    target = tmp_path_factory.mktemp("run")
    for number in range(PIPELINES):
        plan = generate("gpipe" if number == 1 else "1f1b", pp=2, microbatches=4)
        factor = {0: 1.5, 1: 1.5} if number == 3 else {}
        recipe = Recipe(plan, replicas=PIPELINES, steps=2, layers=1, ep_ns=0, stage_factor=factor)
        write_run(recipe, target, ranks=[number, number + PIPELINES])
    return [table for ref in find_sources(target).refs for table in SourceWorker().measure(ref)]


@pytest.fixture
def two_at_once(monkeypatch):
    monkeypatch.setattr(compare_run, "PIPELINES_PER_BATCH", 2)


def answer(tables, spread):
    analysis = combine(tables, schedule="auto", map_function=spread, result_type=AnalysisResult)
    assert len(analysis.comparison.pipelines) == PIPELINES
    assert {step.match.schedule.name for step in analysis.comparison.all} == {"gpipe", "1f1b"}
    assert analysis.comparison.cells.height == analysis.tables["cells"].height > 0
    return analysis.to_json()


def test_workers_give_the_answer_of_one_process(tables, two_at_once):
    in_one_process = answer(tables, pipeline_map(1, None))
    assert answer(tables, pipeline_map(2, None)) == in_one_process
    with ThreadPoolExecutor(2) as executor:
        assert answer(tables, pipeline_map(None, executor)) == in_one_process


def test_the_answer_does_not_depend_on_the_size_of_a_share(tables, monkeypatch):
    in_large_batches = answer(tables, pipeline_map(1, None))
    monkeypatch.setattr(compare_run, "PIPELINES_PER_BATCH", 1)
    assert answer(tables, pipeline_map(1, None)) == in_large_batches


def test_what_a_killed_worker_had_is_given_to_another(tmp_path):
    assert list(pipeline_map(2, None)(partial(die, tmp_path, 1), [0, 1, 2])) == [0, 10, 20]


def test_a_share_that_kills_its_workers_is_one_line(tmp_path):
    with pytest.raises(MachineError, match="died"):
        pipeline_map(2, None)(partial(die, tmp_path, 9), [0, 1, 2])
