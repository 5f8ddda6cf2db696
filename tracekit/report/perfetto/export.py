"""The function ``export``: traces written to a file for ui.perfetto.dev, through a temporary store."""

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
    >>> exported = export("sample_traces/reload", tempfile.mkdtemp() + "/reload.json.gz")
    >>> exported.ranks
    (0, 1, 2, 3)
    """
    check_output(output)
    read_options = {"rank": rank, "workers": workers, "stacks": stacks, "lenient": lenient}
    with _labelled_store(paths, ranks=ranks, rules=rules, read_options=read_options) as (store, notices):
        analysis = analyze(store.path, ranks=ranks, schedule=schedule, workers=workers, critical_path=True)
        exported = write_perfetto(store, analysis, output, ranks=ranks)
        return replace(exported, notices=tuple(dict.fromkeys((*notices, *exported.notices))))


@contextmanager
def _labelled_store(
    paths: Paths, *, ranks: Collection[int] | None, rules: str | Path | None, read_options: dict[str, Any]
) -> Iterator[tuple[Store, tuple[Notice, ...]]]:
    """Open the labelled store at *paths*, or ingest *paths* into a temporary one."""
    listed = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
    if len(listed) == 1 and rules is None and is_store(Path(listed[0])):
        store = open_store(Path(listed[0]))
        if all(store.scan_labelled(number) is not None for number in store.ranks):
            yield store, ()
            return
    with tempfile.TemporaryDirectory(prefix="tracekit-") as folder:
        yield ingest(listed, Path(folder) / "store", ranks=ranks, rules=rules, **read_options)
