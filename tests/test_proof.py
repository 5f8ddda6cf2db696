"""The proof table: figures computed from the repository alone are within what it promises, and the page holds them."""

from __future__ import annotations

import re

import polars as pl
import pytest

from docsite import proof
from tests.kept import analysis_of


@pytest.fixture(scope="module")
def kept():
    return {section.title: section for section in proof.read_kept()}


@pytest.mark.parametrize(
    "make",
    [
        proof.amd_section,
        proof.eight_gpus_section,
        proof.schedule_section,
        proof.dualpipe_section,
        proof.prediction_section,
    ],
    ids=lambda make: make.__name__,
)
def test_figures_of_the_repository_are_as_published_and_as_written(make, kept, monkeypatch):
    monkeypatch.setattr(proof, "analyze", analysis_of)
    section = make()
    assert all(abs(result.difference) <= result.within for result in section.results)
    written = kept[section.title]
    assert [result.what for result in section.results] == [
        result.what for result in written.results
    ]
    # What is modelled changes with the model: the page may be that much behind.
    within = 0.03 if make is proof.eight_gpus_section else 1e-6
    for now, then in zip(section.results, written.results, strict=True):
        assert now.ours == pytest.approx(then.ours, rel=within)


def test_every_kept_figure_agrees_or_says_why_not(kept):
    assert {"Stragglers", "HTA on its own test traces", "TraceLens on its own test traces"} <= set(
        kept
    )
    for section in kept.values():
        assert [result.what for result in section.results if not result.is_shown] == []


def test_the_page_is_what_was_kept(kept):
    assert proof.PAGE.read_text(encoding="utf-8") == proof.page(list(kept.values()))


def test_a_figure_beyond_its_promise_needs_a_reason():
    result = proof.Result("x", "S", "ms", published=100.0, ours=103.0, within=0.02)
    assert not result.is_shown
    assert proof.Result(
        "x", "S", "ms", published=100.0, ours=103.0, within=0.02, reason="rounded"
    ).is_shown
    assert proof.Result("x", "S", "ms", published=0.0, ours=1.0, within=0.5).difference == float(
        "inf"
    )


def test_the_pages_about_predictions_count_the_pairs_that_the_notes_list():
    notes = proof.PREDICTIONS.with_suffix(".md").read_text(encoding="utf-8")
    page = (proof.ROOT / "docs/whatif.md").read_text(encoding="utf-8")
    changes, microbatches, _ = proof.documented_predictions(
        pl.read_csv(proof.PREDICTIONS)
    ).splitlines()[-3:]
    assert changes in page
    assert microbatches in page
    cells = [row.strip("| ").split(" | ") for row in (changes, microbatches)]
    pairs = sum(int(row[1]) for row in cells)
    in_range = sum(int(row[4].split()[0]) for row in cells)
    stated = re.search(r"these are (\d+) pairs: .* (\d+) lie in their range", notes)
    assert (int(stated[1]), int(stated[2])) == (pairs, in_range)
