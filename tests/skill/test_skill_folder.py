"""The skill's folder: its front matter is what agents accept, and what it names exists."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

import pytest
import typer.main

from tests.kept import analysis_of
from tracekit.cli import make_app
from tracekit.cli.mcp_server import TOOLS
from tracekit.report.write import render_json
from tracekit.rooms import all_kinds
from tracekit.schema import LABELS

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "skills/tracekit"
SKILL = (FOLDER / "SKILL.md").read_text(encoding="utf-8")
FILES = sorted(FOLDER.rglob("*.md"))
CODES = {code for code, _ in all_kinds()}
OTHER_WORDS = {
    *("same_stream", "launched_late", "nothing_to_hide", "peer_late", "unknown"),
    *("compute_waited", "one_queue", "dependency"),
    *("measured", "bounded", "possible", "own_bubble", "no_workers", "checkpoint"),
    *("events", "labelled", "collectives", "ranks", "schedule"),
    *("event", "offset", "other_work", "pin_memory", "torch"),
}
"""Values, tables, arguments and programs that the skill names beside keys."""


def front_matter():
    _, block, _ = SKILL.split("---\n", 2)
    return dict(line.split(": ", 1) for line in block.splitlines())


def property_names(schema):
    """Return all names of properties in a JSON Schema."""
    names = set()
    if isinstance(schema, dict):
        names |= set(schema.get("properties", {}))
        for part in schema.values():
            names |= property_names(part)
    if isinstance(schema, list):
        for part in schema:
            names |= property_names(part)
    return names


def test_the_front_matter_follows_the_format_of_agent_skills():
    fields = front_matter()
    assert set(fields) <= {"name", "description", "license", "compatibility", "metadata"}
    assert fields["name"] == FOLDER.name
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", fields["name"])
    assert 100 < len(fields["description"]) <= 1024
    assert len(fields["compatibility"]) <= 500


def test_the_package_installs_every_file_of_the_skill():
    about = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    installed = set()
    for target, patterns in about["tool"]["setuptools"]["data-files"].items():
        for pattern in patterns:
            for file in ROOT.glob(pattern):
                assert target.endswith(file.parent.relative_to(ROOT).as_posix())
                installed.add(file)
    assert installed >= set(FILES)


def test_what_an_agent_loads_first_is_short():
    assert len(SKILL.splitlines()) < 150
    assert len(SKILL) < 12_000


def test_references_are_linked_from_the_skill_and_nothing_else_is():
    linked = {FOLDER / target for target in re.findall(r"\]\(([^)]+)\)", SKILL)}
    assert linked == set(FILES) - {FOLDER / "SKILL.md"}


@pytest.mark.parametrize("file", FILES, ids=[file.name for file in FILES])
def test_keys_codes_tools_and_labels_that_the_skill_names_exist(file):
    known = {*CODES, *LABELS, *TOOLS, *OTHER_WORDS}
    for schema in (ROOT / "docs/schemas").glob("*.json"):
        known |= property_names(json.loads(schema.read_text(encoding="utf-8")))
    known |= set(typer.main.get_command(make_app()).commands)
    written = "\n".join(
        source.read_text(encoding="utf-8")
        for folder in ("findings", "metrics/alternatives", "pipeline/against_ideal", "cli", "roles")
        for source in (ROOT / "tracekit" / folder).glob("*.py")
    )
    known |= set(re.findall(r'"(\w+)"', written)) | set(re.findall(r"\b(\w+)=", written))
    text = file.read_text(encoding="utf-8")
    named = set(re.findall(r"`([a-z][a-z_]*(?:(?:\[\])?\.[a-z_]+)*)(?:\[\])?`", text))
    words = {word.removesuffix("[]") for name in named for word in name.split(".")}
    assert sorted(words - known) == []


@pytest.mark.parametrize("file", FILES, ids=[file.name for file in FILES])
def test_commands_and_options_that_the_skill_names_exist(file):
    commands = typer.main.get_command(make_app()).commands
    for command, words in re.findall(r"`tracekit (\w+)([^`]*)`", file.read_text(encoding="utf-8")):
        options = {option for param in commands[command].params for option in param.opts}
        assert set(re.findall(r"(?<= )--?[a-z][a-z-]*", words)) <= options


def test_the_script_that_picks_keys_runs(tmp_path, monkeypatch, capsys):
    (script,) = re.findall(r"<<'PY'\n(.*?)PY\n", SKILL, re.DOTALL)
    (tmp_path / "run.json").write_text(
        render_json(analysis_of(ROOT / "tests/data/everyday/loader"))
    )
    monkeypatch.chdir(tmp_path)
    exec(script, {})
    printed = capsys.readouterr().out.splitlines()
    assert printed[0].startswith("67")  # the step in ns
    assert "'code': 'data_loading'" in printed[1]


def test_every_code_of_a_finding_is_explained():
    page = (FOLDER / "references/findings.md").read_text(encoding="utf-8")
    explained = set(re.findall(r"`(\w+)`", " ".join(re.findall(r"^\| ([^|]+) \|", page, re.M))))
    assert explained == CODES
