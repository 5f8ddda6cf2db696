"""Attention that could be fused: scores, head sizes and what it would take."""

from __future__ import annotations

import polars as pl
import pytest

from tracekit.metrics.alternatives.attention import (
    Scores,
    flash_takes,
    fuse_attention,
    head_size_of,
    scores_of,
)
from tracekit.metrics.rank_work import RankWork
from tracekit.metrics.speeds import Speeds


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


def calls(count, *, flop, ns=100):
    return pl.DataFrame({"flop": [float(flop)] * count, "ns": [ns] * count})
