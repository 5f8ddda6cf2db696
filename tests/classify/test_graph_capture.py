"""Replays of CUDA and HIP graphs joined with the trace of their capture.

``step``: one GPT step (six layers, AdamW) as one CUDA graph, which is replayed on one stream.
``ddp``: rank 0 of two, the same step under DDP, which is replayed on 27 streams. ``trees``: the step
compiled with ``mode="reduce-overhead"``, which replays one graph per pass; nobody recorded its
capture. ``eager``: the same programs without graphs.
"""

import gzip
import json
import os
from collections import Counter, defaultdict
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest

from tests.classify.conftest import Program
from tracekit import analyze, load
from tracekit.classify.captured_graphs import MIN_AGREEMENT, MIN_NAMED_SHARE, MIN_RELATED_SHARE
from tracekit.classify.captured_sizes import MIN_SAME_SIZE_SHARE, find_other_size
from tracekit.classify.classify_events import classify_rank, classify_with_lost
from tracekit.classify.graph_replays import join_replays
from tracekit.classify.kernel_words import find_related
from tracekit.errors import InputError
from tracekit.parsers.kineto.captures import (
    MAX_GPU_EVENTS_PER_LAUNCH,
    holds_capture,
    read_kernel_blocks,
    read_launched_kernels,
)
from tracekit.parsers.source_refs import SourceRef
from tracekit.report.notices import notice_sentence
from tracekit.report.terminal.explain import explain_text
from tracekit.schema import CAPTURED_KERNELS, KERNEL_BLOCKS, GraphCapture
from tracekit.store.sources import read_ref

DATA = Path(__file__).parents[1] / "data" / "graph-capture"
PUBLIC = Path(os.environ.get("TRACEKIT_CORPUS", "nowhere")) / "public"
SGLANG_REPLAY = PUBLIC / "models/sglang_decode.json.gz"
SGLANG_CAPTURE = PUBLIC / "captures/sglang_decode-capture_bs32_rank0.json.gz"


def source(name, capture=None):
    captured = None if capture is None else SourceRef(str(DATA / capture), "kineto", 0, "option")
    return SourceRef(str(DATA / name), "kineto", 0, "option", capture=captured)


@pytest.fixture(scope="module")
def labelled():
    """The labelled events of each recording; replays with the operators of their captures."""
    sources = {
        "step": source("step-replay.json.gz", "step-capture.json.gz"),
        "ddp": source("ddp-replay.json.gz", "ddp-capture.json.gz"),
        "step-eager": source("step-eager.json.gz"),
        "ddp-eager": source("ddp-eager.json.gz"),
        "trees": source("trees-replay.json.gz"),
        "trees-eager": source("trees-eager.json.gz"),
    }
    return {name: classify_rank(read_ref(ref)[0]) for name, ref in sources.items()}


def labels_of_kernels(table):
    """Return labels, passes and modules with how often they come in a step, by kernel name."""
    labels = defaultdict(Counter)
    steps = table["step"].n_unique()
    columns = ("name", "label", "pass", "module")
    for name, *label in table.select(
        pl.col(column).cast(pl.String) for column in columns
    ).iter_rows():
        labels[name][tuple(label)] += 1 / steps
    return labels


@pytest.mark.parametrize("run", ["step", "ddp"])
def test_kernels_of_a_replay_have_the_labels_of_the_same_program_without_graphs(labelled, run):
    """AdamW launches other kernels where it can be captured.

    All others have the same name with and without graphs.
    """
    replayed = labels_of_kernels(labelled[run])
    eager = labels_of_kernels(labelled[f"{run}-eager"])
    common = set(replayed) & set(eager)
    assert {name: replayed[name] for name in common} == {name: eager[name] for name in common}
    only_replayed = labelled[run].filter(~pl.col("name").cast(pl.String).is_in(list(common)))
    assert only_replayed["label"].unique().to_list() == ["optimizer"]


def test_graphs_of_a_compiled_step_have_its_labels_for_99_percent_of_the_time(labelled):
    """A graph per pass is launched inside of the pass: labels follow from that and from names."""
    duration_ns = pl.col("end_ns") - pl.col("start_ns")
    columns = [pl.col("name", "label").cast(pl.String), duration_ns.alias("ns")]
    eager = Counter()
    for name, label, _ in labelled["trees-eager"].select(columns).iter_rows():
        eager[name, label] += 1
    equal_ns = total_ns = 0
    for name, label, ns in labelled["trees"].select(columns).iter_rows():
        total_ns += ns
        if eager[name, label]:
            eager[name, label] -= 1
            equal_ns += ns
    assert equal_ns >= 0.99 * total_ns


@pytest.mark.parametrize("run", ["step", "ddp"])
def test_every_kernel_of_a_replay_has_operator_and_shapes(labelled, run):
    assert labelled[run].select(pl.col("op", "shapes").null_count()).row(0) == (0, 0)


def test_launches_stay_those_of_the_graph(labelled):
    """What is measured about launches rests on the replay: all nodes of a replay were launched by one call."""
    table = labelled["step"]
    assert (
        table["launch_ns"].n_unique()
        == table["correlation"].n_unique()
        == table["step"].n_unique()
        == 2
    )


# ---- an independent join, from the files alone


def read_json(path):
    with gzip.open(path) as file:
        events = json.load(file)["traceEvents"]
    return [event for event in events if event.get("ph") == "X"]


def captured_ops(path):
    """Return the innermost operator of each captured launch with its shapes and the kernel it names, in order."""
    events = read_json(path)
    begin = next(event["ts"] for event in events if "StreamBeginCapture" in event["name"])
    end = next(event["ts"] for event in events if "StreamEndCapture" in event["name"])
    words = ("LaunchKernel", "Memcpy", "Memset")
    calls = [
        event
        for event in events
        if event["cat"] in {"cuda_runtime", "cuda_driver"}
        and begin < event["ts"] < end
        and any(word in event["name"] for word in words)
    ]
    ops_of_thread = defaultdict(list)
    for event in events:
        if event["cat"] == "cpu_op":
            ops_of_thread[event["tid"]].append(event)
    ops = []
    for call in sorted(calls, key=lambda call: call["ts"]):
        around = [
            op for op in ops_of_thread[call["tid"]] if op["ts"] <= call["ts"] < op["ts"] + op["dur"]
        ]
        innermost = max(around, key=lambda op: op["ts"])
        ops.append(
            (innermost["name"], innermost["args"].get("Input Dims"), call["args"].get("kernel"))
        )
    return ops


def check_against_file(table, ops):
    """Check operators and shapes of one replay, by start, against the captured launches in order."""
    assert len(table) == len(ops)
    for (op, shapes, name), (captured_op, captured_shapes, kernel) in zip(
        table.sort("start_ns").select(pl.col("op", "shapes", "name").cast(pl.String)).iter_rows(),
        ops,
        strict=True,
    ):
        assert op == captured_op
        assert json.loads(shapes) == captured_shapes
        assert kernel in {None, name}


def test_the_nth_node_on_one_stream_is_the_nth_launch_of_the_file(labelled):
    ops = captured_ops(DATA / "step-capture.json.gz")
    for _, replay in labelled["step"].group_by("correlation"):
        check_against_file(replay, ops)


def test_nodes_on_several_streams_are_the_launches_of_the_file(labelled):
    """No order to check by here: each operator with its shapes has the kernels that it has without graphs."""

    def kernels(table):
        counted = (
            table.filter(pl.col("label") != "optimizer").group_by("op", "shapes", "name").len()
        )
        steps = table["step"].n_unique()
        rows = counted.select(
            pl.col("op", "shapes", "name").cast(pl.String), pl.col("len") // steps
        ).rows()
        return {(op, shapes, name): count for op, shapes, name, count in rows if "zero_" not in op}

    replayed, eager = kernels(labelled["ddp"]), kernels(labelled["ddp-eager"])
    differing = {
        key for key in replayed.keys() | eager.keys() if replayed.get(key) != eager.get(key)
    }
    assert not differing


def test_a_replay_of_sglang_has_operators_and_shapes_for_nearly_all_of_its_time():
    if not SGLANG_REPLAY.is_file():
        pytest.skip("TRACEKIT_CORPUS is not set: the captures are not in this repository")
    capture = SourceRef(str(SGLANG_CAPTURE), "kineto", 0, "option")
    (rank,) = read_ref(SourceRef(str(SGLANG_REPLAY), "kineto", 0, "option", capture=capture))
    table = classify_rank(rank)
    graph_calls = [event for event in read_json(SGLANG_REPLAY) if event["name"] == "hipGraphLaunch"]
    (correlation,) = (call["args"]["correlation"] for call in graph_calls)
    check_against_file(
        table.filter(pl.col("correlation") == correlation), captured_ops(SGLANG_CAPTURE)
    )
    duration = pl.col("end_ns") - pl.col("start_ns")
    described = table.filter(pl.col("op").is_not_null() & pl.col("shapes").is_not_null())
    assert described.select(duration.sum()).item() >= 0.95 * table.select(duration.sum()).item()


# ---- captures that do not fit


@pytest.mark.parametrize(
    ("replay", "capture", "reason"),
    [
        ("step-replay", "ddp-capture", "527 kernels were captured, and a replay has 445"),
        ("step-replay", "step-eager", "no graph was captured in this trace"),
        ("step-eager", "step-capture", "the traces replay no graph"),
    ],
)
def test_a_capture_of_another_program_is_refused(replay, capture, reason):
    with pytest.raises(InputError) as caught:
        analyze(DATA / f"{replay}.json.gz", capture=DATA / f"{capture}.json.gz", schedule="none")
    error = caught.value
    said = notice_sentence(error.notice) if error.notice else error.message
    assert reason in said


def test_a_capture_beside_the_replay_is_found(tmp_path):
    """Both files are of rank 0: the one that captured is no rank of its own."""
    for name in ("step-replay", "step-capture"):
        (tmp_path / f"{name}.json.gz").write_bytes((DATA / f"{name}.json.gz").read_bytes())
    (rank_events,) = load(tmp_path).parts
    assert Path(rank_events.source.path).name == "step-replay.json.gz"
    assert Path(rank_events.capture.path).name == "step-capture.json.gz"


# ---- small graphs


def capture_of(ops, *, kernels=None):
    """A capture of one launch per operator; *kernels* are the names that the launches record."""
    program = Program()
    program.add("runtime", "cudaStreamBeginCapture", 0, 1, tid=1)
    correlations = []
    for i, (op, shapes) in enumerate(ops):
        start = 10 + 10 * i
        program.op(op, start, start + 8, shapes=shapes)
        correlations.append(1000 + i)
        program.add(
            "runtime", "cudaLaunchKernel", start + 1, start + 2, tid=1, correlation=1000 + i
        )
    end = 20 + 10 * len(ops)
    program.add("runtime", "cudaStreamEndCapture", end, end + 1, tid=1)
    table = CAPTURED_KERNELS.to_frame()
    if kernels is not None:
        table = pl.DataFrame(
            {"correlation": correlations, "kernel": kernels}, schema=CAPTURED_KERNELS
        )
    return GraphCapture(program.events(), "capture.json", table)


def replay_of(*replays):
    """Replays of kernels, each a list of names on one stream."""
    program = Program()
    for i, names in enumerate(replays):
        start = 1000 * i
        program.add("runtime", "cudaGraphLaunch", start, start + 5, tid=1, correlation=i + 1)
        for n, name in enumerate(names):
            begin = start + 10 + 2 * n
            program.add("kernel", name, begin, begin + 1, device=0, stream=7, correlation=i + 1)
    return program.events()


LAYER = [("aten::mm", "[[8,16],[16,16]]"), ("aten::gelu", "[[8,16]]")]
KERNELS = ["gemm_tn", "GeluKernel"]


def test_a_graph_of_equal_layers_is_joined_by_order():
    replays = join_replays(replay_of(KERNELS * 5, KERNELS * 5), capture_of(LAYER * 5))
    assert replays.replays_joined == 2
    assert replays.joined["launch"].to_list() == [*range(10), *range(10)]
    assert replays.joined_ns == replays.replay_ns


def test_joined_kernels_have_the_operators_of_their_launches():
    events = replay_of(KERNELS * 5)
    table, _ = classify_with_lost(events, replays=join_replays(events, capture_of(LAYER * 5)))
    assert table["op"].cast(pl.String).to_list() == ["aten::mm", "aten::gelu"] * 5


def test_a_shifted_order_is_refused_by_the_words_of_the_names():
    """The layers repeat, so that every operator would always be the same kernel, and the wrong one."""
    replays = join_replays(replay_of(KERNELS[::-1] * 5), capture_of(LAYER * 5))
    assert not replays.replays_joined
    assert [mismatch.case for mismatch in replays.mismatches] == ["kernels"]


def test_a_replay_cut_in_the_middle_is_joined_as_far_as_it_goes():
    whole, cut = KERNELS * 5, (KERNELS * 5)[:4]
    replays = join_replays(
        replay_of(["first", *whole], ["first", *cut]),
        capture_of([("aten::first", "[]"), *LAYER * 5]),
    )
    assert replays.joined.filter(pl.col("replay") == 1)["launch"].to_list() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("part", "launches"),
    [
        (slice(0, 3), [0, 1, 2]),  # the recording ended
        (slice(8, None), [8, 9, 10]),  # it began during the replay
        (slice(4, 7), []),  # neither end
        (slice(1, 3), []),
    ],
)
def test_a_replay_is_joined_by_the_end_of_the_graph_that_it_has(part, launches):
    """Of eleven kernels the first and the last have names of their own."""
    whole = ["first", *KERNELS * 4, "GeluKernel", "last"]
    ops = [("aten::first", "[]"), *LAYER * 4, LAYER[1], ("aten::last", "[]")]
    replays = join_replays(replay_of(whole, whole[part]), capture_of(ops))
    assert replays.joined.filter(pl.col("replay") == 1)["launch"].to_list() == launches


def test_a_cut_replay_alone_is_not_joined():
    replays = join_replays(replay_of((KERNELS * 5)[:4]), capture_of(LAYER * 5))
    assert [(m.case, m.captured, m.replayed) for m in replays.mismatches] == [
        ("kernel_count", 10, 4)
    ]


def test_graphs_of_equal_length_are_told_apart_by_recorded_names():
    small = capture_of(LAYER * 5, kernels=KERNELS * 5)
    large_names = ["gemm_large", "GeluKernel"]
    second = capture_of([("aten::mm", "[[64,16],[16,16]]"), LAYER[1]] * 5, kernels=large_names * 5)
    shift = 10**9
    later = second.events.with_columns(
        pl.col("id") + len(small.events),
        pl.col("start_ns", "end_ns") + shift,
        pl.col("correlation") + 500,
    )
    both = GraphCapture(
        pl.concat([small.events, later]),
        "capture.json",
        pl.concat([small.kernels, second.kernels.with_columns(pl.col("correlation") + 500)]),
    )
    replays = join_replays(replay_of(large_names * 5, KERNELS * 5), both)
    assert replays.joined.group_by("replay", "graph").len().sort("replay").rows() == [
        (0, 1, 10),
        (1, 0, 10),
    ]


def test_graphs_that_nothing_tells_apart_are_refused():
    """Two batch sizes with the same kernels: which of them was replayed is not recorded."""
    small = capture_of(LAYER * 5)
    larger = capture_of([("aten::mm", "[[64,16],[16,16]]"), ("aten::gelu", "[[64,16]]")] * 5)
    later = larger.events.with_columns(
        pl.col("id") + len(small.events),
        pl.col("start_ns", "end_ns") + 10**9,
        pl.col("correlation") + 500,
    )
    replays = join_replays(
        replay_of(KERNELS * 5), GraphCapture(pl.concat([small.events, later]), "capture.json")
    )
    assert not replays.replays_joined
    assert [(m.case, m.captured) for m in replays.mismatches] == [("several_graphs", 2)]


# ---- thresholds, each a little below and above


@pytest.mark.parametrize(("odd", "accepted"), [(2, True), (3, False)])
def test_a_tenth_of_the_repeated_launches_may_be_another_kernel(odd, accepted):
    assert pytest.approx(1 - 2 / 20) == MIN_AGREEMENT
    names = KERNELS * 10
    for i in range(odd):
        names[2 * i + 1] = f"GeluKernel{i}"
    assert bool(join_replays(replay_of(names), capture_of(LAYER * 10)).replays_joined) is accepted


@pytest.mark.parametrize(("unrelated", "accepted"), [(2, True), (3, False)])
def test_a_fifth_of_the_kernels_may_share_no_word_with_their_operator(unrelated, accepted):
    """Operators differ in their shapes, so that no launch repeats another."""
    assert pytest.approx(1 - 2 / 10) == MIN_RELATED_SHARE
    ops = [("aten::gelu", f"[[{i}]]") for i in range(10)]
    names = ["GeluKernel"] * (10 - unrelated) + ["something"] * unrelated
    assert bool(join_replays(replay_of(names), capture_of(ops)).replays_joined) is accepted


@pytest.mark.parametrize(("other", "accepted"), [(1, True), (2, False)])
def test_one_in_twenty_recorded_names_may_differ(other, accepted):
    assert pytest.approx(1 - 1 / 20) == MIN_NAMED_SHARE
    names = KERNELS * 10
    replayed = ["renamed"] * other + names[other:]
    replays = join_replays(replay_of(replayed), capture_of(LAYER * 10, kernels=names))
    assert bool(replays.replays_joined) is accepted


def test_short_words_relate_nothing():
    """``sm`` and ``bf`` are architectures and types, ``add`` says what is computed."""
    kernels = ["CUDAFunctor_add", "sm_bf_kernel"]
    assert find_related(["aten::add_", "aten::bf_sm"], kernels) == {
        ("aten::add_", "CUDAFunctor_add")
    }


# ---- another batch size


def norm_layers(batch):
    shape = f"[[{batch},512,64],[64]]"
    return [("aten::native_layer_norm", shape), ("aten::mm", f"[[{batch * 512},64],[64,64]]")] * 10


NORM_KERNELS = ["void vectorized_layer_norm_kernel<float>(int)", "gemm_tn"]


def blocks_of(events, *, odd=0, batch=8):
    """Blocks of the norms of a replay at this batch size, one per row, except for those of the first few."""
    norms = events.filter(pl.col("name").cast(pl.String).str.contains("layer_norm"))["id"].to_list()
    blocks = [1 if i < odd else batch * 512 for i in range(len(norms))]
    return pl.DataFrame({"id": norms, "blocks": blocks}, schema=KERNEL_BLOCKS)


def test_a_capture_of_another_batch_size_is_refused_by_its_blocks():
    """Kernels and their order are the same; a norm starts one block per row."""
    events = replay_of(NORM_KERNELS * 10)
    for batch, joined in ((8, 1), (16, 0), (4, 0)):
        capture = replace(capture_of(norm_layers(batch)), blocks=blocks_of(events))
        replays = join_replays(events, capture)
        assert replays.replays_joined == joined
        expected = [] if joined else [("sizes", batch * 512, 8 * 512)]
        assert [(m.case, m.captured, m.replayed) for m in replays.mismatches] == expected


@pytest.mark.parametrize(("odd", "accepted"), [(1, True), (2, False)])
def test_a_tenth_of_the_norms_may_have_other_blocks(odd, accepted):
    assert pytest.approx(1 - 1 / 10) == MIN_SAME_SIZE_SHARE
    events = replay_of(NORM_KERNELS * 10)
    capture = replace(capture_of(norm_layers(8)), blocks=blocks_of(events, odd=odd))
    assert bool(join_replays(events, capture).replays_joined) is accepted


@pytest.mark.parametrize(
    ("kernel", "shapes", "blocks"),
    [
        ("void at::native::elementwise_kernel<128, 4, add>(int)", "[[1000,1000],[]]", 1954),
        (
            "void (anonymous namespace)::cunn_SoftMaxForward<4, float>(float*)",
            "[[8,512,1000],[],[]]",
            4096,
        ),
        ("void vllm::rms_norm_kernel<c10::BFloat16, 8>(int)", "[[32,4096],[4096]]", 32),
    ],
)
def test_blocks_follow_from_shapes(kernel, shapes, blocks):
    assert find_other_size([(kernel, shapes, blocks)]) is None
    assert find_other_size([(kernel, shapes, 2 * blocks)]) == (blocks, 2 * blocks)


def test_blocks_are_read_from_the_file(tmp_path):
    kernel = {
        "ph": "X",
        "cat": "kernel",
        "name": "k",
        "ts": 2,
        "dur": 1,
        "args": {"grid": [4, 3, 2], "correlation": 1},
    }
    call = {
        "ph": "X",
        "cat": "cuda_runtime",
        "name": "cudaGraphLaunch",
        "ts": 1,
        "dur": 1,
        "args": {"correlation": 1},
    }
    flow = {"ph": "s", "id": 1, "cat": "ac2g", "ts": 1}
    path = tmp_path / "rank0.json"
    path.write_text(json.dumps({"traceEvents": [call, flow, kernel]}))
    assert read_kernel_blocks(str(path)).rows() == [(1, 24)]
    (rank,) = read_ref(SourceRef(str(path), "kineto", 0, "option"))
    assert rank.events.filter(pl.col("kind") == "kernel")["id"].to_list() == [1]


@pytest.mark.parametrize(
    ("grid", "blocks"),
    [([2**62], [2**62]), ([2**63], []), ([2**40] * 3, []), ([-1], []), ("x", [])],
)
def test_a_grid_that_no_gpu_has_gives_no_blocks(tmp_path, grid, blocks):
    kernel = {"ph": "X", "cat": "kernel", "name": "k", "args": {"grid": grid}}
    path = tmp_path / "rank0.json"
    path.write_text(json.dumps({"traceEvents": [kernel]}))
    assert read_kernel_blocks(str(path))["blocks"].to_list() == blocks


@pytest.mark.parametrize("correlation", [2**63, -(2**64), 2**70])
def test_a_launch_whose_correlation_no_integer_holds_is_left_out(tmp_path, correlation):
    events = []
    for number in (7, correlation):
        args = {"kernel": "gemm", "correlation": number}
        events.append({"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "args": args})
    path = tmp_path / "rank0.json"
    path.write_text(json.dumps({"traceEvents": events}))
    assert read_launched_kernels(str(path)).rows() == [(7, "gemm")]


@pytest.mark.parametrize(("gpu_events", "captured"), [(5, True), (6, False)])
def test_a_capture_has_at_most_half_as_many_gpu_events_as_launches(tmp_path, gpu_events, captured):
    assert MAX_GPU_EVENTS_PER_LAUNCH == 5 / 10
    begin = {"ph": "X", "cat": "cuda_runtime", "name": "cudaStreamBeginCapture"}
    launch = {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel"}
    kernel = {"ph": "X", "cat": "kernel", "name": "gemm"}
    path = tmp_path / "rank0.json"
    path.write_text(json.dumps({"traceEvents": [begin, *[launch] * 10, *[kernel] * gpu_events]}))
    assert holds_capture(str(path)) is captured


def test_an_explanation_names_the_captured_operator():
    (rank,) = read_ref(source("step-replay.json.gz", "step-capture.json.gz"))
    assert "aten::gelu_backward" in explain_text(rank, "GeluBackward")
    assert "aten::gelu_backward" not in explain_text(replace(rank, capture=None), "GeluBackward")


def slow_kernels(*files, **options):
    """Return operator and module of the slow kernels that an analysis finds first."""
    result = analyze(*(DATA / name for name in files), schedule="none", workers=1, **options)
    values = [finding.evidence for finding in result.findings if finding.code == "slow_kernel"]
    return [(value["op"], value["module"]) for value in values]


def test_findings_of_a_replay_name_kernels_by_operator_and_module():
    """The same as without the graph; without the capture nothing is known about them."""
    capture = DATA / "step-capture.json.gz"
    kernels = slow_kernels("step-replay.json.gz", capture=capture)
    assert kernels == slow_kernels("step-eager.json.gz")
    assert kernels == [("aten::_cudnn_attention_backward", "attention")]


@pytest.mark.parametrize(("pause_ns", "joined"), [(0, False), (500, True)])
def test_a_launch_call_needs_room_for_the_order_of_the_capture(pause_ns, joined):
    """A call of 30 ns, and 10 operators and launches with 40 starts and ends between them."""
    events = replay_of(KERNELS * 5)
    call_end = (
        pl.when(pl.col("kind") == "runtime").then(pl.col("start_ns") + 30).otherwise("end_ns")
    )
    events = events.with_columns(end_ns=call_end)
    following = events.filter(pl.col("kind") == "runtime").with_columns(
        pl.lit(10_000, pl.Int64).alias("id"),
        pl.lit(None, pl.Int64).alias("correlation"),
        start_ns=pl.col("start_ns") + 30 + pause_ns,
        end_ns=pl.col("start_ns") + 40 + pause_ns,
    )
    replays = join_replays(pl.concat([events, following]), capture_of(LAYER * 5))
    assert bool(replays.replays_joined) is joined
    assert [mismatch.case for mismatch in replays.mismatches] == (
        [] if joined else ["short_launch"]
    )
