"""JSON in pieces is the JSON of the whole, and makes what is long only when it is written."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tracekit
from tracekit._util.json_pieces import AT_ONCE, json_pieces
from tracekit.report.json import render_json

SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
PLAIN = st.recursive(SCALARS, lambda some: st.lists(some) | st.dictionaries(st.text(), some), max_leaves=12)
DOCUMENTS = st.recursive(
    PLAIN | st.lists(PLAIN, max_size=5).map(tuple), lambda some: st.dictionaries(st.text(), some), max_leaves=8
)
"""Tuples are lists that are still to be made."""


def unmade(document):
    if isinstance(document, dict):
        return {name: unmade(value) for name, value in document.items()}
    return iter(document) if isinstance(document, tuple) else document


@given(DOCUMENTS)
def test_pieces_are_the_whole(document):
    made = "".join(json_pieces(unmade(document)))
    assert made == json.dumps(document, indent=1, ensure_ascii=False)


@pytest.mark.parametrize("count", [0, 1, AT_ONCE - 1, AT_ONCE, AT_ONCE + 1, 3 * AT_ONCE])
def test_however_many_items_there_are(count):
    items = [{"rank": k, "steps": [k]} for k in range(count)]
    made = "".join(json_pieces({"a": {"ranks": iter(items)}, "b": []}))
    assert made == json.dumps({"a": {"ranks": items}, "b": []}, indent=1)


def test_items_are_made_as_they_are_written():
    made = []
    items = (made.append(k) or k for k in range(10 * AT_ONCE))
    pieces = json_pieces({"ranks": items, "total": 1})
    while not made:
        next(pieces)
    assert len(made) == AT_ONCE


@pytest.mark.parametrize("sample", ["1f1b", "reload", "overlapped"])
def test_an_analysis_in_pieces_is_its_json(samples, sample):
    analysis = tracekit.analyze(samples / sample, workers=1)
    assert "".join(render_json(analysis)) == analysis.to_json() + "\n"
