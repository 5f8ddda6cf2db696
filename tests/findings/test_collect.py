"""The list of findings: its order, and its answers on samples and on recorded everyday runs."""

from __future__ import annotations

import json
import os
from itertools import pairwise
from pathlib import Path

import pytest
from msgspec.structs import replace

from docsite.finding_examples import example_of
from tests.kept import analysis_of
from tracekit import analyze
from tracekit.documents.analysis import ChangedStep
from tracekit.documents.findings import MIN_SHARE_TO_SHOW
from tracekit.findings.collect import (
    find_kinds,
    is_said_of_a_rank,
    likely_ns,
    may_save_more,
    relate_findings,
)
from tracekit.graph.change import Hidden
from tracekit.graph.changes import FREE_CPU
from tracekit.report.write import render_json

MS = 1_000_000
SAMPLES = [
    "1f1b",
    "compile",
    "interleaved",
    "layers",
    "megatron-moe",
    "nsys-1f1b",
    "overlapped",
    "slow-ddp",
    "steps/a",
]
EVERYDAY = Path(os.environ.get("TRACEKIT_CORPUS", "nowhere")) / "everyday"
EVERYDAY_RUNS = [
    "good",
    "loader",
    "items",
    "pageable",
    "alloc",
    "save",
    "tiny",
    "recompile",
    "hf-moe",
    "accum",
    "accum-nosync",
    "fsdp-offload",
]


@pytest.fixture
def everyday():
    if not (EVERYDAY / "truth.json").is_file():
        pytest.skip("TRACEKIT_CORPUS is not set: the recordings are not in this repository")
    return EVERYDAY


OF_ALL_LOOPS = {"slow_kernel", "optimizer"}
"""Codes that a run without a planted fault may have: its optimizer has a kernel per operation for all
parameters, which a fused one has not."""
LARGER_THAN_PLANTED = {"items": "optimizer", "hf-moe": "unfused"}
"""What is true as well, and saves more of the step without the profiler than the planted fault."""
RECORDED_TWINS = {"alloc", "loader", "items", "accum"}
"""Runs whose steps without the fault are known, and with it only as recorded: the profiler lengthens these."""


@pytest.mark.slow
@pytest.mark.parametrize("name", SAMPLES)
def test_what_matters_is_listed_by_its_likely_saving_before_what_does_not(samples, name):
    findings = find_kinds(analysis_of(samples / name))
    is_small = [finding.effect_share < MIN_SHARE_TO_SHOW for finding in findings]
    assert is_small == sorted(is_small)
    for first, second in pairwise(findings):
        competes = first.shares_time_with or second.shares_time_with
        is_like = (first.matters, first.effect_share < MIN_SHARE_TO_SHOW) == (
            second.matters,
            second.effect_share < MIN_SHARE_TO_SHOW,
        )
        if not competes and is_like:
            assert likely_ns(first) >= likely_ns(second)
    assert all(
        (finding.cost_ns or finding.cost_bytes) and finding.saves_ns != 0 for finding in findings
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", SAMPLES)
def test_a_finding_saves_what_its_change_is_predicted_to_save(samples, name):
    analysis = analysis_of(samples / name, what_if=True)
    with_change = [finding for finding in analysis.findings if finding.change is not None]
    assert [finding.saves_ns for finding in with_change] == [
        analysis.what_if(finding.change).saves_ns for finding in with_change
    ]


@pytest.mark.slow
@pytest.mark.parametrize("name", SAMPLES)
def test_savings_one_after_the_other_are_no_more_than_the_step(samples, name):
    analysis = analysis_of(samples / name)
    after_ns = [finding.saves_after_ns for finding in analysis.findings]
    known_ns = [ns for ns in after_ns if ns is not None]
    assert 0 <= sum(known_ns) <= analysis.step.time_ns
    for finding in analysis.findings:
        for number in finding.shares_time_with:
            other = analysis.findings[number - 1]
            assert analysis.findings.index(finding) + 1 in other.shares_time_with


def host_in_python_and_loader(recording, start, _):
    """A loader of 6 ms, Python for 2 ms, then ten kernels of 1 ms, for which the host waits."""
    recording.op("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", start, start + 6)
    for number in range(10):
        begin = start + 8.1 + number
        recording.kernel(start + 8 + number * 0.05, begin, begin + 0.99)
    recording.call("cudaStreamSynchronize", start + 8.6, start + 18.1)


def test_two_parts_of_the_hosts_time_are_saved_one_after_the_other(findings_of):
    """Each saves its own time, and shares none; without the wait the host does both beside the GPU's work."""
    findings = findings_of(host_in_python_and_loader, period=18.1)
    loading, python, waiting = (findings[code] for code in ("data_loading", "python", "host_sync"))
    assert loading.saves_ns == pytest.approx(6 * MS, rel=0.02)
    assert python.saves_ns == pytest.approx(2 * MS, rel=0.05)
    assert waiting.saves_ns == pytest.approx(8 * MS, rel=0.05)
    # Launching takes 15 µs, the operator 5 before the call and the call 10: too little to list.
    assert list(findings) == ["host_sync", "data_loading", "python"]
    assert waiting.shares_time_with == (2, 3)
    assert loading.shares_time_with == python.shares_time_with == (1,)
    assert (loading.saves_after_ns, python.saves_after_ns) == (0, 0)


A, B = Hidden("tp_comm"), Hidden("dp_comm")


class Replays:
    """A context of a step of 1,000 ns, which changes shorten as the table says; together none saves more."""

    def __init__(self, saves_ns):
        self.saves_ns = saves_ns

    def predict(self, *changes):
        saves_ns = max(self.saves_ns[change] for change in changes)
        return ChangedStep(", ".join(map(str, changes)), (), 1_000, saves_ns=saves_ns)

    def share(self, ns):
        return ns / 1_000


def saving_finding(change, saves_ns, least_ns, code="host_sync"):
    return example_of(
        code,
        cost_ns=saves_ns,
        share=saves_ns / 1_000,
        change=change,
        saves_ns=saves_ns,
        saves_range_ns=(least_ns, saves_ns),
    )


def test_what_another_finding_does_as_well_comes_after_what_saves_more():
    """The second saves nothing after the first, which is certain; the third, without a change, still may."""
    first, second = saving_finding(A, 300, 200), saving_finding(B, 250, 0)
    third = example_of("slow_kernel", cost_ns=100, share=0.1)
    ordered = relate_findings(Replays({A: 300, B: 250}), [first, second, third])
    assert [finding.change for finding in ordered] == [A, None, B]
    assert [finding.saves_after_ns for finding in ordered] == [300, None, 0]
    assert (ordered[0].shares_time_with, ordered[2].shares_time_with) == ((3,), (1,))


class AddedReplays(Replays):
    """The same, of changes that save the sum of their savings together."""

    def predict(self, *changes):
        saves_ns = sum(self.saves_ns[change] for change in changes)
        return ChangedStep(", ".join(map(str, changes)), (), 1_000, saves_ns=saves_ns)


@pytest.mark.parametrize(
    ("replays", "least_ns", "changes"),
    [
        (Replays, 1, [B, A]),  # for certain at least that, where the first may save nothing
        (Replays, 0, [B, A]),  # bounded, where the first is only possible
        (AddedReplays, 1, [A, B]),  # about another time: by what is likely
    ],
)
def test_a_surer_saving_stands_before_a_possible_one_about_the_same_time(
    replays, least_ns, changes
):
    possible = replace(saving_finding(A, 300, 0), certain="possible")
    surer = replace(saving_finding(B, 100, least_ns), certain="bounded")
    ordered = relate_findings(replays({A: 300, B: 100}), [possible, surer])
    assert [finding.change for finding in ordered] == changes


def test_of_two_bounds_about_the_same_time_the_one_with_the_higher_lower_end_comes_first():
    first, second = saving_finding(A, 300, 0), saving_finding(B, 40, 20)
    ordered = relate_findings(Replays({A: 300, B: 40}), [first, second])
    assert [finding.change for finding in ordered] == [B, A]


@pytest.mark.parametrize(
    ("stalls_save_ns", "codes"),
    [(150, ["busy_cpu", "launch_bound"]), (149, ["launch_bound", "busy_cpu"])],
)
def test_a_host_that_shares_its_cores_hears_that_before_what_it_therefore_does_slowly(
    stalls_save_ns, codes
):
    launching = saving_finding(A, 300, 0, "launch_bound")
    stalls = saving_finding(FREE_CPU, stalls_save_ns, 0, "busy_cpu")
    ordered = relate_findings(Replays({A: 300, FREE_CPU: stalls_save_ns}), [launching, stalls])
    assert [finding.code for finding in ordered] == codes


def test_what_a_bound_might_do_as_well_keeps_its_place():
    """The first may save nothing: then the second saves all of its own."""
    first, second = saving_finding(A, 300, 0), saving_finding(B, 250, 0)
    third = example_of("slow_kernel", cost_ns=100, share=0.1)
    ordered = relate_findings(Replays({A: 300, B: 250}), [first, second, third])
    assert [finding.change for finding in ordered] == [A, B, None]


@pytest.mark.parametrize(("saved_ns", "is_more"), [(100, False), (101, True)])
def test_how_slow_kernels_are_is_no_bound_beside_another_algorithm_that_saves_more(
    saved_ns, is_more
):
    slow = example_of("slow_kernel", cost_ns=100, share=0.1)
    without_table = saving_finding(A, saved_ns, 0, "sparse_table")
    no_delay = saving_finding(B, 900, 0, "launch_bound")  # the kernels stay as they are
    assert may_save_more(slow, [slow, without_table, no_delay]) is is_more


def test_a_range_that_ends_above_the_saving_is_no_bound():
    finding = saving_finding(A, 300, 0)
    assert not may_save_more(finding, [finding])
    assert may_save_more(replace(finding, saves_range_ns=(0, 301)), [finding])


@pytest.mark.parametrize(
    ("ranks", "steps", "shares"), [((1,), (7,), True), ((2,), (7,), False), ((1,), (6, 7), False)]
)
def test_a_slow_step_shares_its_time_with_the_rank_that_others_wait_for_in_it(ranks, steps, shares):
    slow = example_of("slow_step", "python", cost_ns=130, share=0.13, ranks=(1,), steps=(7,))
    late = example_of("late_host", cost_ns=138, share=0.14, ranks=ranks, steps=steps)
    first, second = relate_findings(Replays({}), [slow, late])
    assert (first.shares_time_with, second.shares_time_with) == (
        ((2,), (1,)) if shares else ((), ())
    )


WAITING = example_of(
    "exposed_comm", "peer_late", cost_ns=100, share=0.1, label="dp_comm", wait_share=0.9
)


@pytest.mark.parametrize(
    ("late_ns", "label", "is_said"),
    [(100, "dp_comm", True), (99, "dp_comm", False), (100, "tp_comm", False)],
)
def test_waiting_is_no_finding_where_one_about_a_late_rank_tells_of_half_of_it(
    late_ns, label, is_said
):
    evidence = {"late_ns": late_ns, "label": label, "late_steps": 2, "recorded_steps": 4}
    late = example_of("late_host", cost_ns=50, share=0.05, ranks=(3,), **evidence)
    assert is_said_of_a_rank(WAITING, [WAITING, late]) is is_said
    assert not is_said_of_a_rank(late, [WAITING, late])


@pytest.mark.slow
def test_two_remedies_of_the_same_transfers_share_their_time(everyday):
    """Reducing once instead of four times, or links twice as fast: the second saves little after the first."""
    analysis = analyze(everyday / "accum")
    first, second = analysis.findings[:2]
    assert (first.code, second.code) == ("repeated_reduction", "exposed_comm")
    assert (first.shares_time_with, second.shares_time_with) == ((2,), (1,))
    assert first.saves_after_ns == first.saves_ns
    assert second.saves_after_ns < 0.3 * second.saves_ns


@pytest.mark.slow
@pytest.mark.parametrize("name", SAMPLES)
def test_json_has_the_findings_of_the_api_with_their_sentences(samples, name):
    analysis = analysis_of(samples / name)
    entries = json.loads(render_json(analysis))["findings"]
    assert [entry["code"] for entry in entries] == [finding.code for finding in analysis.findings]
    for entry, finding in zip(entries, analysis.findings, strict=True):
        assert (entry["text"], entry["advice"]) == (finding.text, finding.advice)
        assert (entry["cost_ns"], entry["saves_ns"]) == (finding.cost_ns, finding.saves_ns)


def test_a_run_without_steps_has_no_findings(samples):
    analysis = analysis_of(samples / "reload", schedule="none")
    if not analysis.step.time_ns:
        assert analysis.findings == ()


pytestmark_everyday = pytest.mark.skipif(
    not (EVERYDAY / "truth.json").is_file(),
    reason="TRACEKIT_CORPUS is not set: the recordings are not in this repository",
)


@pytest.mark.slow
@pytestmark_everyday
@pytest.mark.parametrize("name", EVERYDAY_RUNS)
def test_the_first_finding_of_an_everyday_run_is_the_planted_fault_and_its_saving_comes_true(name):
    truth = json.loads((EVERYDAY / "truth.json").read_text())["runs"][name]
    analysis = analyze(EVERYDAY / name)
    if truth["code"] is None:
        shown = {finding.code for finding in analysis.findings if finding.matters}
        assert shown <= OF_ALL_LOOPS
        return
    assert analysis.findings[0].code == LARGER_THAN_PLANTED.get(name, truth["code"])
    first = next(finding for finding in analysis.findings if finding.code == truth["code"])
    assert first.matters
    if "without_ms" not in truth or name in RECORDED_TWINS:
        return
    step_ns = analysis.step.reference_ns
    assert step_ns is not None
    if first.code == "slow_step":  # its saving is per recorded step, of the mean of all steps
        step_ns = round(
            sum(step.time_ns for step in analysis.step.per_step) / len(analysis.step.per_step)
        )
    low_ns, high_ns = (step_ns - saving for saving in reversed(first.saves_range_ns))
    is_close = step_ns - first.saves_ns == pytest.approx(truth["without_ms"] * MS, rel=0.4)
    is_narrow = high_ns - low_ns <= 0.4 * step_ns
    assert is_close or (is_narrow and low_ns <= truth["without_ms"] * MS <= high_ns)


@pytest.mark.slow
@pytestmark_everyday
def test_the_planted_synchronisations_are_counted():
    """One after each of eight blocks."""
    findings = analyze(EVERYDAY / "items").findings
    (stops,) = (finding for finding in findings if finding.code == "host_sync")
    assert "stops 8 times a step to wait for the GPU in aten::item" in stops.text
