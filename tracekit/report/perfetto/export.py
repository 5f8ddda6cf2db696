"""``export``: from traces to a file for ui.perfetto.dev, by way of a store that lives as long as it is needed."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from msgspec.structs import replace

from tracekit.errors import Notice
from tracekit.parsers.source_refs import unknown_rank_error
from tracekit.report.perfetto.write import EXTENSIONS, Exported, write_perfetto
from tracekit.report.write import check_extension
from tracekit.run.analyze import analyze
from tracekit.run.driver import OnDamage, accept_old_options
from tracekit.run.ingest import ingest
from tracekit.store.files import Store, is_store, open_store
from tracekit.store.sources import OneRole, Paths

__all__ = ["Exported", "export"]


@accept_old_options
def export(
    paths: Paths | OneRole,
    output: str | os.PathLike[str],
    *,
    ranks: Collection[int] | None = None,
    file_rank: int | None = None,
    rules: str | Path | None = None,
    schedule: str = "auto",
    workers: int | None = None,
    stacks: bool = False,
    on_damage: OnDamage = "warn",
) -> Exported:
    """Write traces with tracks of labels, cells, ideal cells and the critical path to *output*: .json or .json.gz.

    Options are those of ``analyze``, but *ranks* are those whose events are written.

    >>> import tempfile
    >>> done = export("sample_traces/reload", tempfile.mkdtemp() + "/reload.json.gz")
    >>> done.ranks
    (0, 1, 2, 3)
    """
    check_extension(output, EXTENSIONS)
    ingest_store = partial(
        ingest, on_damage=on_damage, file_rank=file_rank, rules=rules, workers=workers, stacks=stacks
    )
    with _stored(paths, ingest_store, rules=rules) as (store, notices):
        if missing := set(ranks or ()) - set(store.ranks):
            raise unknown_rank_error(missing, store.ranks)
        # All ranks that were given are analysed: those that are not written still tell who waited for whom.
        analysis = analyze(store.path, schedule=schedule, workers=workers, critical_path=True)
        done = write_perfetto(store, analysis, output, ranks=ranks)
        return replace(done, notices=tuple(dict.fromkeys((*notices, *done.notices))))


@contextmanager
def _stored(
    paths: Paths | OneRole, ingest_store: Callable[..., tuple[Store, tuple[Notice, ...]]], *, rules: str | Path | None
) -> Iterator[tuple[Store, tuple[Notice, ...]]]:
    """Open the store the paths name, or make one that is gone afterwards."""
    if not isinstance(paths, Mapping | OneRole):
        paths = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
        if len(paths) == 1 and rules is None and is_store(Path(paths[0])):
            store = open_store(Path(paths[0]))
            if all(entry.labelled_rows is not None for entry in store.entries):
                yield store, ()
                return
    with tempfile.TemporaryDirectory(prefix="tracekit-") as folder:
        yield ingest_store(paths, Path(folder) / "store")
