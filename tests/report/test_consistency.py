"""One consistency check over the view of every sample and framework trace: nothing contradicts what it rests on."""

from __future__ import annotations

import io
import re

import pytest

from tests.kept import analysis_of
from tracekit.report.evidence import collect_evidence
from tracekit.report.terminal.analysis import render
from tracekit.report.terminal.screen import Screen
from tracekit.report.view import view_of
from tracekit.schema import LABELS

pytestmark = pytest.mark.slow

SAMPLES = ("1f1b", "1f1b-noshapes", "compile", "dualpipe", "interleaved", "layers", "nsys-1f1b", "overlapped",
           "recompute", "reload", "reload-overlap", "router", "steps/a", "steps/straggler", "vpp-overlap")  # fmt: skip
FRAMEWORKS = ("cp-ring", "ds-pipe", "fp8-fsdp", "graph-trees", "hf-ddp-ckpt", "meg-moe-vpp", "meg-recompute",
              "nsys-meg-1f1b", "once-ddp", "slow-ddp", "titan-ac", "titan-fsdp", "varlen-ddp",
              "meg-moe-vpp/rank0.pt.trace.json.gz", "titan-ac/rank3.pt.trace.json.gz")  # fmt: skip
MAX_LINES = 60
CAUSE_CODES = re.compile("nothing_to_hide|compute_waited|same_stream|one_queue|launched_late|peer_late|launch_bound")


def contradictions(analysis):
    """Return what in the view of an analysis contradicts its own evidence, one sentence each."""
    view, evidence = view_of(analysis), collect_evidence(analysis)
    bad = []
    for bar in (*view.budget.bars, view.budget.mean):
        if bar.span_ns and bar.idle_known and abs(sum(part.share for part in bar.parts) - 1) > 1e-6:
            bad.append(f"{bar.name}: shares of the budget add up to {sum(part.share for part in bar.parts)}")
    for row in view.labels:
        if row.because_ns and abs(sum(row.because_ns.values()) - row.exposed_ns) > 1000:
            bad.append(f"{row.label}: causes do not add up to its exposed time")
    schedule = view.schedule
    if schedule is not None and schedule.gap is not None:
        parts = sum(rung.ns for rung in schedule.gap if rung.kind != "total")
        if abs(parts - (schedule.measured.makespan_ns - schedule.ideal.makespan_ns)) > len(schedule.gap):
            bad.append("the parts of the gap do not add up to it")
    if schedule is not None and (schedule.gap is None) != (schedule.gap_note is not None):
        bad.append("a gap is neither split nor said not to be")
    texts = [*(line.text for line in view.answer), *(advice.text for advice in view.advice)]
    bad += [f"a code word is shown: {text}" for text in texts if CAUSE_CODES.search(text)]
    shown = {row.label for row in view.labels}
    named = {label for text in texts for label in LABELS if "_" in label and re.search(rf"\b{label}\b", text)}
    bad += [f"{label} is named and not shown" for label in named - shown]
    advice = " ".join(advice.text for advice in view.advice)
    if evidence.one_sided is not None and re.search("fewer bytes|faster links|stays exposed", advice):
        bad.append("transfer is advised about while not all sides were recorded")
    if evidence.cuda_graphs and re.search(": CUDA graphs|earlier: CUDA", advice):
        bad.append("CUDA graphs are recommended to a run that uses them")
    if evidence.no_prediction_reason and "`--what-if`" in advice:
        bad.append("predictions are advertised that cannot be made")
    if evidence.missing_ranks and evidence.missing_ranks.split(" and ")[0] not in view.ranks:
        bad.append("missing ranks are not in the first line")
    return bad


def lines_of(analysis, width, **options):
    out = io.StringIO()
    render(analysis, Screen(file=out, width=width), **options)
    return out.getvalue().splitlines()


def check(analysis):
    assert contradictions(analysis) == []
    for width in (80, 120):
        lines = lines_of(analysis, width, full=False)
        assert len(lines) <= MAX_LINES, f"{len(lines)} lines at {width} columns"
        assert lines[0].startswith("tracekit ")


@pytest.mark.parametrize("sample", SAMPLES)
def test_nothing_contradicts_its_evidence_in_a_sample(samples, sample):
    check(analysis_of(samples / sample))


@pytest.mark.parametrize("trace", FRAMEWORKS)
def test_nothing_contradicts_its_evidence_in_a_framework_trace(corpus, trace):
    check(analysis_of(corpus.parent / "frameworks" / trace))


def test_a_page_that_was_written_is_not_suggested(samples):
    found = analysis_of(samples / "1f1b")
    suggestion = "-o report.html"
    assert suggestion in "\n".join(lines_of(found, 80, full=False))
    assert suggestion not in "\n".join(lines_of(found, 80, full=False, page_written=True))


def test_the_short_report_says_how_to_get_the_rest(samples):
    found = analysis_of(samples / "1f1b")
    assert any(line.startswith("--full prints all tables") for line in lines_of(found, 200, full=False))
    assert not any("--full" in line for line in lines_of(found, 200))


@pytest.mark.parametrize(
    ("ranks", "first_line"),
    [((0, 1, 2, 3), "tracekit 4 ranks · step 2"), ((0, 1, 3), "tracekit 3 of 4 ranks (rank 2 missing) · step 2")],
)
def test_missing_ranks_are_in_the_first_line_of_the_shortest_output(samples, ranks, first_line):
    found = analysis_of(samples / "1f1b", ranks=ranks, schedule="none")
    assert lines_of(found, 120, brief=True)[0].startswith(first_line)


def test_another_schedule_is_compared_with_and_not_called_what_ran(samples):
    schedule = view_of(analysis_of(samples / "1f1b", schedule="dualpipe")).schedule
    assert (schedule.name, schedule.compared_with, schedule.exact) == ("1f1b", "dualpipe", True)
    document = analysis_of(samples / "1f1b", schedule="dualpipe").to_dict()["schedule"]
    assert (document["name"], document["compared_with"]) == ("1f1b", "dualpipe")
