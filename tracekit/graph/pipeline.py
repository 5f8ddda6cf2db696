"""Predictions for a pipeline that was compared with its ideal: other schedules and numbers of micro-batches."""

from collections.abc import Callable

from msgspec.structs import replace

from tracekit._util.text import join_with_and
from tracekit.errors import Notice, ScheduleError
from tracekit.graph.predictor import Predictor, fit_predictor
from tracekit.graph.schedule_rows import too_large_to_search, what_if_rows, with_microbatches
from tracekit.pipeline.against_ideal import ScheduleComparison
from tracekit.pipeline.schedules import Schedule, generate
from tracekit.pipeline.schedules.registry import describe, searched_names


def fit_to_comparison(comparison: ScheduleComparison) -> Predictor | str:
    """Fit a predictor to the step that a comparison describes.

    A text with the reason if that is not possible.
    """
    head = comparison.head
    return fit_predictor(
        head.pipeline,
        comparison.head_ranks,
        head.match.schedule,
        head.replays,
        exact=head.match.exact,
    )


def with_predictions(
    comparison: ScheduleComparison, predictor: Predictor | str, *, rows: bool
) -> tuple[ScheduleComparison, tuple[Notice, ...]]:
    """Return a comparison with predictions, and notices about schedules and figures that are left out.

    Args:
        comparison: Comparison of the run with its ideal.
        predictor: Predictor of the run, or the reason why there is none.
        rows: Whether to predict other schedules (``what_if``), or only to say why they cannot be
            predicted.
    """
    reason = predictor if isinstance(predictor, str) else None
    comparison = replace(comparison, no_prediction_reason=reason)
    if not rows:
        return comparison, ()
    head = comparison.head
    schedule = head.match.schedule
    notices = []
    if too_large_to_search(schedule.pp, schedule.microbatches):
        notices.append(
            Notice(
                "what-if-limited",
                (
                    f"{join_with_and(tuple(searched_names()))} are not among the "
                    "schedules tried: searching their order takes too long for a "
                    "run of this size"
                ),
                values={"case": "searched", "schedules": tuple(searched_names())},
            )
        )
    if reason is not None:
        notices.append(
            Notice(
                "what-if-limited",
                (f"no schedule's span could be predicted, only its ideal: {reason}"),
                values={"case": "ideal_only", "reason": reason},
            )
        )
    table = what_if_rows(
        head.replays, head.pipeline.detail, schedule, predictor, ideal_ns=head.ideal_ns
    )
    return replace(comparison, what_if=tuple(table)), tuple(notices)


def predict_microbatches(predictor: Predictor | str, count: int) -> tuple[int, int, int] | str:
    """Predict the run's schedule with another number of micro-batches of the same size.

    Returns:
        Low, likely and high change of the makespan in nanoseconds; a text with the reason if it is
        not known.
    """
    return _predict_other(predictor, lambda own: with_microbatches(own, count))


def predict_schedule(predictor: Predictor | str, name: str) -> tuple[int, int, int] | str:
    """Predict another schedule with the run's ranks, micro-batches and times, as ``predict_microbatches`` does."""

    def other(own: Schedule) -> Schedule:
        entry = describe(name)
        if not entry.pipeline:
            raise ScheduleError(f"{name} is no schedule of a pipeline")
        virtual = max(own.virtual, 2) if entry.virtual is None else None
        return generate(name, pp=own.pp, microbatches=own.microbatches, virtual=virtual)

    return _predict_other(predictor, other)


def _predict_other(
    predictor: Predictor | str, other: Callable[[Schedule], Schedule]
) -> tuple[int, int, int] | str:
    if isinstance(predictor, str):
        return predictor
    try:
        schedule = other(predictor.own)
    except ScheduleError as error:
        return str(error)
    base = predictor.predict(predictor.own)
    changed = predictor.predict(schedule)
    if isinstance(base, str):
        return base
    if isinstance(changed, str):
        return changed
    return changed.low_ns - base.ns, changed.ns - base.ns, changed.high_ns - base.ns
