"""Documents cannot drift: commands are described, and what the README shows runs."""

from __future__ import annotations

import doctest
import io
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import typer.main

from docsite.answers import (
    BLOCK,
    EXAMPLES,
    FINDINGS_PAGE,
    answer,
    fill_catalogue,
    fill_examples,
    pages_with_answers,
    shown_lines,
)
from tests.kept import analysis_of
from tracekit.cli import make_app
from tracekit.report.terminal.analysis import render
from tracekit.report.terminal.screen import Screen
from tracekit.rooms import all_kinds

pytestmark = pytest.mark.usefixtures("measured_once")

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
APP = typer.main.get_command(make_app())
COMMANDS = sorted(APP.commands)
NOT_RUN = re.compile(r"^(pip |git |make |python -m venv|cd |tracekit demo |# |$)")
"""What needs the network or another folder, the demonstration (tests/cli/test_demo.py), and
comments."""


API = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")


def blocks(language, text=README):
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


def shell_lines():
    text = "\n".join(blocks("sh")).replace("\\\n", " ")
    return [line for line in text.splitlines() if not NOT_RUN.match(line)]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_is_in_the_readme(command):
    assert re.search(rf"^\| `tracekit {command} ", README, re.MULTILINE), (
        f"no row for {command} in the table"
    )


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_and_every_option_has_help(command):
    typer_command = APP.commands[command]
    assert typer_command.help, command
    undocumented = [p.name for p in typer_command.params if not getattr(p, "help", None)]
    assert undocumented == []


def test_the_table_names_no_command_that_is_not_there():
    named = re.findall(r"^\| `tracekit (\w+) ", README, re.MULTILINE)
    assert sorted(named) == COMMANDS


@pytest.fixture(scope="module")
def workplace(tmp_path_factory):
    """A folder with the samples in it, as a clone has them, that examples may write to."""
    folder = tmp_path_factory.mktemp("readme")
    (folder / "sample_traces").symlink_to(ROOT / "sample_traces")
    return folder


@pytest.fixture
def one_rank(tmp_path):
    """A folder with one rank of each sample in it, and all of those to compare: commands do the same as with all."""
    samples = ROOT / "sample_traces"
    for file in (*samples.rglob("rank0.*"), *samples.glob("steps/*/rank1.*")):
        target = tmp_path / file.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.symlink_to(file)
    return tmp_path


def test_targets_of_make_that_the_readme_names_exist():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = re.findall(r"^make (\w+)", "\n".join(blocks("sh")), re.MULTILINE)
    assert {"demo", "test"} <= set(targets)
    for target in targets:
        assert re.search(rf"^{target}:", makefile, re.MULTILINE)


@pytest.mark.slow
def test_the_readmes_shell_examples_run(run_command, one_rank, monkeypatch):
    lines = shell_lines()
    assert lines, "the README shows no command"
    assert shutil.which("tracekit", path=Path(sys.executable).parent), (
        "tracekit is not installed beside this Python"
    )
    monkeypatch.chdir(one_rank)
    for line in lines:
        program, *words = shlex.split(line, comments=True)
        assert program == "tracekit"
        out = run_command(*words)
        assert out.returncode == 0, f"{line}\n{out.stdout}\n{out.stderr}"


WIDTHS = pages_with_answers()
SHOWN = [
    (page, *block)
    for page in WIDTHS
    for block in BLOCK.findall((ROOT / page).read_text(encoding="utf-8"))
]
ANALYZE = re.compile(r"analyze (?P<path>[\w/-]+)(?P<full> --full)?")


def test_output_that_a_page_quotes_follows_a_command_about_files_of_the_repository():
    """Only such a block can be checked; commands without their output stand in blocks of ``sh``."""
    unchecked = []
    for page in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md")):
        text = page.read_text(encoding="utf-8")
        checked = {match["words"] for match in BLOCK.finditer(text)}
        for language, block in re.findall(r"^```(\w*)\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
            first, *others = block.splitlines()
            shows_output = any(not line.startswith("$ ") for line in others)
            words = first.removeprefix("$ tracekit ")
            can_be_checked = words in checked and re.search(r"sample_traces|tests/data", words)
            if language in ("", "console", "text") and shows_output and not can_be_checked:
                unchecked.append(f"{page.name}: {first}")
    assert unchecked == []
    assert {"README.md", "docs/gate.md", "docs/late.md"} <= set(WIDTHS)


LISTS = {"compatibility", "notebooks", "proof", "gallery"}
"""Pages of ``docs/`` that are lists, or explain what no single command prints."""


@pytest.mark.parametrize(
    "page",
    [
        page
        for page in (*(ROOT / "docs").glob("*.md"), *(ROOT / "docs/tutorials").glob("*.md"))
        if page.stem not in LISTS
    ],
    ids=lambda page: page.stem,
)
def test_a_page_begins_with_what_to_type(page):
    lines = page.read_text(encoding="utf-8").splitlines()
    assert lines[0].startswith("# ")
    assert any(line.startswith("```") for line in lines[:6])


def test_the_first_install_command_comes_early():
    lines = README.splitlines()
    assert lines.index("pip install .") < 60


@pytest.mark.slow
@pytest.mark.parametrize(
    ("page", "words", "shown"), SHOWN, ids=[f"{page} {words}" for page, words, _ in SHOWN]
)
def test_an_answer_that_is_shown_is_what_the_command_prints(monkeypatch, page, words, shown):
    """An analysis is rendered here; that the command prints the same is a test of the command.

    ``python -m docsite.answers`` writes the answers again.
    """
    monkeypatch.chdir(ROOT)
    analyzed = ANALYZE.fullmatch(words)
    if analyzed is None:
        printed = answer(words, WIDTHS[page])
    else:
        report = io.StringIO()
        screen = Screen(file=report, width=WIDTHS[page])
        render(analysis_of(ROOT / analyzed["path"]), screen, full=analyzed["full"] is not None)
        printed = [line.rstrip() for line in report.getvalue().rstrip("\n").split("\n")]
    assert shown.rstrip("\n").split("\n") == shown_lines(shown, printed)


def test_the_page_of_findings_has_an_example_of_each_row_in_todays_words():
    """``python -m docsite.answers`` writes them again."""
    page = (ROOT / FINDINGS_PAGE).read_text(encoding="utf-8")
    assert fill_examples(page) == page
    table = page.partition("| code |")[2].partition("\n\n")[0]
    rows = re.findall(r"^\| (`.+) \| .+ \| .+ \|$", table, re.MULTILINE)
    assert rows == list(tomllib.loads(EXAMPLES.read_text(encoding="utf-8")))
    named = set(re.findall(r"`(\w+)`", " ".join(rows)))
    assert named == {code for code, _ in all_kinds()}


def test_the_table_of_the_catalogue_holds_its_entries_as_they_are():
    page = (ROOT / FINDINGS_PAGE).read_text(encoding="utf-8")
    assert fill_catalogue(page) == page


@pytest.mark.slow
@pytest.mark.parametrize("text", [README, API], ids=["README", "api"])
def test_python_examples_run(workplace, monkeypatch, text):
    monkeypatch.chdir(workplace)
    examples = blocks("python", text)
    assert examples, "it shows no Python"
    for example in examples:
        exec(compile(example, "example", "exec"), {})


@pytest.mark.slow
def test_the_worked_trace_gives_the_answers_that_are_shown(monkeypatch):
    monkeypatch.chdir(ROOT)
    examples = "\n".join(
        blocks("python", (ROOT / "docs/maintainers/how.md").read_text(encoding="utf-8"))
    )
    shown = doctest.DocTestParser().get_doctest(examples, {}, "how", None, None)
    assert len(shown.examples) > 12
    assert doctest.DocTestRunner(verbose=False).run(shown).failed == 0


def test_links_inside_the_repository_lead_somewhere():
    for document in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]:
        for target in re.findall(
            r"\]\((?!https?:|#|mailto:)([^)#\s]+)", document.read_text(encoding="utf-8")
        ):
            assert (document.parent / target).exists(), f"{document.name} points at {target}"


def test_every_call_the_documents_name_is_there():
    """In a process of its own: what another test imported must not help."""
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    code = "\n".join(
        block
        for page in pages
        for block in re.findall(r"`[^`]+`", page.read_text(encoding="utf-8"))
    )
    code += "\n".join(
        block for page in pages for block in blocks("py", page.read_text(encoding="utf-8"))
    )
    named = sorted(set(re.findall(r"\btracekit((?:\.[a-z_]+)+)\(", code)))
    assert ".profiler" in named
    check = "import functools, sys, tracekit\n"
    check += "for n in sys.argv[1:]:\n    functools.reduce(getattr, n.split('.')[1:], tracekit)"
    done = subprocess.run(
        [sys.executable, "-c", check, *named], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr.splitlines()[-1]


def test_every_option_the_documents_name_with_a_command_is_there():
    options = {
        name: {word for parameter in command.params for word in parameter.opts} | {"--help"}
        for name, command in APP.commands.items()
    }
    unknown = []
    for page in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md")):
        text = page.read_text(encoding="utf-8").replace("\\\n", " ")
        for command, words in re.findall(r"\btracekit ([a-z]+)\b([^`\n|#]*)", text):
            if command in options:
                named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", words))
                unknown += [
                    f"{page.name}: tracekit {command} {option}"
                    for option in named - options[command]
                ]
    assert unknown == []
