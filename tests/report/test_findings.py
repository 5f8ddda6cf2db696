"""Sentences of findings: every code and case has them, and real findings fill them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import tracekit.findings
from tests.kept import analysis_of
from tracekit.documents.analysis import Budget
from tracekit.documents.findings import Finding
from tracekit.findings.host import OFFENCES
from tracekit.findings.ranks import CODES
from tracekit.findings.roles import CODES as ROLE_CODES
from tracekit.metrics.host.time_by_activity import HOST_CODES
from tracekit.report.evidence_words import MAX_FINDING_STEPS_NAMED
from tracekit.report.finding_sentences import TEXTS
from tracekit.report.findings import (
    finding_in_a_log,
    finding_line,
    shown_findings,
    with_sentences,
)
from tracekit.report.terminal.first_screen import saving
from tracekit.report.view.top import cards
from tracekit.schema import LABEL_WORDS

PACKAGE = Path(tracekit.findings.__file__).parent
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

NOTHING = Budget(compute_ns=0, exposed_ns={}, idle=0)


def codes_in_source():
    """Return the codes that modules of the package write as a constant."""
    sources = "\n".join(file.read_text() for file in PACKAGE.glob("*.py"))
    conditional = r'\bcode=\(?"([a-z_]+)"(?: if [^,]* else "([a-z_]+)")?'
    written = {code for codes in re.findall(conditional, sources) for code in codes if code}
    of_remedies = re.findall(r'\b_finding\(context, "([a-z_]+)"', sources)
    return {*OFFENCES, *CODES.values(), *ROLE_CODES, *of_remedies, *written}


CODES_WITH_TEXTS = {code for code, _ in TEXTS}


def test_every_code_has_texts():
    assert codes_in_source() == CODES_WITH_TEXTS


@pytest.mark.parametrize(("code", "case"), list(TEXTS))
def test_every_case_has_a_text_and_an_advice_in_one_sentence(code, case):
    evidence = {"label": "pp_comm"}
    finding = Finding(code=code, case=case, cost_ns=7, share=0.1, ranks=(3,), evidence=evidence)
    (finding,) = with_sentences([finding])
    assert finding.text[0].islower()
    for sentence in (finding.text, finding.advice):
        assert sentence
        assert not sentence.endswith(".")
        assert "{" not in sentence


@pytest.mark.parametrize("case", [*HOST_CODES, "checkpoint", "evaluation", "unknown"])
def test_every_cause_of_a_slow_step_has_a_sentence(case):
    evidence = dict.fromkeys(
        ("step", "time_ns", "usual_ns", "extra_ns", "copies_to_host", "forward_events"), 7_000_000
    )
    finding = Finding(code="slow_step", case=case, cost_ns=1, share=0.1, evidence=evidence)
    (finding,) = with_sentences([finding])
    assert "unknown" not in finding.text + finding.advice
    assert case == "unknown" or ("slow_step", case) in TEXTS


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
    finding = Finding(code="host_sync", cost_ns=1, share=0.1, evidence={"calls_per_step": count})
    assert (
        with_sentences([finding])[0].text
        == f"the CPU stops {words} to wait for the GPU; after each stop the GPU runs out of work"
    )


@pytest.mark.parametrize(("share", "is_shown"), [(0.011, True), (0.009, False)])
def test_findings_below_one_percent_are_not_shown(share, is_shown):
    assert bool(shown_findings([Finding(code="allocator", cost_ns=1, share=share)])) is is_shown


def test_a_line_ends_with_the_saving():
    evidence = {"gap_ns": 9, "part_ns": 2_500_000, "schedule": "1f1b"}
    finding = Finding(
        code="schedule_gap",
        case="order",
        cost_ns=9,
        share=0.1,
        evidence=evidence,
        saves_ns=2_000_000,
    )
    assert finding_line(*with_sentences([finding])) == (
        "the pipeline takes 2.50 ms longer than 1f1b needs, because operations run in another order: run the "
        "operations in the order of 1f1b (saves 2.00 ms per step)"
    )


def test_a_sentence_names_four_steps():
    evidence = {"late_ns": 1_000_000, "late_steps": 6, "recorded_steps": 9}
    finding = Finding(
        code="late_host", cost_ns=1, share=0.1, ranks=(2,), steps=tuple(range(6)), evidence=evidence
    )
    (finding,) = with_sentences([finding])
    assert MAX_FINDING_STEPS_NAMED == 4
    assert "in steps 0, 1, 2, 3" in finding.text
    assert "4, 5" not in finding.text


@pytest.mark.parametrize("code", ["python", "host_compute"])
def test_the_idle_time_that_a_sentence_names_is_what_the_finding_costs(code):
    evidence = {"idle_ns": 1_770_000, "name": "aten::add"}
    finding = Finding(code=code, cost_ns=3_180_000, share=0.03, evidence=evidence)
    assert "idle for 3.18 ms" in with_sentences([finding])[0].text


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
    assert ("saved at most" in cards([finding], NOTHING)[0].of_step) == is_bound


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
    finding = Finding(
        code="exposed_comm", case="peer_late", cost_ns=1, share=0.1, evidence=evidence
    )
    (worded,) = with_sentences([finding])
    assert words in worded.text
    assert look_at in worded.advice


@pytest.mark.parametrize(
    ("free_ns", "words"),
    [
        (20_000_000, "compute could hide only 20.0 ms of it"),
        (1_000_000, "there is no compute to hide it"),
    ],
)
def test_compute_that_could_hide_transfers_is_told_from_none(free_ns, words):
    evidence = {**EXPOSED, "free_compute_ns": free_ns, "gb_per_s": 1.94}
    finding = Finding(
        code="exposed_comm", case="too_little_compute", cost_ns=1, share=0.1, evidence=evidence
    )
    (worded,) = with_sentences([finding])
    assert words in worded.text
    assert ", at 1.9 GB/s; " in worded.text


@pytest.mark.parametrize("is_recorded_time", [True, False])
def test_a_gap_says_where_it_is_of_the_recording(is_recorded_time):
    evidence = {"part_ns": 82_000_000, "schedule": "1f1b", "is_recorded_time": is_recorded_time}
    finding = Finding(code="schedule_gap", case="host", cost_ns=1, share=0.1, evidence=evidence)
    (worded,) = with_sentences([finding])
    assert ("(as recorded)" in worded.text) is is_recorded_time
    assert worded.text.startswith("the pipeline takes 82.0 ms")


@pytest.mark.parametrize(
    ("share", "words"),
    [
        (0.47, "is exposed (no compute beside it), 47 % of that because it is queued"),
        (1.0, "is exposed (no compute beside it), because it is queued"),
    ],
)
def test_a_cause_of_a_part_of_the_exposed_time_says_which_part(share, words):
    evidence = {**EXPOSED, "cause": "same_stream", "cause_share": share}
    finding = Finding(
        code="exposed_comm", case="same_stream", cost_ns=1, share=0.1, evidence=evidence
    )
    assert words in with_sentences([finding])[0].text
