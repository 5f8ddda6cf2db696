"""Reader of operation timelines: JSON traces whose events are whole operations of a pipeline-parallel job.

The format is that of the timelines which ByteDance published with StragglerAnalysis (arXiv
2505.05713): complete events with a process per data-parallel replica and threads named after
pipeline rank, tensor rank and what runs on them (``PP rank 1, TP rank 0, pp-comm``). Arguments are
the step, the model chunk, the micro-batch (-1 or null where the operation has none) and the number
of the operation among those of its name (``seq_id``). Times are microseconds.
"""

import gzip
import re
import zlib
from pathlib import Path
from typing import Any

import msgspec
import polars as pl

from tracekit.errors import InputError
from tracekit.schema import conform

CELL_OPERATIONS = {"forward-compute": "F", "backward-compute": "B"}
"""Operations that are pipeline cells, and the kind of cell."""
MESSAGE_OPERATIONS = {
    "forward-send": ("F", 1),
    "forward-recv": ("F", -1),
    "backward-send": ("B", -1),
    "backward-recv": ("B", 1),
}
"""Messages between pipeline ranks: the pass they serve, and how far the other rank is away."""
TIMELINE_OPERATIONS = pl.Schema(
    {
        "replica": pl.Int32(),  # of the data-parallel group
        "pipeline_rank": pl.Int32(),
        "tensor_rank": pl.Int32(),
        "step": pl.Int64(),
        "name": pl.String(),  # forward-compute, forward-send, params-all-gather, …
        "number": pl.Int32(),  # among operations of its name in its step on its rank, from 0
        "chunk": pl.Int32(),  # of the model, where a rank holds several; null where the operation is of none
        "microbatch": pl.Int32(),  # of computation; null where the file does not tell
        "start_ns": pl.Int64(),
        "end_ns": pl.Int64(),
    }
)
"""One row per operation."""
MAX_FILE_BYTES = 2 << 30
"""A longer file is not read: the largest published one has 27 MB."""
_THREAD_NAME_PATTERN = re.compile(r"PP rank (\d{1,6}), TP rank (\d{1,6}), ([\w-]+)")
_HINT = "give a timeline of operations such as forward-compute, one event each"


class _Arguments(msgspec.Struct):
    """Arguments of an event; of a thread's name only that."""

    step: int | None = None
    model_chunk: int | None = None
    mb_id: int | None = None
    seq_id: int | None = None
    name: str | None = None


class _TimelineEvent(msgspec.Struct):
    """One event of the file."""

    name: str
    pid: int
    tid: int = -1  # process names have none
    ph: str = "X"
    ts: float = 0.0
    dur: float = 0.0
    args: _Arguments = msgspec.field(default_factory=_Arguments)


class OperationTimeline(msgspec.Struct, frozen=True, eq=False):
    """Operations of one timeline."""

    operations: pl.DataFrame
    """A row per operation (``TIMELINE_OPERATIONS``), sorted by replica, rank and start."""
    left_out: int
    """Operations that end before they start."""


def read_operation_timeline(path: str | Path) -> OperationTimeline:
    """Return the operations of a timeline.

    >>> import json, tempfile
    >>> name = {"name": "PP rank 2, TP rank 0, compute"}
    >>> thread = {"name": "thread_name", "pid": 0, "tid": 1, "ph": "M", "args": name}
    >>> args = {"step": 7, "model_chunk": 0, "mb_id": 3, "seq_id": 3}
    >>> forward = {"name": "forward-compute", "pid": 0, "tid": 1, "ph": "X", "ts": 1.5, "dur": 2.0, "args": args}
    >>> file = Path(tempfile.mkdtemp(), "timeline.json")
    >>> _ = file.write_text(json.dumps([thread, forward]))
    >>> columns = ("pipeline_rank", "step", "microbatch", "start_ns", "end_ns")
    >>> read_operation_timeline(file).operations.select(columns).row(0)
    (2, 7, 3, 1500, 3500)
    """
    events = _decode(Path(path))
    ranks_of_threads = _threads(events)
    rows: list[tuple[Any, ...]] = []
    for event in events:
        if event.ph != "X":
            continue
        ranks = ranks_of_threads.get((event.pid, event.tid))
        if ranks is None:
            raise InputError(
                f"thread {event.tid} of process {event.pid} has no name", path=path, hint=_HINT
            )
        arguments = event.args
        rows.append(
            (
                event.pid,
                *ranks,
                arguments.step,
                event.name,
                arguments.seq_id,
                _known(arguments.model_chunk),
                _known(arguments.mb_id),
                event.ts,
                event.dur,
            )
        )
    if not any(row[4] in CELL_OPERATIONS for row in rows):
        raise InputError(
            f"is not a timeline of operations: no {' or '.join(CELL_OPERATIONS)}",
            path=path,
            hint=_HINT,
        )
    start_ns = (pl.col("ts") * 1000).round().cast(pl.Int64)
    columns = [*list(TIMELINE_OPERATIONS)[:8], "ts", "dur"]
    table = pl.DataFrame(rows, schema=columns, orient="row").with_columns(
        start_ns=start_ns, end_ns=start_ns + (pl.col("dur") * 1000).round().cast(pl.Int64)
    )
    unusable = table.filter(pl.col("step").is_null() | pl.col("number").is_null()).height
    if unusable:
        problem = f"{unusable:,} of {len(rows):,} operations have no step or number"
        raise InputError(problem, path=path, hint=_HINT)
    timed = table.filter(pl.col("dur") >= 0)
    order = ("replica", "pipeline_rank", "tensor_rank", "start_ns", "end_ns")
    return OperationTimeline(
        conform(timed, TIMELINE_OPERATIONS).sort(order), table.height - timed.height
    )


def _decode(path: Path) -> list[_TimelineEvent]:
    """Return the events of a file, plain or gzip."""
    try:
        raw = path.read_bytes()
        if raw[:2] == b"\x1f\x8b":
            raw = zlib.decompressobj(wbits=31).decompress(raw, MAX_FILE_BYTES)
        return msgspec.json.decode(raw, type=list[_TimelineEvent])
    except OSError as error:
        raise InputError(
            f"cannot be read: {error.strerror}", path=path, hint="check the path"
        ) from error
    except (msgspec.DecodeError, zlib.error, gzip.BadGzipFile, EOFError) as error:
        raise InputError(
            f"is not a timeline of operations: {error}", path=path, hint=_HINT
        ) from error


def _threads(events: list[_TimelineEvent]) -> dict[tuple[int, int], tuple[int, int]]:
    """Return pipeline rank and tensor rank of each process and thread."""
    places = {}
    for event in events:
        if event.ph == "M" and event.name == "thread_name" and event.args.name:
            match = _THREAD_NAME_PATTERN.fullmatch(event.args.name)
            if match:
                places[event.pid, event.tid] = int(match[1]), int(match[2])
    return places


def _known(number: int | None) -> int | None:
    """Return a number that counts from 0; null for -1."""
    return number if number is not None and number >= 0 else None
