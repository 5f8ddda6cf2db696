"""Patterns of a rules file: each ends, whatever it is tried on.

A bad one is an error on its line.
"""

from __future__ import annotations

import re
import time

import polars as pl
import pytest

from tracekit._util.categories import CategoryColumn, LinearPattern
from tracekit.classify import classify, load_rules
from tracekit.classify.rules import builtin_rules
from tracekit.errors import RuleError
from tracekit.schema import EVENTS, conform

SOON_S = 20
"""Far more than any of these takes, and nothing against what Python's engine would."""


def kernels(*names):
    rows = [
        {"id": i, "kind": "kernel", "name": n, "start_ns": i, "end_ns": i + 1}
        for i, n in enumerate(names)
    ]
    return conform(pl.DataFrame(rows), EVENTS)


def rules(folder, pattern):
    path = folder / "rules.toml"
    path.write_text(
        f"[[rule]]\nname = \"mine\"\nlabel = \"forward\"\nwhen = {{ name = '''{pattern}''' }}\n"
    )
    return load_rules(path)


@pytest.mark.parametrize(
    "pattern", ["(a+)+$", "(a|aa)+$", "(.*a){25}b", r"^(\w+\s?)*$", "(x+x+)+y"]
)
def test_a_pattern_that_never_ends_in_python_ends(tmp_path, pattern):
    began = time.monotonic()
    labelled = classify(kernels("a" * 5000 + "!", "x" * 5000, "a"), rules=rules(tmp_path, pattern))
    assert time.monotonic() - began < SOON_S
    assert labelled["label"].null_count() == 0


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("(?=a)b", "look-around"),
        (r"(a)\1", "backreferences"),
        ("(", "unclosed group"),
        ("a{1000}{1000}{1000}", "size limit"),
        ("(" * 2000 + ")" * 2000, ""),
    ],
)
def test_a_pattern_that_cannot_be_used_is_an_error_on_its_line(tmp_path, pattern, message):
    with pytest.raises(
        RuleError, match=r"rules\.toml:4: 'name' is not a regular expression"
    ) as caught:
        rules(tmp_path, pattern)
    assert message in caught.value.message
    assert "\n" not in caught.value.message


def test_both_engines_find_the_same():
    """Every pattern of ours that the other engine knows too, on every name of the list of kernels."""
    from pathlib import Path

    names = CategoryColumn.from_series(
        pl.Series((Path(__file__).parent / "kernel_names.txt").read_text().splitlines())
    )
    compared = 0
    for rule in builtin_rules().rules:
        for condition in (*rule.when.values(), *rule.unless.values()):
            if isinstance(condition, str) and not LinearPattern(condition).problem():
                assert (
                    names.matches(condition).tolist()
                    == names.matches(LinearPattern(condition)).tolist()
                ), condition
                compared += 1
    assert compared > 50


def test_every_shipped_pattern_compiles():
    book = builtin_rules()
    cases = [condition for rule in book.rules for condition in (rule.when, rule.unless)]
    cases += [kind.when for kind in (*book.groups, *book.modules)]
    patterns = [value for case in cases for value in case.values() if isinstance(value, str)]
    assert len([re.compile(pattern) for pattern in patterns]) > 500


def test_our_own_patterns_end_on_names_that_nobody_wrote():
    hostile = [
        seed * (200_000 // len(seed))
        for seed in ("a", "_", "<", "gemm_", "nccl", "void at::native::", " ", "\\")
    ]
    began = time.monotonic()
    labelled = classify(kernels(*hostile))
    assert time.monotonic() - began < SOON_S
    assert len(labelled) == len(hostile)


def test_tables_within_tables_are_no_rules(tmp_path):
    (tmp_path / "rules.toml").write_text("a = " + "[" * 100_000)
    with pytest.raises(RuleError):
        load_rules(tmp_path / "rules.toml")
