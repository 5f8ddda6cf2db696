"""Files of an older or unknown format are refused in one line that says what to do."""

from __future__ import annotations

import json

import pytest

from tests.kept import analysis_of
from tracekit import diff, read_analysis
from tracekit.errors import InputError


@pytest.fixture
def document(samples):
    return analysis_of(samples / "reload").to_dict()


def refusal(document, folder):
    file = folder / "saved.json"
    file.write_text(json.dumps(document))
    with pytest.raises(InputError) as caught:
        read_analysis(file)
    text = str(caught.value)
    assert "\n" not in text
    assert "write it again with analyze" in text
    assert caught.value.exit_code == 2
    return text


def test_a_saved_analysis_without_step_times_is_refused(document, tmp_path):
    del document["step"]
    assert "lacks the key step (written by tracekit" in refusal(document, tmp_path)


def test_a_warning_without_a_code_is_refused(document, tmp_path):
    document["warnings"] = [{"message": "a sentence alone"}]
    assert "$.warnings[0]: lacks the key code" in refusal(document, tmp_path)


@pytest.mark.parametrize("name", ["analysis", "baseline"])
@pytest.mark.parametrize("number", [0, 3])
def test_a_format_that_is_not_known_is_refused(tmp_path, name, number):
    file = tmp_path / "saved.json"
    file.write_text(json.dumps({"format": f"tracekit.{name}/{number}"}))
    with pytest.raises(
        InputError, match=rf"saved\.json: its format is 'tracekit\.{name}/{number}', not tracekit"
    ) as caught:
        diff(file, file)
    assert "\n" not in str(caught.value)
    assert "again" in str(caught.value)
