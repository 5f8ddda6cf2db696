"""One document of each kind, made from the samples."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import pytest

from docsite.json_keys import DOCUMENTS
from tests.kept import analysis_of
from tracekit.diffs import baseline, diff, gate
from tracekit.diffs.load_runs import side_of
from tracekit.doctor import diagnose
from tracekit.documents.coding import decode, to_plain
from tracekit.documents.gate import GateSettings, Waiver
from tracekit.documents.history import HISTORY_FORMAT, HistoryDocument, HistoryPoint
from tracekit.documents.rules_file import GroupTable, ModuleTable, RulesDocument, RuleTable
from tracekit.late import late
from tracekit.memory.run import diff_memory, memory
from tracekit.pipeline.schedules import generate, simulate
from tracekit.pipeline.schedules.two_buffers import weight_reload
from tracekit.run.ingest import ingest
from tracekit.store.files import MANIFEST

SAMPLES = Path(__file__).parents[2] / "sample_traces"
RUNS = ("memory", "reload", "router", "steps/a", "nsys-1f1b")


def analyses():
    """Yield the documents of samples, with everything that can be asked for."""
    yield analysis_of(SAMPLES / "1f1b", what_if=True).to_document(show=["critical-path"])
    for name in RUNS:
        yield analysis_of(SAMPLES / name).to_document()
    yield analysis_of(SAMPLES / "layers", by="layer").to_document()


def settings():
    """Settings of a gate with everything that can be set."""
    days = (date(2026, 1, day) for day in range(1, 31))
    return GateSettings(
        baseline=("a.json", "b.json"),
        require=("step_ms < +3%",),
        alpha=0.05,
        min_steps=8,
        inconclusive="fail",
        floors={"step_ms": "3%", "overlap.*": 0.02},
        allow=("gpu",),
        waivers=tuple(Waiver("step_ms", "new kernel", day) for day in days),
    )


def rules():
    """A rules file with rules, groups and modules."""
    rule = RuleTable(
        "mine",
        "dp_comm",
        {"name": "nccl", "in_graph": True, "peers": 2},
        {"op": "mm"},
        "forward",
        "mlp",
    )
    return RulesDocument(
        (rule,) * 12,
        (GroupTable("dp", {"size": 4}),),
        (ModuleTable("mlp", {"annotations": "mlp"}),),
    )


def history():
    """A history of many recordings."""
    points = [
        HistoryPoint(f"run {i}", "2026-01-01T00:00:00", {"step_ms": 1.5 * i}, "4f2a", "pass")
        for i in range(24)
    ]
    return HistoryDocument(HISTORY_FORMAT, points, {"forward": "#123456"})


@pytest.fixture(scope="session")
def documents(tmp_path_factory):
    """By name, as in the site's list: some documents."""
    before, after = (
        side_of(analysis_of(SAMPLES / "steps" / name), what="run") for name in ("a", "straggler")
    )
    store = tmp_path_factory.mktemp("documents") / "store"
    ingest(SAMPLES / "reload", store, ranks=[0, 1])
    texts = {"baseline": baseline.dump(before).encode(), "store": (store / MANIFEST).read_bytes()}
    return {
        "analysis": list(analyses()),
        "schedule": [
            *(
                simulate(generate(name, pp=4, microbatches=8)).to_document()
                for name in ("zb-v", "dualpipe")
            ),
            weight_reload(2, 2).to_document(),
        ],
        "diff": [diff(before, after).document],
        "gate": [gate(after, before).to_document()],
        "doctor": [
            diagnose(SAMPLES / name).to_document() for name in ("1f1b-noshapes", "nsys-1f1b")
        ],
        "memory": [memory(SAMPLES / "memory-snapshot").to_document()],
        "memory-diff": [
            diff_memory(
                *(SAMPLES / f"memory-snapshot/memory_rank{rank}.pickle.gz" for rank in (0, 3))
            ).to_document()
        ],
        "late": [
            late(SAMPLES / "always-on" / name).to_document() for name in ("late", "hang", "1f1b")
        ],
        "history": [history()],
        "gate-settings": [settings()],
        "rules": [rules()],
        **{name: [decode(text, DOCUMENTS[name], name, hint="")] for name, text in texts.items()},
    }


@pytest.fixture(scope="session")
def plain(documents):
    """The same as plain data."""
    return {
        name: [to_plain(document) for document in of_name] for name, of_name in documents.items()
    }
