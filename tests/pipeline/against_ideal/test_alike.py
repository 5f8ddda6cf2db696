"""Steps that look alike are looked at once: what is found does not depend on what was seen before."""

from __future__ import annotations

import pytest

from tracekit.align.clocks import Clocks
from tracekit.pipeline.reconstruct.parallel_groups import find_parallel_groups
from tracekit.pipeline.reconstruct.pipeline_steps import assemble_steps
from tracekit.pipeline.schedules import generate
from tracekit.run.driver import find_sources
from tracekit.run.measure import SourceWorker
from tracekit.synthetic import Recipe
from tracekit.synthetic.files import write_run


def of_run(path):
    """Return the pipeline tables of the ranks, and the pipelines with their steps."""
    tables = [table for ref in find_sources(path).refs for table in SourceWorker().measure(ref)]
    ranks = {table.source.rank: table.pipeline for table in tables}
    lines = find_parallel_groups(list(ranks.values())).pipelines
    steps = [
        sorted(set.intersection(*(set(ranks[r].chunks["step"].to_list()) for r in line)))
        for line in lines
    ]
    return ranks, list(zip(lines, steps, strict=True))


@pytest.mark.parametrize(
    ("schedule", "steps"), [("1f1b", 2), ("interleaved", 1), ("zb-h1", 1), ("dualpipev", 1)]
)
def test_pipelines_and_steps_at_once_are_those_one_by_one(tmp_path, schedule, steps):
    virtual = {"virtual": 2} if schedule == "interleaved" else {}
    plan = generate(schedule, pp=2, microbatches=4, **virtual)
    write_run(Recipe(plan, replicas=2, layers=1, steps=steps, jitter=0.2, p2p_ns=20_000), tmp_path)
    ranks, lines = of_run(tmp_path)
    clocks, cache = Clocks.recorded(ranks), {}
    first = assemble_steps(ranks, lines, clocks, cache)
    second = assemble_steps(ranks, lines, clocks, cache)
    assert len(lines) == 2
    assert schedule != "1f1b" or len(cache) == 1  # two pipelines of two steps, all alike
    for (line, numbers), pipelines, again_pipelines in zip(lines, first, second, strict=True):
        for step, pipeline, once_more in zip(numbers, pipelines, again_pipelines, strict=True):
            alone = assemble_steps(ranks, [(line, [step])], clocks, {})[0][0]
            for other in (pipeline, once_more):
                assert other.detail.equals(alone.detail)
                assert (other.numbers == alone.numbers).all()
                for name in (
                    "ranks",
                    "step",
                    "stages_from",
                    "notices",
                    "weights_counted",
                    "traffic",
                    "peers_recorded",
                ):
                    assert getattr(other, name) == getattr(alone, name)
