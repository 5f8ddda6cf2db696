"""Selectors of ``--explain``: part of a name in any case, an id; a misspelt label is guessed."""

from __future__ import annotations

import pytest

from tracekit import load
from tracekit.classify import explain, load_rules
from tracekit.errors import OptionError, RuleError


@pytest.fixture(scope="module")
def events(samples):
    return load(samples / "1f1b", ranks=[0]).rank(0).events


def test_a_name_in_any_case(events):
    assert explain(events, "sendrecv").event == explain(events, "SendRecv").event


@pytest.mark.parametrize(
    ("word", "hint"),
    [
        ("forwrad", "did you mean forward?"),
        ("pp_com", "did you mean pp_comm?"),
        ("zzzz", "give part of a kernel's name, a label or an event's id"),
    ],
)
def test_a_word_that_names_nothing(events, word, hint):
    with pytest.raises(
        OptionError, match="no GPU event has the id, the label or a name with"
    ) as error:
        explain(events, word)
    assert error.value.hint == hint


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            'label = "forwrad"\nwhen = { name = "x" }',
            "my.toml:3: unknown label 'forwrad' (did you mean forward?)",
        ),
        (
            'label = "gpu"\nwhen = { name = "x" }',
            "my.toml:3: unknown label 'gpu' (one of forward, dgrad, ",
        ),
        (
            'label = "forward"\nwhen = { nme = "x" }',
            "my.toml:4: unknown evidence 'nme' (did you mean name?)",
        ),
        (
            'label = "forward"\nwhen = { name = "(" }',
            "my.toml:4: 'name' is not a regular expression: unclosed group",
        ),
        (
            'label = "forward"\nwhem = { name = "x" }',
            "my.toml:4: rule: unknown key whem (did you mean when?)",
        ),
    ],
)
def test_a_mistake_in_a_rules_file_names_the_nearest_word(tmp_path, text, message):
    (tmp_path / "my.toml").write_text(f'[[rule]]\nname = "mine"\n{text}\n')
    with pytest.raises(RuleError) as error:
        load_rules(tmp_path / "my.toml")
    assert message in str(error.value)
    assert "evidence: class" not in str(error.value)
