"""Notices: each is made with its sentence, which names the ranks that have it."""

from __future__ import annotations

import ast
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from tests.kept import analysis_of
from tracekit._util.notices import merge_notices
from tracekit.analysis.combine.notices import uncommon_step_notices
from tracekit.documents.analysis import Step, StepNotCommon
from tracekit.errors import Notice
from tracekit.findings.recording import is_about_unnamed_peers
from tracekit.report.notices import notice_sentence, shorten_notices, telling_notices
from tracekit.report.run_facts import describe_ranks
from tracekit.schema import Source
from tracekit.store.sources import missing_notice

PACKAGE = Path(__file__).parent.parent.parent / "tracekit"


def notices_in_source():
    """Yield the calls that make the package's notices."""
    for file in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Name)
                and node.func.id == "Notice"
            ):
                yield file.relative_to(PACKAGE), node


def test_every_notice_is_made_with_its_sentence():
    calls = list(notices_in_source())
    assert len(calls) > 100
    assert not [f"{file}:{node.lineno}" for file, node in calls if len(node.args) < 2]


def source(rank, world_size=8):
    return Source(f"rank{rank}.json", "kineto", rank, "name", world_size=world_size)


@pytest.mark.parametrize(
    ("ranks", "role", "sentence"),
    [
        (range(7), None, "1 of 8 ranks is not here: 7"),
        ((0, 7), "worker", "role worker: 6 of 8 ranks are not here: 1, 2, 3, 4, +2 more"),
    ],
)
def test_ranks_that_are_missing_are_named(ranks, role, sentence):
    (notice,) = missing_notice([source(rank) for rank in ranks], role=role)
    assert notice.message == sentence


def test_a_list_names_the_first_steps_and_how_many_more_there_are():
    steps = Step.of(10, not_common=[StepNotCommon(step, [1, 3]) for step in range(10)])
    (notice,) = uncommon_step_notices(steps)
    assert notice.message == (
        "ranks 1, 3: steps 0, 1, 2, 3, 4, 5, 6, 7, +2 more are missing, which other ranks recorded: only steps that "
        "all ranks recorded are counted"
    )


def test_ranks_with_the_same_values_are_named_together():
    values = {"step": 4, "events": 7}
    cut = Notice("partial-step", "step 4 holds only 7 GPU events: it looks cut off", values=values)
    (merged,) = merge_notices([(rank, [cut]) for rank in range(3)])
    assert notice_sentence(merged) == "ranks 0–2: step 4 holds only 7 GPU events: it looks cut off"
    (of_all,) = merge_notices([(rank, [cut]) for rank in range(3)], ranks=3)
    assert notice_sentence(of_all) == "step 4 holds only 7 GPU events: it looks cut off"
    (of_the_only_rank,) = merge_notices([(0, [cut])], ranks=1)
    assert notice_sentence(of_the_only_rank).startswith("rank 0: ")


def test_ranks_with_other_numbers_are_named_behind_the_first():
    by_rank = [
        (rank, [Notice("graphs-whole", f"{rank - 1} graphs", values={"graphs": rank - 1})])
        for rank in (2, 5, 6)
    ]
    (merged,) = merge_notices(by_rank, ranks=3)
    assert (merged.ranks, merged.values, merged.varies) == ((2, 5, 6), {"graphs": 1}, True)
    assert merged.message == "rank 2: 1 graphs (ranks 5, 6 too, with other numbers)"


def test_notices_that_differ_in_words_stay_apart():
    names = [
        {"case": "left_out", "file": f"rank{rank}.sqlite", "table": table}
        for rank, table in enumerate("aab")
    ]
    merged = merge_notices(
        [(rank, [Notice("bad-events", values=values)]) for rank, values in enumerate(names)]
    )
    assert [notice.ranks for notice in merged] == [(0, 1), (2,)]


@pytest.mark.parametrize("sample", ["1f1b", "reload", "nsys-1f1b", "rl"])
def test_the_sentences_of_a_run_need_no_value_that_its_notices_lack(sample):
    analysis = analysis_of(f"sample_traces/{sample}")
    for entry in analysis.notices:
        assert "another version" not in entry.message
        assert "{" not in entry.message


@pytest.mark.parametrize(
    ("case", "unnamed"),
    [
        ("unnamed", True),
        ("peers_unnamed", True),
        ("no_counterpart", False),
        ("peers_missing", False),
        ("no_kernels", False),
    ],
)
def test_recording_peers_is_advised_where_messages_do_not_name_them(case, unnamed):
    assert is_about_unnamed_peers(Notice("wait-unknown", values={"case": case})) is unnamed


def test_a_title_names_every_rank_whose_file_is_truncated():
    analysis = analysis_of("sample_traces/reload")
    truncated = Notice(
        "truncated", ranks=(0, 2), values={"case": "list", "cut_event": True}, varies=True
    )
    assert (
        describe_ranks(replace(analysis, notices=(truncated,))) == "4 ranks (ranks 0, 2 truncated)"
    )


def test_a_notice_survives_json_with_its_sentence():
    (notice,) = missing_notice([source(0)])
    (entry,) = msgspec.json.decode(msgspec.json.encode([notice]), type=list[Notice])
    assert (entry.message, entry.severity) == (notice.message, "warning")
    assert entry == notice
    assert hash(entry) == hash(notice)


def test_a_notice_of_another_version_is_shown_by_its_code():
    assert notice_sentence(Notice("no-such-code")).startswith("no-such-code ")


def test_a_note_is_in_the_full_report_alone():
    lines = shorten_notices(
        [Notice("a", "something was lost"), Notice("b", "a note", severity="note")]
    )
    assert [line.message for line in lines] == ["something was lost", "a note"]
    assert [line.message for line in telling_notices(lines)] == ["something was lost"]
