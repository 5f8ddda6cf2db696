"""Explanation of an event: the rule that decided, why others failed, and all events of a name."""

from __future__ import annotations

import pytest

from tracekit.classify import classify, explain
from tracekit.classify.explain import condition_verb, shorten_value
from tracekit.errors import OptionError


def test_explain_names_the_rule_and_why_others_failed(program):
    program.op("aten::relu", 0, 10, sequence=5)
    target = program.kernel("relu_kernel", 1)
    program.node("ReluBackward0", 20, 30, 5)
    events = program.events()
    by_id, by_name = explain(events, target), explain(events, "relu_k")
    assert by_id.event == by_name.event
    assert by_id.winner is not None
    assert by_id.winner.rule == classify(events)["rule"].to_list()[0] == "torch-forward"
    assert by_id.evidence["site"] == "forward"
    failed = next(t for t in by_id.tried if t.rule == "torch-recompute")
    assert (failed.matched, failed.failed) == (False, "site is forward, not recompute")
    text = by_id.render()
    assert "✓ torch-forward" in text
    assert "relu_kernel" in text
    with pytest.raises(OptionError, match="nothing_like_it"):
        explain(events, "nothing_like_it")


def test_explain_counts_all_that_a_name_means(samples, load):
    events = load(samples / "1f1b/rank1.pt.trace.json.gz")
    explanation = explain(events, "nvjet")
    assert dict(explanation.others) == {"forward": 96, "dgrad": 96, "wgrad": 96}
    assert explanation.to_dict()["label"] in ("forward", "dgrad", "wgrad")


def test_without_all_rules_only_those_that_match_are_printed(program):
    program.op("aten::relu", 0, 10, sequence=5)
    target = program.kernel("relu_kernel", 1)
    program.node("ReluBackward0", 20, 30, 5)
    explanation = explain(program.events(), target)
    matching = explanation.render(all_rules=False)
    assert "✓ torch-forward" in matching
    assert "✗" not in matching
    assert "✗ torch-recompute" in explanation.render()


def test_rules_behind_the_first_that_matches_are_not_said_to_fail(program):
    program.op("aten::relu", 0, 10, sequence=5)
    target = program.kernel("relu_kernel", 1)
    program.node("ReluBackward0", 20, 30, 5)
    before, _, behind = explain(program.events(), target).render().partition("✓ torch-forward")
    assert "✗" in before
    assert "✗" not in behind


@pytest.mark.parametrize(
    ("condition", "words"),
    [
        ("forward", ("matches", "does not match")),
        (">= 7", ("is", "is not")),
        (True, ("is", "is not")),
        (["a", "b"], ("is", "is not")),
    ],
)
def test_patterns_match_and_values_are(condition, words):
    assert (condition_verb(condition), condition_verb(condition, negated=True)) == words


@pytest.mark.parametrize(
    ("value", "shown"),
    [(None, "unknown"), ("x" * 60, "x" * 60), ("x" * 61, "x" * 57 + "…"), (7, "7"), (True, "True")],
)
def test_long_values_are_cut(value, shown):
    assert shorten_value(value) == shown
