"""Pipelines compared by several workers: the answer that one process gives, or one clear line that says why not."""

from __future__ import annotations

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from tracekit import analyze
from tracekit._util.workers import ItemResult
from tracekit.align.clocks import Clocks
from tracekit.analysis.combine import combine
from tracekit.compare import lines
from tracekit.compare.finder import Finder
from tracekit.errors import InputError
from tracekit.run import driver
from tracekit.run.driver import find_sources, pipeline_map
from tracekit.run.measure import Options
from tracekit.schedules import generate
from tracekit.synthetic import Recipe
from tracekit.synthetic.files import write_run

PIPELINES = 6


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    """Six pipelines of two ranks and two steps; pipelines 1 and 4 run another schedule, and 5 is slower."""
    target = tmp_path_factory.mktemp("run")
    for number in range(PIPELINES):
        plan = generate("gpipe" if number in (1, 4) else "1f1b", pp=2, microbatches=4)
        factor = {0: 1.5, 1: 1.5} if number == 5 else {}
        recipe = Recipe(plan, replicas=PIPELINES, steps=2, layers=1, ep_ns=0, stage_factor=factor)
        write_run(recipe, target, ranks=[number, number + PIPELINES])
    return [one for ref in find_sources(target)[0] for one in Options().source_tables(ref)]


@pytest.fixture
def two_at_once(monkeypatch):
    monkeypatch.setattr(lines, "AT_ONCE", 2)


def answer(tables, spread):
    found = combine(tables, schedule="auto", spread=spread)
    assert len(found.schedule.pipelines) == PIPELINES
    assert {held.match.schedule.name for held in found.schedule.all} == {"gpipe", "1f1b"}
    assert found.schedule.cells.height == found.tables["cells"].height > 0
    return found.to_json()


def test_workers_give_the_answer_of_one_process(tables, two_at_once):
    alone = answer(tables, pipeline_map(1, None))
    assert answer(tables, pipeline_map(2, None)) == alone
    with ThreadPoolExecutor(2) as executor:
        assert answer(tables, pipeline_map(None, executor)) == alone


def test_the_answer_does_not_depend_on_the_size_of_a_share(tables, monkeypatch):
    whole = answer(tables, pipeline_map(1, None))
    monkeypatch.setattr(lines, "AT_ONCE", 1)
    assert answer(tables, pipeline_map(1, None)) == whole


@pytest.mark.parametrize(("count", "handed_out"), [(16, []), (17, [1]), (33, [16, 1])])
def test_sixteen_pipelines_are_a_share_and_the_first_share_stays_here(count, handed_out):
    seen = []

    def spread(work, items):
        seen.extend(len(some) for some, _ in items)
        return map(work, items)

    assert len(lines.compare_lines([()] * count, {}, Finder("auto"), Clocks.recorded([]), spread)) == count
    assert seen == handed_out


@pytest.mark.parametrize(("shares", "processes"), [(3, False), (4, True)])
def test_four_shares_are_worth_processes(monkeypatch, shares, processes):
    asked = []

    def map_items(function, items, *, workers, **_):
        asked.append(workers)
        return [ItemResult(at, item, value=function(item)) for at, item in enumerate(items)]

    monkeypatch.setattr(driver, "map_items", map_items)
    monkeypatch.setattr(driver, "cores", lambda: 2)
    assert list(pipeline_map(None, None)(str, range(shares))) == [str(n) for n in range(shares)]
    assert asked == ([2] if processes else [])


def die(place: Path, times: int, item: int) -> int:
    """Kill the process at item 1, the first *times* times."""
    died = len(list(place.iterdir()))
    if item == 1 and died < times:
        (place / str(died)).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return item * 10


def test_what_a_killed_worker_had_is_given_to_another(tmp_path):
    assert list(pipeline_map(2, None)(partial(die, tmp_path, 1), [0, 1, 2])) == [0, 10, 20]


def test_a_share_that_kills_its_workers_is_one_line(tmp_path):
    with pytest.raises(InputError, match="died"):
        pipeline_map(2, None)(partial(die, tmp_path, 9), [0, 1, 2])


def test_a_store_is_read_without_what_is_not_asked_for(tmp_path, samples):
    analyze(samples / "1f1b", store=tmp_path / "store", workers=1)
    ref = find_sources(tmp_path / "store")[0][0]
    kept = Options().source_tables(ref)[0]
    assert "path" not in vars(kept)
    assert len(kept.path) > 0
    assert "path" not in vars(kept)
    (tmp_path / "store" / f"rank={ref.rank}" / "tables.zip").unlink()
    with pytest.raises(InputError, match=r"tables\.zip: "):
        _ = kept.path
