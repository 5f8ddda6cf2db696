"""Tests of the sentence about what blocks the step: counted by hand on small paths, and against the path of samples."""

from __future__ import annotations

import html
import re
from dataclasses import replace

import polars as pl
import pytest

from tests.kept import analysis_of
from tracekit.errors import Notice
from tracekit.graph.critical_path.path import SEGMENTS, SLACK, CriticalPath
from tracekit.report.markdown import render_markdown
from tracekit.report.view import view_of
from tracekit.report.view.path import blocking

MS = 1_000_000


@pytest.fixture
def with_path(samples):
    """Return the analysis of a sample whose critical path is replaced: pieces as (rank, kind, what, label, ms)."""
    analysis = analysis_of(samples / "1f1b")
    start_ns = (
        int(analysis.clocks.align(analysis.tables["timeline"], "end_ns")["end_ns"].max()) + 10 * MS
    )

    def build(
        *pieces, chain=None, unknown=(), notices=(), uncertain=False, launched=None, busy_ms=0
    ):
        rows, end_ns = [], start_ns  # after all GPU events, so that no GPU works beside the host
        for rank, kind, what, label, length_ms in pieces:
            times = {"start_ns": end_ns, "end_ns": (end_ns := end_ns + int(length_ms * MS))}
            length_ns = times["end_ns"] - times["start_ns"]
            row = {
                "step": 2,
                "rank": rank,
                "kind": kind,
                "what": what,
                "label": label,
                "chain": chain,
                **times,
            }
            idle = {
                "idle_ns": max(length_ns - busy_ms * MS, 0) if kind == "host" else 0,
                "launched": launched if kind == "host" else None,
            }
            rows.append({**row, **idle, "uncertain": uncertain, "exposed_ns": 0})
        table = pl.DataFrame(rows, schema=SEGMENTS)
        path = CriticalPath(table, table, SLACK.to_frame(), tuple(notices), frozenset(unknown))
        return replace(analysis, walked_path=path)

    return build


def test_the_labels_that_hold_the_path_longest_are_named_with_their_share(with_path):
    analysis = with_path(
        (0, "kernel", "gemm", "forward", 20),
        (1, "message", "ncclDevKernel_SendRecv(int)", "pp_comm", 50),
        (1, "kernel", "gemm", "dgrad", 30),
        chain="Outer > c10d::recv_ > record_param_comms",
    )
    text = blocking(analysis).text
    assert text.startswith("By pipeline communication (pp_comm) and the backward for inputs")
    assert "(dgrad): 80.0 % of the critical path, mostly on rank 1;" in text
    assert (
        "nccl SendRecv on rank 1, 50.0 ms at 20.0 ms of the step, launched by Outer > c10d::recv_."
        in text
    )


def test_the_host_is_named_with_what_it_launched(with_path):
    analysis = with_path(
        (3, "host", "aten::copy_", None, 80),
        (3, "launch", "aten::copy_", None, 1),
        (3, "copy", "Memcpy HtoD (Pageable -> Device)", "onload", 19),
        launched="Memcpy HtoD (Pageable -> Device)",
    )
    text = blocking(analysis).text
    assert text.startswith("By the host, before it launches work: 80.0 %")
    assert (
        "the host of rank 3, 80.0 ms at the start of the step, before it launched Memcpy HtoD"
        in text
    )
    assert "its GPU worked" not in text


def test_of_host_time_only_what_the_gpu_is_idle_counts(with_path):
    """The GPU is idle for 10 of the host's 60 ms: the message of 40 ms is the longest piece."""
    pieces = ((0, "host", "aten::copy_", None, 60), (1, "message", "send", "pp_comm", 40))
    assert blocking(with_path(*pieces, busy_ms=50)).piece.kind == "message"
    assert blocking(with_path(*pieces, busy_ms=10)).piece.kind == "host"


def test_host_time_in_which_the_gpu_works_is_not_the_longest_piece(samples):
    """Of the three longest pieces of this path, all of the host, the GPU of the rank works in most of each."""
    analysis = analysis_of(samples / "megatron-moe")
    piece = blocking(analysis).piece
    longest = (
        analysis.walked_path.pieces.filter(kind="host")
        .select((pl.col("end_ns") - pl.col("start_ns")).max())
        .item()
    )
    assert (piece.kind, piece.label, piece.rank) == ("collective", "ep_combine", 6)
    assert piece.end_ns - piece.start_ns < longest


@pytest.mark.parametrize(
    "doubt",
    [
        {"unknown": ["pp_comm"]},
        {
            "notices": [
                Notice(
                    "path-ends",
                    ranks=(0,),
                    values={"case": "stopped", "step": 1, "remaining_ns": 3_000_000},
                )
            ]
        },
    ],
)
def test_nothing_is_said_where_the_path_does_not_tell(with_path, doubt):
    analysis = with_path(
        (1, "message", "recv", "pp_comm", 50), (0, "kernel", "gemm", "forward", 20), **doubt
    )
    assert blocking(analysis) is None
    assert "Blocked" not in [line.topic for line in view_of(analysis).answer]


def test_a_path_of_unknown_cause_names_nothing(with_path):
    assert (
        blocking(with_path((0, "unknown", None, None, 60), (0, "kernel", "gemm", "forward", 20)))
        is None
    )


def test_time_of_unknown_cause_is_not_named_beside_a_known_blocker(with_path):
    text = blocking(
        with_path((0, "kernel", "gemm", "forward", 60), (0, "unknown", None, None, 40))
    ).text
    assert text.startswith("By the forward pass (forward): 60.0 % of the critical path")


def test_work_that_may_lie_on_another_rank_is_not_placed(with_path):
    analysis = with_path(
        (0, "kernel", "gemm", "forward", 60), (1, "kernel", "gemm", "forward", 50), uncertain=True
    )
    text = blocking(analysis).text
    assert "mostly on" not in text
    assert "longest of these" not in text
    assert "For 100.0 % of it clocks leave open which rank it follows." in text


def test_communication_that_could_not_be_followed_is_named_beside_a_known_blocker(with_path):
    analysis = with_path(
        (0, "kernel", "gemm", "forward", 80),
        (0, "collective", "x", "dp_comm", 20),
        unknown=["dp_comm"],
    )
    assert (
        "Whether dp_comm on it (20.0 %) waits for another rank is not known."
        in blocking(analysis).text
    )


@pytest.mark.parametrize("sample", ["1f1b", "slow-ddp"])
def test_every_report_says_the_same_and_the_share_is_that_of_the_path(samples, sample):
    analysis = analysis_of(samples / sample, critical_path=True)
    text = blocking(analysis).text
    totals = analysis.critical.totals()["by_label"]
    named = re.findall(r"\((\w+)\)", text.partition(":")[0])
    share = sum(totals[label] for label in named) / sum(totals.values())
    assert f": {share:.1%} of the critical path".replace("%", " %") in text
    assert text in [line.text for line in view_of(analysis.without_critical_path()).answer]
    assert text in html.unescape(render_markdown(analysis).replace("\\", ""))


@pytest.mark.slow
@pytest.mark.parametrize("sample", ["1f1b", "megatron-moe"])
def test_the_link_opens_the_piece_that_is_named(look, pages, analysed, sample):
    """A message in one sample, an exchange of experts in the other."""
    page = look(pages(sample, path=True))
    analysis = analysed(sample)
    piece = view_of(analysis).blocking.piece
    page.locator("#words a[data-segment]").click()
    page.locator("#details").wait_for(state="visible")
    topics, texts = (page.locator(f"#details {name}").all_inner_texts() for name in ("dt", "dd"))
    facts = dict(zip(topics, texts, strict=True))
    assert facts["where"].startswith(f"rank {piece.rank}")
    from_ms, to_ms = (
        float(time) for time in re.match(r"([\d.]+) to ([\d.]+) ms", facts["when"]).groups()
    )
    assert to_ms - from_ms == pytest.approx((piece.end_ns - piece.start_ns) / 1e6, rel=0.01)
    assert facts.get("operators") == piece.chain
    if piece.kind != "host":
        assert facts["label"].startswith(piece.label)
