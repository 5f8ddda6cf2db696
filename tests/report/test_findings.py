"""Sentences of findings: every code and case has them, and real findings fill them."""

from __future__ import annotations

import io
import re

import pytest

from docsite.finding_examples import example_of
from tests.findings.conftest import Recording
from tests.kept import analysis_of
from tests.written_findings import written
from tracekit import analyze
from tracekit._util.text import short_ms
from tracekit.documents.analysis import Budget, Step, StepTime
from tracekit.documents.findings import Finding
from tracekit.findings.phrases import MAX_FINDING_STEPS_NAMED
from tracekit.metrics.host.time_by_activity import TIMED_ACTIVITIES
from tracekit.report.blocks import FindingItem
from tracekit.report.findings import (
    finding_in_a_log,
    finding_line,
    remarks_on,
    shown_findings,
)
from tracekit.report.html.finding_links import share_words
from tracekit.report.markdown import render_markdown
from tracekit.report.terminal.analysis import render
from tracekit.report.terminal.first_screen import finding_lines, saving
from tracekit.report.terminal.screen import Screen
from tracekit.rooms import all_kinds
from tracekit.schema import LABEL_WORDS

SAMPLES = [
    "1f1b",
    "compile",
    "megatron-moe",
    "nsys-1f1b",
    "overlapped",
    "slow-ddp",
    "steps/a",
    "steps/straggler",
]

NOTHING = Step.of(None, budget_ns=Budget(compute_ns=0, exposed_ns={}, idle=0))


@pytest.mark.parametrize("kind", [*all_kinds().values()], ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("is_inference", [False, True])
def test_every_kind_has_a_text_and_an_advice_in_one_sentence(kind, is_inference):
    finding = example_of(
        kind.code,
        kind.case,
        cost_ns=7,
        share=0.1,
        ranks=(3,),
        run={"is_inference": is_inference},
    )
    assert not finding.text()[0].isupper()
    for sentence in (finding.text(), finding.advice()):
        assert sentence
        assert not sentence.endswith(".")
        assert "{" not in sentence


@pytest.mark.parametrize("case", [*TIMED_ACTIVITIES, "checkpoint", "evaluation", "unknown"])
def test_every_cause_of_a_slow_step_has_a_sentence(case):
    figures = ("step", "time_ns", "usual_ns", "extra_ns", "forward_events")
    finding = written("slow_step", case, evidence=dict.fromkeys(figures, 7_000_000))
    assert "unknown" not in finding.text + finding.advice


@pytest.mark.slow
@pytest.mark.parametrize("name", SAMPLES)
def test_findings_of_real_runs_fill_every_name(samples, name):
    findings = analysis_of(samples / name).findings
    assert findings
    for finding in findings:
        sentence = (finding.text + finding.advice).replace(LABEL_WORDS["comm"], "")
        assert "unknown" not in sentence
        assert "{" not in sentence
        assert "None" not in sentence


@pytest.mark.parametrize(
    ("count", "words"),
    [
        (1.0, "once a step"),
        (1.4, "once a step"),
        (0.9, "once a step"),
        (0.5, "in one of 2 steps"),
        (0.25, "in one of 4 steps"),
        (8.0, "8 times a step"),
        (1250.2, "1,250 times a step"),
    ],
)
def test_how_often_reads_as_people_say_it(count, words):
    assert (
        written("host_sync", evidence={"calls_per_step": count}).text
        == f"the CPU stops {words} to wait for the GPU; after each stop the GPU runs out of work"
    )


@pytest.mark.parametrize(("share", "is_shown"), [(0.011, True), (0.009, False)])
def test_findings_below_one_percent_are_not_shown(share, is_shown):
    assert bool(shown_findings([Finding(code="allocator", cost_ns=1, share=share)])) is is_shown


def test_a_line_ends_with_the_saving():
    evidence = {"gap_ns": 2_600_000, "part_ns": 2_500_000, "schedule": "1f1b"}
    finding = written("schedule_gap", "order", cost_ns=9, evidence=evidence, saves_ns=2_000_000)
    assert finding_line(finding) == (
        "the pipeline takes 2.50 ms longer than 1f1b needs, because operations run in another order: run the "
        "operations in the order of 1f1b (saves 2.00 ms per step)"
    )


def test_a_sentence_names_four_steps():
    evidence = {"late_ns": 1_000_000, "late_steps": 6, "recorded_steps": 9}
    finding = written("late_host", ranks=(2,), steps=tuple(range(6)), evidence=evidence)
    assert MAX_FINDING_STEPS_NAMED == 4
    assert "in steps 0, 1, 2, 3" in finding.text
    assert "4, 5" not in finding.text


@pytest.mark.parametrize("code", ["python", "host_compute"])
def test_the_idle_time_that_a_sentence_names_is_what_the_finding_costs(code):
    evidence = {"idle_ns": 1_770_000, "name": "aten::add"}
    finding = written(code, cost_ns=3_180_000, share=0.03, evidence=evidence)
    assert "idle for 3.18 ms" in finding.text


@pytest.mark.parametrize(
    ("range_ns", "words"),
    [((0, 3_000_000), "at most 3.00 ms"), ((2_000_000, 4_000_000), "3.00 ms")],
)
def test_a_bound_is_worded_alike_on_screen_in_lists_logs_and_cards(range_ns, words):
    finding = Finding(
        code="host_sync", cost_ns=4_000_000, share=0.2, saves_ns=3_000_000, saves_range_ns=range_ns
    )
    is_bound = words.startswith("at most")
    assert f"saves {words}" in finding_line(finding)
    assert f"saves {words}" in finding_in_a_log(finding)
    assert saving(finding).startswith("≤") == is_bound
    assert ("saved at most" in share_words(finding)) == is_bound


def test_a_line_shares_its_time_with_findings_before_it_alone():
    """As on the first screen: what a finding saves after others is after those that stand before it."""
    findings = []
    for number, others in ((1, (2, 3)), (2, (1, 3)), (3, (1, 2))):
        findings.append(
            Finding(
                code="host_sync",
                cost_ns=9_000_000,
                share=0.2,
                text=f"finding {number}",
                advice="mend it",
                saves_ns=8_000_000,
                saves_range_ns=(7_000_000, 9_000_000),
                shares_time_with=others,
                saves_after_ns=8_000_000 // number,
            )
        )
    lines = [finding_line(each, remarks_on(each, i, NOTHING)) for i, each in enumerate(findings, 1)]
    assert "shares" not in lines[0]
    assert "shares its time with 1: 4.00 ms are left to save after it" in lines[1]
    assert "shares its time with 1 and 2: 2.67 ms are left to save after them" in lines[2]


@pytest.mark.parametrize(
    ("code", "case", "evidence"),
    [
        ("exposed_comm", "peer_late", {"exposed_ns": 9_000_000}),
        ("schedule_gap", "order", {"part_ns": 9_000_000}),
        ("slow_rank", "", {"late_ns": 9_000_000, "explained_share": 1.0}),
        ("late_host", "", {"late_ns": 18_000_000, "explained_share": 0.5}),
        ("python", "", {}),
    ],
)
def test_whatever_saves_more_than_its_sentence_states_says_so(code, case, evidence):
    effect = {"cost_ns": 9_000_000, "share": 0.2, "saves_ns": 12_000_000}
    stated = written(code, case, ranks=(1,), evidence=evidence, **effect)
    assert short_ms(stated.cost_ns) in stated.text
    assert "more than the 9.00 ms: " in remarks_on(stated, 1, NOTHING)


def test_a_sentence_with_other_figures_does_not_state_what_a_finding_costs():
    """19.00 ms end like 9.00 ms; of kernels the words say that launching is spared as well."""
    effect = {"cost_ns": 9_000_000, "share": 0.2, "saves_ns": 12_000_000}
    exposed = written("exposed_comm", "peer_late", evidence={"exposed_ns": 19_000_000}, **effect)
    kernels = written("unfused", evidence={"work_ns": 9_000_000}, **effect)
    assert remarks_on(exposed, 1, NOTHING) == ""
    assert remarks_on(kernels, 1, NOTHING) == ""


def test_a_slow_steps_share_names_what_it_is_of():
    evidence = {"step": 5, "time_ns": 175_000_000, "usual_ns": 17_400_000, "excess_ns": 157_600_000}
    evidence |= {"recorded_steps": 4, "mean_ns": 56_800_000, "share_of": "mean step"}
    slow = Finding(
        code="slow_step", cost_ns=39_400_000, share=0.69, saves_ns=39_400_000, evidence=evidence
    )
    words = "spread over 4 steps of 56.8 ms on average"
    assert remarks_on(slow, 1, NOTHING) == words
    assert words in " ".join(line.plain for line in finding_lines(FindingItem(1, slow, words), 200))
    assert share_words(slow) == "saved, 69 % of the mean step"


def test_times_longer_than_the_stated_step_say_which_steps_they_are_of():
    """Steps of 10, 10 and 40 ms whose median is stated, or 8 ms without the profiler."""
    steps = [StepTime(number, time_ms * 1_000_000) for number, time_ms in enumerate((10, 10, 40))]
    recorded = Step.of(10_000_000, per_step=steps)
    free = Step.of(10_000_000, per_step=steps, free_ns=8_000_000)

    def remarks(wait_ms, step):
        wait = Finding(code="data_loading", cost_ns=wait_ms * 1_000_000, share=1.0)
        return remarks_on(wait, 1, step)

    assert remarks(15, recorded) == "steps differ: they take 20.0 ms on average"
    assert remarks(9, free) == "as recorded, when a step took 10.0 ms"
    assert remarks(9, recorded) == remarks(8, free) == ""


def test_without_marks_of_steps_a_count_is_of_the_recording():
    evidence = {"kernels_per_step": 17, "steps_marked": False}
    copies = written("small_copies", cost_ns=9_000_000, share=0.2, evidence=evidence)
    assert copies.text == "17 small copies from the host in all, one by one"
    assert share_words(copies) == "saved at most, 20 % of the recording"


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        ("tp_comm", "of tp_comm is exposed (no compute beside it)"),
        (
            "ep_dispatch, ep_combine",
            "of ep_dispatch and ep_combine are exposed (no compute beside them)",
        ),
    ],
)
def test_several_labels_are_exposed(labels, words):
    finding = example_of("recording", "ranks", cost_ns=1, share=0.1, labels=labels)
    assert words in finding.text()


@pytest.mark.parametrize(
    ("recorded_ns", "words"),
    [
        (16_400_000, "wait 9.39 ms (16.4 ms as recorded) in dp_comm"),
        (None, "wait 9.39 ms in dp_comm"),
    ],
)
def test_waiting_without_the_profiler_has_the_recorded_one_beside_it(recorded_ns, words):
    evidence = {"late_ns": 9_390_000, "recorded_late_ns": recorded_ns, "label": "dp_comm"}
    finding = written("late_host", ranks=(3,), evidence=evidence)
    assert words in finding.text


@pytest.mark.parametrize(
    ("vendor", "words"),
    [
        ("amd", 'HIP graphs (`torch.compile(mode="reduce-overhead")`)'),
        ("nvidia", 'CUDA graphs (`torch.compile(mode="reduce-overhead")`)'),
        (None, "captured graphs, fused"),
    ],
)
def test_graphs_have_their_vendors_name_or_none(vendor, words):
    evidence = {"vendor": vendor, "events_per_step": 17_507, "mean_event_ns": 2_000}
    finding = written("launch_bound", cost_ns=9, share=0.9, evidence=evidence)
    assert words in finding.advice


OTHERS_WORDS = re.compile(r"CUDA|cuda|NCCL|cuDNN|Nsight|NVIDIA|HIP|ROCm")
ADVISED = (
    ("exposed_comm", "one_queue"), ("exposed_comm", "too_little_compute"), ("exposed_comm", "launched_late"),
    ("launch_bound", ""), ("python", "no_operators"), ("schedule_gap", "p2p_transfer"), ("schedule_gap", "host"),
)  # fmt: skip


@pytest.mark.parametrize(("code", "case"), ADVISED)
def test_an_accelerator_of_an_unknown_vendor_hears_no_vendors_words(code, case):
    evidence = {"label": "dp_comm", "schedule": "1f1b", "events_per_step": 9}
    finding = written(code, case, evidence=evidence)
    assert not OTHERS_WORDS.search(finding.advice)


def test_more_hardware_queues_are_asked_for_in_the_vendors_words():
    def advice(vendor):
        evidence = {"label": "dp_comm", "vendor": vendor}
        return written("exposed_comm", "one_queue", evidence=evidence).advice

    assert "`GPU_MAX_HW_QUEUES`" in advice("amd")
    assert "`CUDA_DEVICE_MAX_CONNECTIONS`" in advice("nvidia")


def test_no_output_of_another_accelerators_recording_has_a_vendors_words(tmp_path):
    """Kernels and requests of a DMA engine as MTIA's profiler names them; no operator and no GPU's name."""
    recording = Recording()
    del recording.head["deviceProperties"]
    for number in range(3):
        recording.step(number, number * 40.0, number * 40.0 + 40.0)
        for i in range(200):
            start = number * 40.0 + 0.1 + i * 0.15
            ids = {"correlation": number * 200 + i + 1}
            recording.add("mtia_runtime", "runFunction", start, start + 0.1, **ids)
            name = "dma_request" if i % 3 == 0 else "fba_kernel"
            on_device = {"device": 0, "stream": 7, **ids}
            recording.add(
                "mtia_ccp_events", name, start + 0.11, start + 0.14, pid=0, tid=7, **on_device
            )
    recording.write(tmp_path)
    analysis = analyze(tmp_path)
    assert analysis.step.budget_ns.exposed_ns["memory"] == pytest.approx(67 * 30_000, rel=0.01)
    out = io.StringIO()
    render(analysis, Screen(file=out, width=100), full=True)
    assert not OTHERS_WORDS.findall(out.getvalue() + render_markdown(analysis))


EXPOSED = {"label": "dp_comm", "exposed_ns": 200_000_000, "cause": "peer_late", "wait_share": 0.7}


@pytest.mark.parametrize(
    ("waited_for", "words", "look_at"),
    [
        ({}, "waiting for late ranks", "which rank comes last"),
        ({"late_rank": 3, "late_rank_share": 0.6}, "late ranks, mostly rank 3", "what rank 3 does"),
        ({"late_rank": 3, "late_rank_share": 0.95}, "waiting for rank 3", "what rank 3 does"),
    ],
)
def test_waiting_names_the_rank_that_is_waited_for(waited_for, words, look_at):
    evidence = {**EXPOSED, **waited_for}
    finding = written("exposed_comm", "peer_late", evidence=evidence)
    assert words in finding.text
    assert look_at in finding.advice


@pytest.mark.parametrize(
    ("meanwhile", "words", "advice"),
    [
        ("pp_comm", "it is in pp_comm for 83 % of that time", "shorten rank 1's pp_comm first"),
        ("compute", "it computes for 83 % of that time", "give rank 1 less to compute"),
        ("idle", "its GPU is idle for 83 % of that time", "why rank 1's GPU is idle"),
    ],
)
def test_waiting_says_what_the_latest_rank_does_meanwhile(meanwhile, words, advice):
    latest = {"late_rank": 1, "late_rank_share": 0.26, "late_rank_ns": 604_000_000}
    evidence = {**EXPOSED, **latest, "meanwhile": meanwhile, "meanwhile_share": 0.83}
    finding = written("exposed_comm", "peer_late", evidence=evidence)
    assert f"waiting for late ranks; rank 1 comes last by 604 ms: {words}" in finding.text
    assert finding.advice.startswith(advice) or advice in finding.advice


@pytest.mark.parametrize(
    ("free_ns", "words"),
    [
        (20_000_000, "compute could hide 20.0 ms"),
        (1_000_000, "there is no compute to hide it"),
    ],
)
def test_compute_that_could_hide_transfers_is_told_from_none(free_ns, words):
    evidence = {**EXPOSED, "free_compute_ns": free_ns, "gb_per_s": 1.94}
    finding = written("exposed_comm", "too_little_compute", evidence=evidence)
    assert words in finding.text
    assert " at 1.9 GB/s; " in finding.text


@pytest.mark.parametrize(
    ("share", "words"),
    [
        (0.47, "is exposed (no compute beside it), 47 % of that because it is queued"),
        (1.0, "is exposed (no compute beside it), because it is queued"),
    ],
)
def test_a_cause_of_a_part_of_the_exposed_time_says_which_part(share, words):
    evidence = {**EXPOSED, "cause": "same_stream", "cause_share": share}
    finding = written("exposed_comm", "same_stream", evidence=evidence)
    assert words in finding.text


@pytest.mark.parametrize(("saves_ms", "remark"), [(2.37, ""), (2.45, "more than the 2.34 ms")])
def test_a_saving_above_the_time_that_a_sentence_names_says_why(saves_ms, remark):
    """The sentence names the host's 2.34 ms, of which 2.32 are the step's."""
    finding = written(
        "pageable_copy",
        "",
        evidence={"host_ns": 2_340_000},
        cost_ns=2_320_000,
        saves_ns=round(saves_ms * 1_000_000),
    )
    budget = Budget(span_ns=60_000_000, compute_ns=10_000_000, exposed_ns={}, idle=50_000_000)
    step = Step.of(60_000_000, budget_ns=budget)
    assert remarks_on(finding, 1, step).startswith(remark)
    assert bool(remarks_on(finding, 1, step)) is bool(remark)
