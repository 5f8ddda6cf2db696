"""Memory snapshots that other people recorded with PyTorch's defaults."""

import re

import pytest

import tracekit

MAX_SHARE_WITHOUT_PURPOSE = 0.03


@pytest.mark.parametrize("name", ["niu_fb200_mixed", "athrun_bf16"])
def test_nearly_all_that_was_allocated_since_the_history_began_has_a_purpose(corpus, name):
    path = corpus / "snapshots" / f"{name}.pickle"
    (snapshot,) = tracekit.memory(str(path)).to_dict()["snapshots"]
    bytes_by_category = snapshot["contents"]["by_category"]
    recorded = sum(
        size for category, size in bytes_by_category.items() if category != "before_recording"
    )
    assert bytes_by_category.get("other", 0) <= MAX_SHARE_WITHOUT_PURPOSE * recorded
    lines = [row["line"] for row in snapshot["contents"]["lines"] if row["line"]]
    assert lines
    assert not [line for line in lines if re.search(r"\.[ch](pp)?:\d+ ", line)]
