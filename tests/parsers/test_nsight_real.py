"""Real Nsight captures with known answers."""

from __future__ import annotations

from collections import Counter

import polars as pl
import pytest

from tests.reference import read as read_pytorch
from tracekit.classify import classify
from tracekit.parsers import nsight
from tracekit.schema import COMPUTE_LABELS

pytestmark = pytest.mark.slow


def union(frame):
    """Nanoseconds covered, one interval at a time."""
    covered, reached = 0, None
    for start, end in sorted(frame.select("start_ns", "end_ns").rows()):
        if reached is None or start > reached:
            covered, reached = covered + end - start, end
        elif end > reached:
            covered, reached = covered + end - reached, end
    return covered


def gpu(events):
    return events.filter(pl.col("kind").is_in(["kernel", "memcpy", "memset"]))


def named(frame, pattern):
    return frame.filter(pl.col("name").cast(pl.String).str.contains(pattern))


@pytest.fixture(scope="module")
def pipeline(samples):
    """The 1F1B run recorded under Nsight Systems with emit_nvtx, a file per rank."""
    return [nsight.read(samples / "nsys-1f1b" / f"rank{r}.sqlite")[0] for r in range(4)]


def test_rank_0_spans_88_804_ms_with_42_870_ms_of_communication(pipeline):
    busy = gpu(pipeline[0].events)
    assert busy["end_ns"].max() - busy["start_ns"].min() == pytest.approx(88.804e6, abs=1e3)
    assert union(named(busy, "^nccl")) == pytest.approx(42.870e6, abs=1e3)


def test_a_file_a_rank_by_name(pipeline):
    assert [(r.source.rank, r.source.rank_from) for r in pipeline] == [
        (r, "name") for r in range(4)
    ]
    assert all(
        r.source.reader == "nsight" and r.source.devices == ("NVIDIA H200",) for r in pipeline
    )
    assert {(r.source.multiprocessors, r.source.memory_bytes) for r in pipeline} == {
        (32, 150_109_880_320)
    }  # a fourth of it


def test_the_step_is_the_one_the_pytorch_recording_of_this_run_names(pipeline):
    """The program marks ``step 3`` after its third iteration.

    PyTorch's profiler calls that iteration 2.
    """
    for rank in pipeline:
        assert gpu(rank.events)["step"].unique().to_list() == [2]


def test_ops_look_as_they_do_in_a_pytorch_trace(pipeline, samples):
    """The same program with three blocks a stage instead of two: the same ops, half as many again of each block's."""
    pytorch = read_pytorch(samples / "1f1b" / "rank0.pt.trace.json.gz").filter(
        pl.col("kind") == "cpu_op"
    )
    ours = pipeline[0].events.filter(pl.col("kind") == "cpu_op")

    def shape(frame):
        rows = frame.select(
            pl.col("name").cast(pl.String),
            pl.col("sequence").is_not_null(),
            pl.col("fwd_thread") > 0,
        )
        return {
            name: (numbered, backward)
            for name, numbered, backward in sorted(set(rows.rows()), key=str)
        }

    assert shape(ours) == shape(pytorch)
    mine, theirs = (Counter(frame["name"].cast(pl.String).to_list()) for frame in (ours, pytorch))
    for op in (
        "MmBackward0",
        "aten::linear",
        "aten::gelu",
        "autograd::engine::evaluate_function: GeluBackward0",
    ):
        assert 3 * mine[op] == 2 * theirs[op]
    gemms = [
        set(named(frame, "^aten::mm$")["shapes"].cast(pl.String).to_list())
        for frame in (ours, pytorch)
    ]
    assert gemms[0] == gemms[1]


def test_annotations_and_messages_look_as_they_do_in_a_pytorch_trace(pipeline, samples):
    pytorch = read_pytorch(samples / "1f1b" / "rank0.pt.trace.json.gz")
    notes = [
        Counter(
            frame.filter(pl.col("kind") == "annotation", pl.col("domain").is_null())["name"]
            .cast(pl.String)
            .to_list()
        )
        for frame in (pipeline[0].events, pytorch)
    ]
    assert notes[0] == {
        name: n for name, n in notes[1].items() if not name.startswith("ProfilerStep")
    }
    messages = [
        named(frame, "^record_param_comms$")
        .sort("start_ns")["collective"]
        .cast(pl.String)
        .to_list()
        for frame in (pipeline[0].events, pytorch)
    ]
    assert messages[0] == messages[1]


def test_backward_pairs_with_forward_by_number(pipeline):
    for rank in pipeline:
        ops = rank.events.filter(pl.col("kind") == "cpu_op", pl.col("sequence").is_not_null())
        forward = named(ops.filter(pl.col("fwd_thread") == 0), "^aten::mm$")
        backward = named(ops.filter(pl.col("fwd_thread") > 0), "^MmBackward0$")
        assert len(forward) == len(backward) == 64
        assert set(forward["sequence"]) == set(backward["sequence"])
        assert backward["fwd_thread"].unique().to_list() == forward["tid"].unique().to_list()


def test_every_gpu_event_has_its_launch(pipeline):
    for rank in pipeline:
        calls = rank.events.filter(pl.col("kind").is_in(["runtime", "driver"]))
        assert gpu(rank.events).join(calls, on="correlation", how="anti").is_empty()


def test_peers_are_said_to_be_missing(pipeline):
    assert all([notice.code for notice in rank.source.notices] == ["no-peers"] for rank in pipeline)


# --- other people's ---


def test_two_processes_in_one_report(corpus):
    first, second = nsight.read(corpus / "nsight" / "mfu_2gpu_before.sqlite")
    kernels = [rank.events.filter(pl.col("kind") == "kernel") for rank in (first, second)]
    assert [len(k) for k in kernels] == [1993, 2017]
    assert sum(len(k) for k in kernels) == 4010
    assert [k["pid"].unique().to_list() for k in kernels] == [[144], [145]]
    assert [k["device"].unique().to_list() for k in kernels] == [[0], [1]]
    calls = [
        r.events.filter(pl.col("kind").is_in(["runtime", "driver"]))["pid"].unique().to_list()
        for r in (first, second)
    ]
    assert calls == [[144], [145]]
    for kernel in kernels:  # the first was launched before the window that the file holds
        spoken = named(kernel, "^nccl").sort("start_ns")["collective"].cast(pl.String).to_list()
        assert spoken == [None, *["all_to_allv"] * 32]
    # NCCL shares the compute stream here: nothing can run beside it.
    assert [k["stream"].n_unique() for k in kernels] == [1, 1]


def test_a_2024_report_of_a_program_without_ranges(corpus):
    (rank,) = nsight.read(corpus / "nsight" / "perlmutter-cloverleaf-cuda.sqlite")
    assert rank.source.versions["schema"] == "3.13.2"
    assert (rank.source.counts["kernel"], rank.source.counts["memcpy"]) == (1312, 279)
    assert rank.source.devices == ("NVIDIA A100-SXM4-80GB",)
    assert [notice.code for notice in rank.source.notices] == ["no-ranges"]
    copies = set(rank.events.filter(pl.col("kind") == "memcpy")["name"].cast(pl.String))
    assert "Memcpy HtoD (Pageable -> Device)" in copies


def test_a_2022_report_under_mpi(corpus):
    (rank,) = nsight.read(corpus / "nsight" / "saxpy-mpi-cuda_nsys_perlmutter0.sqlite")
    assert rank.source.versions["schema"] == "2.9.1"
    assert (rank.source.rank, rank.source.rank_from) == (0, "content")
    assert (rank.source.counts["kernel"], rank.source.counts["memcpy"]) == (5, 15)
    ranges = rank.events.filter(pl.col("kind") == "annotation")
    assert set(ranges["domain"].cast(pl.String)) == {None, "MPI"}
    assert "saxpy" in ranges["name"].cast(pl.String).to_list()


# --- what the labels make of it ---


def labelled(rank):
    return classify(rank.events)


def overlap(one, other):
    """Nanoseconds that both cover: |A| + |B| - |A or B|."""
    return union(one) + union(other) - union(pl.concat([one, other]))


def computing(frame):
    return frame.filter(
        pl.col("label").is_in([*COMPUTE_LABELS, "other"]), pl.col("kind") == "kernel"
    )


def test_every_gemm_and_every_message_of_the_pipeline_is_known(pipeline):
    for rank in pipeline:
        frame = labelled(rank)
        gemms = Counter(named(frame, "nvjet|gemm|cutlass")["label"].to_list())
        assert gemms == {"forward": 64, "dgrad": 64, "wgrad": 64}
        assert named(frame, "SendRecv")["label"].unique().to_list() == ["pp_comm"]
        assert "other" not in frame["label"].to_list()


def test_1_325_ms_of_rank_0s_communication_are_under_compute(pipeline):
    frame = labelled(pipeline[0])
    assert overlap(named(frame, "^nccl"), computing(frame)) == pytest.approx(1.325e6, abs=1e3)


def test_an_op_has_the_same_labels_under_both_profilers(pipeline, samples):
    pytorch = classify(read_pytorch(samples / "1f1b" / "rank0.pt.trace.json.gz"))

    def labels(frame):
        # A message's direction takes peers, which one lacks.
        pass_or_null = pl.when(pl.col("label") != "pp_comm").then("pass")
        return set(
            frame.select(
                "kind",
                pl.col("op").cast(pl.String),
                pl.col("node").cast(pl.String),
                "label",
                pass_or_null,
            ).rows()
        )

    def messages(frame):
        return frame["p2p"].cast(pl.String).drop_nulls().str.replace_all(r":(\d+|\?)", "").to_list()

    ours = labelled(pipeline[0])
    assert labels(ours) == labels(pytorch)
    assert messages(ours) == messages(pytorch) == ["send"] * 3 + ["send,recv"] * 5 + ["recv"] * 3


def test_communication_on_the_compute_stream_hides_under_nothing(corpus):
    for rank in nsight.read(corpus / "nsight" / "mfu_2gpu_before.sqlite"):
        frame = labelled(rank)
        nccl = named(frame, "^nccl")
        assert nccl.height == 33
        assert overlap(nccl, computing(frame)) == 0
