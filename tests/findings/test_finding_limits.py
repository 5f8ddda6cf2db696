"""Limits of findings, each on both sides, of contexts with a few figures in them."""

from __future__ import annotations

from types import SimpleNamespace

import polars as pl
import pytest

from docsite.finding_examples import example_of
from tracekit.findings import ranks, remedies
from tracekit.findings.communication import Remedy, best_remedy
from tracekit.findings.kernels import (
    common_device,
    fewest_multiprocessors,
    find_slower_than,
    reason_of,
)
from tracekit.findings.recording import UnexplainedIdle
from tracekit.graph.change import Hidden, NoHostDelay, Scaled
from tracekit.metrics.alternatives.attention import FusedAttention
from tracekit.metrics.alternatives.fusion import Fused, FusedLoss
from tracekit.metrics.alternatives.own import NO_OWN_ADVICE
from tracekit.metrics.alternatives.stalls import FreeCpu


def idle_context(
    *,
    free_idle_ns=None,
    has_host_calls=True,
    has_stacks=False,
    has_unread_stacks=False,
    has_doubtful_clock=False,
    found=(),
    **total,
):
    """A step of 1,000 ns, 100 of them idle."""
    known = {"pipeline": False, "idle_known": True, **total}
    free_budget = None if free_idle_ns is None else SimpleNamespace(idle_ns=free_idle_ns)
    return SimpleNamespace(
        analysis=SimpleNamespace(
            total=SimpleNamespace(**known),
            role_results=SimpleNamespace(roles=known.pop("roles", ())),
            tables={"steps": pl.DataFrame({"rank": [0], "start_ns": [1], "end_ns": [1_002]})},
        ),
        step=SimpleNamespace(
            budget_ns=SimpleNamespace(idle_ns=100), free_budget_ns=free_budget, marked=True
        ),
        has_host_calls=has_host_calls,
        has_stacks=has_stacks,
        has_unread_stacks=has_unread_stacks,
        found=found,
        captured_launches=0,
        has_doubtful_clock=has_doubtful_clock,
        share=lambda ns: ns / 1_000,
    )


def host_finding(code, cost_ns):
    return example_of(code, cost_ns=cost_ns, share=cost_ns / 1_000)


@pytest.mark.parametrize(
    ("context", "findings", "stated"),
    [
        ({}, [], ("idle", 100)),
        ({"has_host_calls": False}, [], ("idle_host_unknown", 100)),
        ({"has_stacks": True}, [], ("idle_with_stacks", 100)),
        ({"has_unread_stacks": True}, [], ("idle_with_stacks", 100)),
        ({}, [host_finding("compile", 49)], ("idle", 51)),
        ({}, [host_finding("compile", 50)], None),  # a twentieth of the step is left
        ({}, [host_finding("compile", 200)], None),
        ({}, [host_finding("slow_kernel", 90)], ("idle", 100)),  # not about the host
        ({"pipeline": True}, [], None),
        ({"roles": ("actor",)}, [], None),
        ({"idle_known": False}, [], None),
        ({"has_doubtful_clock": True}, [], None),  # its notice says so
        ({"free_idle_ns": 51}, [], ("idle", 51)),  # without the profiler
        ({"free_idle_ns": 50}, [], None),
    ],
)
def test_idle_time_beyond_a_twentieth_that_no_finding_explains_is_stated(context, findings, stated):
    found = list(UnexplainedIdle.find(idle_context(**context, found=findings)))
    assert [(finding.case, finding.cost_ns) for finding in found] == (
        [] if stated is None else [stated]
    )


@pytest.mark.parametrize(
    ("limit_ns", "calls", "ns", "gain_ns"),
    [
        (70_000, 2, 200_000, 100_000),  # seven tenths of the limit are good
        (70_000, 2, 100_000, None),
        (700, 2, 20_000, 10_000),  # two kernels take 5 µs each whatever they do
        (700, 2, 10_000, None),
    ],
)
def test_an_operator_gains_what_it_takes_beyond_a_good_kernel(limit_ns, calls, ns, gain_ns):
    row = {"op": "aten::mm", "module": None, "shapes": None, "calls": calls, "ns": ns}
    found = list(find_slower_than(limit_ns, row, "product", 4, is_compute=True))
    assert [(slow.ns, slow.limit_ns, slow.gain_ns) for slow in found] == (
        [] if gain_ns is None else [(ns / 4, limit_ns / 4, pytest.approx(gain_ns / 4))]
    )


@pytest.mark.parametrize(
    ("kind", "shapes", "reason"),
    [
        ("attention", "[[16,512,32,128]]", "short_sequence"),
        ("attention", "[[16,513,32,128]]", "attention"),
        ("attention", "[[16,32,513,128]]", "attention"),  # heads before tokens
        ("attention", "[[16,512,32]]", "attention"),
        ("attention", "[]", "attention"),
        ("convolution", "[[8,32,9,9],[64,1,3,3]]", "depthwise"),
        ("convolution", "[[8,1,9,9],[64,1,3,3]]", "channels"),  # one channel, no groups
        ("convolution", "[[8,16,9,9],[64,16,3,3]]", "convolution"),
        ("convolution", "[[8,16,9,9],[60,16,3,3]]", "channels"),
        ("convolution", "[[8,12,9,9],[64,12,3,3]]", "channels"),
        ("convolution", "[[8,16,9,9]]", "convolution"),
        ("product", "[[4096,4096]]", "product"),
        ("elementwise", "[[7,7],[7,7]]", "elementwise"),
        ("experts", "[[7,7],[7,7]]", "experts"),  # no sizes of experts
    ],
)
def test_sizes_say_why_an_operator_is_slow(kind, shapes, reason):
    assert reason_of("aten::op", kind, shapes, multiprocessors=132) == reason


@pytest.mark.parametrize(("tokens", "reason"), [(64, "few_tokens"), (65, "experts")])
def test_experts_of_64_tokens_each_are_few(tokens, reason):
    """Of two experts each takes half of the tokens of one each."""
    shapes = f"[[{2 * tokens},8],[2,12,8],[2,8,6],[{2 * tokens},1]]"
    assert reason_of("fused_experts", "experts", shapes, multiprocessors=132) == reason


def test_without_multiprocessors_few_tiles_are_no_reason():
    assert (
        reason_of("aten::mm", "product", "[[128,4096],[4096,128]]", multiprocessors=None)
        == "product"
    )


@pytest.mark.parametrize(
    ("devices", "device"),
    [
        ([("H200",), ("H200",)], "H200"),
        ([("H200",), ("H100",)], None),
        ([("H200",), ()], "H200"),
        ([()], None),
    ],
)
def test_the_gpu_is_known_if_all_ranks_name_the_same(devices, device):
    sources = [SimpleNamespace(devices=names) for names in devices]
    assert common_device(SimpleNamespace(analysis=SimpleNamespace(sources=sources))) == device


@pytest.mark.parametrize(
    ("counts", "fewest"), [([132, 66], 66), ([None, 132], 132), ([None], None)]
)
def test_multiprocessors_are_the_fewest_of_all_ranks(counts, fewest):
    sources = [SimpleNamespace(multiprocessors=count) for count in counts]
    assert (
        fewest_multiprocessors(SimpleNamespace(analysis=SimpleNamespace(sources=sources))) == fewest
    )


def advised(monkeypatch, entry, *, events=16, **predicted):
    """The findings of a change that is predicted to save 50 of 1,000 ns of work of this many kernels."""
    saving = {
        "measured_ns": 1_000,
        "free_ns": None,
        "saves_ns": 50,
        "saves_range_ns": (20, 80),
        **predicted,
    }
    monkeypatch.setattr(
        remedies, "select_remedies", lambda graph, change: pl.DataFrame({"event": [1]})
    )
    work = remedies.ChangedWork(
        ns=300.0, events=events, whats=("norm", "loss"), op="op", module=None
    )
    monkeypatch.setattr(remedies, "changed_work", lambda context, change: work)
    monkeypatch.setattr(remedies, "longest_places", lambda context, graph, change: ())
    context = SimpleNamespace(
        analysis=SimpleNamespace(
            graph=SimpleNamespace(graph=None), advice=NO_OWN_ADVICE, sources=()
        ),
        predict=lambda change: SimpleNamespace(**saving),
        share=lambda ns: ns / 1_000,
        framework=None,
        vendor="NVIDIA",
        found=[],
    )
    return [
        (finding.variant, finding.cost_ns, finding.saves_ns, finding.saves_range_ns)
        for finding in remedies.kind_of_alternative(entry).find(context)
    ]


@pytest.mark.parametrize(
    ("entry", "options", "found"),
    [
        (Fused(), {}, ("norm", 300, 50, (20, 80))),
        (Fused(), {"events": 15}, None),  # a mask or a position
        (FusedAttention(), {"events": 15}, ("norm", 300, 50, (20, 80))),
        (FusedLoss(), {"events": 1}, ("", 300, 50, (20, 80))),
        (FusedAttention(), {"saves_ns": 49}, None),
        (FusedAttention(), {"saves_ns": None}, None),
        (
            FusedAttention(),
            {"free_ns": 980, "saves_ns": 49},
            ("norm", 300, 49, (20, 80)),
        ),
        (FusedAttention(), {"free_ns": 2_000, "saves_ns": 99}, None),
        (FreeCpu(), {}, ("", 300, 50, (0, 50))),
    ],
)
def test_a_change_that_saves_a_twentieth_of_the_step_is_advised(monkeypatch, entry, options, found):
    assert advised(monkeypatch, entry, **options) == ([] if found is None else [found])


@pytest.mark.parametrize(
    ("saves", "unhideable_ns", "remedy"),
    [
        # Saved by hiding, by halving, by a host without delay, and by both.
        ((100, 0, 0, 100), 0, Remedy(Hidden("dp_comm"), 100, (0, 100))),
        (
            (100, 101, 0, 100),
            1,
            Remedy(Scaled("dp_comm", 0.5), 101, (0, 101), "possible", case="too_little_compute"),
        ),
        ((100, 101, 0, 100), 0, Remedy(Hidden("dp_comm"), 100, (0, 100))),  # compute can hide all
        ((100, 100, 0, 100), 1, Remedy(Hidden("dp_comm"), 100, (0, 100))),
        (
            (-5, 1, 0, 0),
            1,
            Remedy(Scaled("dp_comm", 0.5), 1, (0, 1), "possible", case="too_little_compute"),
        ),
        ((-5, 0, 0, 100), 1, Remedy(None, None, (0, 100), "possible", case="host_takes_as_long")),
        ((None, 0, 0, 100), 1, Remedy()),
        # The host as it is leaves half of what one that is always ahead would save, or less.
        ((51, 0, 20, 120), 0, Remedy(Hidden("dp_comm"), 51, (0, 51))),
        ((50, 0, 20, 120), 0, Remedy(None, None, (0, 100), "possible", case="host_takes_as_long")),
        ((50, 0, 20, 520), 0, Remedy(None, None, (0, 400), "possible", case="host_takes_as_long")),
        ((0, 0, 20, 20), 0, Remedy(None, None, (0, 400), "possible", case="host_takes_as_long")),
    ],
)
def test_the_best_remedy_of_400_ns_of_exposed_transfers(saves, unhideable_ns, remedy):
    changes = (
        (Hidden("dp_comm"),),
        (Scaled("dp_comm", 0.5),),
        (NoHostDelay(),),
        (NoHostDelay(), Hidden("dp_comm")),
    )
    predicted = dict(zip(changes, saves, strict=True))

    def predict(*changes):
        saves_ns = predicted[changes]
        return None if saves_ns is None else SimpleNamespace(saves_ns=saves_ns)

    context = SimpleNamespace(predict=predict)
    assert best_remedy(context, "dp_comm", 400, unhideable_ns=unhideable_ns) == remedy


@pytest.mark.parametrize(
    ("other", "together"),
    [
        ({}, (1, 3)),
        ({"late_with": ()}, (3,)),
        ({"label": "tp_comm"}, (3,)),
        ({"steps": ()}, (3,)),
        ({"uncertain": True}, (3,)),
        ({"cause": "slow_gpu"}, (3,)),
        ({"cause": None}, (3,)),
        ({"rank": 2, "late_with": (3,)}, (3,)),  # rank 3 is not late with it
        ({"rank": 7}, (3,)),  # it has a finding
    ],
)
def test_ranks_are_late_together_for_the_same_reason(monkeypatch, other, together):
    usual = {
        "rank": 1,
        "late_with": (3,),
        "label": "dp_comm",
        "steps": (0,),
        "uncertain": False,
        "cause": "host_late",
    }
    row = SimpleNamespace(**{**usual, "rank": 3, "late_with": (1, 7)})
    rows = [row, SimpleNamespace(**{**usual, **other})]
    cause_of = lambda context, row: row.cause and SimpleNamespace(cause=row.cause)  # noqa: E731
    monkeypatch.setattr(ranks, "main_cause", cause_of)
    context = SimpleNamespace(analysis=SimpleNamespace(stragglers=SimpleNamespace(rows=rows)))
    assert (
        ranks.ranks_late_together(context, row, SimpleNamespace(cause="host_late"), {7}) == together
    )
