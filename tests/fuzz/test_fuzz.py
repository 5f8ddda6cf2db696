"""A short run of one target, of the others in ``make nightly``, and every input that ever failed.

``make fuzz`` runs for longer.
"""

from __future__ import annotations

import pytest

from tests.fuzz import run
from tests.fuzz.run import FOUND, TARGETS, functions, inputs, missing_packages

pytestmark = pytest.mark.slow

COUNTS = {
    "scan": 500,
    "kineto": 120,
    "perfetto": 120,
    "nsight": 12,
    "tools": 40,
    "store": 60,
    "rules": 60,
    "redact": 40,
    "gate": 60,
    "saved": 200,
    "query": 12,
    "agents": 60,
    "recorders": 40,
    "snapshots": 24,
    "forged": 6,
    "pickles": 300,
    "captures": 12,
    "clocks": 12,
    "alignment": 100,
    "archives": 60,
    "answers": 12,
    "listings": 200,
    "dumps": 30,
    "ci": 20,
}
SMOKE = "kineto"
"""The target that every test run tries: the reader whose input most people have."""
KEPT = sorted(path for path in FOUND.iterdir() if not path.name.startswith("."))


@pytest.mark.parametrize(
    "target",
    [
        pytest.param(target, marks=[] if target == SMOKE else pytest.mark.nightly)
        for target in TARGETS
    ],
)
def test_inputs_nobody_wrote(tmp_path, target):
    for package in missing_packages(target):
        pytest.importorskip(package)
    _, check = functions(target)
    for number, raw in inputs(target, seed=0):
        if number >= COUNTS[target]:
            break
        check(raw, tmp_path)


def is_costly(path):
    """Whether an input is a whole recording, which is analysed: one of those is enough for every run."""
    forged = [path.name for path in KEPT if path.name.startswith("forged-")]
    return path.name in forged[1:]


@pytest.mark.parametrize(
    "path",
    [pytest.param(path, marks=[pytest.mark.nightly] if is_costly(path) else []) for path in KEPT],
    ids=lambda path: path.name,
)
def test_inputs_that_once_failed(tmp_path, path):
    _, check = functions(path.name.partition("-")[0])
    check(path.read_bytes(), tmp_path)


def test_a_target_whose_package_is_missing_is_skipped_in_words(monkeypatch, capsys):
    monkeypatch.setattr(run, "find_spec", lambda name: None)
    monkeypatch.setattr("sys.argv", ["run", "--target", "query", "--target", "answers"])
    assert run.main() == 1
    assert capsys.readouterr().out.splitlines() == [
        "query: skipped, duckdb not installed",
        "answers: skipped, markdown_it, pytest not installed",
    ]


def test_the_record_of_a_run_replaces_the_one_before(tmp_path):
    file = tmp_path / "SECURITY.md"
    file.write_text(f"before\n{run.BEGIN}old\n{run.END}after\n")
    text = run.record({"scan": (1200, 0, 3.2), "rules": (34, 1, 2.9)}, seed=7, jobs=15)
    for _ in range(2):
        run.replace_record(file, text)
    content = file.read_text()
    assert content.startswith("before\n")
    assert content.endswith("after\n")
    assert "old" not in content
    assert "1,234 inputs over 2 targets, 1 failed: seed 7, 15 processes" in content
    assert content.count("| `scan` | 1,200 | 0 | 3 |") == 1
