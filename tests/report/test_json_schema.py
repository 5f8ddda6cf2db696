"""Every ``--json`` output fits its published schema, and the published files are the code's."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator
from jsonschema.exceptions import ValidationError

from tests.kept import analysis_of
from tracekit import analyze
from tracekit.diffs import diff, read_side
from tracekit.doctor import diagnose
from tracekit.gates import gate
from tracekit.report.json_schema import SCHEMAS, json_schema
from tracekit.schedules import generate, simulate, weight_reload

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
RUNS = ("1f1b", "memory", "reload", "rates", "router", "compile", "1f1b-noshapes", "steps/a")


def check(name, data):
    Draft202012Validator(json_schema(name)).validate(json.loads(json.dumps(data)))


@pytest.mark.parametrize("name", SCHEMAS)
def test_the_published_file_is_the_codes(name):
    schema = json_schema(name)
    Draft202012Validator.check_schema(schema)
    published = ROOT / "docs" / "schemas" / f"{schema['title'].replace('/', '-')}.json"
    assert json.loads(published.read_text()) == schema, "write it again: see CONTRIBUTING"


@pytest.mark.parametrize("folder", RUNS)
def test_analyses_of_samples_fit(folder):
    check("analysis", analysis_of(ROOT / "sample_traces" / folder).to_dict())


def test_what_if_fits():
    data = analysis_of(ROOT / "sample_traces" / "1f1b", what_if=True).to_dict()
    assert {row["change"] for row in data["schedule"]["what_if"]} >= {"schedule", "microbatches"}
    assert [row["saves_ns"] for row in data["what_if"]] == sorted(
        (r["saves_ns"] for r in data["what_if"]), reverse=True
    )
    check("analysis", data)


def test_other_outputs_fit():
    steps = ROOT / "sample_traces" / "steps"
    sides = [read_side([str(steps / name)], what="run") for name in ("a", "straggler")]
    check("diff", diff(*sides).to_dict())
    check("gate", gate(sides[1], sides[0]).to_dict())
    check("doctor", diagnose(ROOT / "sample_traces" / "1f1b-noshapes").to_dict())
    check("schedule", simulate(generate("zb-v", pp=4, microbatches=8)).to_dict())
    check("schedule", weight_reload(2, 2).to_dict())


def test_a_wrong_document_does_not_fit():
    data = analyze(ROOT / "sample_traces" / "reload", schedule="none").to_dict()
    data["total"]["label_ns"]["no_such_label"] = 1
    with pytest.raises(ValidationError, match="no_such_label"):
        check("analysis", data)
