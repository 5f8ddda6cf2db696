"""Labels of real captures, with and without evidence that a user may not have recorded."""

from __future__ import annotations

import polars as pl
import pytest

from tests.classify.conftest import bare, nothing, renamed, unannotated, without_shapes
from tests.kept import analysis_of
from tracekit.classify import classify
from tracekit.parsers import nsight
from tracekit.schema import COMMUNICATION_LABELS, COMPUTE_LABELS

pytestmark = pytest.mark.slow

FOUR_RANKS = [0, *(pytest.param(rank, marks=pytest.mark.nightly) for rank in (1, 2)), 3]
"""The first rank of a pipeline, one between and the last."""
EIGHT_RANKS = [
    0,
    3,
    7,
    *(pytest.param(rank, marks=pytest.mark.nightly) for rank in (1, 2, 4, 5, 6)),
]
GEMM = pl.col("name").cast(pl.String).str.contains("nvjet|gemm_kernel")
SENDRECV = pl.col("name").cast(pl.String).str.contains("SendRecv")
NAME = pl.col("name").cast(pl.String)


def counts(labelled, *by):
    """Count the events of each label (and pass)."""
    table = labelled.group_by(by or ("label",)).len().rows()
    return {row[0] if len(row) == 2 else row[:-1]: row[-1] for row in table}


def gemms(labelled):
    return counts(labelled.filter(GEMM & (pl.col("kind") == "kernel")))


def split(number, **more):
    return {"forward": number, "dgrad": number, "wgrad": number} | more


def share(labelled, label):
    length = pl.col("end_ns") - pl.col("start_ns")
    return (
        labelled.filter(pl.col("label") == label).select(length.sum()).item()
        / labelled.select(length.sum()).item()
    )


@pytest.mark.parametrize("rank", FOUR_RANKS)
def test_1f1b(samples, load, stripped, rank):
    labelled = classify(stripped(load(samples / f"1f1b/rank{rank}.pt.trace.json.gz")))
    assert gemms(labelled) == split(96)
    assert set(labelled.filter(SENDRECV)["label"]) == {"pp_comm"}
    assert set(labelled.filter(SENDRECV)["peer"]) == {r for r in (rank - 1, rank + 1) if 0 <= r < 4}
    assert set(labelled.filter(NAME.str.contains("GammaBeta"))["label"]) == {"wgrad"}
    assert set(labelled.filter(NAME.str.contains("multi_tensor"))["label"]) == {"optimizer"}
    assert share(labelled, "other") == 0


@pytest.mark.parametrize("rank", EIGHT_RANKS)
def test_dualpipe_splits_weight_gradients_that_are_partly_deferred(samples, load, rank):
    events = load(samples / f"dualpipe/rank{rank}.pt.trace.json.gz")
    for strip in (nothing, without_shapes, renamed, bare):
        labelled = classify(strip(events))
        assert gemms(labelled) == split(120)
        assert set(labelled.filter(SENDRECV)["label"]) == {"pp_comm"}
    assert share(labelled, "other") < 0.001


@pytest.mark.parametrize("rank", FOUR_RANKS)
def test_overlapped(samples, load, stripped, rank):
    labelled = classify(stripped(load(samples / f"overlapped/rank{rank}.pt.trace.json.gz")))
    assert gemms(labelled) == split(96)
    assert counts(labelled.filter(SENDRECV), "label", "pass") == {
        ("ep_dispatch", "forward"): 24,
        ("ep_combine", "forward"): 24,
        ("ep_dispatch", "backward"): 24,
        ("ep_combine", "backward"): 24,
    }
    assert counts(labelled.filter(pl.col("kind") == "memcpy")) == {"offload": 264, "onload": 264}
    assert set(labelled.filter(NAME.str.contains("DtoH"))["label"]) == {"offload"}
    assert share(labelled, "other") < 0.002


@pytest.mark.parametrize("rank", FOUR_RANKS)
def test_interleaved(samples, load, rank):
    events = load(samples / f"interleaved/rank{rank}.pt.trace.json.gz")
    for strip in (nothing, bare, unannotated):
        labelled = classify(strip(events))
        assert gemms(labelled) == split(192)
        assert set(labelled.filter(SENDRECV)["label"]) == {"pp_comm"}
    named = classify(events).filter(pl.col("label") == "forward")
    assert set(named["stage"]) == {rank, rank + 4}
    assert set(named["microbatch"]) == set(range(8))


@pytest.mark.parametrize("rank", [0, 3, 6, 7])
def test_overlapped_pipeline_with_experts(samples, load, rank):
    events = load(samples / f"vpp-overlap/rank{rank}.pt.trace.json.gz")
    for strip in (nothing, bare, unannotated):
        labelled = classify(strip(events))
        assert gemms(labelled) == split(64)
        exchanged = labelled.filter(pl.col("label").cast(pl.String).str.starts_with("ep_"))
        assert set(counts(exchanged, "label", "pass").values()) == {16}
        assert counts(labelled.filter(pl.col("kind") == "memcpy")) == {"offload": 32, "onload": 32}


def test_recompute_is_not_forward(samples, load, stripped):
    labelled = classify(stripped(load(samples / "recompute/rank0.pt.trace.json.gz")))
    assert gemms(labelled) == split(32, recompute=24)


def test_compiled_regions(samples, load):
    events = load(samples / "compile/rank0.pt.trace.json.gz")
    for strip in (nothing, without_shapes):
        assert gemms(classify(strip(events))) == split(32)
    # Without shapes and names nothing tells the two gradients apart, and nothing is made up.
    assert gemms(classify(bare(events))) == {"forward": 32, "backward": 64}


@pytest.mark.parametrize("folder", ["reload", "reload-overlap"])
@pytest.mark.parametrize("rank", FOUR_RANKS)
def test_weight_reload(samples, load, stripped, folder, rank):
    labelled = classify(stripped(load(samples / f"{folder}/rank{rank}.pt.trace.json.gz")))
    actual = counts(labelled)
    assert (actual["broadcast"], actual["reload"], actual["onload"]) == (8, 8, 2)
    assert set(labelled.filter(pl.col("label") == "reload")["name"].cast(pl.String)) == {
        "Memcpy DtoD (Device -> Device)"
    }


@pytest.mark.parametrize("rank", FOUR_RANKS)
def test_nsight(samples, rank):
    (one,) = nsight.read(samples / f"nsys-1f1b/rank{rank}.sqlite")
    for strip in (nothing, without_shapes, renamed, bare):
        labelled = classify(strip(one.events))
        assert gemms(labelled) == split(64)
        assert set(labelled.filter(SENDRECV)["label"]) == {"pp_comm"}
    assert share(labelled, "other") == 0


SAYS = {"F": "forward", "B": "dgrad", "W": "wgrad"}


def test_deepseek_as_annotated(corpus, load):
    labelled = classify(load(corpus / "deepseek/train.json.gz"))
    assert len(labelled) == 983
    rows = labelled.with_columns(
        part=pl.col("annotation").cast(pl.String).str.extract(r"^(\w+)\("),
        way=pl.col("annotation").cast(pl.String).str.extract(r"\((\w)\)$"),
        moves=NAME.str.contains("dpsk::ep::"),
    )
    # Casts that prepare a message move nothing between ranks: they are compute of the pass.
    exchange = pl.col("part").is_in(["dispatch", "combine"]) & pl.col("moves")
    expected = (
        pl.when(exchange).then("ep_" + pl.col("part")).otherwise(pl.col("way").replace_strict(SAYS))
    )
    assert rows.filter(pl.col("label").cast(pl.String) != expected).is_empty()
    assert rows.filter((pl.col("pass") == "forward") != (pl.col("way") == "F")).is_empty()
    assert set(rows.filter(pl.col("part") == "attn", pl.col("kind") == "kernel")["module"]) == {
        "attention"
    }


def test_deepseek_published_times(corpus, load):
    labelled = classify(load(corpus / "deepseek/train.json.gz"))

    def union(labels):
        rows = (
            labelled.filter(pl.col("label").is_in(labels))
            .sort("start_ns")
            .select("start_ns", "end_ns")
            .rows()
        )
        total, reached = 0, 0
        for start, end in rows:
            total += max(0, end - max(start, reached))
            reached = max(reached, end)
        return total

    communication, compute = union(COMMUNICATION_LABELS), union(COMPUTE_LABELS)
    both = communication + compute - union(COMMUNICATION_LABELS + COMPUTE_LABELS)
    assert (communication, compute, both) == (113_440_000, 124_338_000, 109_263_000)


def test_deepseek_without_annotations(corpus, load):
    events = load(corpus / "deepseek/train.json.gz")
    pair = classify(events).join(classify(unannotated(events)), on="id", suffix="_bare")
    length = pl.col("end_ns") - pl.col("start_ns")
    passes = pl.col("pass").eq_missing(pl.col("pass_bare"))
    # Between known backwards neighbours tell the pass alone: which gradient it is, is not made up.
    undivided = pl.col("label").is_in(["dgrad", "wgrad"]) & (pl.col("label_bare") == "backward")
    same = passes & ((pl.col("label") == pl.col("label_bare")) | undivided)
    assert pair.filter(same).select(length.sum()).item() > 0.98 * pair.select(length.sum()).item()
    assert (
        pair.filter(same & undivided).select(length.sum()).item()
        < 0.1 * pair.select(length.sum()).item()
    )


PUBLIC = [
    *(f"dlrm-8ranks/worker{i}_*" for i in range(8)),
    "hta/df_index*",
    "hta/mi250*",
    "hta/nccl_data*",
    "hta/rank-0*",
    "tracelens/qwen*",
    "tracelens/resnet*",
    "kineto/resnet50*",
]


@pytest.mark.parametrize("pattern", PUBLIC)
def test_public(corpus, load, pattern):
    (path,) = corpus.glob(pattern)
    labelled = classify(load(path))
    assert share(labelled, "other") < 0.05
    moving = labelled.filter(NAME.str.contains("(?i)nccl|rccl") & (pl.col("kind") == "kernel"))
    assert set(moving["label"]) <= set(COMMUNICATION_LABELS)


def test_convolutions_agree_with_the_calls_that_name_them(corpus, load):
    """Old traces have one op for each gradient; newer ones leave it to the kernels' order."""
    (path,) = corpus.glob("kineto/resnet50*")
    labelled = classify(load(path)).filter(pl.col("kind") == "kernel")
    op = pl.col("op").cast(pl.String)
    assert set(labelled.filter(op.str.ends_with("convolution_backward_weight"))["label"]) == {
        "wgrad"
    }
    assert set(labelled.filter(op.str.ends_with("convolution_backward_input"))["label"]) == {
        "dgrad"
    }


@pytest.mark.parametrize("name", ["perlmutter-cloverleaf-cuda", "saxpy-mpi-cuda_nsys_perlmutter0"])
def test_a_program_that_is_no_model_is_not_called_forward(corpus, name):
    rank = nsight.read(corpus / "nsight" / f"{name}.sqlite")[0]
    actual = classify(rank.events)
    assert set(actual.filter(pl.col("kind") == "kernel")["label"].cast(pl.String)) == {"other"}


def test_ulysses_all_to_all_is_context_parallel(corpus):
    rank = nsight.read(corpus / "nsight" / "mfu_2gpu_before.sqlite")[0]
    actual = classify(rank.events).filter(
        pl.col("chain").cast(pl.String).str.contains("AllToAll4D")
    )
    kernels = actual.filter(pl.col("name").cast(pl.String).str.contains("nccl"))
    assert set(kernels["label"].cast(pl.String)) == {"cp_comm"}


def test_fsdp_packs_gradients_in_a_pipeline_as_elsewhere(corpus):
    """Stages wrapped in FSDP: 16 forwards and backwards per rank, then each stage packs and scales its gradients."""
    folder = corpus.parent / "checked" / "titan-fsdp-pp"
    if not folder.is_dir():
        pytest.skip("the checked recordings are not here")
    analysis = analysis_of(folder)
    schedule = analysis.comparison
    assert (schedule.name, schedule.exact) == ("interleaved", True)
    for order in schedule.head.orders():
        assert len(order) == 32
    kernels = analysis.tables["kernels"]
    packs = kernels.filter(
        pl.col("name").cast(pl.String).str.contains("chunk_cat|split_with_sizes")
    )
    assert len(packs)
    assert packs["label"].cast(pl.String).unique().to_list() == ["memory"]
