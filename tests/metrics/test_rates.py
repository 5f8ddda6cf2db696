"""Rates of products, bandwidths and expert balance: hand-countable cases, and a real run whose model is known."""

from __future__ import annotations

import polars as pl
import pytest

from tests.kept import analysis_of
from tracekit.align.matching import MEMBERS
from tracekit.analysis.combine.communication import below_peak_ns
from tracekit.errors import InputError
from tracekit.metrics.bandwidth import bandwidth, bucket
from tracekit.metrics.expert_balance import measure_expert_balance
from tracekit.metrics.operations import OPERATIONS
from tracekit.metrics.peaks import find_gpu, peak_tflop_s
from tracekit.metrics.rates import ProductTotals, products
from tracekit.schema import GAP_CAUSES, LABELLED, conform

MM = {
    "kind": "kernel",
    "name": "gemm",
    "label": "forward",
    "op": "aten::mm",
    "shapes": "[[1000,1000],[1000,1000]]",
}
BF16 = '["c10::BFloat16","c10::BFloat16"]'


def labelled(*rows):
    return conform(
        pl.DataFrame([{"id": n, "op_id": n, **row} for n, row in enumerate(rows)]), LABELLED
    )


def test_a_call_of_two_kernels_counts_once_over_both_times():
    first = {**MM, "op_id": 7, "start_ns": 0, "end_ns": 8_000}
    reduce = {
        **MM,
        "op_id": 7,
        "name": "splitKreduce",
        "label": "other",
        "start_ns": 8_000,
        "end_ns": 10_000,
    }
    table, rates = products(labelled(first, reduce))
    assert table.select("label", "calls", "flop", "ns").rows() == [
        ("forward", 1, 2_000_000_000, 10_000)
    ]
    assert rates.tflop_s == pytest.approx(200)


def test_products_at_once_share_their_time():
    both = [{**MM, "start_ns": 0, "end_ns": 10_000}, {**MM, "start_ns": 0, "end_ns": 10_000}]
    _, rates = products(labelled(*both))
    assert (rates.product_ns, rates.flop) == (10_000, 4_000_000_000)


def memset_of_operator(op_id, end_ns):
    """A memset from 0 on that an operator launched."""
    names = {"kind": "memset", "name": "Memset", "label": "memory"}
    return {**MM, **names, "op_id": op_id, "start_ns": 0, "end_ns": end_ns}


def test_a_memset_longer_than_its_product_does_not_name_it():
    memset = memset_of_operator(7, end_ns=7_000)
    table, _ = products(labelled(memset, {**MM, "op_id": 7, "start_ns": 7_000, "end_ns": 10_000}))
    assert table.select("label", "calls", "ns").rows() == [("forward", 1, 10_000)]


def test_a_memset_in_another_row_does_not_count_its_product_again():
    memset = memset_of_operator(7, end_ns=1_000)
    events = labelled(memset, {**MM, "op_id": 7, "start_ns": 1_000, "end_ns": 10_000})
    table, _ = products(events.with_columns(place=pl.Series([1, 2])), key="place")
    assert table.select("place", "calls", "flop", "ns").rows() == [(2, 1, 2_000_000_000, 10_000)]


@pytest.mark.parametrize("label", ["recompute", "optimizer"])
def test_utilisation_is_the_models_work_at_peak_over_the_span(label):
    again = {**MM, "label": label, "dtypes": BF16, "start_ns": 10_000, "end_ns": 20_000}
    rest = {
        "kind": "kernel",
        "name": "relu",
        "label": "forward",
        "start_ns": 20_000,
        "end_ns": 40_000,
    }
    _, rates = products(
        labelled({**MM, "dtypes": BF16, "start_ns": 0, "end_ns": 10_000}, again, rest),
        device="H100",
    )
    assert rates.utilisation == pytest.approx(2e9 / 989.4e3 / 40_000)
    assert (rates.model_flop, rates.flop) == (2_000_000_000, 4_000_000_000)


@pytest.mark.parametrize(
    ("dtypes", "name", "expected"),
    [
        (BF16, "gemm", "bf16"),
        ('["float","float"]', "sm80_xmma_gemm_f32f32_tf32f32_f32_tn", "tf32"),
        ('["float","float"]', "volta_sgemm_128x64_nn", "fp32"),
        ('["c10::Float8_e4m3fn","c10::Float8_e4m3fn","float"]', "gemm", "fp8"),
        (None, "nvjet_sm90_tst_128x256_64x4_4x2_h_bz_coopA_NNN", "bf16"),
        (None, "nvjet_hsh_128x256_64x4_NNN", "fp16"),
        (None, "gemm", None),
    ],
)
def test_the_type_is_the_operands_or_what_the_kernel_is_called(dtypes, name, expected):
    table, _ = products(
        labelled({**MM, "name": name, "dtypes": dtypes, "start_ns": 0, "end_ns": 10_000})
    )
    assert table["dtype"].to_list() == [expected]


def test_faster_than_the_peak_is_not_a_share():
    table, rates = products(
        labelled({**MM, "dtypes": BF16, "start_ns": 0, "end_ns": 100}), device="NVIDIA H100"
    )
    assert table["at_peak_ns"].to_list() == [None]
    assert rates.utilisation is None


@pytest.mark.parametrize(
    ("unknown_ns", "stated"),
    [(100, True), (200, False)],
)
def test_products_without_shapes_leave_totals_unsaid(unknown_ns, stated):
    counted = {**MM, "dtypes": BF16, "start_ns": 0, "end_ns": 10_000 - int(unknown_ns)}
    bare = {
        **MM,
        "op": None,
        "op_id": None,
        "shapes": None,
        "start_ns": 10_000 - int(unknown_ns),
        "end_ns": 10_000,
    }
    _, rates = products(labelled(counted, bare), device="NVIDIA H100")
    assert (rates.tflop_s is not None, rates.utilisation is not None) == (stated, stated)


def test_nothing_is_said_without_products():
    _, rates = products(
        labelled({"kind": "kernel", "name": "relu", "label": "forward", "start_ns": 0, "end_ns": 9})
    )
    assert (rates.tflop_s, rates.utilisation) == (None, None)


def test_without_products_of_the_model_its_time_at_peak_is_not_known():
    again = {**MM, "label": "recompute", "dtypes": BF16, "start_ns": 0, "end_ns": 10_000}
    table, rates = products(labelled(again), device="NVIDIA H200")
    assert table["at_peak_ns"].null_count() == 0
    assert (rates.model_flop, rates.at_peak_ns) == (0, None)


def test_the_real_runs_flop_are_the_models(samples):
    """Three blocks per stage of width 2048, 8192 inside, 16 heads.

    8 micro-batches of 2 sequences of 512 tokens.
    """
    result = analysis_of(samples / "1f1b").rate_tables
    tokens, gemms = 2 * 512, 2048 * (6144 + 2048 + 8192 + 8192)
    pairs = 2 * 16 * 512 * 512
    per_block = 3 * 2 * tokens * gemms + 2 * pairs * (2 + 5) * 128
    assert result.total.flop == 4 * 3 * 8 * per_block
    assert result.total.uncounted_ns == 0


def test_a_part_of_a_gpu_has_that_part_of_its_peak(tmp_path, monkeypatch):
    assert peak_tflop_s("NVIDIA H200", "bf16", multiprocessors=66) == pytest.approx(989.4 / 2)
    assert peak_tflop_s("NVIDIA H200", "bf16", multiprocessors=1000) == 989.4
    own = tmp_path / "peaks.toml"
    own.write_text("[[gpu]]\npattern = 'H200'\nmultiprocessors = 132\ntflop_s = { bf16 = 700 }\n")
    monkeypatch.setenv("TRACEKIT_PEAKS", str(own))
    assert find_gpu("NVIDIA H200").tflop_s == {"bf16": 700.0}
    bad = tmp_path / "bad.toml"
    bad.write_text("[[gpu]]\n")
    monkeypatch.setenv("TRACEKIT_PEAKS", str(bad))
    with pytest.raises(InputError, match="TRACEKIT_PEAKS"):
        find_gpu("NVIDIA H200")


def members(*rows):
    return conform(pl.DataFrame(list(rows)), MEMBERS)


@pytest.mark.parametrize(
    ("what", "ranks", "factor"),
    [
        ("allreduce", 4, 1.5),
        ("_allgather_base", 4, 0.75),
        ("_reduce_scatter_base", 4, 0.75),
        ("all_to_allv", 4, 0.75),
        ("broadcast", 4, 1.0),
        ("p2p", 2, 1.0),
        ("barrier", 4, None),
    ],
)
def test_bus_bandwidth_scales_with_what_a_link_carries(what, ranks, factor):
    rows = [
        {
            "match": 0,
            "rank": r,
            "label": "comm",
            "what": what,
            "bytes": 4_000,
            "transfer_ns": 1_000,
            "wait_ns": 0,
        }
        for r in range(ranks)
    ]
    [row] = bandwidth(members(*rows)).to_dicts()
    assert row["algorithm_gb_s"] == pytest.approx(4.0)
    assert row["bus_gb_s"] == (None if factor is None else pytest.approx(4.0 * factor))


def test_operations_without_bytes_are_left_out():
    row = {"match": 0, "rank": 0, "label": "comm", "what": "p2p", "transfer_ns": 5, "wait_ns": 0}
    assert bandwidth(members({**row, "bytes": None}, {**row, "rank": 1, "bytes": 7})).is_empty()


def test_a_bucket_begins_at_its_lower_end():
    assert (bucket(4095), bucket(4096)) == ("1–4 kB", "4–16 kB")


def test_the_rank_that_receives_most_comes_first():
    ops = conform(
        pl.DataFrame(
            [{"rank": r, "received": n, "pass": "forward"} for r, n in ((0, 30), (1, 10))]
        ),
        OPERATIONS,
    )
    rows = [
        {"match": 0, "row": r, "rank": r, "label": "ep_dispatch", "group": "ep", "wait_ns": w}
        for r, w in ((0, 0), (1, 5))
    ]
    table = measure_expert_balance(ops, members(*rows))
    assert table.select("rank", "received", "over_mean", "largest", "wait_ns").rows() == [
        (0, 30, 1.5, 1, 0),
        (1, 10, 0.5, 0, 5),
    ]


def exchange(match, ranks, *, what="allreduce", group_ranks=None, peer=None):
    """Members of one operation of 8 MB that took a millisecond."""
    listed = None if group_ranks is None else str(group_ranks).replace(" ", "")
    row = {
        "match": match,
        "label": "dp_comm",
        "what": what,
        "group": "dp",
        "bytes": 8_000_000,
        "transfer_ns": 1_000_000,
    }
    return [
        {**row, "rank": rank, "group_ranks": listed, "peer": peer, "wait_ns": 5} for rank in ranks
    ]


@pytest.mark.parametrize(
    ("members", "where"),
    [
        (exchange(0, [0, 7], group_ranks=list(range(8))), "in node"),
        (exchange(0, [7, 8], group_ranks=[7, 8]), "across nodes"),
        (exchange(0, [0, 1], group_ranks=[0, 1, 8]), "across nodes"),  # the third rank has no trace
        (exchange(0, [0, 1]), None),  # its other ranks are not known
        (exchange(0, [0, 9]), "across nodes"),
        (exchange(0, [8, 15], what="p2p", peer=9), "in node"),
        (exchange(0, [7, 8], what="p2p", peer=8), "across nodes"),
    ],
)
def test_operations_are_in_a_node_or_across(members, where):
    table = bandwidth(conform(pl.DataFrame(members, infer_schema_length=None), MEMBERS), node=8)
    assert table.select("where", "count", "bytes", "algorithm_gb_s", "wait_ns").rows() == [
        (where, 1, 8_000_000, 8, 10)
    ]


def test_without_a_layout_nothing_is_said_of_nodes():
    table = bandwidth(conform(pl.DataFrame(exchange(0, [0, 1], group_ranks=[0, 1])), MEMBERS))
    assert table.select("where", "share_of_link").rows() == [(None, None)]


def test_a_link_has_the_peak_that_is_given(tmp_path, monkeypatch):
    own = tmp_path / "peaks.toml"
    own.write_text('[[link]]\nwhere = "in node"\ngb_s = 32\n')
    monkeypatch.setenv("TRACEKIT_PEAKS", str(own))
    rows = exchange(0, [0, 1], group_ranks=[0, 1]) + exchange(1, [0, 8], group_ranks=[0, 8])
    table = bandwidth(conform(pl.DataFrame(rows), MEMBERS), node=8)
    # An all-reduce of two ranks carries its bytes once over each link: 8 GB/s of 32.
    shares = dict(table.select("where", "share_of_link").iter_rows())
    assert shares == {"in node": 0.25, "across nodes": None}
    assert find_gpu("NVIDIA H200") is not None  # a file of links alone leaves the GPUs as they are


def test_a_link_without_a_number_is_one_line(tmp_path, monkeypatch):
    own = tmp_path / "peaks.toml"
    own.write_text('[[link]]\nwhere = "in node"\ngb_s = "fast"\n')
    monkeypatch.setenv("TRACEKIT_PEAKS", str(own))
    with pytest.raises(InputError, match="cannot be used"):
        bandwidth(conform(pl.DataFrame(exchange(0, [0, 1])), MEMBERS), node=8)


def test_below_peak_is_the_products_time_beyond_their_time_at_peak_and_no_part_of_the_gap():
    # 2 GFLOP: 2,021 ns at 989.4 TFLOP/s.
    slow = {
        **MM,
        "dtypes": BF16,
        "start_ns": 0,
        "end_ns": 10_000,
    }
    table, _ = products(
        labelled(slow, {**slow, "start_ns": 20_000, "end_ns": 25_000}), device="NVIDIA H200"
    )
    assert below_peak_ns(table) == int(15_000 - 2 * 2e9 / 989.4e3)
    assert below_peak_ns(products(labelled(slow), device="Abacus")[0]) is None
    assert not any("peak" in cause for cause in GAP_CAUSES)


@pytest.mark.parametrize(("uncounted_ns", "counted"), [(10, True), (11, False)])
def test_rates_are_given_where_all_but_a_hundredth_of_the_products_is_counted(
    uncounted_ns, counted
):
    """UNCOUNTED, of 1,000 ns of products."""
    assert ProductTotals(1, 1, 1_000, uncounted_ns, None, 2_000).counted is counted
