"""Tests of the critical path in an export: a track per rank, segments that sum to the step, arrows between them."""

from __future__ import annotations

import itertools
import json

import pytest

from tests.kept import analysis_of
from tracekit.run.export import export

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("measured_once")]


def test_the_path_is_a_track_with_arrows(samples, tmp_path):
    export(samples / "1f1b", tmp_path / "out.json")
    events = json.loads((tmp_path / "out.json").read_text())["traceEvents"]
    path = [e for e in events if e.get("cat") == "critical_path"]
    segments = [e for e in path if e["ph"] == "X"]
    assert segments
    names = {e["args"]["name"] for e in events if e["ph"] == "M" and e["name"] == "process_name"}
    assert "critical path" in names
    # One pid, a thread for each rank; each segment begins where the one before it ends.
    assert len({e["pid"] for e in segments}) == 1
    for before, after in itertools.pairwise(segments):
        assert after["ts"] == pytest.approx(before["ts"] + before["dur"], abs=0.002)
    analysis = analysis_of(samples / "1f1b")
    assert sum(e["dur"] for e in segments) * 1000 == pytest.approx(
        analysis.to_dict(show=["critical-path"])["critical_path_ns"]["total"], abs=len(segments)
    )
    changes = sum(a["tid"] != b["tid"] for a, b in itertools.pairwise(segments))
    starts, ends = ([e for e in path if e["ph"] == way] for way in "sf")
    assert len(starts) == len(ends) == changes > 0
    flows = {e["id"] for e in events if e["ph"] == "s" and e.get("cat") != "critical_path"}
    assert not flows & {e["id"] for e in starts}
