"""How an event is named to ``--explain``: part of a name in any case, an id; a label that is misspelt is guessed."""

from __future__ import annotations

import pytest

from tracekit import load
from tracekit.classify import explain
from tracekit.errors import OptionError


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
    with pytest.raises(OptionError, match="no GPU event has the id, the label or a name with") as error:
        explain(events, word)
    assert error.value.hint == hint
