"""Text of a ``Diff`` in a Python session, and the pipeline cells that it compares."""

from __future__ import annotations

import pytest

from tracekit.diffs import Run, Side, diff, make_samples
from tracekit.documents.baseline import CellTime
from tracekit.documents.diff import Facts


def side(name, step_ms, **facts):
    steps = tuple(
        step_ms * factor for factor in (1.0, 1.001, 0.999, 1.002, 0.998, 1.0, 1.001, 0.999)
    )
    return Side(
        (Run(name, make_samples({"step_ms": steps, "compute_ms": steps}), Facts(**facts)),), {}
    )


@pytest.mark.parametrize(
    ("before", "after", "text"),
    [
        (side("a", 100.0), side("b", 110.0), "2 regressed"),
        (side("a", 100.0), side("b", 100.0), "2 pass"),
        (side("a", 1.0, gpu="H100"), side("b", 1.0, gpu="H200"),
         "not comparable: GPU differs: H100 before, H200 after"),
        (Side((Run("a"),), {}), Side((Run("b"),), {}), "nothing to compare"),
    ],
)  # fmt: skip
def test_the_repr_has_the_verdicts(before, after, text):
    assert repr(diff(before, after)) == f"<Diff: a → b: {text}>"


def run_with_cells(stages_by_rank, ns):
    cells = [
        CellTime(rank=rank, op="F", stage=stage, microbatch=0, ns=ns)
        for rank, stages in stages_by_rank.items()
        for stage in stages
    ]
    return Side((Run("a", make_samples({"step_ms": (1.0,)}), cells=cells),), {})


@pytest.mark.parametrize(
    ("before", "after", "compared", "note"),
    [
        ({0: [0], 1: [1]}, {0: [0], 1: [1]}, [(0, 0), (1, 1)], None),
        # The same four parts of the model on other ranks: stages 0 and 1 stayed where they were.
        (
            {0: [0, 2], 1: [1, 3]},
            {0: [0, 3], 1: [1, 2]},
            [(0, 0), (1, 1)],
            "4 cells are on one side only",
        ),
        (
            {0: [0], 1: [1]},
            {0: [0, 2], 1: [1, 3]},
            [],
            "hold different parts of the model (2 stages before, 4 after)",
        ),
        # Two directions: two stages on each rank, but of two in all and not of four.
        (
            {0: [0, 1], 1: [1, 0]},
            {0: [0, 2], 1: [1, 3]},
            [],
            "hold different parts of the model (2 stages before, 4 after)",
        ),
        (
            {0: [0], 1: [1]},
            {0: [0], 1: [1], 2: [2]},
            [],
            "may hold different parts of the model (2 stages before, 3",
        ),
        (
            {0: [0], 1: [1]},
            {0: [0, 1], 1: [1, 0]},
            [],
            "of the model (up to 1 stage on a rank before, 2 after)",
        ),
    ],
)
def test_cells_are_compared_only_where_the_model_is_cut_alike(before, after, compared, note):
    got = diff(run_with_cells(before, 1_000_000), run_with_cells(after, 2_000_000)).to_dict()
    assert sorted((row["rank"], row["stage"]) for row in got["cells"]) == compared
    assert {row["change_ms"] for row in got["cells"]} <= {1.0}
    assert got["comparable_cells"] is bool(compared)
    notes = [text for text in got["notes"] if "cells" in text]
    assert len(notes) == (note is not None)
    assert all(note in text for text in notes)
