"""CONTRIBUTING's "How to add", followed: each thing is added in the places that it names, and works everywhere."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest
import typer.testing

from tracekit.classify import Rule, RuleBook, builtin_rules, classify
from tracekit.cli import doctor, make_app
from tracekit.parsers import file_type as probe
from tracekit.pipeline.schedules import generate, register, simulate, unregister
from tracekit.run.analyze import analyze
from tracekit.run.ingest import ingest
from tracekit.run.load import load
from tracekit.schema import EVENTS, RankEvents, Source, conform
from tracekit.store import sources
from tracekit.synthetic import Recipe, write_run

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent


def read_tiny(path, ref, stacks, lenient):
    """A made-up format: ``#tiny RANK``, then lines of a kernel's name, start and end."""
    head, *lines = Path(path).read_text(encoding="utf-8").splitlines()
    rank, rows = int(head.split()[1]), [line.split() for line in lines]
    events = pl.DataFrame(
        {
            "rank": rank,
            "id": range(len(rows)),
            "kind": "kernel",
            "name": [row[0] for row in rows],
            "stream": 7,
            "start_ns": [int(row[1]) for row in rows],
            "end_ns": [int(row[2]) for row in rows],
        }
    )
    return [RankEvents(conform(events, EVENTS), Source(path, "tiny", rank, "content"))]


@pytest.fixture
def tiny(tmp_path, monkeypatch):
    """A run in a format of a reader that was added in the two places."""
    monkeypatch.setitem(probe.SIGNATURES, b"#tiny ", "tiny")
    monkeypatch.setitem(sources.READERS, "tiny", read_tiny)
    folder = tmp_path / "run"
    folder.mkdir()
    for rank in range(2):
        text = f"#tiny {rank}\nmy_gelu 1000 2000\nmy_gelu 2500 4000\n"
        (folder / f"rank{rank}.tiny").write_text(text, encoding="utf-8")
    return folder


def test_a_reader(tiny, tmp_path, capsys):
    assert load(tiny).ranks == (0, 1)
    assert analyze(tiny, workers=1).ranks[1].whole.budget.idle_ns == 500
    ingest(tiny, tmp_path / "store", workers=1)
    assert analyze(tmp_path / "store").ranks[0].whole.budget.span_ns == 3000
    doctor.run([str(tiny)])
    assert "tiny" in capsys.readouterr().out


def test_a_rule(tiny):
    mine = RuleBook((Rule("my-gelu", label="forward", module="mlp", when={"name": "^my_gelu"}),))
    labelled = classify(load(tiny).events.filter(rank=0), rules=mine.before(builtin_rules()))
    assert labelled.select("label", "module", "rule").unique().rows() == [
        ("forward", "mlp", "my-gelu")
    ]


def test_a_schedule_is_generated_simulated_and_found_in_a_trace(tmp_path):
    def orders(n):
        return [" ".join(f"{r}F{i} {r}B{i}" for i in range(n.microbatches)) for r in range(n.pp)]

    register("one-by-one", orders, summary="one micro-batch there and back, then the next")
    try:
        schedule = generate("one-by-one", pp=2, microbatches=3)
        # Three micro-batches, two stages, F + B = 3.
        assert simulate(schedule).makespan == 3 * 2 * 3
        write_run(Recipe(schedule), tmp_path)
        comparison = analyze(tmp_path, workers=1).comparison
        assert (comparison.name, comparison.microbatches, comparison.exact) == (
            "one-by-one",
            3,
            True,
        )
    finally:
        unregister("one-by-one")


def test_a_command_is_a_function_of_words():
    added = typer.Typer()
    added.registered_commands = list(make_app().registered_commands)

    @added.command("ranks")
    def _ranks(path: str) -> None:
        """Print the ranks that are there."""
        typer.echo(" ".join(map(str, load(path).ranks)))

    result = typer.testing.CliRunner().invoke(
        added, ["ranks", str(ROOT / "sample_traces" / "reload")]
    )
    assert result.stdout.strip() == "0 1 2 3"
