"""Delays of known length planted into real and synthetic runs: waits, causes, stragglers and the path show them."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

import pytest

from tests.kept import measured_tables
from tests.planted_delays import find_sites, plant
from tracekit.analysis.combine.combine_ranks import combine
from tracekit.pipeline.schedules import generate
from tracekit.run.load import load
from tracekit.synthetic import Recipe, write_run

pytestmark = pytest.mark.slow

MS = 1_000_000
SAMPLES = Path(__file__).parent.parent.parent / "sample_traces"
FRAMEWORKS = Path(os.environ.get("TRACEKIT_CORPUS", "nowhere")) / "frameworks"
RUNS = [
    SAMPLES / "overlapped",
    *(FRAMEWORKS / name for name in ("slow-ddp", "once-ddp", "titan-fsdp", "fp8-fsdp")),
]


@cache
def recorded(folder):
    trace = load(folder)
    return [trace.rank(rank) for rank in trace.ranks]


@cache
def figures_before(folder):
    return Figures(recorded(folder))


class Figures:
    """What an analysis says about waiting."""

    def __init__(self, ranks):
        self.analysis = combine([measured_tables(rank, pipeline=False) for rank in ranks])
        self.peer_late_ns = sum(
            causes.get("peer_late", 0) for causes in self.analysis.total.because_ns.values()
        )
        path = self.analysis.critical_path.segments
        self.path_ns = int((path["end_ns"] - path["start_ns"]).sum())

    def caused_ns(self, site):
        stragglers = self.analysis.tables["stragglers"]
        return stragglers.filter(rank=site.late_rank, label=site.label)["caused_ns"].sum()


def check_delay(folder, site, delay_ns):
    before, after = figures_before(folder), Figures(plant(recorded(folder), site, delay_ns))
    waited_ns = site.waited_with_ns(delay_ns)
    assert after.peer_late_ns - before.peer_late_ns == pytest.approx(
        waited_ns - site.waited_ns, rel=0.05
    )
    # A rank that was last before had caused the waiting in this collective already.
    caused_before_ns = 0 if site.slack_ns else site.waited_ns
    assert after.caused_ns(site) - before.caused_ns(site) == pytest.approx(
        waited_ns - caused_before_ns, rel=0.05
    )
    assert after.path_ns - before.path_ns == pytest.approx(delay_ns, rel=0.05)


@pytest.mark.parametrize("folder", RUNS, ids=lambda folder: folder.name)
def test_a_planted_delay_is_waiting_for_the_late_rank_and_lengthens_the_path(folder):
    """The first rank, or the last, comes 20 ms later to a collective than the last one did.

    See below for the others, and for 5 and 40 ms.
    """
    if not folder.is_dir():
        pytest.skip("TRACEKIT_CORPUS is not set: the captures are not in this repository")
    sites = find_sites(recorded(folder))
    assert sites.keys() == {rank.source.rank for rank in recorded(folder)}
    for rank in (min(sites), max(sites)):
        check_delay(folder, sites[rank], 20 * MS)


@pytest.fixture(scope="module")
def synthetic_run(tmp_path_factory):
    """Four ranks exchange tokens, half a millisecond each time, and nothing hides that."""
    recipe = Recipe(
        generate("1f1b", pp=1, microbatches=3), replicas=4, ep_ns=500_000, ep_exposed_ns=500_000
    )
    folder = tmp_path_factory.mktemp("synthetic")
    write_run(recipe, folder)
    return folder, find_sites(recorded(folder))


@pytest.mark.parametrize(("late_rank", "delay_ms"), [(0, 5), (1, 20), (2, 5), (3, 40)])
def test_a_planted_delay_in_a_synthetic_run(synthetic_run, late_rank, delay_ms):
    folder, sites = synthetic_run
    check_delay(folder, sites[late_rank], delay_ms * MS)
