"""Source paths on a page that is shared: relative to their package, without user names."""

from __future__ import annotations

from dataclasses import replace

import pytest
from msgspec import structs

from tests.kept import analysis_of
from tracekit.report.html.page import render_html
from tracekit.report.html.source_paths import shorten_source_paths


@pytest.mark.parametrize(
    ("text", "shared"),
    [
        ("/home/ada/train.py:3 step", "train.py:3 step"),
        ("/home/ada/nets/moe/train.py(3): step", "moe/train.py(3): step"),
        ("/Users/ada/train.py:3", "train.py:3"),
        ("/mnt/home/ada/train.py:3", "train.py:3"),
        ("/root/train.py:3", "train.py:3"),
        ("/work/big run/nets/train.py:3 step", "nets/train.py:3 step"),
        ("/home/ada lovelace/train.py:3 step", "train.py:3 step"),
        ("C:\\Users\\ada\\nets\\train.py:3", "nets/train.py:3"),
        ("/usr/lib/python3.12/contextlib.py:81", "contextlib.py:81"),
        ("/e/dist-packages/torch/nn/linear.py(9): forward", "torch/nn/linear.py(9): forward"),
        ("at /home/ada/a/b.py:1 and /home/ada/c/d.cu:2", "at a/b.py:1 and c/d.cu:2"),
        ("(/home/ada/a/b.py:1)", "(a/b.py:1)"),
        ("nets/train.py:3", "nets/train.py:3"),
        ("aten::mm 12 GB/s, 3/4 of peak", "aten::mm 12 GB/s, 3/4 of peak"),
        ("see https://host/a/b.py", "see https://host/a/b.py"),
    ],
)
def test_absolute_paths_of_sources_lose_the_folders_above_their_package(text, shared):
    assert shorten_source_paths(text) == shared


@pytest.mark.slow
def test_no_user_name_of_a_stack_is_on_the_page(samples):
    """Lines of memory at the peak and findings that rest on them, from stacks below a home."""
    analysis = analysis_of(samples / "memory-snapshot")
    ranks = []
    for rank in analysis.memory.ranks:
        lines = [
            structs.replace(line, line=line.line and f"/home/ada/nets/{line.line}")
            for line in rank.contents.lines
        ]
        ranks.append(structs.replace(rank, contents=structs.replace(rank.contents, lines=lines)))
    run = replace(
        analysis,
        allocations=structs.replace(
            analysis.allocations, figures=structs.replace(analysis.memory, ranks=ranks)
        ),
    )
    text = render_html(run)
    assert "nets/ranks.py:25 forward" in text
    assert "/home/ada" not in text
    assert "ada/" not in text
