"""The answer to a recording, computed in a process of its own at the lowest priority.

In the training's own process it would compete with the loop that launches kernels. The process
prints the answer as JSON; ``python -m tracekit.record FILE…`` is what ``analyse_apart``
starts.

For ranks without a shared folder, each rank measures its own trace and rank 0 gathers the tables.
"""

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from tracekit.analysis import Analysis
from tracekit.analysis.measure.tables import RankTables
from tracekit.errors import TracekitError
from tracekit.record.process_info import import_torch
from tracekit.run.measure import SourceWorker
from tracekit.store.sources import find


class Answer(msgspec.Struct, frozen=True):
    """Lines for the log of the training and figures by name.

    An error instead if there is no answer.
    """

    lines: Sequence[str] = ()
    figures: Mapping[str, float] = {}
    error: str | None = None


def answer_of(analysis: Analysis) -> Answer:
    """Return the answer that an analysis gives."""
    from tracekit.diffs.scalars import scalars
    from tracekit.report.first_screen import first_sentences

    return Answer(first_sentences(analysis), scalars(analysis))


def answer_to(tables: Sequence[RankTables], folder: Path) -> Answer:
    """Return the answer to the gathered *tables* of all ranks, whose traces are in *folder*."""
    from tracekit.analysis.combine.combine_ranks import combine
    from tracekit.results import AnalysisResult

    return answer_of(
        combine(tables, paths=[str(folder)], schedule="auto", result_type=AnalysisResult)
    )


def analyse_apart(files: Sequence[Path]) -> Answer:
    """Return the answer to the traces *files*, from another process.

    The calling thread only waits.
    """
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        "POLARS_MAX_THREADS": "1",
    }
    command = [sys.executable, "-P", "-m", "tracekit.record", *map(str, files)]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, env=environment)
    answer = msgspec.json.decode(done.stdout, type=Answer)
    if answer.error is not None:
        raise TracekitError(answer.error)
    return answer


def gather_tables(trace: Path | None) -> list[RankTables]:
    """Measure this rank's *trace*.

    Return the tables of all ranks that have one on rank 0, an empty list elsewhere.
    """
    distributed = import_torch().distributed
    own = None if trace is None else SourceWorker().measure(find(str(trace)).refs[0])[0]
    if not (distributed.is_available() and distributed.is_initialized()):
        return [] if own is None else [own]
    tables: list[RankTables | None] | None = None
    if distributed.get_rank() == 0:
        tables = [None] * distributed.get_world_size()
    distributed.gather_object(own, tables, dst=0)
    return [gathered for gathered in tables or () if gathered is not None]
