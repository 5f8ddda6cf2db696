"""Sentences of notices: each code and case has one, made of the values that it names."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import get_args, get_type_hints

import msgspec
import pytest

from tests.kept import analysis_of
from tracekit._util.notices import merge_notices
from tracekit.errors import Notice
from tracekit.findings.recording import is_about_unnamed_peers
from tracekit.report.notice_sentences import SENTENCES
from tracekit.report.notices import notice_sentence, with_messages
from tracekit.report.view import describe_ranks

PACKAGE = Path(__file__).parent.parent.parent / "tracekit"
EXAMPLES = {
    int: 7,
    float: 0.25,
    bool: True,
    str: "name",
    object: "3.1",
    Sequence[int]: (1, 2),
    Sequence[str]: ("a", "b"),
    Sequence[Sequence[int]]: ((4,), (2, 8)),
}
"""A value of each type that sentences take."""


def codes_in_source():
    """Return the codes of the notices that the package makes."""
    sources = "\n".join(file.read_text(encoding="utf-8") for file in PACKAGE.rglob("*.py"))
    return set(re.findall(r'\bNotice\(\s*"([a-z-]+)"', sources))


def example(annotation):
    """Return a value of a type; of an optional one, that which is not None."""
    if annotation in EXAMPLES:
        return EXAMPLES[annotation]
    (known,) = set(get_args(annotation)) - {type(None)}
    return EXAMPLES[known]


def test_every_code_has_a_sentence_and_every_sentence_is_of_a_code_that_is_used():
    assert len(codes_in_source()) > 80
    assert codes_in_source() == {code for code, _ in SENTENCES}


@pytest.mark.parametrize(("code", "case"), list(SENTENCES))
def test_a_sentence_is_made_of_the_values_that_its_function_names(code, case):
    types = get_type_hints(SENTENCES[code, case])
    types.pop("return")
    values = {name: example(annotation) for name, annotation in types.items()}
    ranks = values.pop("ranks", ())
    labels = values.pop("labels", ())
    notice = Notice(code, ranks=ranks, labels=labels, values=values | {"case": case})
    assert "another version" not in notice_sentence(notice)
    assert not notice_sentence(notice).endswith(".")
    if values:  # without a value that it needs there is no sentence
        missing = Notice(code, ranks=ranks, labels=labels, values={"case": case})
        assert "another version" in notice_sentence(missing)


@pytest.mark.parametrize("code", sorted({code for code, _ in SENTENCES}))
def test_a_code_has_one_sentence_or_one_for_each_case(code):
    cases = {case for other, case in SENTENCES if other == code}
    assert cases == {""} or "" not in cases


EXPECTED = [
    (Notice("missing-ranks", values={"count": 1, "world_size": 8, "missing": (5,), "role": None}),
     "1 of 8 ranks is not here: 5"),
    (Notice("missing-ranks", values={"count": 6, "world_size": 8, "missing": (1, 2, 3, 4), "role": "worker"}),
     "role worker: 6 of 8 ranks are not here: 1, 2, 3, 4, +2 more"),
    (Notice("truncated", values={"case": "list", "cut_event": True}),
     "1 event was cut in two: the file ends before its list of events does"),
    (Notice("bad-events", values={"case": "lost", "count": 1, "gpu_events": 0}), "1 damaged event was lost"),
    (Notice("bad-events", values={"case": "lost", "count": 3, "gpu_events": 2}),
     "3 damaged events were lost, of which 2 ran on the GPU"),
    (Notice("step-cut", values={"case": "incomplete", "step": 0, "without_backward": 0, "without_forward": 2,
                                "fewest_forwards": 3, "most_forwards": 4}),
     "step 0 is cut: 2 backwards have no forward, the ranks ran 3 to 4 forwards; which schedule it was part of is not "
     "certain"),
    (Notice("path-ends", ranks=(2,), values={"case": "stopped", "step": 0, "remaining_ns": 1_500_000}),
     "the critical path of step 0 was followed back only to 1.500 ms after the step's start, on rank 2: the trace does "
     "not say what the work there waited for; record launches and synchronisation"),
    (Notice("path-ends", ranks=(2,), values={"case": "stopped", "step": None, "remaining_ns": 1_500_000}),
     "the critical path was followed back only to 1.500 ms after the step's start, on rank 2: the trace does not say "
     "what the work there waited for; record launches and synchronisation"),
    (Notice("wait-bound", labels=("dp_comm", "ep_comm"), values={"uncertainty_ns": None}),
     "dp_comm, ep_comm: waits are upper bounds (own duration minus the shortest one), because nothing ties the clocks"),
    (Notice("wait-bound", labels=("dp_comm",), values={"uncertainty_ns": 2_000_000}),
     "dp_comm: waits are upper bounds (own duration minus the shortest one), because clocks agree only to 2.000 ms"),
    (Notice("clocks-apart", ranks=(3,), values={"apart_ns": 61_000_000_000, "later": True, "other_rank": 0}),
     "rank 3 was recorded 61.0 s after rank 0: if they belong to one run, their clocks differ by that much; if not, "
     "name the files of one run"),
    (Notice("pipeline-size-unknown", ranks=(4,), values={"case": "several_fit", "schedules": ("1f1b", "gpipe"),
                                                         "sizes": ((4, 8), (8,))}),
     "rank 4: nothing in the trace says how many ranks the pipeline has, and the order is that of 1f1b of 4, 8 ranks, "
     "gpipe of 8 ranks: no schedule is named; give more of its ranks, or --layout pp=N"),
    (Notice("not-a-trace", values={"case": "found", "files": ("a", "b"), "errors": ("is empty", "is a list")}),
     "skipped a is empty, b is a list"),
    (Notice("members-missing", labels=("ep_comm",), values={"missing": ()}),
     "ep_comm: not all members were recorded, so waiting for the others is not known; give all ranks"),
    (Notice("unlabelled", ranks=(1,), values={"share": 0.25, "limit": 0.01, "ranks_above": 3}),
     "no rule knows what 25.0 % of rank 1's span is (label other; above 1 % on 3 ranks): it counts as compute; name it "
     "in a rules file (--rules), see --explain other"),
]  # fmt: skip


@pytest.mark.parametrize(("notice", "sentence"), EXPECTED)
def test_values_become_a_sentence(notice, sentence):
    assert notice_sentence(notice) == sentence


def test_ranks_with_the_same_values_are_named_together():
    cut = Notice("partial-step", values={"step": 4, "events": 7})
    (merged,) = merge_notices([(rank, [cut]) for rank in range(3)])
    assert notice_sentence(merged) == "ranks 0–2: step 4 holds only 7 GPU events: it looks cut off"
    (of_all,) = merge_notices([(rank, [cut]) for rank in range(3)], ranks=3)
    assert notice_sentence(of_all) == "step 4 holds only 7 GPU events: it looks cut off"
    (of_the_only_rank,) = merge_notices([(0, [cut])], ranks=1)
    assert notice_sentence(of_the_only_rank).startswith("rank 0: ")


def test_ranks_with_other_numbers_are_named_behind_the_first():
    by_rank = [(rank, [Notice("graphs-whole", values={"graphs": rank - 1})]) for rank in (2, 5, 6)]
    (merged,) = merge_notices(by_rank, ranks=3)
    assert (merged.ranks, merged.values, merged.varies) == ((2, 5, 6), {"graphs": 1}, True)
    assert notice_sentence(merged) == (
        "rank 2: 1 captured graph was recorded whole, without its kernels: it counts as compute labelled other "
        "(ranks 5, 6 too, with other numbers)"
    )


def test_notices_that_differ_in_words_stay_apart():
    names = [
        {"case": "left_out", "file": f"rank{rank}.sqlite", "table": table}
        for rank, table in enumerate("aab")
    ]
    merged = merge_notices(
        [(rank, [Notice("damaged-table", values=values)]) for rank, values in enumerate(names)]
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
    assert {case for code, case in SENTENCES if code == "wait-unknown"} == {
        "unnamed",
        "peers_unnamed",
        "no_counterpart",
        "peers_missing",
        "no_kernels",
    }
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
    for notice, sentence in EXPECTED:
        (entry,) = msgspec.json.decode(
            msgspec.json.encode(with_messages([notice])), type=list[Notice]
        )
        assert entry.message == sentence
        assert entry == notice
        assert hash(entry) == hash(notice)


def test_a_notice_of_another_version_is_shown_by_its_code():
    assert notice_sentence(Notice("no-such-code")).startswith("no-such-code ")
    assert notice_sentence(Notice("partial-step")).startswith(
        "partial-step "
    )  # its values are missing
    assert notice_sentence(Notice("truncated", values={"case": "other"})).startswith("truncated ")
    assert notice_sentence(Notice("bad-values", values={"count": "x"})).startswith("bad-values ")
