"""Step times of odd recordings, counted by hand: no marks, overlapping steps, cut steps, ranks with fewer steps."""

from __future__ import annotations

import polars as pl

from tracekit.align.steps import STEP_HOST_RANGES, assign_parts
from tracekit.analysis.combine.notices import uncommon_step_notices
from tracekit.documents.analysis import Budget, TimedStep
from tracekit.metrics.step_time import summarize_steps, timed_steps
from tracekit.report.notices import notice_sentence


def gpu_events(*rows: tuple[int | None, int, int]) -> pl.DataFrame:
    """Events of (step, start, end), each launched when it starts."""
    schema = {"step": pl.Int64, "start_ns": pl.Int64, "end_ns": pl.Int64}
    return pl.DataFrame(list(rows), schema, orient="row").with_columns(launch_ns="start_ns")


def times(events: pl.DataFrame, *host: tuple[int, int, int]) -> list[int | None]:
    _, steps, _ = assign_parts(
        events, host=pl.DataFrame(list(host), STEP_HOST_RANGES, orient="row")
    )
    return steps["time_ns"].to_list()


def summary(events: pl.DataFrame):
    _, steps, _ = assign_parts(events)
    return summarize_steps(
        {0: timed_steps(steps, [Budget(compute_ns=0, exposed_ns={}, idle=0)] * len(steps))}
    )


def test_without_marks_the_time_is_the_extent_and_called_so() -> None:
    whole = summary(gpu_events((None, 10, 30), (None, 50, 90)))
    assert whole.time_ns == 80  # 90 - 10
    assert not whole.marked
    assert whole.single


def test_work_that_overlaps_the_next_step_ends_no_step() -> None:
    # A step lasts until the next one's first work: 30 - 0, 60 - 30. The last one lasts until its
    # work ends, for 90 - 60.
    assert times(gpu_events((1, 0, 50), (2, 30, 80), (3, 60, 90))) == [30, 30, 30]


def test_a_step_inside_another_has_no_time_and_is_not_counted() -> None:
    # Step 3 follows no recorded one, so it begins where the work of step 1 ends, at 100; its own
    # ends at 20.
    inside = gpu_events((1, 0, 100), (3, 10, 20))
    assert times(inside) == [100, None]
    assert [step.step for step in summary(inside).per_step] == [1]


def test_host_ranges_that_overlap_give_no_negative_time() -> None:
    # Step 2 begins with its mark at 25, as the GPU has done all of step 1 at 20, and ends with its
    # host range at 70; the GPU work ends at 45.
    assert times(gpu_events((1, 0, 20), (2, 30, 45)), (1, 0, 40), (2, 25, 70)) == [25, 45]


def test_a_step_that_began_before_the_recording_is_cut_and_not_counted() -> None:
    # One event of step 4 was recorded, of the others four each; they begin at 10, 30 and 60.
    whole_steps = [
        (step, start + 2 * i, start + 2 * i + 1)
        for step, start in ((5, 10), (6, 30), (7, 60))
        for i in range(4)
    ]
    cut = summary(gpu_events((4, 8, 9), *whole_steps))
    assert [step.step for step in cut.per_step] == [5, 6, 7]
    # Between first events; the last from 60 to the end of its work, at 67.
    assert [step.time_ns for step in cut.per_step] == [20, 30, 7]
    assert cut.time_ns == 20  # their median


def test_steps_that_a_rank_lacks_are_named_and_the_common_ones_counted() -> None:
    def timed(*times_ns: int) -> list[TimedStep]:
        return [
            TimedStep(step, ns, Budget(compute_ns=ns, exposed_ns={}, idle=0))
            for step, ns in enumerate(times_ns)
        ]

    steps = summarize_steps({0: timed(10, 10, 30, 50), 1: timed(12, 14)})
    assert steps.time_ns == round((11 + 12) / 2)
    (notice,) = uncommon_step_notices(steps)
    assert notice.ranks == (1,)
    assert notice_sentence(notice) == (
        "rank 1: steps 2, 3 are missing, which other ranks recorded: only steps that all ranks recorded are counted"
    )
