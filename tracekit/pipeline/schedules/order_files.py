"""Text files of orders, one line per rank."""

import os
from itertools import chain
from pathlib import Path

from tracekit._util.files import atomic_write
from tracekit.errors import InputError, ScheduleError
from tracekit.pipeline.schedules.ops import Op, parse_orders
from tracekit.pipeline.schedules.schedule import Schedule


def read_orders(path: str | os.PathLike[str]) -> Schedule:
    r"""Return the schedule in a text file: one line per rank, ops separated by blanks.

    ``#`` starts a comment.

    >>> import tempfile, pathlib
    >>> file = pathlib.Path(tempfile.mkdtemp()) / "mine.txt"
    >>> _ = file.write_text("0F0 0B0   # rank 0\n1F0 1B0\n")
    >>> read_orders(file).orders()
    [['0F0', '0B0'], ['1F0', '1B0']]
    """
    file = Path(path)
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not text"
        problem = f"cannot be read: {reason}"
        raise InputError(
            problem, path=file, hint="one line per rank, as in 0F0 0F1 0B0 0B1"
        ) from error
    orders = []
    for number, line in enumerate(text.splitlines(), start=1):
        without_comment, _, _ = line.partition("#")
        if without_comment.strip():  # every rank has ops
            orders.append(_parse_line(file, number, without_comment))
    ranks = tuple(orders)
    ops = list(chain.from_iterable(ranks))
    if not ops:
        raise ScheduleError(
            "has no ops", path=file, hint="write one line per rank, as in 0F0 0F1 0B0 0B1"
        )
    microbatches = 1 + max(max(op.microbatch, op.b_microbatch) for op in ops)
    virtual = 0
    for rank in ranks:
        stages = {op.stage for op in rank}
        virtual = max(virtual, len(stages))
    schedule = Schedule(file.stem, len(ranks), microbatches, virtual, ranks)
    _ = schedule.edges  # raises if an op is missing or doubled
    return schedule


def write_orders(schedule: Schedule, path: str | os.PathLike[str]) -> None:
    r"""Write a schedule so that ``read_orders`` reads it back.

    >>> import tempfile, pathlib
    >>> from tracekit.pipeline.schedules import generate
    >>> file = pathlib.Path(tempfile.mkdtemp()) / "1f1b.txt"
    >>> write_orders(generate("1f1b", pp=2, microbatches=1), file)
    >>> file.read_text()
    '0F0 0B0\n1F0 1B0\n'
    """
    with atomic_write(path) as part:
        part.write_text(
            "".join(" ".join(rank) + "\n" for rank in schedule.orders()), encoding="utf-8"
        )


def _parse_line(file: Path, number: int, line: str) -> tuple[Op, ...]:
    try:
        return parse_orders(line)
    except ScheduleError as error:
        raise ScheduleError(
            f"line {number}: {error.message}", path=file, hint=error.hint
        ) from error
