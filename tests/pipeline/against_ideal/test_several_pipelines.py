"""Several pipelines side by side: the slowest is shown, any can be asked for, and no rank is named out of sight."""

from __future__ import annotations

from dataclasses import replace

import pytest
from msgspec import structs

from tracekit import analyze
from tracekit.errors import OptionError
from tracekit.pipeline.schedules import generate
from tracekit.report.sections.schedule import describe_choice
from tracekit.synthetic import Recipe
from tracekit.synthetic.files import write_run

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("measured_once")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two pipelines of two ranks: 0 and 2, 1 and 3; each rank of the second one takes longer."""
    target = tmp_path_factory.mktemp("run")
    schedule = generate("1f1b", pp=2, microbatches=4)
    write_run(Recipe(schedule, replicas=2, ep_ns=0), target, ranks=[0, 2])
    write_run(
        Recipe(schedule, replicas=2, ep_ns=0, stage_factor={0: 1.5, 1: 1.5}), target, ranks=[1, 3]
    )
    return target


@pytest.fixture(scope="module")
def analysis(folder):
    return analyze(folder)


def test_the_slowest_is_shown(analysis):
    assert analysis.comparison.pipelines == ((0, 2), (1, 3))
    assert analysis.comparison.head.pipeline.ranks == (1, 3)
    assert not analysis.comparison.chosen
    assert describe_choice(analysis.comparison) == "pipeline 1 (of 0 and 1), the slowest"


@pytest.mark.parametrize(("number", "ranks"), [(0, (0, 2)), (1, (1, 3))])
def test_any_can_be_asked_for(folder, number, ranks):
    chosen = analyze(folder, pipeline=number)
    assert chosen.comparison.head.pipeline.ranks == ranks
    assert describe_choice(chosen.comparison) == f"pipeline {number} (of 0 and 1)"


def test_a_pipeline_that_is_not_there_is_refused(folder):
    with pytest.raises(OptionError, match="--pipeline 2: there is no such pipeline") as error:
        analyze(folder, pipeline=2)
    assert error.value.hint == "pipelines 0 to 1 were found"


def test_pipelines_that_tie_are_alike(analysis):
    comparison = analysis.comparison
    same = [structs.replace(step, pipeline=replace(step.pipeline, ranks=ranks)) for step, ranks in
            ((comparison.head, comparison.head.pipeline.ranks), (comparison.head, (0, 2)))]  # fmt: skip
    assert describe_choice(structs.replace(comparison, all=tuple(same))).endswith(
        " (of 0 and 1), both alike"
    )
