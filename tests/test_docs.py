"""Documents cannot drift: commands are described, and what the README shows runs."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import typer.main

from tracekit.cli import make_app

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
COMMANDS = sorted(typer.main.get_command(make_app()).commands)
NOT_RUN = re.compile(r"^(pip |git |make |python -m venv|cd |# |$)")
"""What needs the network or another folder, and comments."""


API = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")


def blocks(language, text=README):
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


def shell_lines():
    text = "\n".join(blocks("sh")).replace("\\\n", " ")
    return [line for line in text.splitlines() if not NOT_RUN.match(line)]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_is_in_the_readme(command):
    assert re.search(rf"^\| `tracekit {command} ", README, re.MULTILINE), f"no row for {command} in the table"


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_and_every_option_has_help(command):
    found = typer.main.get_command(make_app()).commands[command]
    assert found.help, command
    undocumented = [p.name for p in found.params if not getattr(p, "help", None)]
    assert undocumented == []


def test_the_table_names_no_command_that_is_not_there():
    named = re.findall(r"^\| `tracekit (\w+) ", README, re.MULTILINE)
    assert sorted(named) == COMMANDS


@pytest.fixture(scope="module")
def workplace(tmp_path_factory):
    """A folder with the samples in it, as a clone has them, that examples may write to."""
    place = tmp_path_factory.mktemp("readme")
    (place / "sample_traces").symlink_to(ROOT / "sample_traces")
    return place


@pytest.mark.slow
def test_the_readmes_shell_examples_run(workplace):
    lines = shell_lines()
    assert lines, "the README shows no command"
    binaries = Path(sys.executable).parent
    environment = {**os.environ, "PATH": f"{binaries}{os.pathsep}{os.environ['PATH']}", "COLUMNS": "100"}
    assert shutil.which("tracekit", path=environment["PATH"]), "tracekit is not installed beside this Python"
    for line in lines:
        out = subprocess.run(
            line, shell=True, cwd=workplace, env=environment, capture_output=True, text=True, timeout=120, check=False
        )
        assert out.returncode == 0, f"{line}\n{out.stdout}\n{out.stderr}"


SHOWN = re.findall(r"\$ (tracekit analyze [^\n]+)\n(.*?)```", README, re.DOTALL)


@pytest.mark.slow
@pytest.mark.parametrize(("command", "shown"), SHOWN, ids=[command.split()[-1] for command, _ in SHOWN])
def test_an_answer_in_the_readme_is_what_the_command_prints(workplace, command, shown):
    environment = {**os.environ, "COLUMNS": "100"}
    arguments = [sys.executable, "-m", *command.split()]
    out = subprocess.run(
        arguments, cwd=workplace, env=environment, capture_output=True, text=True, timeout=120, check=True
    )
    printed = {line.rstrip() for line in out.stdout.splitlines()}
    assert [line for line in shown.splitlines() if "…" not in line and line.rstrip() not in printed] == []


@pytest.mark.slow
@pytest.mark.parametrize("text", [README, API], ids=["README", "api"])
def test_python_examples_run(workplace, monkeypatch, text):
    monkeypatch.chdir(workplace)
    examples = blocks("python", text)
    assert examples, "it shows no Python"
    for example in examples:
        exec(compile(example, "example", "exec"), {})


def test_links_inside_the_repository_lead_somewhere():
    for document in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]:
        for target in re.findall(r"\]\((?!https?:|#|mailto:)([^)#\s]+)", document.read_text(encoding="utf-8")):
            assert (document.parent / target).exists(), f"{document.name} points at {target}"


def test_every_call_the_documents_name_is_there():
    """In a process of its own: what another test imported must not help."""
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    code = "\n".join(block for page in pages for block in re.findall(r"`[^`]+`", page.read_text(encoding="utf-8")))
    code += "\n".join(block for page in pages for block in blocks("py", page.read_text(encoding="utf-8")))
    named = sorted(set(re.findall(r"\btracekit((?:\.[a-z_]+)+)\(", code)))
    assert ".profiler" in named
    check = "import functools, sys, tracekit\n"
    check += "for n in sys.argv[1:]:\n    functools.reduce(getattr, n.split('.')[1:], tracekit)"
    done = subprocess.run([sys.executable, "-c", check, *named], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr.splitlines()[-1]
