"""Files that tracekit 0.1.0 wrote are read, and what they lack is not made up."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from tracekit import diff, gate, read_analysis
from tracekit.errors import InputError

DATA = Path(__file__).parents[1] / "data"
ANALYSIS, BASELINE = DATA / "analysis-0.1.0.json.gz", DATA / "baseline-0.1.0.json"


def test_a_saved_analysis_without_step_times_is_refused_in_one_line():
    with pytest.raises(InputError, match=r"analysis-0\.1\.0\.json\.gz: .*step") as caught:
        read_analysis(ANALYSIS)
    assert "\n" not in str(caught.value)


def test_a_baseline_still_judges(samples):
    assert gate(samples / "steps/a", BASELINE).verdict == "pass"
    assert gate(samples / "steps/straggler", BASELINE).verdict == "regressed"


@pytest.mark.parametrize("file", [ANALYSIS, BASELINE])
def test_a_file_of_a_format_that_is_not_known_is_refused_in_one_line(tmp_path, samples, file):
    data = file.read_bytes()
    document = json.loads(gzip.decompress(data) if file.suffix == ".gz" else data)
    name, _, number = document["format"].rpartition("/")
    later = tmp_path / "later.json"
    later.write_text(json.dumps(document | {"format": f"{name}/{int(number) + 1}"}))
    with pytest.raises(InputError, match=rf"later\.json: its format is '{name}/2', not tracekit") as caught:
        diff(later, later)
    assert "\n" not in str(caught.value)
    assert "again" in str(caught.value)
