"""Wrong types in Python end in one line that names the argument, as wrong words do on the command line."""

from __future__ import annotations

from pathlib import Path

import pytest

import tracekit
import tracekit.analysis
from tests.kept import analysis_of
from tracekit.errors import OptionError, TracekitError

RELOAD = str(Path(__file__).parent.parent / "sample_traces" / "reload")

CALLS = {
    "no path was given": [
        lambda: tracekit.analyze(None),
        lambda: tracekit.load(None),
        lambda: tracekit.late(None),
        lambda: tracekit.memory(None),
        lambda: tracekit.diagnose(None),
        lambda: tracekit.ingest(None, "store"),
    ],
    "traces: 5 is no path": [lambda: tracekit.analyze(5), lambda: tracekit.memory([5])],
    "there is no first run": [lambda: tracekit.diff(None, RELOAD)],
    "there is no candidate": [lambda: tracekit.gate(None)],
    "candidate: 5 is no path": [lambda: tracekit.gate([5])],
    "require: 5 is no text": [lambda: tracekit.gate(RELOAD, require=5)],
    "store: None is no path": [
        lambda: tracekit.open_store(None),
        lambda: tracekit.query(None, "select 1"),
        lambda: tracekit.ingest(RELOAD, None),
    ],
    "sql: 5 is no text": [lambda: tracekit.query("store", 5)],
    "file: None is no path": [lambda: tracekit.read_analysis(None)],
    "path: None is no path": [lambda: tracekit.redact(None, "copy")],
    "output: None is no path": [
        lambda: tracekit.redact(RELOAD, None),
        lambda: tracekit.export(RELOAD, None),
    ],
    "folder: None is no path": [lambda: next(iter(tracekit.watch(None)))],
    "ranks 3.5: '3.5' is not a rank": [lambda: tracekit.analyze(RELOAD, ranks=3.5)],
    "steps: cannot read '3.5'": [lambda: tracekit.analyze(RELOAD, steps=3.5)],
    "layout: 5 is no text": [lambda: tracekit.analyze(RELOAD, layout=5)],
    "schedule: 5 is no": [
        lambda: tracekit.analyze(RELOAD, schedule=5),
        lambda: tracekit.simulate(5),
    ],
    "rules: 5 is no path": [lambda: tracekit.analyze(RELOAD, rules=5)],
    "changes: 5 is no text": [lambda: tracekit.analyze(RELOAD, changes=5)],
    "ranks: 'a' is no int": [lambda: tracekit.weight_reload("a", 2)],
}


@pytest.mark.parametrize(
    ("message", "call"), [(message, call) for message, calls in CALLS.items() for call in calls]
)
def test_a_wrong_type_is_named_in_one_line(message, call):
    with pytest.raises(TracekitError) as raised:
        call()
    assert str(raised.value).startswith(message)
    assert "\n" not in str(raised.value)


@pytest.mark.slow
def test_a_change_that_is_no_text_is_named(samples):
    run = analysis_of(samples / "slow-ddp")
    for change in (5, None):
        with pytest.raises(OptionError, match=f"changes: {change} is no text"):
            run.what_if(change)


@pytest.mark.parametrize("name", ["SavedAnalysis", "Measured", "RankResult"])
def test_a_removed_name_names_its_successor(name):
    with pytest.raises(AttributeError, match=rf"{name} was removed; use \w+"):
        getattr(tracekit.analysis, name)
    if name == "SavedAnalysis":
        with pytest.raises(AttributeError, match=r"use tracekit\.Analysis"):
            getattr(tracekit, name)
