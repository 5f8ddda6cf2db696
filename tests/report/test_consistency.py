"""One consistency check over the view of samples, framework traces, damaged traces and pairs of runs.

Nothing that a report says contradicts what it rests on.
"""

from __future__ import annotations

import gzip
import html
import io
import itertools
import json
import math
import re
import shutil

import pytest

from tests.kept import analysis_of
from tracekit import diff
from tracekit._util.text import short_ms
from tracekit.documents.findings import MIN_SHARE_TO_SHOW
from tracekit.errors import InputError
from tracekit.graph.change import parse_change
from tracekit.memory.view import memory_table
from tracekit.report.ci import words
from tracekit.report.findings import bound_sign, finding_in_a_log, finding_line, main_findings
from tracekit.report.first_screen import finding_items, first_sentences, headline
from tracekit.report.gap_words import warnings_of
from tracekit.report.html.finding_links import figure_of, share_words
from tracekit.report.markdown import render_markdown
from tracekit.report.run_facts import describe_ranks
from tracekit.report.sections.budget import budgets_of_ranks, mean_budget
from tracekit.report.sections.changed_steps import changes_table
from tracekit.report.sections.idle import idle_table
from tracekit.report.sections.overlap import label_rows
from tracekit.report.sections.rates import experts_table
from tracekit.report.sections.schedule import gap_rungs, gap_table, what_if_hint
from tracekit.report.terminal.analysis import render
from tracekit.report.terminal.explain import explain_finding
from tracekit.report.terminal.first_screen import first_screen, saving
from tracekit.report.terminal.screen import Screen
from tracekit.report.text import capitalize
from tracekit.report.write import render_json
from tracekit.run.analyze import analyze
from tracekit.schema import EXPOSURE_CAUSES, GAP_CAUSES, IDLE_CAUSES, LABELS

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("measured_once")]

SAMPLES = ("1f1b", "1f1b-noshapes", "compile", "dualpipe", "interleaved", "layers", "nsys-1f1b", "overlapped",
           "recompute", "reload", "reload-overlap", "router", "steps/a", "steps/straggler", "vpp-overlap")  # fmt: skip
FRAMEWORKS = ("cp-ring", "ds-pipe", "fp8-fsdp", "graph-trees", "hf-ddp-ckpt", "meg-moe-vpp", "meg-recompute",
              "nsys-meg-1f1b", "once-ddp", "slow-ddp", "titan-ac", "titan-fsdp", "varlen-ddp",
              "meg-moe-vpp/rank0.pt.trace.json.gz", "titan-ac/rank3.pt.trace.json.gz")  # fmt: skip
TIME = re.compile(r"[\d,.]+ (?:s|ms|µs)")
MAX_LINES = 60
MAX_COMBINED = 3
"""Changes of a run's first findings that are replayed in pairs."""
MAX_REPLAY_NOISE_SHARE = 0.001
"""Share of the step by which two replays of the same changes may differ."""
RECORDINGS = ("everyday/*", "everyday-free/*", "checked/*", "h200/*", "recording-cost/*/*", "always-on/*",
              "public/amd-ddp", "public/captures/*", "public/dlrm-8ranks", "public/hta/*", "public/inference/*",
              "public/kineto/*", "public/models/*", "public/nsight/*", "public/tracelens/*",
              "public/tracelens-evals/*")  # fmt: skip
"""Folders of the corpus whose recordings no two outputs may disagree about."""
CODE_WORDS = re.compile(
    r"\b("
    + "|".join(code for code in (*EXPOSURE_CAUSES, *GAP_CAUSES, *IDLE_CAUSES) if "_" in code)
    + r")\b"
)


def contradictions(analysis):
    """Return what in the view of an analysis contradicts its own evidence, one sentence each."""
    bad = []
    for row in (*budgets_of_ranks(analysis), mean_budget(analysis)):
        total = sum(row.bar.shares.values())
        if row.bar.whole_ns and row.whole.idle_known and abs(total - 1) > 1e-6:
            bad.append(f"{row.name}: shares of the budget add up to {total}")
    labels = label_rows(analysis)
    for row in labels:
        if row.because_ns and abs(sum(row.because_ns.values()) - row.exposed_ns) > 1000:
            bad.append(f"{row.label}: causes do not add up to its exposed time")
    schedule = analysis.comparison
    rungs = None if schedule is None else gap_rungs(schedule)
    if rungs is not None:
        parts = sum(rung.ns for rung in rungs if rung.kind != "total")
        if abs(parts - (schedule.head.measured_ns - schedule.head.ideal_ns)) > len(rungs):
            bad.append("the parts of the gap do not add up to it")
    if schedule is not None and not gap_table(schedule).notes[0]:
        bad.append("a gap is neither split nor said not to be")
    findings = main_findings(analysis)
    texts = [*first_sentences(analysis), *map(finding_line, findings)]
    shown = {row.label for row in labels}
    named = {
        label
        for text in texts
        for label in LABELS
        if "_" in label and re.search(rf"\b{label}\b", text)
    }
    bad += [f"{label} is named and not shown" for label in named - shown]
    ranks = {int(number) for text in texts for number in re.findall(r"\branks? (\d+)", text)}
    expected_ranks = {source.rank for source in analysis.sources} | set(
        range(analysis.world_size or 0)
    )
    bad += [f"rank {rank} is named and not in the run" for rank in ranks - expected_ranks]
    advice = " ".join(map(finding_line, findings))
    hint = getattr(what_if_hint(analysis), "text", "")
    if schedule is not None and schedule.no_prediction_reason and "`--what-if`" in hint:
        bad.append("predictions are advertised that cannot be made")
    if not analysis.total.pipeline and any(
        notice.code == "no-pipeline" for notice in warnings_of(analysis)
    ):
        bad.append("a run without a pipeline is warned that it has none")
    return [
        *bad,
        *_findings(analysis, findings, advice),
        *_steps(analysis),
        *_prices(analysis),
        *_wording(analysis),
        *_outputs(analysis),
        *_remarks(analysis),
        *_changes(analysis),
        *_order_of_ranks(analysis),
        *_savings(analysis),
        *_ranges(analysis),
        *_shares(json.loads(render_json(analysis)), "document"),
    ]


def _findings(analysis, shown, advice):
    """Return findings that contradict each other or the run."""
    findings = analysis.findings
    one_sided = {
        finding.evidence.get("labels") for finding in findings if finding.code == "recording"
    }
    for finding in findings:
        if finding.code == "exposed_comm" and finding.evidence.get("label", "no label") in " ".join(
            map(str, one_sided)
        ):
            yield "transfer is advised about while not all sides were recorded"
    if analysis.tables["reasons"]["in_graph"].any() and re.search(
        "(CUDA|HIP|captured) graphs or|(: |use )(CUDA|HIP|captured) graphs", advice
    ):
        yield "graphs are recommended to a run that uses them"
    is_small = [finding.effect_share < MIN_SHARE_TO_SHOW for finding in findings]
    if is_small != sorted(is_small):
        yield "a finding under 1 % of the step stands before one that is not"
    if shown != findings[: len(shown)]:
        yield "a finding has one number in the JSON and another one on the screen"
    if any(finding.case == "ranks" for finding in findings) and "missing" not in describe_ranks(
        analysis
    ):
        yield "missing ranks are not in the first line"


def _steps(analysis):
    """Return ranks whose steps overlap, or take longer together than their recording."""
    recorded = analysis.tables["steps"].drop_nulls("time_ns").sort("rank", "interval_start_ns")
    for (rank,), steps in recorded.group_by("rank", maintain_order=True):
        ends_before = steps["interval_end_ns"].shift(1)
        if (steps["interval_start_ns"] < ends_before).any():
            yield f"rank {rank}: steps overlap"
        begin = min(steps["interval_start_ns"].min(), steps["start_ns"].min())
        end = max(steps["interval_end_ns"].max(), steps["end_ns"].max())
        if steps["time_ns"].sum() > end - begin:
            yield f"rank {rank}: {steps.height} steps take longer together than the recording"


def _prices(analysis):
    """Return findings whose saving is not what their change predicts, or more in sum than the step has."""
    graph = analysis.graph
    step_ns = analysis.step.reference_ns or 0
    if sum(finding.saves_after_ns or 0 for finding in analysis.findings) > step_ns:
        yield "findings save more one after the other than the step takes"
    for finding in analysis.findings:
        # One slow step may take longer than several others: its share is of what the run spends.
        is_slow_step = finding.code == "slow_step"
        if finding.saves_ns is not None and finding.saves_ns > step_ns and not is_slow_step:
            yield f"{finding.code} saves more than the step takes"
        if finding.change is None or graph is None:
            continue
        predicted_ns = max(graph.predict([parse_change(finding.change)]).saves_ns or 0, 0)
        if finding.saves_ns != predicted_ns:
            yield f"{finding.code} saves {finding.saves_ns}, and '{finding.change}' {predicted_ns}"


def _ranges(analysis):
    """Return findings and predictions whose range is not around what they save, or is more than the longest step."""
    step = analysis.step
    step_ns = (step.time_ns or 0) if step.free_range_ns is None else step.free_range_ns[1]
    rows = [(finding.code, finding) for finding in analysis.findings if finding.code != "slow_step"]
    rows += [(row.change, row) for row in analysis.changed_steps]
    for name, row in rows:
        if row.saves_range_ns is None:
            continue
        least_ns, most_ns = row.saves_range_ns
        if most_ns > step_ns and not analysis.role_results.iterations:
            yield f"{name} saves up to {most_ns} ns of a step of {step_ns}"
        if row.saves_ns is not None and not least_ns <= max(row.saves_ns, 0) <= most_ns:
            yield f"{name} saves {row.saves_ns} ns, which is not between {least_ns} and {most_ns}"


PLAIN_RATIOS = frozenset({"share_of_measured", "share_of_link"})
"""Shares in the JSON that may be more than all: of what was measured elsewhere, or of a link's data sheet."""


def _shares(value, path):
    """Return shares and fractions anywhere in a document that are more than all of what they are of."""
    if isinstance(value, list):
        for i, each in enumerate(value):
            yield from _shares(each, f"{path}[{i}]")
    elif isinstance(value, dict):
        for key, each in value.items():
            is_number = isinstance(each, int | float) and not isinstance(each, bool)
            is_share = re.search(r"share|fraction|utilisation", key) and key not in PLAIN_RATIOS
            # One slow step may take longer than the step.
            is_of_step = value.get("code") != "slow_step"
            if is_number and is_share and is_of_step and each > 1 + 1e-6:
                yield f"{path}.{key} is {each}"
            yield from _shares(each, f"{path}.{key}")


def _wording(analysis):
    """Return findings that one output states otherwise than another."""
    document = json.loads(render_json(analysis))["findings"]
    for number, finding in enumerate(main_findings(analysis), start=1):
        if document[number - 1]["saves_ns"] != finding.saves_ns:
            yield f"finding {number} has another saving in the JSON"
        if finding.saves_ns is None:
            continue
        is_bound = "≤" in saving(finding)
        texts = [finding_line(finding), finding_in_a_log(finding), share_words(finding)]
        texts.append(explain_finding(analysis, number))
        if any(bool(re.search(r"\bsave[sd] at most\b", text)) != is_bound for text in texts):
            yield f"finding {number} is a bound in one output and not in another"


def _outputs(analysis):
    """Return what outputs say differently of a run's step and findings: terminal, page, Markdown, JSON, explanation."""
    document = json.loads(render_json(analysis))
    step = analysis.step
    named_ns = (document["step"]["time_ns"], document["step"]["free_ns"])
    if step.stated_ns is not None and step.stated_ns not in named_ns:
        yield "the step time that is shown is not in the JSON"
    headline_text = headline(analysis).text
    is_plain = not analysis.role_results.iterations and not analysis.step_kinds
    if is_plain and step.stated_ns is not None and short_ms(step.stated_ns) not in headline_text:
        yield f"the first line states another step time: {headline_text}"
    terminal_text = _plain("\n".join(line.plain for line in first_screen(analysis, 400)))
    markdown_text = _plain(render_markdown(analysis))
    for number, finding in enumerate(main_findings(analysis), start=1):
        entry = document["findings"][number - 1]
        if (entry["text"], entry["ranks"], entry["steps"]) != (
            finding.text,
            list(finding.ranks),
            list(finding.steps),
        ):
            yield f"finding {number} has other words, ranks or steps in the JSON"
        if max(finding.effect_share, finding.share) > 1.0:
            yield f"finding {number} ({finding.code}) is {finding.effect_share:.0%} of the step"
        if finding.effect_ns and short_ms(finding.effect_ns) not in figure_of(finding):
            yield f"finding {number} has another figure on the page: {figure_of(finding)}"
        sentence = _plain(finding.text)
        if f"{number} {_plain(saving(finding))} {sentence}" in terminal_text:
            shown = [line for line in terminal_text.split("→") if _plain(finding.text) in line]
            if len(shown) != 1:
                yield f"finding {number} stands {len(shown)} times on the first screen"
        elif number == 1:
            yield "the first finding is not the first of the first screen"
        explained = explain_finding(analysis, number)
        if _plain(capitalize(finding.text)) not in markdown_text:
            yield f"finding {number} has other words in Markdown"
        if finding.text not in explained:
            yield f"finding {number} has other words in its explanation"


def _remarks(analysis):
    """Return findings whose saving, or what is to be known about it, not every output states."""
    markdown_text = _plain(render_markdown(analysis))
    for item in finding_items(analysis):
        number = item.number
        finding = item.finding
        explained = explain_finding(analysis, number)
        if finding.saving_ns and short_ms(finding.saving_ns) not in explained:
            yield f"finding {number} has another saving in its explanation"
        remarks = _plain(item.remarks)
        texts = (markdown_text, _plain(explained))
        if finding.saving_ns and not all(remarks in text for text in texts):
            yield f"finding {number} has a remark that not every output has: {remarks}"
        if "of the step" in share_words(finding) and not analysis.step.marked:
            yield f"finding {number} is a share of a step that is not marked"


def _changes(analysis):
    """Return rows of what-if whose figures on the screen do not add up to the step that they are of."""
    saved_by = {row.change: max(row.saves_ns or 0, 0) for row in analysis.changed_steps}
    for finding in analysis.findings:
        listed_ns = saved_by.get(finding.change, finding.saves_ns)
        if finding.saves_ns != listed_ns:
            yield f"{finding.code} saves {finding.saves_ns}, in the table of changes {listed_ns}"
    table = changes_table(analysis)
    rows = [] if table is None else analysis.changed_steps
    for number, row in enumerate(rows):
        if row.saves_ns is None or row.peak_bytes is not None:
            continue
        cells = dict(
            zip([column.name for column in table.columns], table.rows[number], strict=True)
        )
        step_ns = row.free_ns or row.measured_ns
        if cells["predicted"] + row.saves_ns != step_ns and cells["predicted"] > 0:
            yield f"{row.change}: {cells['predicted']} and {row.saves_ns} are not {step_ns}"
        if not math.isclose(cells["of the step"], row.saves_ns / step_ns):
            yield f"{row.change}: another share of the step"


def _plain(text):
    """Return text without marks of Markdown and with single spaces."""
    return " ".join(re.sub(r"[`*\\]", "", html.unescape(text)).split())


def _combinations(analysis):
    """Return changes of findings that save less together than one of them alone."""
    graph = analysis.graph
    texts = [finding.change for finding in analysis.findings if finding.change is not None]
    changes = [parse_change(text) for text in texts]
    if graph is None:
        return
    for pair in itertools.combinations(changes[:MAX_COMBINED], 2):
        together = graph.predict(pair)
        alone_ns = max(graph.predict([change]).saves_ns or 0 for change in pair)
        least_ns = 0.99 * alone_ns - MAX_REPLAY_NOISE_SHARE * (analysis.step.reference_ns or 0)
        if together.why_not is None and (together.saves_ns or 0) < least_ns:
            yield f"{pair} save {together.saves_ns} together, and one of them {alone_ns}"


def _order_of_ranks(analysis):
    """Return the tables whose rows are ranks in another order than that of their numbers."""
    tables = {
        "idle": idle_table(analysis),
        "memory": memory_table(analysis),
        "experts": experts_table(analysis),
    }
    for name, table in tables.items():
        ranks = [row[0] for row in table.rows] if table is not None else []
        if ranks != sorted(ranks):
            yield f"{name}: ranks are not in order"


def _savings(analysis):
    """Return predictions that save more than the compute beside which communication could be hidden."""
    ranks = analysis.ranks
    free_ns = [
        max(
            0,
            scope.budget.compute_ns
            - sum(scope.hidden_ns.get(kind, 0) for kind in ("communication", "copy")),
        )
        for rank in ranks
        for scope in rank.per_step
    ]
    stages = analysis.schedule.pp if analysis.schedule is not None else 1
    of_one_rank_ns = 1.05 * stages * max(free_ns, default=0)
    for row in analysis.changed_steps:
        if not row.change.startswith("hide ") or (row.saves_ns or 0) <= of_one_rank_ns:
            continue
        if row.saves_ns > 1.02 * _most_hidden_ns(analysis.graph, parse_change(row.change)):
            yield f"{row.change} saves {row.saves_ns} ns, more than the compute that could hide it"


def _most_hidden_ns(graph, change):
    """Return what a change hides per step at most: of each operation that of the member that hides most of it.

    From one operation to the next another rank may be the last, and gain.
    """
    changed = graph.changed_graph([change])
    events = graph.graph
    hidden_ns = events.work_ns * changed.hidden_share
    of_operation = {}
    for match, ns in zip(events.decisive.tolist(), hidden_ns.tolist(), strict=True):
        of_operation[match] = max(of_operation.get(match, 0), ns)
    alone = events.decisive < 0
    of_ranks = [hidden_ns[alone & (events.rank_index == i)].sum() for i in range(len(events.ranks))]
    of_operation.pop(-1, None)
    return (sum(of_operation.values()) + max(of_ranks, default=0)) / len(events.steps)


def lines_of(analysis, width, **options):
    out = io.StringIO()
    render(analysis, Screen(file=out, width=width), **options)
    return out.getvalue().splitlines()


def check(analysis):
    assert contradictions(analysis) == []
    for width in (80, 120):
        lines = lines_of(analysis, width, full=False)
        assert len(lines) <= MAX_LINES, f"{len(lines)} lines at {width} columns"
        assert " · " in lines[0]
    whole = "\n".join([*lines_of(analysis, 100, full=True), render_markdown(analysis)])
    assert not CODE_WORDS.findall(whole), "code words are shown without their meaning"


@pytest.mark.parametrize("sample", SAMPLES)
def test_nothing_contradicts_its_evidence_in_a_sample(samples, sample):
    check(analysis_of(samples / sample))


@pytest.mark.parametrize("trace", FRAMEWORKS)
def test_nothing_contradicts_its_evidence_in_a_framework_trace(corpus, trace):
    check(analysis_of(corpus.parent / "frameworks" / trace))


@pytest.mark.parametrize("sample", SAMPLES)
def test_changes_of_a_sample_save_together_what_the_best_of_them_saves(samples, sample):
    assert list(_combinations(analysis_of(samples / sample))) == []


@pytest.mark.nightly
@pytest.mark.parametrize("pattern", RECORDINGS)
def test_no_two_outputs_of_a_recording_disagree(corpus, pattern):
    """What the folder holds beside recordings, and recordings without GPU work, cannot be analysed."""
    found = {}
    analysed = 0
    for path in sorted(corpus.parent.glob(pattern)):
        if path.suffix in (".md", ".json"):
            continue
        try:
            analysis = analysis_of(path)
        except InputError:
            continue
        analysed += 1
        disagreements = [*contradictions(analysis), *_combinations(analysis)]
        if disagreements:
            found[path.name] = disagreements
    assert found == {}
    assert analysed


def without_rank(folder):
    (folder / "rank1.pt.trace.json.gz").unlink()


def truncated(folder):
    """Cut the last rank's trace in the middle of its events."""
    path = sorted(folder.glob("*.json.gz"))[-1]
    text = gzip.decompress(path.read_bytes())
    path.write_bytes(gzip.compress(text[: len(text) // 2], 1))


def without_shapes(folder):
    for path in folder.glob("*.json.gz"):
        trace = json.loads(gzip.decompress(path.read_bytes()))
        for event in trace["traceEvents"]:
            for key in ("Input Dims", "Input type", "Input Strides", "Concrete Inputs"):
                event.get("args", {}).pop(key, None)
        path.write_bytes(gzip.compress(json.dumps(trace).encode(), 1))


def rewrite(path, change):
    """Change the events of a trace file in place."""
    trace = json.loads(gzip.decompress(path.read_bytes()))
    trace["traceEvents"] = change(trace["traceEvents"])
    path.write_bytes(gzip.compress(json.dumps(trace).encode(), 1))


def without_step_marks(folder):
    for path in folder.glob("*.json.gz"):
        rewrite(path, lambda events: [e for e in events if "ProfilerStep" not in e.get("name", "")])


def without_operators(folder):
    for path in folder.glob("*.json.gz"):
        rewrite(path, lambda events: [e for e in events if e.get("cat") != "cpu_op"])


def with_a_rank_slowed(folder):
    """Everything on the last rank takes 1.4 times as long, as on a slower machine."""

    def slow(events):
        begin = min(float(event["ts"]) for event in events if event.get("ph") == "X")
        return [
            event
            | ({"ts": begin + 1.4 * (float(event["ts"]) - begin)} if "ts" in event else {})
            | ({"dur": 1.4 * float(event["dur"])} if "dur" in event else {})
            for event in events
        ]

    rewrite(sorted(folder.glob("*.json.gz"))[-1], slow)


def with_host_pauses(folder):
    """The first rank pauses for 3 ms at a quarter, the half and three quarters of its launches."""

    def pause(events):
        calls = sorted(float(e["ts"]) for e in events if e.get("cat") == "cuda_runtime")
        pauses = [calls[len(calls) * quarter // 4] for quarter in (1, 2, 3)]

        def moved(time):
            return time + 3000 * sum(time >= begin for begin in pauses)

        result = []
        for event in events:
            if "ts" not in event:
                result.append(event)
                continue
            start, length = float(event["ts"]), float(event.get("dur", 0))
            if event.get("cat") not in ("kernel", "gpu_memcpy", "gpu_memset"):
                length = moved(start + length) - moved(start)
            timed = {"ts": moved(start), "dur": length} if "dur" in event else {"ts": moved(start)}
            result.append(event | timed)
        return result

    rewrite(min(folder.glob("*.json.gz")), pause)


@pytest.mark.parametrize(
    ("sample", "mutate"),
    [
        pytest.param("1f1b", without_rank, marks=pytest.mark.nightly),
        pytest.param("1f1b", truncated, marks=pytest.mark.nightly),
        ("router", without_shapes),
        ("router", truncated),
        ("steps/straggler", without_rank),
        ("steps/straggler", with_host_pauses),
        pytest.param("steps/straggler", without_step_marks, marks=pytest.mark.nightly),
        pytest.param("steps/straggler", without_operators, marks=pytest.mark.nightly),
        pytest.param("slow-ddp", with_a_rank_slowed, marks=pytest.mark.nightly),
        pytest.param("slow-ddp", with_host_pauses, marks=pytest.mark.nightly),
    ],
)
def test_nothing_contradicts_its_evidence_in_a_damaged_trace(samples, tmp_path, sample, mutate):
    folder = shutil.copytree(samples / sample, tmp_path / "run")
    mutate(folder)
    check(analyze(folder, workers=1))


PAIRS = [
    *itertools.permutations(("steps/a", "steps/b", "steps/straggler"), 2),
    ("1f1b", "interleaved"),
]


def misfits(result):
    """Return what in the words of a diff contradicts its numbers, one sentence each."""
    step = next(row for row in result.metrics if row.metric == "step_ms")
    story = words.story(result)
    text = "\n".join([words.step_sentence(result), *story, *result.obstacles, *result.notes])
    if re.search(r"\b[0-9a-f]{8,}\b", text):
        yield "a digest is shown"
    if (
        story
        and step.verdict == "regressed"
        and not re.search("grew|more|longer|slower|wait|added|late", story[0])
    ):
        yield f"a slower step is explained by: {story[0]}"
    if story and step.verdict == "improved" and re.search(r"\b(grew|slower|longer)\b", story[0]):
        yield f"a faster step is explained by: {story[0]}"
    if CODE_WORDS.search(text):
        yield "code words are shown without their meaning"


@pytest.mark.parametrize(("before", "after"), PAIRS)
def test_the_story_of_a_diff_fits_its_numbers(samples, before, after):
    result = diff(analysis_of(samples / before), analysis_of(samples / after)).document
    assert list(misfits(result)) == []


@pytest.mark.parametrize("sample", ["1f1b", "overlapped", "router"])
def test_what_if_is_advertised_only_where_it_predicts(samples, sample):
    advertised = "`--what-if`" in getattr(what_if_hint(analysis_of(samples / sample)), "text", "")
    schedule = analysis_of(samples / sample, what_if=True).comparison
    rows = (
        []
        if schedule is None
        else [row for row in schedule.what_if if row.change == "schedule" and not row.ran]
    )
    assert advertised == any(row.predicted_ns is not None for row in rows)


def test_a_prediction_below_its_ideal_says_how_that_can_be(samples):
    schedule = analysis_of(samples / "interleaved", what_if=True).comparison
    below = [
        row for row in schedule.what_if if row.predicted_ns and row.predicted_ns < row.ideal_ns
    ]
    assert below
    for row in below:
        assert any("share a GPU" in text for text in row.rests_on), row.name


@pytest.mark.parametrize("sample", ["1f1b", "router", "overlapped"])
def test_hiding_saves_no_more_than_the_compute_there_is(samples, sample):
    assert contradictions(analysis_of(samples / sample, what_if=True)) == []


def test_predictions_are_part_of_the_shortest_output(samples):
    lines = lines_of(analysis_of(samples / "1f1b", what_if=True), 120, brief=True)
    assert "What other schedules would take" in lines


def test_a_page_that_was_written_is_not_suggested(samples):
    analysis = analysis_of(samples / "1f1b")
    suggestion = "-o report.html"
    assert suggestion in "\n".join(lines_of(analysis, 80, full=False))
    assert suggestion not in "\n".join(lines_of(analysis, 80, full=False, page_written=True))


def test_the_short_report_names_what_would_save_most(samples):
    first = analysis_of(samples / "1f1b").findings[0]
    text = "\n".join(lines_of(analysis_of(samples / "1f1b"), 400, full=False))
    assert bound_sign(first) == "≤"
    assert f" 1 ≤ {first.saves_ns / 1e6:.1f} ms" in text
    assert first.advice in text


def test_the_short_report_says_how_to_get_the_rest(samples):
    analysis = analysis_of(samples / "1f1b")
    assert any("more: --full" in line for line in lines_of(analysis, 200, full=False))
    assert not any("--full" in line for line in lines_of(analysis, 200, full=True))


@pytest.mark.parametrize(
    ("options", "first_line"),
    [
        ({}, "1f1b · 4 ranks · 1 step"),
        (
            {"ranks": (0, 1, 3), "schedule": "none"},
            "1f1b · 3 of 4 ranks (rank 2 missing) · 1 step",
        ),
    ],
)
def test_missing_ranks_are_in_the_first_line_of_the_shortest_output(samples, options, first_line):
    analysis = analysis_of(samples / "1f1b", **options)
    assert lines_of(analysis, 120, brief=True)[0].startswith(first_line)


def test_another_schedule_is_compared_with_and_not_called_what_ran(samples):
    schedule = analysis_of(samples / "1f1b", schedule="dualpipe").comparison
    assert (schedule.name, schedule.compared_with, schedule.exact) == ("1f1b", "dualpipe", True)
    document = analysis_of(samples / "1f1b", schedule="dualpipe").to_dict()["schedule"]
    assert (document["name"], document["compared_with"]) == ("1f1b", "dualpipe")


@pytest.mark.parametrize(
    ("sample", "framework", "own", "foreign"),
    [
        ("1f1b", "Megatron-LM", "interleaved", "chimera"),
        ("interleaved", "PyTorch", "gpipe", "zb-h1"),
    ],
)
def test_schedules_that_the_framework_has_come_first(samples, sample, framework, own, foreign):
    lines = lines_of(analysis_of(samples / sample, what_if=True), 120, brief=True)
    headings = [i for i, line in enumerate(lines) if f"in {framework}" in line]
    has_own, has_not = headings
    assert lines[has_own].startswith(f"what if, in {framework}")
    assert lines[has_not].startswith(f"not in {framework}")
    assert any(line.startswith(own) for line in lines[has_own:has_not])
    assert any(line.startswith(foreign) for line in lines[has_not:])
