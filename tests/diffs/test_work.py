"""Runs of different size are compared per unit of work."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest
from msgspec.structs import replace

from tests.kept import analysis_of
from tracekit.diffs import Side, comparability, diff, from_analysis, make_samples
from tracekit.diffs.comparability import compare_work, product_slowdown
from tracekit.diffs.explanation import explain_change
from tracekit.diffs.runs import Run
from tracekit.documents.analysis import ProductRate
from tracekit.documents.diff import Facts


def run(step_ms, **facts):
    return Run("", make_samples({"step_ms": (step_ms,)}), Facts(**facts))


def products(label, shapes, calls, ns):
    unknown = dict.fromkeys(("module", "op", "flop", "at_peak_ns", "tflop_s", "share_of_peak"))
    row = ProductRate(label=label, shapes=shapes, dtype="bfloat16", calls=calls, ns=ns, **unknown)
    return [Run("", products=[row])]


@pytest.mark.parametrize(
    ("before", "after", "unit", "ratio"),
    [
        ({"microbatches": 8}, {"microbatches": 16}, "micro-batch", 2.0),
        # Twice the FLOP in as many micro-batches: they are larger, or the model is.
        ({"microbatches": 8, "tflop": 10.0}, {"microbatches": 8, "tflop": 20.0}, "TFLOP", 2.0),
        # Attention's FLOP grow faster than tokens: a few per cent apart, tokens are the work.
        ({"tokens": 100, "tflop": 1.0}, {"tokens": 200, "tflop": 2.05}, "token", 2.0),
        # Every rank of a tensor-parallel group embeds all tokens: their sum is no amount of work.
        ({"tokens": 100, "tflop": 1.0}, {"tokens": 400, "tflop": 1.0}, "TFLOP", 1.0),
        ({"tflop": 8.0, "ranks": 4}, {"tflop": 8.0, "ranks": 8}, "TFLOP", 0.5),
    ],
)
def test_the_unit_is_the_first_that_agrees_with_the_flop(before, after, unit, ratio):
    work = compare_work([run(100.0, **before)], [run(150.0, **after)])
    assert (work.unit, work.ratio) == (unit, ratio)
    assert work.change_relative == pytest.approx(1.5 / ratio - 1)


@pytest.mark.parametrize(
    ("before", "after"), [({}, {"tflop": 1.0}), ({"microbatches": 4}, {"tokens": 9})]
)
def test_work_that_one_side_does_not_know_is_unknown(before, after):
    assert compare_work([run(1.0, **before)], [run(1.0, **after)]) is None


def test_products_of_equal_shape_are_compared_by_call():
    before = products("forward", "[[8,4],[4,2]]", calls=10, ns=1000)
    # ``mm`` with a third input, into which it writes, is the same product.
    after = products("forward", "[[8,4],[4,2],[8,2]]", calls=40, ns=6000)
    assert product_slowdown(before, after) == pytest.approx(1.5)
    assert (
        product_slowdown(before, products("forward", "[[16,4],[4,2]]", calls=10, ns=1000)) is None
    )


@pytest.mark.parametrize(("other_ns", "slowdown"), [(1000, 1.5), (1001, None)])
def test_products_of_equal_shape_must_take_half_of_the_time(other_ns, slowdown):
    before = products("forward", "[[8,4],[4,2]]", calls=10, ns=1000)
    after = products("forward", "[[8,4],[4,2]]", calls=10, ns=1500)
    other = products("forward", "[[9,4],[4,2]]", calls=1, ns=other_ns)
    assert product_slowdown([*before, *other], after) == slowdown
    faster = products("forward", "[[8,4],[4,2]]", calls=20, ns=1000)
    assert product_slowdown(faster, [*before, *other]) == (slowdown and 2.0)


@pytest.mark.parametrize(
    ("kernels", "ratio", "is_known"),
    [
        # Shares of the time: of common kernels, of those as often as before, of those by one factor; and that factor.
        ((0.5, 0.0, 0.8, 2.0), 2.0, True),
        ((0.49, 0.0, 1.0, 2.0), None, False),  # too few in common
        ((1.0, 0.49, 0.8, 2.0), 2.0, True),
        ((1.0, 0.5, 0.8, 2.0), None, True),  # half of them run as often as before
        ((1.0, 0.49, 0.79, 2.0), None, False),  # each by a factor of its own
        ((1.0, 0.49, 0.79, 1.04), None, True),  # about as often
        ((1.0, 0.49, 0.79, 0.96), None, True),
        ((1.0, 0.49, 0.79, 1.06), None, False),
        ((1.0, 0.49, 0.79, 0.94), None, False),
        ((1.0, 0.5, 0.79, 2.0), None, True),
        (None, None, True),
    ],
)
def test_kernels_tell_the_work_by_one_factor_of_most_of_them(monkeypatch, kernels, ratio, is_known):
    names = ("share_of_time", "share_unchanged", "share_of_typical", "typical_ratio")
    common = kernels and SimpleNamespace(**dict(zip(names, kernels, strict=True)))
    monkeypatch.setattr(comparability, "common_kernels", lambda before, after: common)
    assert comparability.launch_ratio([], []) == ratio
    assert (comparability.unknown_work([], []) is None) is is_known


def scaled(original, *, step, compute, exposed):
    """The run with one step on every rank, of this compute and this exposed dp_comm in milliseconds."""

    def figures(rank):
        budget = replace(
            rank.budget,
            compute_ns=compute * 10**6,
            exposed_ns={"dp_comm": exposed * 10**6},
            idle=0,
        )
        return replace(rank, span_ns=step * 10**6, budget=budget, label_ns={}, per_step=[])

    ranks = tuple(replace(figures(rank), steps=[1]) for rank in original.ranks)
    return replace(
        original,
        samples=make_samples({"step_ms": (float(step),)}),
        ranks=ranks,
        kernels=(),
        modules=(),
        products=(),
    )


def test_the_story_of_twice_the_work_is_per_micro_batch(samples):
    original = from_analysis(analysis_of(samples / "steps/a").to_document(), name="x")
    before = replace(scaled(original, step=80, compute=40, exposed=40), facts=Facts(microbatches=8))
    after = replace(
        scaled(original, step=120, compute=80, exposed=40), facts=Facts(microbatches=16)
    )
    # Per micro-batch: the step takes 10 → 7.5 ms, compute 5 → 5 and dp_comm 5 → 2.5.
    assert explain_change([before], [after]) == [
        "number of micro-batches differs: 8 before, 16 after",
        "2 times the work (8 → 16 micro-batches): per micro-batch the step is 25.0 % shorter (10.0 ms → 7.5 ms)",
        "most of it is exposed dp_comm, which shrank from 5.0 ms to 2.5 ms per micro-batch",
    ]
    result = diff(Side((before,), {}), Side((after,), {}))
    assert result.obstacles == ()
    assert result.document.work.ratio == 2.0
    step = next(row for row in result.document.metrics if row.metric == "step_ms")
    assert (step.verdict, step.reason) == ("inconclusive", "the step does 2 times the work")


CORPUS = Path(os.environ.get("TRACEKIT_CORPUS", "/nowhere"))
PAIRS = [
    # Their programs say: twice the model; 20 micro-batches on 8 GPUs; 8 micro-batches of 1024
    # tokens against 4.
    ("h200/1f1b", "h200/interleaved", "TFLOP", 2.0),
    ("h200/1f1b", "h200/dualpipe", "TFLOP", None),
    ("frameworks/titan-ac", "frameworks/titan-fsdp", "token", 0.5),
    ("frameworks/slow-ddp", "frameworks/once-ddp", "token", 1.0),
]


@pytest.mark.skipif(not CORPUS.is_dir(), reason="needs recordings")
@pytest.mark.parametrize(("before", "after", "unit", "ratio"), PAIRS)
def test_recordings_tell_one_story(before, after, unit, ratio):
    result = diff(analysis_of(CORPUS / before), analysis_of(CORPUS / after))
    work, story = result.document.work, " ".join(result.story)
    assert work.unit == unit
    assert ratio is None or work.ratio == pytest.approx(ratio, rel=1e-3)
    assert not result.obstacles
    assert "digest" not in story
    assert "shapes differ" not in story
    if work.ratio != 1:
        assert ("shrank" in story) == (work.change_relative < 0)
