"""Whatever a trace calls its kernels and its files, a terminal, a pull request or a spreadsheet shows text."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import subprocess
import sys
from xml.etree import ElementTree

import pytest

import tracekit
from tests.injections import trace
from tracekit import cli

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("measured_once")]

CONTROL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\u2028\u2029\ud800-\udfff"
    "\u115f\u1160\u3164\uffa0\ufe00-\ufe0f\U000e0100-\U000e01ef\u200b-\u200d]"
)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two runs of two ranks, in files whose names are as bad as what they hold."""
    folder = tmp_path_factory.mktemp("runs")
    for name, scale in (("a <img src=x onerror=alert(1)>", 1), ("b \x1b[31m\n::error::pwn", 1.5)):
        (folder / name).mkdir()
        for rank in (0, 1):
            path = folder / name / f"\x1b[31m<b> rank{rank}.json"
            path.write_text(trace(rank, scale=scale), encoding="utf-8", errors="surrogatepass")
    return sorted(map(str, folder.iterdir()))


@pytest.fixture
def run(monkeypatch, capsys):
    def call(*words):
        monkeypatch.setattr(sys, "argv", ["tracekit", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        out, err = capsys.readouterr()
        return ended.value.code or 0, out, err

    return call


def check(text):
    """Nothing moves the cursor, and no line is a command to the machine that runs the job."""
    assert not CONTROL.search(text), CONTROL.findall(text)[:5]
    assert not re.search(r"(?m)^\s*::(?!error title=|warning title=|notice title=)", text)


def test_terminal(run, runs, monkeypatch):
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    for words in (
        ["analyze", runs[0]],
        ["analyze", runs[0], "--by", "annotation"],
        ["analyze", runs[0], "--by", "shape"],
        ["analyze", runs[0], "--explain", "AllReduce"],
        ["analyze", runs[0], "--explain", "gnp.exe"],
        ["analyze", runs[0], "--explain", "::error"],
        ["diff", *runs],
        ["doctor", runs[0]],
        ["gate", runs[1], "--baseline", runs[0]],
    ):
        code, out, err = run(*words)
        assert code in (0, 1, 3), err
        check(out)
        check(err)


def test_json_and_files(run, runs, tmp_path):
    for words in (["analyze", runs[0]], ["diff", *runs], ["doctor", runs[0]]):
        code, out, err = run(*words, "--json")
        assert code == 0, err
        check(out)
        json.loads(out)
    outputs = [
        tmp_path / f"report{kind}"
        for kind in (".md", ".csv", ".json", ".html", ".parquet", ".svg", ".png")
    ]
    code, _, err = run("analyze", runs[0], *(word for path in outputs for word in ("-o", path)))
    assert code == 0, err
    for path in outputs[:3]:
        check(path.read_text(encoding="utf-8"))
    code, _, err = run("diff", *runs, "-o", tmp_path / "diff.md", "-o", tmp_path / "diff.html")
    assert code == 0, err
    check((tmp_path / "diff.md").read_text(encoding="utf-8"))
    run(
        "gate",
        runs[1],
        "--baseline",
        runs[0],
        "-o",
        tmp_path / "gate.xml",
        "-o",
        tmp_path / "gate.md",
    )
    ElementTree.fromstring((tmp_path / "gate.xml").read_text(encoding="utf-8"))
    for name in ("report.md", "diff.md", "gate.md"):
        text = (tmp_path / name).read_text(encoding="utf-8")
        outside = re.sub(r"(`+)(?!`).*?(?<!`)\1(?!`)", "", text)  # what stands as code is not read
        assert "<img" not in outside
        assert not re.search(r"(?<!\\)\]\(javascript", outside)
        assert not re.search(r"(?m)^# H1", text)


@pytest.fixture(scope="module")
def store(runs, tmp_path_factory):
    pytest.importorskip("duckdb")
    path = tmp_path_factory.mktemp("query") / "store"
    tracekit.ingest(runs[0], path)
    return path


QUERIES = (
    "SELECT name FROM events",
    "SELECT '::error::pwn' AS c, '##[group]x' AS d, 'a ##vso[task.complete]' AS e",
    "PIVOT (SELECT rank, name FROM labelled) ON name",  # headings from names
)


@pytest.mark.parametrize(
    "variable",
    [
        "GITHUB_ACTIONS",
        *(pytest.param(name, marks=pytest.mark.nightly) for name in ("TF_BUILD", "CI")),
    ],
)
@pytest.mark.parametrize("sql", QUERIES)
def test_rows_of_a_query_are_no_commands(run, store, monkeypatch, sql, variable):
    for name in ("CI", "GITHUB_ACTIONS", "TF_BUILD"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(variable, "true")
    for words in ([], ["--json"]):
        code, out, err = run("query", store, sql, *words)
        assert code == 0, err
        check(out)
        assert not re.search(r"##\w*\[", out)


@pytest.mark.parametrize("sql", QUERIES)
def test_rows_of_a_query_are_no_formulas(run, store, tmp_path, sql):
    target = tmp_path / "rows.csv"
    assert run("query", store, sql, "-o", target)[0] == 0
    with target.open(newline="", encoding="utf-8") as file:
        cells = [cell for row in csv.reader(file) for cell in row]
    assert not [cell for cell in cells if re.match(r"\s*[=+@-]|[\t\r\n]", cell)]
    if sql == QUERIES[0]:
        assert "'=cmd|' /C calc'!A0" in cells
        # Where it separates cells.
        assert ";" not in re.sub(r'"[^"]*"', "", target.read_text(encoding="utf-8"))


def test_a_negative_number_stays_a_number(run, store, tmp_path):
    assert run("query", store, "SELECT -5 AS n, '-5' AS text", "-o", tmp_path / "rows.csv")[0] == 0
    assert (tmp_path / "rows.csv").read_text() == '"n","text"\n-5,"\'-5"\n'


@pytest.mark.parametrize(
    "column",
    [
        "'ab'::BLOB",
        *(
            pytest.param(column, marks=pytest.mark.nightly)
            for column in ("['ab'::BLOB]", "INTERVAL 1 DAY", "union_value(n := 2)", "'1'::BIT")
        ),
    ],
)
@pytest.mark.parametrize("words", [[], ["--json"], ["-o", "{tmp}/x.csv"], ["-o", "{tmp}/x.json"]])
def test_a_column_that_cannot_be_shown_is_one_line(run, store, tmp_path, column, words):
    code, _, err = run(
        "query", store, f"SELECT {column} AS c", *(word.format(tmp=tmp_path) for word in words)
    )
    assert code == 2
    assert err.startswith("error: query: ")
    assert err.count("\n") == 1


def test_errors_are_one_line(run, tmp_path):
    bad = tmp_path / "a\nb\x1b[2J.json"
    bad.write_text("{}")
    for path in (bad, tmp_path / "not\nthere"):
        code, _, err = run("analyze", path)
        assert code == 2
        assert err.count("\n") == 1
        check(err)


@pytest.mark.parametrize(("encoding", "command"), [("cp1252", "gate"), ("ascii", "analyze")])
def test_a_terminal_without_our_letters_gets_others(samples, runs, saved, encoding, command):
    words = {
        "analyze": [runs[0]],
        "gate": [saved("steps/b"), "--baseline", saved("steps/a")],
    }[command]
    done = subprocess.run(
        [sys.executable, "-m", "tracekit", command, *words],
        cwd=samples.parent,
        capture_output=True,
        env={**os.environ, "PYTHONIOENCODING": encoding},
        check=False,
    )
    assert done.returncode in ([0] if command == "analyze" else [0, 1, 3]), done.stderr
    assert b"Traceback" not in done.stderr
    assert done.stdout.decode(encoding)


def test_a_fault_of_ours_has_its_own_exit_code(run, runs, monkeypatch):
    def fail(*_, **__):
        raise KeyError("x\ny")

    monkeypatch.setattr("tracekit.run.analyze.combine", fail)
    code, _, err = run("analyze", runs[0])
    assert code == 70
    assert re.fullmatch(
        r"error: a fault in tracekit: KeyError: 'x\\ny' \(tracekit\.\S+, line \d+\); .*\n", err
    )
    monkeypatch.setattr("tracekit.diffs.run_samples.analyze", fail, raising=False)
    monkeypatch.setattr("tracekit.diffs.gate", fail)
    assert run("gate", runs[0], "--baseline", runs[0])[0] == 70


def test_no_memory_is_one_line(run, runs, monkeypatch):
    def fail(*_, **__):
        raise MemoryError

    monkeypatch.setattr("tracekit.run.analyze.combine", fail)
    code, _, err = run("analyze", runs[0])
    assert (code, err) == (
        2,
        "error: memory ran out; use fewer workers (--workers 1), or fewer ranks (--ranks)\n",
    )


def test_text_that_no_encoding_takes_is_written_all_the_same():
    from tracekit.report.text import to_ascii

    stream = io.TextIOWrapper(io.BytesIO(), encoding="cp1252", errors="tracekit")
    stream.write("✓ 1–2 → 日 \ud800")
    stream.flush()
    assert stream.buffer.getvalue() == "+ 1–2 -> ? ?".encode("cp1252")
    assert to_ascii("▲▼·×") == "^v-x"
