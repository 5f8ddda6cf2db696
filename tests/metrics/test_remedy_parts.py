"""What remedies are made of, each threshold on both sides: sizes of attention, measured speeds, work that could go."""

from __future__ import annotations

import polars as pl
import pytest

from tracekit.intervals import union
from tracekit.metrics.alternatives.attention import (
    Scores,
    flash_takes,
    fuse_attention,
    head_size_of,
    scores_of,
)
from tracekit.metrics.alternatives.host import OneCopy
from tracekit.metrics.alternatives.optimizer import FusedOptimizer
from tracekit.metrics.alternatives.precision import CastOnce, retyped
from tracekit.metrics.alternatives.remedy import REMEDIES, new_durations
from tracekit.metrics.alternatives.stalls import without_stalls
from tracekit.metrics.attainable import Share
from tracekit.metrics.padding import padded_share
from tracekit.metrics.rank_work import RankWork
from tracekit.metrics.speeds import Speeds, measured_bandwidth_share, measured_share


def rank_work(*events, bandwidth=None):
    """Work of a GPU whose memory moves as many bytes per ns, of which kernels reach the half, all or twice that."""
    works = [("memory", "*"), ("optimizer", "*")]
    speeds = Speeds({}, bandwidth, dict.fromkeys(works, Share(0.5, 1.0, 2.0)))
    frame = pl.DataFrame(list(events), infer_schema_length=None)
    missing = [pl.lit(None, pl.String).alias(name) for name in ("node",) if name not in frame]
    return RankWork(frame.with_columns(missing), pl.DataFrame(), speeds)


def remedies_of(entry, *events, bandwidth=None):
    """The remedies that an entry finds in events."""
    found = list(entry.find(rank_work(*events, bandwidth=bandwidth)))
    return pl.concat([REMEDIES.to_frame(), *found])


@pytest.mark.parametrize(
    ("dims", "scores"),
    [
        ([2, 16, 32, 64], (32, 32, 64)),
        ([4, 32, 32], (4, 32, 32)),
        ([32, 32], None),  # one matrix
        ([2, 16, 31, 64], None),  # few queries
        ([2, 16, 64, 31], None),
    ],
)
def test_scores_are_of_heads_and_of_at_least_32_queries_and_keys(dims, scores):
    assert scores_of(dims) == scores


def test_scores_are_counted():
    assert Scores(2, 3, 5).elements == 30


@pytest.mark.parametrize(
    ("shapes", "size"),
    [
        ("[[8,128,64],[8,64,96]]", 64),  # queries by keys
        ("[[8,128,96],[8,96,64]]", 64),  # scores by values
        ("[[8,64,128],[8,128,96]]", 64),  # a gradient: scores are the right matrix
        ("[[2,4,128,64],[2,4,64,96]]", 64),
        ("[[7,128,64],[7,64,96]]", None),  # other heads
        ("[[8,128,64],[8,63,96]]", None),  # no product
        ("[[8,128,64],[4,64,96]]", None),
        ("[[128,64],[64,96]]", None),
        ("[[8,128,64]]", None),
        ("[[8,128,127],[8,127,96]]", 127),
        ("[[8,128,128],[8,128,96]]", None),  # a head as long as the sequence is another product
    ],
)
def test_a_product_of_128_queries_and_96_keys_tells_the_head_size(shapes, size):
    assert head_size_of(shapes, Scores(8, 128, 96)) == size


def event(row, op, shapes, dtypes, *, backward=False, part=0, **more):
    values = {
        "kind": "elementwise",
        "label": "dgrad" if backward else "forward",
        "node": None,
        **more,
    }
    return {"row": row, "part": part, "op": op, "ns": 10, "is_backward": backward,
            "shapes": shapes, "dtypes": dtypes, **values}  # fmt: skip


def cast(row, shape, **more):
    types = '["c10::BFloat16","float","Scalar"]'
    return event(row, "aten::copy_", f"[{shape},{shape},[]]", types, **more)


def cast_back(row, shape, **more):
    types = '["float","c10::BFloat16","Scalar"]'
    return event(row, "aten::copy_", f"[{shape},{shape},[]]", types, backward=True, **more)


def added_up(row, shape):
    types = '["float","float","Scalar"]'
    shapes = f"[{shape},{shape},[]]"
    return event(row, "aten::add_", shapes, types, backward=True, node="AccumulateGrad")


WEIGHT = "[64, 32]"
LINEAR = event(0, "aten::mm", "[[8,32],[32,64]]", None, kind="product")
"""A product of eight tokens by the weight, transposed."""
OTHER = (
    event(50, "aten::mm", "[[8,16],[16,16]]", None, kind="product"),
    cast(51, "[16, 16]"),
    cast_back(52, "[16, 16]"),
)
"""A weight that is trained, and cast once."""


@pytest.mark.parametrize(
    ("events", "again", "what"),
    [
        # A program that trains nothing, and a weight beside others that are trained.
        ([cast(1, WEIGHT), cast(2, WEIGHT, part=1)], [1, 2], "fixed_weights"),
        ([cast(1, WEIGHT), *OTHER], [1], "fixed_weights"),
        # Where no gradient is cast back it is not known what is trained.
        ([cast(1, WEIGHT), event(2, "aten::mm", "[]", None, backward=True)], [], None),
        ([cast(1, WEIGHT), cast_back(2, WEIGHT)], [], None),
        # Two micro-batches: the second gradient is added to the first.
        (
            [cast(1, WEIGHT), cast_back(2, WEIGHT), cast(3, WEIGHT), cast_back(4, WEIGHT), added_up(5, WEIGHT)],
            [3],
            "trained_weights",
        ),
        # Two weights of one size, and gradients that are zeroed and then added to.
        ([cast(1, WEIGHT), cast(2, WEIGHT), cast_back(3, WEIGHT), cast_back(4, WEIGHT)], [], None),
        ([cast(1, WEIGHT), cast_back(2, WEIGHT), added_up(3, WEIGHT)], [], None),
        # Recomputed forwards cast again: that goes with them. Activations change.
        ([cast(1, WEIGHT), cast(2, WEIGHT, label="recompute"), cast_back(3, WEIGHT)], [], None),
        ([cast(1, "[8, 32]"), cast(2, "[8, 32]", part=1)], [], None),
        ([cast(1, "[8, 32]"), *OTHER], [], None),
        # In a program that trains nothing they are cast for the weights' sake, and biases as weights are.
        ([cast(1, WEIGHT), cast(2, "[8, 32]")], [1, 2], "fixed_weights"),
        ([cast(1, "[64]"), *OTHER], [], None),
        (
            [cast(1, "[64]"), event(2, "aten::addmm", "[[64],[8,32],[32,64]]", None, kind="product"), *OTHER],
            [1],
            "fixed_weights",
        ),
    ],
)  # fmt: skip
def test_weights_are_cast_again_that_have_not_changed(events, again, what):
    (*remedies,) = CastOnce().find(rank_work(LINEAR, *events))
    table = pl.concat(remedies) if remedies else pl.DataFrame({"row": [], "what": []})
    assert sorted(table["row"].to_list()) == again
    assert table["what"].unique().to_list() == ([what] if what else [])


@pytest.mark.parametrize(("head", "size"), [(256, 256), (257, None)])
def test_fused_kernels_take_heads_of_256(head, size):
    assert head_size_of(f"[[8,1024,{head}],[8,{head},1024]]", Scores(8, 1024, 1024)) == size


SCORES_FLOP = 2 * 2 * 8 * 128 * 128 * 64
"""Two products of 8 heads of 64, 128 queries and 128 keys; the GPUs below do one FLOP in a ns."""


@pytest.mark.parametrize(
    ("is_masked", "keys", "bounds_ns"),
    [
        (False, 128, (SCORES_FLOP / 0.65, SCORES_FLOP / 0.45, SCORES_FLOP / 0.3)),
        (True, 128, (SCORES_FLOP / 2 / 0.6, SCORES_FLOP / 2 / 0.35, SCORES_FLOP / 0.3)),
        # A mask of other queries is no causal one.
        (True, 256, (SCORES_FLOP * 2 / 0.65, SCORES_FLOP * 2 / 0.45, SCORES_FLOP * 2 / 0.3)),
    ],
)
def test_fused_attention_skips_half_of_the_scores_if_a_mask_is_causal(is_masked, keys, bounds_ns):
    softmax = {
        "row": 0,
        "ns": 10**9,
        "kind": "softmax",
        "head_size": None,
        "dtype": None,
        "call": 0,
    }
    product = {"row": 1, "ns": 0, "kind": "product", "head_size": 64, "dtype": "bf16", "call": 1}
    common = {
        "op": "aten::bmm",
        "is_masked": is_masked,
        "node": None,
        "pass": "forward",
        "chain": "",
    }
    members = pl.DataFrame([row | common for row in (softmax, product)])
    calls = pl.DataFrame(
        schema={"kind": pl.String, "call": pl.Int64, "dtype": pl.String, "ns": pl.Int64}
    )
    speeds = Speeds({"bf16": 1.0}, None)
    (remedies,) = fuse_attention(RankWork(members, calls, speeds), Scores(8, 128, keys), members)
    new_ns = remedies.select("low_ns", "likely_ns", "high_ns").row(0)
    assert new_ns == pytest.approx(bounds_ns, abs=1)


def test_attention_in_sixteen_bits_does_half_of_its_flop_at_the_usual_rates():
    """21,000,000 FLOP, of which a causal kernel does half, at 1 per ns: 0.6, 0.35 and 0.22 of it are usual."""
    call = {
        "call": 0,
        "kind": "fused_attention",
        "op": "aten::attention",
        "shapes": "",
        "used": "fp32",
    }
    calls = pl.DataFrame([call | {"flop": 21_000_000, "ns": 10**9}])
    speeds = Speeds({"fp32": 0.1, "bf16": 1.0}, None)
    events = pl.DataFrame({"row": [0], "ns": [10**9], "call": [0]})
    remedies = retyped(RankWork(events, calls, speeds), calls, "bf16")
    assert remedies.select("low_ns", "likely_ns", "high_ns").row(0) == (
        17_500_000,
        30_000_000,
        47_727_273,
    )


FORWARD = "aten::_efficient_attention_forward"
BACKWARD = "aten::_efficient_attention_backward"


@pytest.mark.parametrize(
    ("op", "shapes", "is_taken"),
    [
        (FORWARD, "[[8,9,16,256],[8,9,16,256],[8,9,16,256],[]]", True),
        (FORWARD, "[[8,9,16,257],[8,9,16,257],[8,9,16,257],[]]", False),
        (FORWARD, "[[8,9,16,64],[8,9,16,64],[8,9,16,64],[8,16,9,9]]", False),  # a bias
        (FORWARD, "[[8,9,16,64],[8,9,16,64],[8,9,16,64]]", False),
        (FORWARD, "[[],[8,9,16,64],[8,9,16,64],[]]", False),
        # Of a backward the gradient comes first.
        (BACKWARD, "[[8,9,16,64],[8,9,16,64],[8,9,16,64],[8,9,16,64],[]]", True),
        (BACKWARD, "[[8,9,16,64],[8,9,16,64],[8,9,16,64],[8,9,16,64]]", False),
    ],
)
def test_flash_attention_takes_heads_of_256_without_a_bias(op, shapes, is_taken):
    assert flash_takes(op, shapes) is is_taken


@pytest.mark.parametrize(
    ("shapes", "share"),
    [
        ("[[100,8],[8,16]]", None),  # rows do not count
        ("[[100,32],[32,7]]", 64 / 7),
        ("[[100,65],[65,64]]", 128 / 65),
        ("[[100,60],[60,60]]", (64 / 60) ** 2),
        ("[[100,0],[0,7]]", None),
        ("[[100,7]]", None),
        ("[[3],[100,32],[32,7]]", 64 / 7),
    ],
)
def test_sizes_that_are_no_multiple_of_8_are_padded_to_64(shapes, share):
    assert padded_share(shapes) == (None if share is None else pytest.approx(share))


def copies(count, size=65_536, part=0):
    return [
        {"row": 100 * part + n, "part": part, "start_ns": n, "ns": 3, "name": "Memcpy HtoD",
         "copied_bytes": size}
        for n in range(count)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("rows", "gone"),
    [
        (copies(16), list(range(1, 16))),
        (copies(15), []),
        (copies(16, 65_537), []),
        (copies(10) + copies(10, part=1), []),  # ten in each of two steps
    ],
)
def test_of_sixteen_copies_of_64_kb_in_a_step_one_remains(rows, gone):
    remedies = remedies_of(OneCopy(), *rows)
    assert remedies.filter(pl.col("host_share") == 0)["row"].to_list() == gone
    remaining = remedies.filter(pl.col("host_share") > 0)
    assert remaining.select("row", "likely_ns").rows() == ([(0, 3)] if gone else [])
    assert not remedies["waits"].any()


def optimizer(op, count, *, first=0, elements=100):
    return [
        {"row": first + n, "part": 0, "label": "optimizer", "op": op, "kind": "elementwise", "ns": 50,
         "elements": elements, "width": 4}
        for n in range(count)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("rows", "moved"),
    [
        # Parameters are 10 times 100 numbers of 4 bytes.
        (optimizer("aten::addcdiv_", 10) + optimizer("aten::mul_", 54, first=10), 7 * 4000),
        (optimizer("aten::add_", 10) + optimizer("aten::mul_", 54, first=10), 5 * 4000),
        (optimizer("aten::add_", 10) + optimizer("aten::lerp_", 54, first=10), 5 * 4000),
        (optimizer("aten::sub_", 10) + optimizer("aten::neg", 54, first=10), 3 * 4000),
        # SGD with momentum adds twice for each parameter.
        (optimizer("aten::add_", 40) + optimizer("aten::mul_", 24, first=40), 5 * 24 * 400),
        # Adam without a fused last operation.
        (optimizer("aten::sub_", 44) + optimizer("aten::sqrt", 20, first=44), 7 * 20 * 400),
        # A stray kernel of the same size is none of the loop.
        (
            optimizer("aten::add_", 32)
            + optimizer("aten::mul_", 31, first=32)
            + optimizer("aten::neg", 1, first=63),
            5 * 31 * 400,
        ),
    ],
)
def test_a_loop_over_parameters_would_move_them_once_for_each_of_its_tensors(rows, moved):
    """At 20 bytes per ns."""
    remedies = remedies_of(FusedOptimizer(), *rows, bandwidth=20.0)
    assert remedies["likely_ns"].sum() == pytest.approx(moved / 20, abs=40)  # each is rounded
    assert remedies["host_share"].to_list() == [1.0] + [0.0] * 63


def test_one_launch_of_a_fused_optimizer_replaces_128():
    remedies = remedies_of(FusedOptimizer(), *optimizer("aten::addcdiv_", 129), bandwidth=20.0)
    kept = remedies.filter(pl.col("host_share") > 0)
    assert kept["row"].to_list() == [0, 128]


def test_fewer_than_64_kernels_of_an_optimizer_are_no_loop():
    rows = optimizer("aten::addcdiv_", 63)
    assert remedies_of(FusedOptimizer(), *rows, bandwidth=1.0).is_empty()


def test_a_foreach_optimizer_takes_three_to_six_tenths_if_it_is_fused():
    remedies = remedies_of(FusedOptimizer(), *optimizer("aten::_foreach_add_", 2))
    assert remedies.select("low_ns", "likely_ns", "high_ns").rows() == [(15, 20, 30)] * 2
    fused = optimizer("aten::_fused_adam_", 1, first=2)
    adds = optimizer("aten::_foreach_add_", 2)
    assert remedies_of(FusedOptimizer(), *adds, *fused).is_empty()


def test_a_fused_norm_of_the_model_is_no_fused_optimizer():
    norm = [{**row, "label": "forward"} for row in optimizer("aten::_fused_rms_norm", 1, first=2)]
    adds = optimizer("aten::_foreach_add_", 2)
    assert remedies_of(FusedOptimizer(), *adds, *norm).height == 2


def test_a_fused_call_takes_the_host_as_long_as_those_of_a_foreach_optimizer():
    adds = optimizer("aten::_foreach_add_", 2)
    rows = [*adds, *optimizer("aten::_foreach_mul_", 4, first=2)]
    remedies = remedies_of(FusedOptimizer(), *rows)
    assert remedies["host_share"].to_list() == [1.0] * 6


def test_without_sizes_a_loop_over_parameters_keeps_its_time_on_the_gpu():
    rows = optimizer("aten::add_", 64) + optimizer("aten::add_", 1, first=64, elements=None)
    remedies = remedies_of(FusedOptimizer(), *rows, bandwidth=20.0)
    assert remedies.select("low_ns", "likely_ns", "high_ns").rows() == [(50, 50, 50)] * 65
    assert remedies["host_share"].sum() == 1.0


@pytest.mark.parametrize("op", ["aten::fill_", "aten::zero_"])
def test_kernels_that_zero_gradients_are_no_part_of_a_loop_over_parameters(op):
    rows = optimizer("aten::add_", 64) + optimizer(op, 9, first=64)
    remedies = remedies_of(FusedOptimizer(), *rows, bandwidth=20.0)
    assert remedies["row"].to_list() == list(range(64))


def test_a_launch_keeps_the_share_of_its_hosts_time_in_which_it_did_not_stand_still():
    """The host stood still for 30 of the 40 ns before the second launch, and for all before the third."""
    events = [{"row": row, "launch_ns": launch, "ns": 5} for row, launch in enumerate((0, 40, 60))]
    (remedies,) = without_stalls(rank_work(*events), union([10, 40], [40, 60]), "free cpu")
    assert remedies.select("row", "likely_ns").rows() == [(1, 5), (2, 5)]
    assert remedies["host_share"].to_list() == pytest.approx([0.25, 0.001])


def test_events_share_the_new_duration_by_the_present_ones_and_get_no_longer():
    """10 and 30 ns become 20 together; 100 ns would be longer than what they take."""
    events = pl.DataFrame(
        {
            "row": [4, 2],
            "ns": [10, 30],
            "group": 0,
            "low_ns": 8.0,
            "likely_ns": 20.0,
            "high_ns": 100.0,
        }
    )
    remedies = new_durations(events, "fused", keeps_first=True)
    columns = ("low_ns", "likely_ns", "high_ns", "host_share")
    assert remedies.select(columns).rows() == [(2, 5, 10, 0.0), (6, 15, 30, 1.0)]


def calls(count, *, flop, ns=100):
    return pl.DataFrame({"flop": [float(flop)] * count, "ns": [ns] * count})


@pytest.mark.parametrize(
    ("of", "share"),
    [
        (calls(3, flop=500), None),
        (calls(4, flop=500), Share(0.425, 0.5, 0.575)),
        (calls(4, flop=950), Share(0.8075, 0.95, 1.0)),
        (calls(4, flop=1000), Share(0.85, 1.0, 1.0)),
        (calls(4, flop=1001), None),  # faster than the peak: it is another type
        (calls(4, flop=0), None),
    ],
)
def test_four_calls_at_a_peak_of_ten_flop_per_ns_measure_a_share(of, share):
    assert measured_share(of, 10.0) == (None if share is None else pytest.approx(share))


@pytest.mark.parametrize(
    ("share", "count", "size", "kind", "measured"),
    [
        (0.7, 4, 1 << 26, "elementwise", (0.7, 0.7, 0.75)),
        (0.7, 4, 1 << 26, "norm", (0.7, 0.7, 0.75)),
        (0.7, 3, 1 << 26, "norm", None),
        (0.7, 4, (1 << 26) - 1, "norm", None),
        (0.7, 4, 1 << 26, "product", None),
        (1.1, 4, 1 << 26, "norm", None),  # from a cache
        (0.3, 4, 1 << 26, "norm", (0.4, 0.55, 0.75)),
        (0.98, 4, 1 << 26, "norm", (0.75, 0.9, 0.95)),
    ],
)
def test_four_kernels_of_64_mb_measure_the_memory(share, count, size, kind, measured):
    work = pl.DataFrame({"kind": [kind] * count, "bytes": size, "ns": round(size / share / 1000)})
    assert measured_bandwidth_share(work, 1000.0) == (
        None if measured is None else pytest.approx(measured, abs=1e-3)
    )


def test_a_memory_of_unknown_speed_is_not_measured():
    assert measured_bandwidth_share(pl.DataFrame(), None) is None
