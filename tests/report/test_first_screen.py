"""The first screen: what takes the time and what to do first, within its lines and columns."""

from __future__ import annotations

import html
import io
import re
from types import SimpleNamespace

import polars as pl
import pytest

from tests.kept import analysis_of
from tests.written_findings import written
from tracekit._util.text import short_ms
from tracekit.analysis.result import Rooms
from tracekit.documents.analysis import Budget, Step, StepTime
from tracekit.documents.findings import Finding
from tracekit.errors import Notice
from tracekit.record.answer import answer_of
from tracekit.report import first_screen as content
from tracekit.report.clock_words import badge_of
from tracekit.report.findings import (
    finding_in_a_log,
    finding_line,
    first_findings,
)
from tracekit.report.first_screen import (
    budget_parts,
    certainty,
    significant_digits,
    what_computes,
)
from tracekit.report.html.finding_links import figure_of
from tracekit.report.html.page import render_html
from tracekit.report.markdown import render_markdown
from tracekit.report.notices import NoticeLine
from tracekit.report.terminal.analysis import render
from tracekit.report.terminal.first_screen import first_screen, headline, saving
from tracekit.report.terminal.screen import Screen
from tracekit.rooms import all_kinds
from tracekit.schema import Source

MS = 1_000_000
RUNS = ("slow-ddp", "1f1b", "megatron-moe", "rl", "reload", "rates")


def lines_of(analysis, width, **options):
    out = io.StringIO()
    screen = Screen(file=out, width=width)
    screen.columns = width
    render(analysis, screen, full=False, **options)
    return out.getvalue().rstrip("\n").split("\n")


@pytest.mark.parametrize("run", RUNS)
def test_the_shortest_output_is_the_beginning_of_the_first_screen_up_to_the_first_finding(
    samples, run
):
    for width in (60, 80, 132):
        brief = lines_of(analysis_of(samples / run), width, brief=True)
        lines = lines_of(analysis_of(samples / run), width)
        assert brief == lines[: len(brief)]
        assert sum(bool(re.match(r" \d ", line)) for line in brief) == 1
        assert re.match(r" 2 |  how sure", lines[len(brief)])


@pytest.mark.parametrize("run", RUNS)
def test_the_first_line_states_the_step_time_and_no_line_is_wider_than_the_terminal(samples, run):
    analysis = analysis_of(samples / run)
    for width in (60, 80, 132):
        lines = lines_of(analysis, width)
        first = lines[: next((i for i, line in enumerate(lines) if line == "Schedule"), len(lines))]
        assert max(map(len, first)) <= width
        iterations = analysis.role_results.iterations
        times_ns = [each.end_ns - each.start_ns for each in iterations] or [analysis.step.stated_ns]
        for time_ns in (min(times_ns), max(times_ns)):
            assert short_ms(time_ns) in lines[0]
    assert " · · " not in lines[0]


def test_a_finding_shows_its_saving_its_share_and_its_advice(samples):
    analysis = analysis_of(samples / "slow-ddp")
    text = " ".join(" ".join(lines_of(analysis, 80)).split())
    first = analysis.findings[0]
    assert saving(first).split()[0] in text
    assert " ".join(first.advice.split()) in text


def test_an_ascii_terminal_tells_compute_from_communication(samples):
    out = io.TextIOWrapper(io.BytesIO(), encoding="ascii", errors="replace")
    render(analysis_of(samples / "slow-ddp"), Screen(file=out, width=80), full=False)
    out.flush()
    bar = out.buffer.getvalue().decode("ascii").split("\n")[1]
    assert re.match(r"#+=+", bar)


def test_parts_below_half_a_percent_are_not_named():
    parts = budget_parts(
        Budget(span_ns=1000, compute_ns=600, exposed_ns={"dp_comm": 390, "memory": 4}, idle=6)
    )
    assert [part.name for part in parts] == ["compute", "dp_comm exposed", "idle"]


def test_further_exposed_labels_are_summed():
    parts = budget_parts(
        Budget(
            span_ns=100,
            compute_ns=40,
            exposed_ns={"dp_comm": 24, "pp_comm": 20, "tp_comm": 6, "cp_comm": 6, "comm": 4},
            idle=0,
        )
    )
    assert (parts[-1].name, parts[-1].ns) == ("the rest exposed", 10)


def test_a_finding_without_a_predicted_saving_shows_its_cost():
    finding = Finding(code="slow_kernel", cost_ns=4_000_000, share=0.2)
    assert saving(finding).split() == ["≤", "4.00", "ms", "20", "%"]


OPERATOR_TIMES = {
    "label": pl.String,
    "op": pl.String,
    "inputs": pl.String,
    "largest": pl.String,
    "ns": pl.Float64,
}


def view(**values):
    """Return what the first screen reads of a run of one rank and one step of 100 ms, with *values* instead."""
    step = Step.of(
        100 * MS,
        per_step=(StepTime(0, 100 * MS),),
        budget_ns=Budget(span_ns=100 * MS, compute_ns=100 * MS, exposed_ns={}, idle=0),
    )
    kernels = pl.DataFrame(schema={"label": pl.String, "module": pl.String, "ns": pl.Float64})
    findings = tuple(values.pop("findings", ()))
    warnings = values.pop("warnings", ())
    devices = values.pop("devices", ())
    name = values.pop("run_name", "run")
    tables = {
        "kernels": kernels,
        "operators": pl.DataFrame(schema=OPERATOR_TIMES),
        "host_time": pl.DataFrame(),
        **values.pop("tables", {}),
    }
    span = SimpleNamespace(budget=SimpleNamespace(span_ns=1))
    facts = {
        "step": step,
        "total": SimpleNamespace(idle_known=True, pipeline=True),
        "role_results": SimpleNamespace(iterations=(), roles=()),
        "step_kinds": (),
        "rooms": Rooms(),
        "notices": tuple(
            Notice(line.code, line.message, severity=line.severity) for line in warnings
        ),
        "ranks": [SimpleNamespace(rank=0, whole=span)],
        "world_size": None,
        "clocks": SimpleNamespace(residual_ns=None),
        "comparison": None,
        "paths": (name,) if name else ("a/x", "b/y"),
        "sources": [Source("rank0.json", "kineto", 0, "content", devices=devices)],
        "document": SimpleNamespace(findings=findings),
        "tables": tables,
    }
    return SimpleNamespace(**{**facts, **values})


def first_line(shown, width=80):
    return headline(content.headline(shown), width).plain


def finding(share, **values):
    return Finding(code="slow_kernel", cost_ns=round(share * 100 * MS), share=share, **values)


@pytest.mark.parametrize(("share", "is_shown"), [(0.029, False), (0.031, True)])
def test_a_finding_below_three_percent_is_left_to_the_full_report(share, is_shown):
    text = "\n".join(
        line.plain for line in first_screen(view(findings=(finding(0.5), finding(share))), 80)
    )
    assert (f"≤ {share * 100:.2f} ms" in text) is is_shown
    assert ("--full (1 more finding: slow kernels)" in text) is not is_shown


def test_the_first_finding_is_shown_however_small_it_is():
    assert "≤ 1.50 ms" in "\n".join(
        line.plain for line in first_screen(view(findings=(finding(0.015),)), 80)
    )


def test_advice_is_not_repeated():
    lines = [line.plain for line in first_screen(view(findings=(finding(0.5), finding(0.4))), 80)]
    assert [line for line in lines if line.strip().startswith("→")][1] == "    → as for 1"


@pytest.mark.parametrize(("compute", "is_split"), [(79, False), (81, True)])
def test_a_run_that_mostly_computes_shows_which_part_of_the_model_does(compute, is_split):
    rows = [
        ("forward", "mlp", 60.0),
        ("forward", "attention", 38.0),
        ("forward", "norm", 2.1),
        ("pp_comm", "x", 50.0),
    ]
    kernels = pl.DataFrame(rows, schema=["label", "module", "ns"], orient="row")
    shown = view(tables={"kernels": kernels})
    budget = Budget(
        span_ns=100 * MS, compute_ns=compute * MS, exposed_ns={}, idle=(100 - compute) * MS
    )
    shown.step = Step.of(100 * MS, budget_ns=budget)
    text = "the GPU computes for 81.0 of 100 ms: mlp 60 %, attention 38 %, norm 2 %"
    assert what_computes(shown) == (text if is_split else "")


@pytest.mark.parametrize(("share", "is_named"), [(1.9, False), (2.1, True)])
def test_parts_of_the_model_below_two_percent_of_compute_are_not_named(share, is_named):
    rows = [
        ("forward", "mlp", 60.0),
        ("forward", "attention", 40.0 - share),
        ("forward", "norm", share),
    ]
    shown = view(
        tables={"kernels": pl.DataFrame(rows, schema=["label", "module", "ns"], orient="row")}
    )
    assert ("norm" in what_computes(shown)) is is_named


@pytest.mark.parametrize(("error_ms", "digits"), [(0.9, 3), (1.1, 2), (None, 2)])
def test_times_that_compare_ranks_have_as_many_digits_as_clocks_allow(error_ms, digits):
    """Up to 1 % of the step of 100 ms, three digits."""
    residual_ns = None if error_ms is None else round(error_ms * MS)
    shown = view(ranks=[0, 1])
    shown.clocks = SimpleNamespace(residual_ns=residual_ns)
    assert significant_digits(shown) == digits


@pytest.mark.parametrize("run", ["1f1b", "slow-ddp"])
def test_the_terminal_says_of_clocks_what_the_page_says(samples, run):
    analysis = analysis_of(samples / run)
    of_the_page = badge_of(analysis).text
    assert re.fullmatch(
        r"clocks agree|(clocks within|ranks' clocks known to) [\d.]+ [mµ]s", of_the_page
    )
    assert of_the_page in certainty(analysis)
    assert of_the_page in " ".join(lines_of(analysis, 200))
    assert certainty(view()) == ["one step", "GPU not named: pass `--gpu`"]


def test_a_header_without_a_device_has_no_empty_part():
    assert first_line(view()) == "run · 1 rank · 1 step · 100 ms a step"
    assert first_line(view(run_name="")) == "1 rank · 1 step · 100 ms a step"


@pytest.mark.parametrize(
    ("width", "line"),
    [
        (80, "run · 1 rank · 1 step · H200 (12 or 32 of 132 SMs) · 100 ms a step"),
        (60, "run · 1 rank · 1 step · H200 · 100 ms a step"),
        (40, "run · 1 rank · H200 · 100 ms a step"),
        (32, "1 rank · H200 · 100 ms a step"),
        (26, "1 rank · 100 ms a step"),
    ],
)
def test_a_narrow_header_keeps_the_name_of_the_gpu_longer_than_what_the_reader_knows(width, line):
    device = "NVIDIA H200 (12 or 32 of 132 multiprocessors)"
    assert first_line(view(devices=(device,)), width) == line


def test_a_name_that_is_too_long_for_the_header_takes_no_steps_with_it():
    named = view(run_name="worker_of_a_job_with_a_name_that_is_long", devices=("NVIDIA H200",))
    assert first_line(named, 50) == "1 rank · 1 step · H200 · 100 ms a step"


@pytest.mark.parametrize(
    ("device", "model"),
    [
        ("Tesla V100-SXM2-32GB", "V100"),
        ("AMD Instinct MI300X VF", "MI300X"),
        ("NVIDIA GeForce RTX 4090", "RTX 4090"),
        ("AMD Radeon Graphics", ""),
    ],
)
def test_a_long_name_of_a_gpu_is_cut_to_its_model_before_it_is_left_out(device, model):
    ranks = "1 of 2 ranks (rank 1 missing)"
    plain = first_line(view(devices=(device,), world_size=2), 58)
    assert plain == " · ".join(filter(None, (ranks, model, "100 ms a step")))


def test_without_findings_there_is_none_to_explain():
    without, with_one = (
        "\n".join(line.plain for line in first_screen(view(findings=findings), 80))
        for findings in ((), (finding(0.5),))
    )
    assert "--explain" not in without
    assert "--explain 1" in with_one


def test_the_iterations_of_an_rl_loop_are_the_bar(samples):
    lines = lines_of(analysis_of(samples / "rl"), 80)
    assert "an iteration" in lines[0]
    assert re.search(r"rollout \d+ %  train \d+ %  weight update \d+ %  idle \d+ %", lines[1])


@pytest.mark.parametrize("run", RUNS)
def test_the_first_screen_has_about_twelve_lines(samples, run):
    lines = lines_of(analysis_of(samples / run), 80)
    first = lines[: next((i for i, line in enumerate(lines) if line == "Schedule"), len(lines))]
    assert len([line for line in first if line]) <= 17


@pytest.mark.parametrize("run", ["1f1b", "rl"])
def test_the_first_screen_heads_every_output(samples, run):
    """Terminal, Markdown, page, and the sentences for programs and logs."""
    analysis = analysis_of(samples / run)
    out = io.StringIO()
    render(analysis, Screen(file=out, width=400), full=True)
    page = html.unescape(re.sub(r"<[^>]*>", "", render_html(analysis)))
    texts = [out.getvalue(), render_markdown(analysis), page, "\n".join(answer_of(analysis).lines)]
    facts = content.headline(analysis)
    bar = content.bar(analysis)
    first = analysis.findings[0].text
    for text in texts:
        plain = text.replace("\N{NO-BREAK SPACE}", " ").replace("\\", "")
        places = [plain.lower().index(words.lower()) for words in (facts.time, bar.words[0], first)]
        assert places == sorted(places)


def test_the_bar_and_its_shares_are_of_the_step_without_the_profiler():
    """15 ms of which 14 compute, recorded as 23 ms: the profiler's 8 ms are no idle time."""
    shown = view()
    free = Budget(span_ns=15 * MS, compute_ns=14 * MS, exposed_ns={}, idle=MS)
    recorded = Budget(span_ns=23 * MS, compute_ns=14 * MS, exposed_ns={}, idle=9 * MS)
    shown.step = Step.of(
        23 * MS,
        budget_ns=recorded,
        free_ns=15 * MS,
        free_range_ns=(14 * MS, 17 * MS),
        free_budget_ns=free,
    )
    lines = [line.plain for line in first_screen(shown, 100)]
    assert lines[0].endswith("15.0 ms a step without the profiler")
    assert lines[1].endswith("compute 93 %  idle 7 %")
    assert (lines[1].count("█"), lines[1].count("░")) == (30, 2)
    assert lines[2] == "15.0 ms is an estimate (14.0–17.0); with the profiler a step took 23.0 ms"


def test_a_step_that_was_timed_is_no_estimate():
    shown = view()
    budget = Budget(span_ns=15 * MS, compute_ns=15 * MS, exposed_ns={}, idle=0)
    shown.step = Step.of(
        23 * MS, budget_ns=budget, free_ns=15 * MS, free_from="timed", free_budget_ns=budget
    )
    text = " ".join(line.plain for line in first_screen(shown, 100))
    assert "15.0 ms was timed before the profiler started; with the profiler" in text
    assert "estimate" not in text


def test_the_first_warning_is_named_in_a_line():
    lines = NoticeLine("damaged", "rank 0: a warning"), NoticeLine("damaged", "another")
    for warnings, line in (
        (lines[:1], "  warning: rank 0: a warning"),
        (lines, "  2 warnings (--full), first: rank 0: a warning"),
    ):
        shown = [each.plain for each in first_screen(view(warnings=warnings), 80)]
        assert [each for each in shown if "warning" in each] == [line]


@pytest.mark.parametrize(
    ("code", "share", "is_shown"),
    [("host_sync", 0.021, True), ("host_sync", 0.019, False), ("python", 0.021, False)],
)
def test_what_a_changed_line_mends_is_shown_from_two_percent_on(code, share, is_shown):
    small = Finding(code=code, cost_ns=round(share * 100 * MS), share=share)
    text = "\n".join(line.plain for line in first_screen(view(findings=(finding(0.5), small)), 80))
    assert (f"\n 2 ≤ {share * 100:.2f} ms" in text) is is_shown


def test_there_is_room_for_one_small_finding_that_a_changed_line_mends():
    """Behind one large finding; not behind three, and not where such a finding is shown already."""
    large = finding(0.5)
    small = Finding(code="host_sync", cost_ns=2 * MS, share=0.02)
    for findings, is_shown in (
        ((large, small, small), True),
        ((large, large, large, small), False),
        ((Finding(code="allocator", cost_ns=9 * MS, share=0.09), small), False),
    ):
        lines = [line.plain for line in first_screen(view(findings=findings), 200)]
        assert sum("≤ 2.00 ms" in line for line in lines) == is_shown


def test_a_faster_host_may_save_more_than_idle_because_transfers_get_shorter():
    budget = Budget(
        span_ns=100 * MS, compute_ns=60 * MS, exposed_ns={"dp_comm": 30 * MS}, idle=10 * MS
    )
    words = "more than the GPU is idle: exposed dp_comm gets shorter, too"
    for saves_ms, is_said in ((11, True), (10, False)):
        late = Finding(code="launch_bound", cost_ns=10 * MS, share=0.1, saves_ns=saves_ms * MS)
        shown = view(findings=(late,))
        shown.step = Step.of(100 * MS, budget_ns=budget)
        assert (words in " ".join(line.plain for line in first_screen(shown, 200))) is is_said


def test_phases_of_an_rl_loop_have_signs_of_their_own(samples):
    lines = lines_of(analysis_of(samples / "rl"), 80)
    assert len(set(lines[1].split()[0])) == len(re.findall(r"\d+ %", lines[1]))


def test_a_profiler_that_adds_less_than_a_twentieth_is_not_mentioned():
    shown = view()
    budget = Budget(span_ns=104 * MS, compute_ns=100 * MS, exposed_ns={}, idle=4 * MS)
    shown.step = Step.of(
        104 * MS, budget_ns=budget, free_ns=100 * MS, free_range_ns=(98 * MS, 104 * MS)
    )
    text = " ".join(line.plain for line in first_screen(shown, 100))
    assert "104 ms a step" in text
    assert "profiler" not in text


@pytest.mark.parametrize(
    ("is_marked", "words"), [(True, "saves per step"), (False, "saves of the")]
)
def test_without_marks_of_steps_savings_are_of_the_recording(is_marked, words):
    shown = view(findings=(finding(0.5),))
    shown.step = Step.of(100 * MS, marked=is_marked)
    heading = next(line.plain for line in first_screen(shown, 120) if "What to do" in line.plain)
    assert words in heading


def test_a_finding_names_only_those_before_it_that_it_shares_its_time_with():
    first = finding(0.5, saves_ns=50 * MS, shares_time_with=(2,), saves_after_ns=50 * MS)
    second = finding(0.4, saves_ns=40 * MS, shares_time_with=(1,), saves_after_ns=0)
    text = " ".join(line.plain for line in first_screen(view(findings=(first, second)), 200))
    assert text.count("shares its time with") == 1
    assert "shares its time with 1: nothing is left to save after it" in text


def test_what_faster_links_would_save_says_so_and_is_no_bound():
    links = written(
        "exposed_comm",
        "too_little_compute",
        cost_ns=40 * MS,
        share=0.4,
        saves_range_ns=(0, 20 * MS),
        evidence={"label": "dp_comm", "exposed_ns": 40 * MS, "gb_per_s": 2.0},
    )
    assert links.text.endswith("links twice as fast would save 20.0 ms")
    lines = [line.plain for line in first_screen(view(findings=(links,)), 200)]
    assert any("20.0 ms  20 %" in line for line in lines)
    assert not any("≤" in line for line in lines)
    assert finding_line(links).endswith("(saves 20.0 ms per step)")
    assert "at most" not in finding_in_a_log(links)
    assert figure_of(links) == "20.0 ms"


def test_every_finding_has_a_title():
    assert all(kind.title for kind in all_kinds().values())


@pytest.mark.parametrize(("count", "titles"), [(3, ": optimizer, CPU runs Python"), (4, "")])
def test_up_to_three_further_findings_are_named_by_their_titles(count, titles):
    codes = ("optimizer", "python", "python", "recompute")[:count]
    small = [Finding(code=code, cost_ns=2 * MS, share=0.02) for code in codes]
    text = " ".join(line.plain for line in first_screen(view(findings=(finding(0.5), *small)), 200))
    assert f"--full ({count} more findings{titles})" in text


def test_what_one_iteration_has_is_not_a_share_of_all_of_them():
    once = {"iteration": 0, "iterations": 2, "recurs": False}
    late = Finding(code="rollout", case="late_start", cost_ns=MS, share=0.45, evidence=once)
    assert saving(late).split() == ["≤", "1.00", "ms", "once"]
    between = Finding(
        code="rollout", case="between_roles", cost_ns=MS, share=0.45, evidence={"recurs": False}
    )
    assert saving(between).split() == ["≤", "1.00", "ms", "45", "%"]


def test_what_is_left_of_compute_is_named():
    rows = [("forward", "mlp", 60.0), ("forward", "attention", 30.0), ("forward", None, 10.0)]
    kernels = pl.DataFrame(rows, schema=["label", "module", "ns"], orient="row")
    shown = view(tables={"kernels": kernels})
    assert what_computes(shown).endswith("mlp 60 %, attention 30 %, the rest 10 %")


def parts_of(operators, modules=()):
    """Return what the first screen says of operators (label, name, sizes, time) and parts of a model."""
    rows = [(label, op, size, size, ns) for label, op, size, ns in operators]
    tables = {
        "operators": pl.DataFrame(rows, schema=OPERATOR_TIMES, orient="row"),
        "kernels": pl.DataFrame(modules, schema=["label", "module", "ns"], orient="row"),
    }
    return what_computes(view(tables=tables)).partition(": ")[2]


TRAINING = [
    ("optimizer", "aten::_fused_adam_", "4,000,000 × 64", 62.0),
    ("wgrad", "aten::mm", "512 × 512", 15.0),
    ("dgrad", "aten::mul", "64", 5.0),
    ("forward", None, None, 18.0),
]


def test_phases_and_operators_are_named_where_parts_of_the_model_are_not_known():
    modules = [("optimizer", None, 62.0), ("wgrad", "norm", 5.0), ("forward", None, 33.0)]
    words = "optimizer 62 % (_fused_adam_ on 4,000,000 × 64), backward 20 % (15 % mm), forward 18 %"
    assert parts_of(TRAINING, modules) == words


@pytest.mark.parametrize(("known", "is_named"), [(18.0, False), (20.0, True)])
def test_parts_of_the_model_are_named_from_half_of_the_work_outside_the_optimizer(known, is_named):
    modules = [("optimizer", None, 62.0), ("forward", "mlp", known), ("dgrad", None, 38 - known)]
    shown = parts_of(TRAINING, modules)
    words = "optimizer 62 % (_fused_adam_ on 4,000,000 × 64), mlp 20 %, the rest 18 %"
    assert (shown == words) is is_named


def test_one_phase_has_its_operators_named():
    operators = [
        ("forward", "aten::convolution", "8 × 3", 40.0),
        ("forward", "aten::convolution", "9 × 3", 30.0),
        ("forward", "aten::relu_", "8 × 3", 29.0),
        ("forward", "aten::mul", "8 × 3", 1.0),
    ]
    modules = [("forward", None, 100.0)]
    assert parts_of(operators, modules) == "convolution on 8 × 3 70 %, relu_ on 8 × 3 29 %"


def test_a_warning_whose_first_clause_is_long_takes_two_lines_and_is_not_cut():
    message = "captured graphs ran for 0.274 ms of the recording without a kernel in the file: not counted"
    shown = [line.plain for line in first_screen(view(warnings=[NoticeLine("x", message)]), 60)]
    begin = next(i for i, line in enumerate(shown) if "warning" in line)
    assert " ".join(" ".join(shown[begin : begin + 2]).split()) == f"warning: {message}"
    longer = NoticeLine("x", " ".join(["word"] * 90))
    shown = [line.plain for line in first_screen(view(warnings=[longer]), 60)]
    assert sum("word" in line for line in shown) == 2


def test_a_long_warning_ends_with_a_clause():
    message = f"rank 0: 117 GPU events ran between steps: not counted; {'w' * 40}"
    shown = first_screen(view(warnings=[NoticeLine("outside-steps", message)]), 80)
    warning = next(line.plain for line in shown if "warning" in line.plain)
    assert warning == "  warning: rank 0: 117 GPU events ran between steps: not counted"


@pytest.mark.parametrize(("number", "shown"), [(3, [1, 2, 3]), (4, [1, 4])])
def test_one_finding_before_a_quick_remedy_is_shown_with_it(number, shown):
    """A changed line mends the third, or the fourth of all, behind one large and small ones."""
    small = Finding(code="slow_kernel", cost_ns=2 * MS, share=0.02)
    quick = Finding(code="host_sync", cost_ns=2 * MS, share=0.02)
    findings = [finding(0.5), *[small] * (number - 2), quick]
    assert [each for each, _ in first_findings(findings)] == shown


def test_work_before_the_first_step_is_no_warning_of_the_first_screen():
    harmless = NoticeLine("outside-steps", "7 GPU events ran before the first step", "note")
    shown = first_screen(view(warnings=[harmless]), 80)
    assert not any("warning" in line.plain for line in shown)
    both = first_screen(view(warnings=[harmless, NoticeLine("damaged", "a cut file")]), 80)
    assert "  warning: a cut file" in [line.plain for line in both]
