"""Collectives against times that were measured elsewhere: which operations are compared, and with what."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from tests.kept import analysis_of
from tracekit import analyze, load
from tracekit.align.matching import MEMBERS
from tracekit.metrics.bandwidth import bandwidth
from tracekit.metrics.label_intervals import Lanes
from tracekit.metrics.measured_collectives import (
    RankGpu,
    find_common_gpu,
    find_rank_gpu,
    measured_ns,
    read_measured_times,
)
from tracekit.metrics.operations import operations
from tracekit.report.sections.rates import communication_table
from tracekit.schema import LABELLED, Source, conform

PUBLIC = Path(os.environ.get("TRACEKIT_CORPUS", "nowhere")) / "public"
MIB = 1 << 20
H100, H200, B200 = read_measured_times().gpu
GATHER_8_512_MIB_NS = 1_398_640
"""All-gather of 512 MiB on eight H100, as published: 1.39864 ms."""
GATHER_8_256_MIB_NS = 730_990


def one_machine(ranks=8, model=H100, first_rank=0):
    """Return the GPUs of ranks that have one each."""
    return {first_rank + number: RankGpu(model, number) for number in range(ranks)}


def gather(size, duration_ns, *, what="_allgather_base", ranks=range(8), dtype=None):
    """Members of one all-gather."""
    listed = str(list(ranks)).replace(" ", "")
    row = {
        "match": 0,
        "label": "dp_comm",
        "what": what,
        "group": "dp",
        "group_ranks": listed,
        "bytes": size,
        "transfer_ns": duration_ns,
        "wait_ns": 0,
    }
    rows = [{**row, "rank": rank} for rank in ranks]
    return conform(pl.DataFrame(rows), MEMBERS).with_columns(dtype=pl.lit(dtype, pl.String))


def compared(members, gpus, **options):
    columns = ("gpu_link_gb_s", "measured_bus_gb_s", "share_of_measured")
    (row,) = bandwidth(members, gpus=gpus, **options).select(columns).rows()
    return row


# ---- which time an operation is compared with


def test_an_operation_of_a_measured_size_is_compared_with_its_time():
    """Twice the published time is half of the published bandwidth: 512 MiB · 7/8 in 1.39864 ms."""
    members = gather(512 * MIB, 2 * GATHER_8_512_MIB_NS)
    link, measured, share = compared(members, one_machine())
    assert link == 450
    assert measured == pytest.approx(512 * MIB * 7 / 8 / GATHER_8_512_MIB_NS)
    assert share == pytest.approx(0.5)


def test_bus_bandwidth_is_compared_with_bus_bandwidth():
    table = bandwidth(gather(512 * MIB, 2 * GATHER_8_512_MIB_NS), gpus=one_machine())
    bus, measured, share = table.select("bus_gb_s", "measured_bus_gb_s", "share_of_measured").row(0)
    assert bus / measured == pytest.approx(share)


def test_between_two_sizes_the_time_is_between_theirs():
    """384 MiB are half-way between 256 and 512."""
    half_way_ns = (GATHER_8_256_MIB_NS + GATHER_8_512_MIB_NS) / 2
    (time_ns,) = measured_ns(
        "all_gather", np.array([384 * MIB]), gpu="H100 SXM", ranks=8, dtype=None
    )
    assert time_ns == pytest.approx(half_way_ns)


@pytest.mark.parametrize("size", [256, 511, 512 * MIB + 1])
def test_nothing_is_said_outside_of_the_measured_sizes(size):
    assert compared(gather(size, 1_000), one_machine())[1:] == (None, None)


def test_a_row_with_one_operation_that_was_not_measured_is_not_compared():
    """Both are between 256 MB and 1 GB, one is larger than all that was measured."""
    small = gather(512 * MIB, 1_000_000)
    large = gather(513 * MIB, 1_000_000).with_columns(match=pl.lit(1, pl.Int64))
    assert compared(pl.concat([small, large]), one_machine())[1:] == (None, None)


@pytest.mark.parametrize(
    ("what", "dtype", "is_compared"),
    [
        ("allreduce", "fp16", True),
        ("allreduce", "int8", True),
        ("allreduce", "bf16", True),
        ("allreduce", "fp64", False),
        ("allreduce", None, False),
        ("_reduce_scatter_base", "fp32", True),
        ("_allgather_base", None, True),
        ("all_to_all", None, True),
        ("all_to_allv", None, False),
        ("allgather_into_tensor_coalesced", None, False),
        ("broadcast", None, False),
    ],
)
def test_operations_that_reduce_need_the_same_type_and_uneven_ones_are_not_compared(
    what, dtype, is_compared
):
    members = gather(MIB, 100_000, what=what, dtype=dtype)
    assert (compared(members, one_machine())[2] is not None) is is_compared


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
def test_sums_of_other_floats_are_compared_with_the_times_of_halves(dtype):
    sizes = np.array([MIB, 512 * MIB])
    times_ns = [
        measured_ns("allreduce", sizes, gpu="H100 SXM", ranks=8, dtype=name).tolist()
        for name in (dtype, "fp16")
    ]
    assert times_ns[0] == times_ns[1] == [25_400, 2_111_060]


@pytest.mark.parametrize("ranks", [3, 5, 6, 7])
def test_a_number_of_gpus_that_was_not_measured_is_not_compared(ranks):
    members = gather(MIB, 100_000, ranks=range(ranks))
    assert compared(members, one_machine(ranks)) == (450, None, None)


def test_gpus_have_their_own_times():
    members = gather(512 * MIB, 1_000_000, ranks=range(4))
    shares = [compared(members, one_machine(4, model))[2] for model in (H100, H200, B200)]
    assert shares == pytest.approx([1.267, 1.271, 0.712], abs=5e-4)


# ---- where GPUs are known to be several of one machine


@pytest.mark.parametrize(
    ("gpus", "in_node", "is_known"),
    [
        (one_machine(2), None, True),
        (one_machine(2), True, True),
        (one_machine(2), False, False),
        (
            {0: RankGpu(H100, 0), 1: RankGpu(H100, 0)},
            None,
            False,
        ),  # one shared, or one visible each
        ({0: RankGpu(H100, 0), 1: RankGpu(H100, 0)}, True, False),
        ({0: RankGpu(H100, 1), 1: RankGpu(H100, 0)}, None, False),  # two machines, perhaps
        ({0: RankGpu(H100, 1), 1: RankGpu(H100, 0)}, True, True),
        ({0: RankGpu(H100, 0), 1: RankGpu(H200, 1)}, None, False),
        ({0: RankGpu(H100, 0)}, None, False),
    ],
)
def test_ranks_have_gpus_of_their_own_where_numbers_or_the_layout_say_so(gpus, in_node, is_known):
    gpu = find_common_gpu(gpus, [0, 1], group_size=2, in_node=in_node)
    assert (gpu is not None) is is_known


def test_ranks_of_two_machines_are_not_compared():
    """Ranks 0 and 8 both have GPU 0: a group across two machines of eight GPUs."""
    gpus = {**one_machine(8), **one_machine(8, first_rank=8)}
    assert compared(gather(MIB, 100_000, ranks=[0, 8]), gpus) == (None, None, None)
    assert compared(gather(MIB, 100_000, ranks=[0, 8]), gpus, node=8) == (None, None, None)
    assert compared(gather(MIB, 100_000, ranks=[8, 9]), gpus)[2] is not None


def test_ranks_without_a_trace_may_be_elsewhere_unless_the_layout_is_given():
    members = gather(MIB, 100_000).filter(pl.col("rank") < 2)
    assert compared(members, one_machine()) == (None, None, None)
    assert compared(members, one_machine(), node=8)[2] is not None


@pytest.mark.parametrize(
    ("devices", "multiprocessors", "model"),
    [
        (("NVIDIA H100 80GB HBM3",) * 8, 132, H100),
        (("NVIDIA H100 80GB HBM3",), None, H100),
        (("NVIDIA H100 80GB HBM3",), 33, None),  # a part of it
        (("NVIDIA H200",), 132, H200),
        (("NVIDIA B200",), 148, B200),
        (("NVIDIA H200 NVL",), 132, None),
        (("NVIDIA H100 PCIe",), 114, None),
        (("NVIDIA H800",), 132, None),
        (("NVIDIA H100 80GB HBM3", "NVIDIA H200"), 132, None),
        ((), None, None),
    ],
)
def test_gpus_are_known_by_their_whole_name(devices, multiprocessors, model):
    source = Source(
        "x.json", "kineto", 0, "content", devices=devices, multiprocessors=multiprocessors
    )
    gpu = find_rank_gpu(source, 0)
    assert (gpu and gpu.model) == model
    assert find_rank_gpu(source, None) is None


# ---- from files


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("ncclDevKernel_AllReduce_Sum_f16_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "fp16"),
        ("ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevComm*, unsigned long)", "bf16"),
        ("ncclKernel_AllReduce_RING_LL_Sum_half(ncclDevComm*, unsigned long, ncclWork*)", "fp16"),
        ("ncclKernel_AllReduce_TREE_LL_Sum___nv_bfloat16(ncclDevComm*)", "bf16"),
        ("ncclKernel_AllReduce_RING_LL_Sum_int8_t(ncclDevComm*)", "int8"),
        ("ncclDevKernel_AllReduce_Sum_f32_TREE_LL", "fp32"),
        ("ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)", None),
        ("ncclDevKernel_Generic_1(ncclDevKernelArgsStorage<4096ul>)", None),
    ],
)
def test_kernels_name_the_type_that_they_reduce(name, dtype):
    row = {"rank": 0, "label": "dp_comm", "name": name, "start_ns": 0, "end_ns": 5}
    events = conform(pl.DataFrame([row]), LABELLED)
    assert operations(events, Lanes.of(events))["dtype"].to_list() == [dtype]


def write_all_gather(folder, *, gpu_numbers, device):
    """Write traces of two ranks that gather 8 MiB in 200 µs: twice as long as it takes elsewhere."""
    for rank, number in enumerate(gpu_numbers):
        kernel = {
            "ph": "X",
            "cat": "kernel",
            "name": "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
            "pid": number,
            "tid": 20,
            "ts": 1000.0,
            "dur": 200.0,
            "args": {
                "device": number,
                "stream": 20,
                "correlation": 1,
                "Collective name": "_allgather_base",
                "In msg nelems": 2 * MIB,
                "Out msg nelems": 4 * MIB,
                "dtype": "BFloat16",
                "Group size": 2,
                "Process Group Name": "0",
                "Process Group Description": "default_pg",
                "Process Group Ranks": "[0, 1]",
            },
        }
        launch = {
            "ph": "X",
            "cat": "cuda_runtime",
            "name": "cudaLaunchKernelExC",
            "pid": 1,
            "tid": 1,
            "ts": 990.0,
            "dur": 2.0,
            "args": {"correlation": 1},
        }
        trace = {
            "deviceProperties": [{"id": 0, "name": device, "numSms": 132}],
            "distributedInfo": {"backend": "nccl", "rank": rank, "world_size": 2},
            "traceEvents": [launch, kernel],
        }
        (folder / f"rank{rank}.pt.trace.json").write_text(json.dumps(trace))
    return folder


def test_a_run_on_two_gpus_of_a_machine_is_compared(tmp_path):
    """4 Mi elements of two bytes are 8 MiB; two H100 gather them in 37.04 µs elsewhere."""
    folder = write_all_gather(tmp_path, gpu_numbers=(0, 1), device="NVIDIA H100 80GB HBM3")
    result = analyze(folder, schedule="none")
    (row,) = result.rate_tables.communication.to_dicts()
    assert row["bytes"] == 8 * MIB
    assert row["gpu_link_gb_s"] == 450
    assert row["measured_bus_gb_s"] == pytest.approx(8 * MIB / 2 / 37_040)
    assert row["share_of_measured"] == pytest.approx(37_040 / 200_000)
    table = communication_table(result)
    shown = {
        column.name: column.shown(value)
        for column, value in zip(table.columns, table.rows[0], strict=True)
    }
    assert (shown["bus GB/s"], shown["elsewhere"], shown["of elsewhere"]) == (
        "21.0",
        "113.2",
        "18.5 %",
    )
    (note,) = table.notes
    assert "450 GB/s" in note


@pytest.mark.parametrize(
    ("gpu_numbers", "device"), [((0, 0), "NVIDIA H100 80GB HBM3"), ((0, 1), "NVIDIA A100")]
)
def test_a_run_on_a_shared_or_another_gpu_is_not_compared(tmp_path, gpu_numbers, device):
    folder = write_all_gather(tmp_path, gpu_numbers=gpu_numbers, device=device)
    (row,) = analyze(folder, schedule="none").rate_tables.communication.to_dicts()
    assert row["bus_gb_s"] is not None
    assert (row["measured_bus_gb_s"], row["gpu_link_gb_s"]) == (None, None)


def test_ranks_that_share_a_gpu_are_not_compared_in_a_recording(samples):
    """Two ranks of the sample run on one H200."""
    table = analysis_of(samples / "slow-ddp").rate_tables.communication
    assert len(table)
    assert table["measured_bus_gb_s"].null_count() == len(table)
    assert table["gpu_link_gb_s"].null_count() == len(table)


def test_ranks_of_a_public_recording_have_gpus_of_their_own():
    """Eight ranks on the eight GPUs of one machine, which is no model that was measured."""
    folder = PUBLIC / "dlrm-8ranks"
    if not folder.is_dir():
        pytest.skip("TRACEKIT_CORPUS is not set: the traces are not in this repository")
    gpus = {}
    for path in sorted(folder.iterdir()):
        (rank_events,) = load(path).parts
        is_kernel = pl.col("kind") == "kernel"
        (number,) = rank_events.events.filter(is_kernel)["device"].unique().to_list()
        assert find_rank_gpu(rank_events.source, number) is None
        gpus[rank_events.source.rank] = RankGpu(H100, number)
    assert len(gpus) == 8
    assert find_common_gpu(gpus, gpus, group_size=8, in_node=None) == H100


# ---- the data


def test_times_are_those_that_were_published():
    """Sizes there are elements; 512 MiB take the same time as halves and as bytes."""
    folder = PUBLIC / "aiconfigurator"
    if not folder.is_dir():
        pytest.skip("TRACEKIT_CORPUS is not set: the tables are not in this repository")
    spellings = {"alltoall": "all_to_all"}
    types = {"half": ("fp16", 2), "int8": ("int8", 1)}
    for model in (H100, H200, B200):
        file = folder / f"{model.name.split()[0].lower()}_sxm-nccl_perf.parquet"
        rows = pl.read_parquet(file).select(
            "op_name", "nccl_dtype", "num_gpus", "message_size", "latency"
        )
        for op, nccl_dtype, ranks, elements, milliseconds in rows.iter_rows():
            dtype, width = types[nccl_dtype]
            moves_bytes = op in ("all_gather", "alltoall")
            if moves_bytes and dtype == "fp16":
                continue
            (time_ns,) = measured_ns(
                spellings.get(op, op),
                np.array([elements * width]),
                gpu=model.name,
                ranks=ranks,
                dtype=None if moves_bytes else dtype,
            )
            assert time_ns == pytest.approx(milliseconds * 1e6, abs=5.1)


@pytest.mark.parametrize("curve", read_measured_times().curve, ids=str)
def test_no_time_is_faster_than_the_links(curve):
    """In-switch reductions halve what the links carry for an all-reduce: twice its bus bandwidth is then possible."""
    link_gb_s = next(gpu.link_gb_s for gpu in (H100, H200, B200) if gpu.name == curve.gpu)
    factor = (curve.ranks - 1) / curve.ranks * (2 if curve.operation == "all_reduce" else 1)
    limit_gb_s = link_gb_s * (2 if curve.operation == "all_reduce" else 1)
    for i, microseconds in enumerate(curve.us):
        assert (512 << i) * factor / (microseconds * 1e3) <= limit_gb_s
