"""Check that ranks number their steps alike.

Ranks of one run begin a step at about the same time. Where a rank began its step 7 when the others
began their step 6, its numbers count from elsewhere (a profiler that was started later, a loop that
was resumed), and comparing equal numbers would compare different steps.
"""

from collections import Counter
from collections.abc import Mapping

import numpy as np
import polars as pl

from tracekit._util.arrays import Ints
from tracekit._util.text import join_with_and, ranks_named
from tracekit.errors import InputError

MAX_SHIFT = 4
"""Steps by which the numbers of ranks that share some numbers may be apart for it to be noticed."""
MAX_SHIFTED_START_SHARE = 0.05
"""Share of the time from step to step by which the starts of like steps may differ: clocks that are not
set alike are rarely apart by so nearly a whole number of steps."""


def check_step_numbers(steps_of_rank: Mapping[int, pl.DataFrame]) -> None:
    """Raise an error if ranks have no step in common, or number the same steps differently.

    Args:
        steps_of_rank: Steps of each rank (``steps.STEPS``).
    """
    marked = {}
    for rank, steps in steps_of_rank.items():
        numbered = steps.drop_nulls(["step"])
        if numbered.height:
            marked[rank] = numbered
    if len(marked) < 2:
        return
    shifts = _shifts(marked)
    if any(shifts.values()):
        apart = [rank for rank, shift in shifts.items() if shift]
        shift = shifts[apart[0]]
        relation = f"{abs(shift)} {'higher' if shift > 0 else 'lower'}"
        raise InputError(
            f"{ranks_named(apart)} number{'s' * (len(apart) == 1)} the steps {relation} than the ranks that ran them "
            "at the same time",
            hint="record with `prof.step()` called alike on all ranks, or choose ranks that agree with --ranks",
        )
    common = set.intersection(*(set(steps["step"]) for steps in marked.values()))
    if not common:
        ranges = Counter((steps["step"].min(), steps["step"].max()) for steps in marked.values())
        shown = join_with_and(_range_words(*found) for found, _ in ranges.most_common(3))
        raise InputError(
            f"the ranks have no step in common: they recorded {shown}",
            hint="give ranks that recorded the same steps (--ranks)",
        )


def _range_words(first: object, last: object) -> str:
    return f"step {first}" if first == last else f"steps {first} to {last}"


def _shifts(marked: Mapping[int, pl.DataFrame]) -> dict[int, int]:
    """Return by how much each rank's numbers are above those of most ranks, as far as their starts tell."""
    first, *others = marked
    against_first = {first: 0}
    for rank in others:
        against_first[rank] = _shift(marked[first], marked[rank])
    usual, _ = Counter(against_first.values()).most_common(1)[0]
    return {rank: shift - usual for rank, shift in against_first.items()}


def _shift(reference: pl.DataFrame, steps: pl.DataFrame) -> int:
    """Return by how much the numbers of *steps* are above those of *reference* for the same steps.

    0 unless their starts agree at another shift, and do not where numbers are equal.

    >>> steps = pl.DataFrame({"step": [1, 2, 3], "start_ns": [0, 100, 200]})
    >>> _shift(steps, steps.with_columns(pl.col("step") + 1))
    1
    """
    period_ns = (
        float(np.median(np.diff(reference["start_ns"].to_numpy()))) if len(reference) > 1 else 0
    )
    limit_ns = MAX_SHIFTED_START_SHARE * period_ns
    number, start_ns = (reference[column].to_numpy() for column in ("step", "start_ns"))
    other, other_start_ns = (steps[column].to_numpy() for column in ("step", "start_ns"))
    if (
        period_ns <= 0
        or _start_difference_ns(number, start_ns, other, other_start_ns) <= period_ns / 2
    ):
        return 0
    far = int(other[0]) - int(number[0])
    for shift in (far, *(sign * step for step in range(1, MAX_SHIFT + 1) for sign in (1, -1))):
        if (
            shift
            and _start_difference_ns(number, start_ns, other - shift, other_start_ns) <= limit_ns
        ):
            return shift
    return 0


def _start_difference_ns(number: Ints, start_ns: Ints, other: Ints, other_start_ns: Ints) -> float:
    """Return the usual difference between the starts of steps with equal numbers; infinite without any."""
    _, rows, other_rows = np.intersect1d(number, other, return_indices=True)
    if not len(rows):
        return float("inf")
    return float(np.median(np.abs(start_ns[rows] - other_start_ns[other_rows])))
