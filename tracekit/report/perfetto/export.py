"""``export``: from traces to a file for ui.perfetto.dev, by way of a store that lives as long as it is needed."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from tracekit.errors import Notice
from tracekit.report.perfetto.write import Exported, check_output, write_perfetto
from tracekit.run.analyze import analyze
from tracekit.run.ingest import ingest
from tracekit.store.files import Store, is_store, open_store
from tracekit.store.sources import Paths

__all__ = ["Exported", "export"]


def export(
    paths: Paths,
    output: str | os.PathLike[str],
    *,
    ranks: Collection[int] | None = None,
    rank: int | None = None,
    rules: str | Path | None = None,
    schedule: str = "auto",
    workers: int | None = None,
    stacks: bool = False,
    lenient: bool = True,
) -> Exported:
    """Write traces with tracks of labels, cells, ideal cells and the critical path to *output*: .json or .json.gz.

    >>> import tempfile
    >>> done = export("sample_traces/reload", tempfile.mkdtemp() + "/reload.json.gz")
    >>> done.ranks
    (0, 1, 2, 3)
    """
    check_output(output)
    reading = {"rank": rank, "workers": workers, "stacks": stacks, "lenient": lenient}
    with _stored(paths, ranks=ranks, rules=rules, reading=reading) as (store, notices):
        found = analyze(store.path, ranks=ranks, schedule=schedule, workers=workers, critical_path=True)
        done = write_perfetto(store, found, output, ranks=ranks)
        return replace(done, notices=tuple(dict.fromkeys((*notices, *done.notices))))


@contextmanager
def _stored(
    paths: Paths, *, ranks: Collection[int] | None, rules: str | Path | None, reading: dict[str, Any]
) -> Iterator[tuple[Store, tuple[Notice, ...]]]:
    """Open the store the paths name, or make one that is gone afterwards."""
    listed = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
    if len(listed) == 1 and rules is None and is_store(Path(listed[0])):
        store = open_store(Path(listed[0]))
        if all(store.scan_labelled(number) is not None for number in store.ranks):
            yield store, ()
            return
    with tempfile.TemporaryDirectory(prefix="tracekit-") as folder:
        yield ingest(listed, Path(folder) / "store", ranks=ranks, rules=rules, **reading)
