"""Every built-in rule decides at least one event: in a capture, or in a small trace written for it (``examples``)."""

from __future__ import annotations

import polars as pl
import pytest

from tests.classify.conftest import Program, undescribed
from tests.classify.examples.every import EXAMPLES
from tracekit.classify import builtin_rules, classify


@pytest.mark.parametrize("rule", EXAMPLES)
def test_the_example_is_decided_by_its_rule(rule):
    program = Program()
    target = EXAMPLES[rule](program)
    row = classify(program.events()).filter(pl.col("id") == target)
    assert row["rule"].to_list() == [rule]
    wanted = next(r for r in builtin_rules().rules if r.name == rule)
    assert row["label"].to_list() == [wanted.label]


IN_CAPTURES = (
    "group-expert-combine",
    "group-expert-dispatch",
    "group-reload",
    "matmul-dgrad-use",
    "memset",
    "neighbour-optimizer",
    "offload-returns",
    "onload-broadcast",
    "onload-returns",
    "optimizer-annotation",
    "reload-shared",
    "torch-accumulate-grad",
    "torch-attention-backward",
    "torch-compiled-backward",
    "torch-custom-grad-add",
    "torch-custom-grad-zero",
    "torch-forward",
    "torch-forward-window",
    "torch-grad-buffer-add",
    "torch-node-dgrad",
    "torch-norm-weight-grad",
    "torch-pipelining-forward",
)
"""Rules that captures alone exercise: none of them may go unnoticed."""


@pytest.mark.slow
def test_every_rule_is_exercised(samples, load):
    captures = [
        "1f1b/rank1",
        "dualpipe/rank0",
        "interleaved/rank1",
        "overlapped/rank0",
        "reload/rank0",
    ]
    captures += [
        "compile/rank0",
        "recompute/rank0",
        "vpp-overlap/rank6",
        "checkpoint-engine/worker0",
    ]
    missing = ({rule.name for rule in builtin_rules().rules} | set(IN_CAPTURES)) - set(EXAMPLES)
    for name in captures:
        if not missing:
            break
        events = load(samples / f"{name}.pt.trace.json.gz")
        for table in (events, events.with_columns(shapes=None), undescribed(events)):
            missing -= set(classify(table)["rule"].cast(pl.String))
    assert sorted(missing) == []


def test_names_are_unique():
    names = [rule.name for rule in builtin_rules().rules]
    assert len(names) == len(set(names))
