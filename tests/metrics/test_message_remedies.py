"""Remedies of collectives, from labelled events of one step."""

from __future__ import annotations

import polars as pl
import pytest

from tracekit.metrics.alternatives import find_remedies
from tracekit.metrics.rank_work import describe_rank_work
from tracekit.schema import LABELLED, conform

MB = 1 << 20


def remedies_of(events):
    labelled = conform(pl.DataFrame(events, infer_schema_length=None), LABELLED)
    labelled = labelled.with_columns(part=pl.lit(0))
    rank = describe_rank_work(labelled, device="NVIDIA H200", multiprocessors=132)
    remedies = find_remedies(rank)
    table = labelled.select("id", "bytes").with_columns(remedies)
    return table.drop_nulls("remedies").explode("remedies").unnest("remedies")


def message(number, launch_ns, ns, size, *, collective="allreduce", **more):
    return {
        "id": number,
        "kind": "kernel",
        "name": "ncclDevKernel",
        "label": "dp_comm",
        "collective": collective,
        "bytes": size,
        "launch_ns": launch_ns,
        "start_ns": launch_ns + 1_000,
        "end_ns": launch_ns + 1_000 + ns,
        **more,
    }


def backward_kernel(number, launch_ns, ns):
    return {
        "id": number,
        "kind": "kernel",
        "name": "gemm",
        "label": "dgrad",
        "launch_ns": launch_ns,
        "start_ns": launch_ns + 1_000,
        "end_ns": launch_ns + 1_000 + ns,
    }


def test_latencies_of_small_messages_go():
    """20 messages of 1 MB take 0.1 ms of latency and 0.1 of bytes, one of 32 MB 3.2: two of 26 MB would do."""
    small = [message(n, n * 10_000_000, 200_000, MB) for n in range(20)]
    large = message(20, 300_000_000, 3_200_000, 32 * MB)
    table = remedies_of([*small, large]).filter(pl.col("change") == "large messages")
    of_small = table.filter(pl.col("bytes") == MB)
    saved_ns = 100_000 * (1 - 52 / 25 / 21)
    assert of_small["likely_ns"].to_list() == [round(200_000 - saved_ns)] * 20
    # Half as much more or less is possible.
    assert of_small["low_ns"].to_list() == [round(200_000 - 1.5 * saved_ns)] * 20
    assert of_small["high_ns"].to_list() == [round(200_000 - 0.5 * saved_ns)] * 20


@pytest.mark.parametrize(
    ("usual_us", "saved_us"),
    [
        (600, 160),  # four fifths of the latency of 200 µs go: 3.2 of 16 messages are left
        (640, 192),  # the usual one starts 40 µs more slowly than the shortest
        (2000, 208),  # of more, 15 % of the time of the bytes; the rest is waiting
    ],
)
def test_the_bytes_between_two_sizes_tell_latency_from_bandwidth(usual_us, saved_us):
    """2 MB take 0.3 ms and 8 MB 0.6: 0.05 ms for each MB, and 0.2 ms whatever the size."""
    small = [message(n, n * 10_000_000, 300_000, 2 * MB) for n in range(8)]
    shortest = message(8, 80_000_000, 600_000, 8 * MB)
    usual = [message(n, n * 10_000_000, usual_us * 1000, 8 * MB) for n in range(9, 16)]
    table = remedies_of([*small, shortest, *usual]).filter(pl.col("change") == "large messages")
    of_large = table.filter(pl.col("id") > 8)["likely_ns"].to_list()
    assert of_large == [(usual_us - saved_us) * 1000] * 7
    assert table.filter(pl.col("id") < 8)["likely_ns"].to_list() == [140_000] * 8


@pytest.mark.parametrize(("size", "is_told"), [(4 * MB, True), (4 * MB - 1, False)])
def test_messages_of_four_times_the_size_tell_latency_from_bandwidth(size, is_told):
    messages = [message(n, n * 10_000_000, 200_000, MB) for n in range(20)]
    messages += [message(n, n * 10_000_000, 500_000, size) for n in range(20, 24)]
    found = remedies_of(messages).filter(pl.col("change") == "large messages")
    assert found.is_empty() is not is_told


def test_messages_of_one_size_do_not_tell_latency_from_bandwidth():
    small = [message(n, n * 10_000_000, 200_000, MB) for n in range(20)]
    assert remedies_of(small).filter(pl.col("change") == "large messages").is_empty()


@pytest.mark.parametrize("messages", [1, 4])
def test_reductions_launched_behind_the_backward_hide_under_it_but_for_the_last_bucket(messages):
    """8 ms for 200 MB behind a backward of 10 ms: all but 25 MB, which take 1 ms, can hide; one buffer is split."""
    backward = backward_kernel(0, 0, 10_000_000)
    late = [
        message(n, 1_000_000 + n, 8_000_000 // messages, 200 * MB // messages)
        for n in range(1, messages + 1)
    ]
    table = remedies_of([backward, *late]).filter(pl.col("change") == "reduce in backward")
    assert table["likely_ns"].to_list() == [1_000_000 // messages] * messages


def test_reductions_during_the_backward_are_not_late():
    """One of four messages is launched last, as DDP's last bucket is."""
    backward = [backward_kernel(0, 0, 5_000_000), backward_kernel(9, 8_000_000, 5_000_000)]
    during = [message(n, n * 1_000_000, 2_000_000, 64 * MB) for n in range(1, 4)]
    last = message(5, 9_000_000, 2_000_000, 64 * MB)
    table = remedies_of([*backward, *during, last])
    assert table.filter(pl.col("change") == "reduce in backward").is_empty()


def test_parameters_gathered_again_for_the_backward_could_stay():
    forward = message(0, 0, 1_000_000, 64 * MB, collective="_allgather_base", **{"pass": "forward"})
    again = message(
        1, 9_000_000, 1_000_000, 64 * MB, collective="_allgather_base", **{"pass": "backward"}
    )
    other = message(
        2, 12_000_000, 1_000_000, 32 * MB, collective="_allgather_base", **{"pass": "backward"}
    )
    table = remedies_of([forward, again, other]).filter(pl.col("change") == "gather once")
    assert table.select("id", "likely_ns", "host_share").rows() == [(1, 0, 0.0)]


def update_kernel(number, launch_ns):
    return {**backward_kernel(number, launch_ns, 10_000), "label": "optimizer"}


@pytest.mark.parametrize(
    ("launch_ns", "changes"),
    [(3_000_000, {"reduce in backward"}), (5_000_000, set())],  # before the optimizer, behind it
)
def test_what_is_reduced_behind_the_optimizer_are_no_gradients(launch_ns, changes):
    reductions = [message(n, launch_ns + 1_000 * n, 1_000_000, 100 * MB) for n in (2, 3)]
    events = [backward_kernel(1, 0, 2_000_000), update_kernel(4, 4_000_000), *reductions]
    assert set(remedies_of(events)["change"]) == changes


def test_small_messages_behind_the_optimizer_are_of_parameters():
    small = [message(n, 1_000_000 * n, 200_000, MB) for n in range(1, 21)]
    large = message(21, 30_000_000, 3_200_000, 32 * MB)
    table = remedies_of([update_kernel(0, 0), *small, large])
    assert set(table.filter(pl.col("change") == "large messages")["what"]) == {"parameters"}
