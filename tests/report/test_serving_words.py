"""The words of inference: reports of a run that only goes forward say nothing about training."""

from __future__ import annotations

import html
import json
import re
from io import StringIO

import pytest

from tests.findings.conftest import Recording
from tests.written_findings import written
from tracekit import analyze, read_analysis
from tracekit.report.html.page import render_html
from tracekit.report.markdown import render_markdown
from tracekit.report.terminal.analysis import render
from tracekit.report.terminal.screen import Screen
from tracekit.rooms import all_kinds

TRAINING_WORDS = re.compile(
    r"optimizer|gradient|\bbackward|micro-?batch|\btrain|\bloss(es)?\b|dgrad|wgrad|recompute|checkpoint"
    r"|data.?load|larger batch|\bDDP\b|FSDP",
    re.IGNORECASE,
)
LOADING = {"data_loading"}
"""Codes that are about a DataLoader, which may also feed a model that only runs forward."""
RL_CODES = {"rollout", "weight_sync"}
"""Codes of loops that also train."""
NAMED_BY_OPERATORS = {
    ("host_sync", "clipping"),
    ("host_sync", "scaler"),
    ("precision", "trained_weights"),
    ("training_mode", ""),
}
"""Cases that operators of training decide, or that are about training mode itself."""
OF_TOKENS = {
    ("out_of_memory", ""),
    ("slow_kernel", "few_tokens"),
    ("slow_step", "prefill"),
    ("unfused", "loss"),
}
"""Cases that only models of tokens have."""
KEYS_OF_TEXT = {"text", "advice", "message", "rests_on", "change"}
PUBLIC_TRACES = [
    "inference/sglang_prefilldecode.json.gz",
    "captures/sglang_decode-capture_bs32_rank0.json.gz",
    "captures/vllm_decode_full-graph_capture_rank_0.pt.trace.json.gz",
    "captures/vllm_piecewise-graph_capture_rank_0.pt.trace.json.gz",
    "models/b200_eager.json.gz",
    "models/h100_Falconsai_nsfw_image_detection__1016002.json.gz",
    "models/h100_Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz",
    "models/h100_gaunernst_bert-small-uncased__1016001.json.gz",
    "models/hta_alexnet.json.gz",
    "models/mi300_Falconsai_nsfw_image_detection__1016002.json.gz",
    "models/mi300_Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz",
    "models/mi300_gaunernst_bert-small-uncased__1016001.json.gz",
    "models/sglang_decode.json.gz",
    "tracelens/qwen3_30b_a3b_B300_TP-0-DECODE.trace.json.gz",
]


def texts_in(value):
    """Yield the texts of a document: its keys and codes are the same for every run."""
    if isinstance(value, dict):
        for key, inner in value.items():
            is_text = key in KEYS_OF_TEXT and isinstance(inner, str)
            if is_text:
                yield inner
            else:
                yield from texts_in(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from texts_in(inner) if not isinstance(inner, str) else ()


def visible_text(source):
    """Return what a page says: its text without scripts, styles, tags, and the names of rules and their evidence."""
    without_code = re.sub(r"<(script|style)\b.*?</\1>", " ", source, flags=re.DOTALL)
    without_code = re.sub(r'<dl class="facts">.*?</dl>', " ", without_code, flags=re.DOTALL)
    return html.unescape(re.sub(r"<[^>]*>", " ", without_code))


def outputs(analysis):
    """Return everything that people read of an analysis, by kind of output."""
    screens = {}
    for name, full in (("first screen", False), ("full", True)):
        stream = StringIO()
        render(
            analysis,
            Screen(file=stream, width=100),
            full=full,
            show=["definitions"] if full else [],
        )
        screens[name] = stream.getvalue()
    return {
        **screens,
        "Markdown": render_markdown(analysis),
        "page": visible_text(render_html(analysis)),
        "JSON": "\n".join(texts_in(json.loads(analysis.to_json()))),
    }


def training_words(analysis):
    found = {}
    for name, text in outputs(analysis).items():
        words = sorted({match.group(0).lower() for match in TRAINING_WORDS.finditer(text)})
        if words:
            found[name] = words
    return found


def launch_bound_steps(mark):
    """Return a recording of two steps whose host launches small kernels more slowly than they run."""
    recording = Recording()
    for number in range(2):
        start = number * 40
        recording.annotation(mark(number), start, start + 40)
        for index in range(36):
            launch = start + 1 + index
            recording.kernel(launch, launch + 0.02, launch + 0.03)
    return recording


def test_a_server_that_launches_slowly_is_told_to_use_graphs_and_nothing_of_training(tmp_path):
    recording = launch_bound_steps(lambda number: "step[DECODE bs=4]")
    recording.write(tmp_path)
    analysis = analyze(tmp_path)
    assert analysis.workload == "inference"
    (finding,) = [finding for finding in analysis.findings if finding.code == "launch_bound"]
    assert finding.advice == (
        "replay steps as CUDA graphs, fuse small kernels, or serve more sequences at once"
    )
    assert training_words(analysis) == {}


def test_the_saved_analysis_of_a_server_says_the_same(tmp_path):
    launch_bound_steps(lambda number: "step[DECODE bs=4]").write(tmp_path)
    analysis = analyze(tmp_path)
    analysis.save(tmp_path / "saved.json")
    saved = read_analysis(tmp_path / "saved.json")
    assert saved.workload == "inference"
    assert saved.step_kinds == analysis.step_kinds
    assert training_words(saved) == {}


def test_a_backward_makes_it_training(tmp_path):
    recording = launch_bound_steps(lambda number: f"ProfilerStep#{number}")
    recording.kernel(38, 38.5, 39, op="autograd::engine::evaluate_function: MmBackward0")
    recording.write(tmp_path)
    analysis = analyze(tmp_path)
    assert analysis.workload == "training"
    assert "workload" not in analysis.findings[0].evidence


@pytest.mark.parametrize("generates", [True, False])
@pytest.mark.parametrize(("code", "case"), sorted(all_kinds()))
def test_every_text_that_inference_can_have_is_free_of_training(code, case, generates):
    is_of_training = (
        all_kinds()[code, case].training_only
        or code in RL_CODES | LOADING
        or (code, case) in NAMED_BY_OPERATORS
    )
    if is_of_training:
        return
    evidence = {"workload": "inference", "label": "tp_comm", "generates": generates}
    finding = written(code, case, ranks=(0,), evidence=evidence)
    assert not TRAINING_WORDS.search(f"{finding.text} {finding.advice}")


@pytest.mark.parametrize(("code", "case"), sorted(all_kinds()))
def test_a_model_that_only_runs_forward_is_not_told_of_servers_and_sampling(code, case):
    """An image classifier has no sequences to serve and no tokens to sample."""
    evidence = {"workload": "inference", "generates": False}
    finding = written(code, case, ranks=(0,), evidence=evidence)
    is_worded_alike = finding.advice == written(code, case, ranks=(0,)).advice
    if (code, case) in OF_TOKENS or is_worded_alike:
        return
    assert not re.search("serve|sampl|token|sequences at once|SGLang", finding.advice)


@pytest.mark.parametrize(
    ("vendor", "libraries"),
    [
        ("amd", "kernel (CK, AITER)"),
        ("nvidia", "kernel (FlashAttention 3, cuDNN)"),
        (None, "another attention kernel"),
    ],
)
def test_kernels_of_attention_are_those_of_the_vendor(vendor, libraries):
    evidence = {"vendor": vendor, "op_gain_ns": 1}
    advice = written("slow_kernel", "attention", evidence=evidence).advice
    assert libraries in advice
    assert ("CK" in advice, "cuDNN" in advice) == (vendor == "amd", vendor == "nvidia")


def test_amd_has_graphs_of_its_own_name():
    evidence = {"workload": "inference", "vendor": "amd"}
    assert "HIP graphs" in written("launch_bound", evidence=evidence).advice


@pytest.mark.parametrize(
    ("vendor", "graphs"),
    [("amd", "HIP graphs"), ("nvidia", "CUDA graphs"), (None, "captured graphs")],
)
@pytest.mark.parametrize(
    ("code", "case"),
    [
        ("launch_bound", ""),
        ("launch_bound", "under_graphs"),
        ("exposed_comm", "launched_late"),
        ("schedule_gap", "host"),
        ("schedule_gap", "host_under_graphs"),
        ("schedule_gap", "p2p_and_host"),
    ],
)
def test_training_too_speaks_of_graphs_as_the_vendor_does(vendor, graphs, code, case):
    evidence = {"vendor": vendor, "label": "dp_comm", "schedule": "1f1b"}
    finding = written(code, case, evidence=evidence)
    assert graphs in f"{finding.text} {finding.advice}"


@pytest.mark.slow
@pytest.mark.parametrize("name", PUBLIC_TRACES)
def test_no_report_of_a_public_inference_trace_speaks_of_training(corpus, name):
    analysis = analyze(str(corpus / name))
    assert analysis.workload == "inference" or not analysis.total.label_count.get("forward")
    assert training_words(analysis) == {}


GRAPHS = 'CUDA graphs (`torch.compile(mode="reduce-overhead")`)'


@pytest.mark.parametrize(
    ("evidence", "advice"),
    [
        ({"waits_per_step": 630.0}, f"use {GRAPHS}, fused optimizers, or larger batches"),
        (
            {"waits_per_step": 4.0, "has_fused_optimizer": True},
            f"use {GRAPHS}, or larger batches",
        ),
        (
            {"stops_to_wait": True, "waits_per_step": 8.25, "has_fused_optimizer": True},
            f"use larger batches; {GRAPHS} once the 8 waits a step for the GPU are gone",
        ),
        (
            {"stops_to_wait": True, "waits_per_step": 1.0},
            f"use fused optimizers, or larger batches; {GRAPHS} once the wait a step for the GPU is gone",
        ),
        (
            {"stops_to_wait": True, "waits_per_step": 0.25, "has_fused_optimizer": True},
            f"use larger batches; {GRAPHS} once the waits for the GPU are gone",
        ),
    ],
)  # fmt: skip
def test_launching_is_told_of_nothing_that_is_there_and_of_graphs_once_no_wait_costs_time(
    evidence, advice
):
    finding = written("launch_bound", evidence={"vendor": "nvidia", **evidence})
    assert finding.advice == advice


@pytest.mark.parametrize("code", ["launch_bound", "pageable_copy", "allocator"])
def test_a_program_without_pytorch_is_told_nothing_of_pytorch(code):
    evidence = {
        "vendor": "nvidia",
        "is_pytorch": False,
        "stops_to_wait": True,
        "waits_per_step": 9.0,
    }
    finding = written(code, evidence=evidence)
    assert not re.search("(?i)torch|pin_memory|optimizer|batch", finding.advice)
