"""What to do next: the line names what the time really went into."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from msgspec import structs

from tests.kept import analysis_of
from tracekit.report.advice import advice, cannot_fit
from tracekit.schema import GAP_CAUSES

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("sample", ["reload", "reload-overlap"])
def test_an_update_that_waits_is_not_told_to_buffer(samples, sample):
    """Of 105 ms and 153 ms, 51 and 53 are waiting in broadcasts, and reload is 0.3 ms in all: buffers cannot help."""
    found = analysis_of(samples / sample, schedule="none")
    alone = sum(row["ns"] for row in found.reload.lanes.filter(lane="reload").to_dicts()) / len(found.rank_results)
    assert alone < 1_000_000
    first = advice(found)[0]
    assert first.startswith(f"broadcasts wait {found.total.wait_ns['broadcast'] / 4 / 1e6:.1f} ms per rank")
    assert "with two buffers broadcast g+1" not in first


def test_ranks_that_are_all_there_are_not_asked_for(samples):
    """An Nsight export without NCCL's payloads: every rank is there, and none says to whom it sends."""
    said = " ".join(advice(analysis_of(samples / "nsys-1f1b", schedule="none")))
    assert "record to whom messages go (`tracekit doctor` says how)" in said
    assert "add the traces of" not in said
    assert "add the traces of ranks 1–3: waiting" in " ".join(
        advice(analysis_of(samples / "1f1b", ranks=[0], schedule="none"))
    )


def test_a_pipeline_is_told_its_largest_cause_and_not_what_follows_from_it(samples):
    """Of vpp-overlap's gap 75 % is expert communication; its ranks wait in pipeline messages because of that."""
    found = analysis_of(samples / "vpp-overlap")
    first, *others = advice(found)
    gap = found.schedule.gap_ns
    assert max(gap, key=gap.get) == "exposed_ep"
    assert first.startswith(f"{gap['exposed_ep'] / 1e6:.1f} ms of the {sum(gap.values()) / 1e6:.1f} ms to the ideal")
    # It does run beside another micro-batch's compute already, and takes longer than all the compute there is.
    assert "run dispatch and combine beside another micro-batch's compute" not in first
    sums = r"([\d.]+) ms per rank .* only ([\d.]+) ms .* so ([\d.]+) ms cannot be hidden"
    exposed, free, left = re.search(sums, first).groups()
    assert float(exposed) - float(free) == pytest.approx(float(left), abs=0.11)  # the sentence's numbers add up
    assert not any("pp_comm" in line for line in others)


def test_every_cause_but_the_unexplained_has_a_remedy():
    without = {name for name, cause in GAP_CAUSES.items() if cause.remedy is None}
    assert without == {"unexplained", "early_output"}  # the second only shortens a run


def test_where_idle_dominates_the_longest_gap_is_named(samples):
    found = analysis_of(samples / "compile", schedule="none")
    longest = found.tables["gaps"].sort("ns", descending=True).row(0, named=True)
    first = advice(found)[0]
    assert first.startswith("the GPU is idle 70.6 % of the span because the host launches late: ")  # what to do first
    assert (
        f"the longest gap, {longest['ns'] / 1e6:.1f} ms on rank 0, was launch-bound and ended with multi_tensor"
        in first
    )
    assert "multi_tensor_apply_kernel" in longest["next_name"]


def test_idle_time_that_is_not_the_hosts_names_its_longest_gap_alone(samples):
    found = analysis_of(samples / "compile", schedule="none")
    waits = tuple(
        structs.replace(one, idle_causes={"dependency": one.whole.budget.idle_ns}) for one in found.rank_results
    )
    first = advice(replace(found, rank_results=waits))[0]
    assert first.startswith("idle is most of the span, 83.7 %: the longest gap, ")


def test_device_copies_are_not_asked_to_overlap(samples):
    """Its only exposed label is memsets and device copies."""
    found = analysis_of(samples / "recompute", schedule="none")
    assert set(found.total.budget.exposed_ns) == {"memory"}
    assert not any("memory" in line for line in advice(found))


def test_communication_is_told_by_how_much_it_cannot_fit(samples):
    fits = analysis_of(samples / "1f1b", schedule="none")
    assert cannot_fit(fits, ["pp_comm"]) is None
    label = "broadcast"
    updates = analysis_of(samples / "reload", schedule="none")
    exposed, compute = updates.total.budget.exposed_ns[label], updates.total.budget.compute_ns
    assert exposed > compute
    assert f"{(exposed - compute) / 4 / 1e6:,.1f} ms cannot be hidden" in cannot_fit(updates, [label])
