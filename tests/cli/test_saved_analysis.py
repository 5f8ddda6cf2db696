"""``analyze saved.json``: what a saved analysis shows, and files that are none."""

from __future__ import annotations

import gzip
import json
import re

import pytest

from tests.kept import analysis_of
from tracekit._util.inflation import MIN_INFLATED_LIMIT


@pytest.fixture
def saved(samples, tmp_path):
    """Return the file of a saved analysis, and the analysis."""
    analysis = analysis_of(samples / "steps/a")
    file = tmp_path / "saved.json"
    analysis.save(file)
    return file, analysis


def test_a_saved_analysis_is_printed_with_its_findings_and_says_what_it_lacks(run_command, saved):
    file, analysis = saved
    shown = run_command("analyze", str(file), "--full")
    assert shown.returncode == 0
    text = " ".join(shown.stdout.split())
    assert " ".join(analysis.findings[0].advice.split()) in text
    note = " ".join(shown.stderr.split())
    assert "no events: the timeline, the pipeline and its ideal" in note
    assert "name the traces or a store" in note


def test_a_saved_analysis_is_written_as_page_and_markdown(run_command, saved, tmp_path):
    file, _ = saved
    for suffix in (".html", ".md"):
        page = tmp_path / f"page{suffix}"
        assert run_command("analyze", str(file), "-o", str(page)).returncode == 0
        text = page.read_text(encoding="utf-8")
        assert "read from a saved analysis" in text
        assert "15.7" in text, "the step time in ms"


@pytest.mark.parametrize(
    ("sample", "shown"),
    [("memory", "Memory: the most each rank held"), ("reload", "two-buffer ideal")],
)
def test_a_saved_analysis_shows_memory_and_the_weight_update(
    run_command, samples, tmp_path, sample, shown
):
    file = tmp_path / "saved.json"
    analysis = analysis_of(samples / sample)
    analysis.save(file)
    fresh = tmp_path / "fresh.md"
    analysis.save(fresh)
    again = tmp_path / "again.md"
    assert run_command("analyze", str(file), "-q", "-o", str(again)).returncode == 0
    assert section(again, shown) == section(fresh, shown) != []


def section(file, text):
    """Return the sections of a report in Markdown whose title or table has this text."""
    parts = re.split(r"\n### |\n<", file.read_text(encoding="utf-8"))
    return [part for part in parts if text in part]


def test_a_saved_analysis_is_printed_as_the_json_that_it_is(run_command, saved):
    file, _ = saved
    shown = run_command("analyze", str(file), "--json")
    assert json.loads(shown.stdout) == json.loads(file.read_text())


@pytest.mark.parametrize(
    "words", [("--what-if",), ("--steps", "2:4"), ("--by", "layer"), ("--explain", "forward")]
)
def test_what_needs_the_events_is_refused(run_command, saved, words):
    refused = run_command("analyze", str(saved[0]), *words)
    assert refused.returncode == 2
    assert f"{words[0]}" in refused.stderr
    assert "needs the events" in refused.stderr


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: text.replace("tracekit.analysis/", "tracekit.gate/", 1), "not an analysis"),
        (lambda text: text[: len(text) // 2], "is not complete JSON"),
        (lambda text: text.replace('"cost_ns": ', '"cost_ns": "x', 1), "saved.json: "),
        (
            lambda text: text.replace('"rank": 0', '"rank": 99999999999', 1),
            "its ranks are not those of its source",
        ),
    ],
    ids=["another format", "cut", "not JSON", "forged"],
)
def test_other_files_are_refused_in_one_line(run_command, saved, change, message):
    file, _ = saved
    file.write_text(change(file.read_text()))
    refused = run_command("analyze", str(file))
    assert refused.returncode == 2
    assert refused.stdout == ""
    (line,) = refused.stderr.strip().splitlines()
    assert line.startswith("error: ")
    assert message in line


def test_memory_over_time_with_lists_of_different_lengths_is_refused(
    run_command, samples, tmp_path
):
    file = tmp_path / "saved.json"
    analysis_of(samples / "memory").save(file)
    document = json.loads(file.read_text())
    document["memory"]["ranks"][1]["line"]["allocated"].pop()
    assert "memory of rank 1" in refusal(run_command, file, document)


def test_bounds_that_are_more_than_two_are_refused(run_command, samples, tmp_path):
    file = tmp_path / "saved.json"
    analysis_of(samples / "memory").save(file)
    document = json.loads(file.read_text())
    document["memory"]["ranks"][0]["chunk_bytes"].append(3)
    assert "chunk_bytes" in refusal(run_command, file, document)


def refusal(run_command, file, document):
    """Return the line with which a document is refused."""
    file.write_text(json.dumps(document))
    refused = run_command("analyze", str(file))
    assert refused.returncode == 2
    (line,) = refused.stderr.strip().splitlines()
    return line


@pytest.mark.parametrize("command", ["analyze", "gate", "diff"])
def test_kilobytes_that_inflate_to_gigabytes_are_one_line(run_command, tmp_path, command):
    file = tmp_path / "saved.json.gz"
    head = b'{"format": "tracekit.analysis/2", "x": "'
    file.write_bytes(gzip.compress(head + bytes(MIN_INFLATED_LIMIT)))
    assert file.stat().st_size < 100_000
    words = {"gate": (file, "--baseline", file), "diff": (file, file)}
    refused = run_command(command, *words.get(command, (file,)))
    assert refused.returncode == 2
    (line,) = refused.stderr.strip().splitlines()
    assert "saved.json.gz: inflates to more than 33,554,432 bytes" in line


@pytest.mark.parametrize("command", ["analyze", "gate", "diff"])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda plain: plain["ranks"][0]["per_step"][0].update(step=2**63), "is too large"),
        (lambda plain: plain["ranks"][0]["per_step"][0].update(time_ns=-7), "time_ns"),
        (lambda plain: plain["step"].update(free_ns=-3), "free_ns"),
        (lambda plain: plain["ranks"][1].update(rank=2**40), "its ranks are not those"),
        (lambda plain: plain["total"]["budget_ns"].update(idle=5), "do not sum to it"),
        (lambda plain: plain["findings"][0].update(share=1e20), "findings[0].share"),
        (lambda plain: plain["findings"][0].update(share=-0.5), "findings[0].share"),
        (lambda plain: plain["findings"][0].update(cost_ns=-5), "findings[0].cost_ns"),
        (lambda plain: plain["total"].update(weak_share=-1.0), "total.weak_share"),
    ],
    ids=[
        *("step", "negative step time", "negative free step", "rank", "parts"),
        *("huge share", "negative share", "negative cost", "share of a total"),
    ],
)
def test_figures_that_cannot_be_are_one_line(run_command, saved, command, change, message):
    file, _ = saved
    plain = json.loads(file.read_text())
    change(plain)
    forged = file.with_name("forged.json")
    forged.write_text(json.dumps(plain))
    words = {"gate": (forged, "--baseline", file), "diff": (file, forged)}
    refused = run_command(command, *words.get(command, (forged,)))
    assert refused.returncode == 2
    (line,) = refused.stderr.strip().splitlines()
    assert "forged.json: " in line
    assert message in line
