"""Which ranks an Nsight export holds: processes, their GPUs, and where a rank's number comes from."""

from __future__ import annotations

import pytest

from tests.parsers.nsight_files import EPOCH, Report
from tests.parsers.nsight_payloads import INIT, payload, with_schemas
from tests.parsers.nsight_reading import only, rows
from tracekit.errors import InputError
from tracekit.parsers import nsight
from tracekit.parsers.process_ranks import refuse_many_ranks

pytestmark = pytest.mark.slow


def test_processes_never_mix_though_correlations_repeat_and_both_are_device_0(path):
    report = Report()
    for pid in (100, 200):
        report.call("cudaLaunchKernel", pid, pid + 1, corr=1, pid=pid, tid=pid)
        report.kernel(f"k{pid}", 500, 510, corr=1, pid=pid, device=0)
        report.range(f"r{pid}", pid - 5, pid + 5, pid=pid, tid=pid)
    first, second = nsight.read(report.save(path))
    assert [first.source.rank, second.source.rank] == [0, 1]
    for rank, pid in ((first, 100), (second, 200)):
        assert rows(rank, "kernel", "name") == [f"k{pid}"]
        assert rows(rank, "runtime", "start_ns") == [EPOCH + pid]
        assert rows(rank, "annotation", "name") == [f"r{pid}"]
        assert rank.events["rank"].unique().to_list() == [rank.source.rank]


def test_one_process_with_two_gpus_is_two_ranks_that_share_its_calls(path):
    report = Report().call("cudaLaunchKernel", 1, 2, corr=1).call("cudaLaunchKernel", 3, 4, corr=2)
    report.kernel("a", 5, 6, corr=1, device=0).kernel("b", 5, 6, corr=2, device=1)
    first, second = nsight.read(report.save(path))
    assert rows(first, "kernel", "name", "device") == [("a", 0)]
    assert rows(second, "kernel", "name", "device") == [("b", 1)]
    assert len(rows(first, "runtime", "name")) == len(rows(second, "runtime", "name")) == 2


def test_a_report_of_more_ranks_than_a_machine_has_is_one_line(path):
    refuse_many_ranks([(process, 0) for process in range(128)], path)
    report = Report()
    for device in range(129):
        report.kernel("gemm", 10, 20, corr=device + 1, device=device)
    with pytest.raises(InputError, match="129 pairs of process and GPU"):
        nsight.read(report.save(path))


def test_many_gpus_of_one_process_are_as_many_ranks_each_with_its_kernel_and_all_calls(path):
    report = Report().range("ProfilerStep#1", 0, 1000).range("ProfilerStep#2", 1000, 2000)
    for device in range(60):
        start = 20 * device
        report.call("cudaLaunchKernel", start, start + 1, corr=device + 1)
        report.kernel(f"k{device}", start + 5, start + 90, corr=device + 1, device=device)
    ranks = nsight.read(report.save(path))
    assert [rank.source.rank for rank in ranks] == list(range(60))
    for device, rank in enumerate(ranks):
        step = 1 if 20 * device < 1000 else 2
        times = (EPOCH + 20 * device + 5, EPOCH + 20 * device + 90)
        assert rows(rank, "kernel", "name", "device", "start_ns", "end_ns", "step") == [
            (f"k{device}", device, *times, step)
        ]
        assert rows(rank, "runtime", "start_ns") == [EPOCH + 20 * i for i in range(60)]
        assert rank.source.counts == {"annotation": 2, "kernel": 1, "runtime": 60}
        # A step in which nothing ran on this GPU is none of this rank.
        assert rank.events["step"].drop_nulls().unique().to_list() == [step]
        assert rank.events["start_ns"].is_sorted()
        assert rank.events["id"].to_list() == list(range(63))
        assert rank.events["rank"].unique().to_list() == [device]


def test_kernels_without_a_device_are_a_rank_of_their_own(path):
    report = Report().kernel("a", 5, 6, device=0).kernel("b", 7, 8, device=None)
    first, second = nsight.read(report.save(path))
    assert rows(first, "kernel", "name") == ["a"]
    assert rows(second, "kernel", "name") == ["b"]


def test_a_gpu_that_is_only_touched_is_no_rank(path):
    report = Report().kernel("k", 5, 6, device=1).memset(7, 8, device=0)
    rank = only(report, path)
    assert rows(rank, "kernel", "device") == [1]
    assert rank.source.counts == {"kernel": 1}
    assert rank.source.skipped == {"events on other devices": 1}


def test_ranks_by_what_nccl_said(path):
    report = with_schemas(Report()).domain("NCCL", 1, pid=100).domain("NCCL", 1, pid=200)
    for pid, number in ((100, 3), (200, 2)):
        report.kernel("k", 1, 2, pid=pid)
        report.range(
            "ncclCommInitRank",
            0,
            1,
            pid=pid,
            domain=1,
            binaryData=payload(INIT, 9, 2, number % 2, 0),
        )
        report.range(
            "ncclCommInitRank", 0, 1, pid=pid, domain=1, binaryData=payload(INIT, 7, 4, number, 0)
        )
    first, second = nsight.read(report.save(path))
    assert [(r.source.rank, r.source.rank_from, r.source.world_size) for r in (first, second)] == [
        (3, "content", 4),
        (2, "content", 4),
    ]


def test_ranks_by_mpi_by_name_by_order_and_as_asked(tmp_path):
    def numbers(report, name, **options):
        return [
            (r.source.rank, r.source.rank_from)
            for r in nsight.read(report.save(tmp_path / name), **options)
        ]

    alone = Report().kernel("k", 1, 2)
    assert numbers(alone, "report.sqlite") == [(0, "only file")]
    assert numbers(alone, "run_rank-12.sqlite") == [(12, "name")]
    assert numbers(alone, "frank3.sqlite") == [(0, "only file")]
    assert numbers(alone, "rank4.sqlite", rank=6) == [(6, "option")]
    two = Report().kernel("k", 1, 2, pid=300).kernel("k", 1, 2, pid=200)
    assert numbers(two, "rank9.sqlite") == [(0, "content"), (1, "content")]
    assert numbers(two, "two.sqlite", rank=8) == [(8, "option"), (9, "option")]
    mpi = Report().kernel("k", 1, 2).range("MPI Rank 5", 0, None, kind=39)
    assert numbers(mpi, "rank1.sqlite") == [(5, "content")]
