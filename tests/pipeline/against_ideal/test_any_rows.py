"""Whatever the rows, reconstruction gives an answer or says why not."""

from __future__ import annotations

import hypothesis.strategies as st
import polars as pl
import pytest
from hypothesis import HealthCheck, Phase, given, settings

from tests.pipeline.against_ideal.conftest import compare_with_options
from tracekit.documents.coding import to_plain
from tracekit.pipeline.reconstruct import rank_pipeline
from tracekit.schema import LABELLED, Source, conform

pytestmark = pytest.mark.slow

LABELS = [
    "forward",
    "dgrad",
    "wgrad",
    "backward",
    "recompute",
    "optimizer",
    "pp_comm",
    "ep_dispatch",
    "other",
]
RANGES = [
    None,
    "PP:0F0",
    "PP:0F1",
    "PP:1I0",
    "PP:1W0",
    "PP:0B1",
    "PP:(1F1;0B0)OVERLAP_F_B",
    "PP:0SEND_F0",
]

row = st.fixed_dictionaries(
    {
        "label": st.sampled_from(LABELS),
        "name": st.sampled_from(["a", "b"]),
        "node": st.sampled_from([None, "MmBackward0"]),
        "autograd_sequence": st.one_of(st.none(), st.integers(0, 12)),
        "p2p": st.sampled_from(
            [None, "send:0", "recv:0", "send:1", "recv:1", "send:?", "recv:0,send:1"]
        ),
        "annotations": st.sampled_from(RANGES),
        "step": st.sampled_from([None, 0, 1]),
        "launch_ns": st.one_of(st.none(), st.integers(0, 50)),
        "start_ns": st.integers(0, 60),
        "took": st.integers(0, 9),
    }
)


def table(rows):
    frame = pl.DataFrame(rows, infer_schema_length=None).with_columns(
        end_ns=pl.col("start_ns") + pl.col("took")
    )
    numbered = frame.with_row_index("id").with_columns(pl.col("label").cast(LABELLED["label"]))
    message = pl.col("label").cast(pl.String) == "pp_comm"
    return conform(numbered.with_columns(p2p=pl.when(message).then("p2p")), LABELLED)


@settings(
    max_examples=25,
    deadline=None,
    derandomize=True,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
@given(
    ranks=st.lists(st.lists(row, min_size=1, max_size=25), min_size=1, max_size=3),
    what_if=st.booleans(),
)
def test_there_is_an_answer_or_a_reason(ranks, what_if):
    parts = [
        rank_pipeline(table(rows), Source("x", "kineto", r, "name")) for r, rows in enumerate(ranks)
    ]
    comparison, notices = compare_with_options(parts, what_if=what_if)
    if comparison is None:
        assert notices
    else:
        to_plain(comparison.to_document())
        for step in comparison.all:
            assert (
                step.gap_ns is None or sum(step.gap_ns.values()) == step.measured_ns - step.ideal_ns
            )
