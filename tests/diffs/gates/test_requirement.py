"""The words of --require."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tracekit.diffs.gate_config import parse_requirement
from tracekit.diffs.metrics import metric_names, resolve
from tracekit.errors import OptionError


@pytest.mark.parametrize(
    ("text", "kind", "limit", "worse"),
    [
        ("bubble_fraction < 0.12", "limit", 0.12, "up"),
        ("bubble_fraction<=12%", "limit", 0.12, "up"),
        ("step_ms < +3%", "relative", 0.03, "up"),
        ("step_ms < -3%", "relative", -0.03, "up"),
        ("step_ms < 1.5s", "limit", 1500.0, "up"),
        ("step_ms < +250us", "change", 0.25, "up"),
        ("overlap.ep_dispatch > -0.02", "change", -0.02, "down"),
        ("overlap.ep_dispatch >= −0.02", "change", -0.02, "down"),
        ("label_count.forward <= 96", "limit", 96.0, "up"),
        ("step_ms@3 < 1e2", "limit", 100.0, "up"),
    ],
)
def test_reads(text, kind, limit, worse):
    got = parse_requirement(text)
    assert (got.kind, pytest.approx(got.limit), got.worse) == (kind, limit, worse)


@pytest.mark.parametrize(
    ("text", "word", "position"),
    [
        ("", "start with a metric", 0),
        ("< 3", "start with a metric", 0),
        ("step_ms", "comparison must follow", 7),
        ("step_ms = 3", "comparison must follow", 8),
        ("step_ms < ", "number must follow", 10),
        ("step_ms < fast", "number must follow", 10),
        ("step_ms < 1e400ms", "finite number must follow", 10),
        ("step_ms < 3%", "a percentage of what", 10),
        ("step_ms < 3 and more", "nothing may follow", 12),
        ("step_ms < 3and", "has no unit and", 11),
        ("step_ms < 3ms now", "nothing may follow", 14),
        ("bubble_fraction < 3ms", "has no unit ms", 19),
        ("stepms < 3", "unknown metric stepms", 0),
    ],
)
def test_a_caret_stands_under_the_mistake(text, word, position):
    with pytest.raises(OptionError, match=word) as error:
        parse_requirement(text)
    first, shown, caret = str(error.value).split("\n")
    assert first.startswith("--require: ")
    assert shown == f"  {text}"
    assert caret.index("^") - 2 == position


def test_unknown_metrics_name_the_nearest():
    with pytest.raises(OptionError, match=r"overlap\.ep_dispatch"):
        parse_requirement("overlap.ep_dispach > 0.9")
    with pytest.raises(OptionError, match=r"label_ms\.wgrad"):
        resolve("wgrad")


def test_every_listed_name_resolves_to_itself():
    assert all(resolve(name).name == name for name in metric_names())
    assert len(set(metric_names())) == len(metric_names())


# Of few letters: a table of all of Unicode takes seconds to make.
@settings(max_examples=40)
@given(st.text(alphabet="_.%=+-−0123456789eklmnosty é\n\0\"'{}≤", max_size=30))
def test_any_other_text_is_refused_with_a_caret(text):
    with pytest.raises(OptionError, match=r"\^$"):
        parse_requirement(text)


def test_holds_at_the_limit():
    assert parse_requirement("step_ms <= 3").holds(3.0)
    assert not parse_requirement("step_ms < 3").holds(3.0)
    assert parse_requirement("overlap.copy >= 0.5").holds(0.5)
    assert not parse_requirement("overlap.copy > 0.5").holds(0.5)
