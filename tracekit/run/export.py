"""The ``export`` call: traces analysed and written for ui.perfetto.dev."""

import os
import tempfile
from pathlib import Path

from msgspec.structs import replace

from tracekit.errors import Notice
from tracekit.parsers.rank_numbers import RankChoice, chosen_ranks, unknown_rank_error
from tracekit.parsers.source_refs import SourceRef
from tracekit.report.perfetto.archive import no_rank_file_error
from tracekit.report.perfetto.export import (
    ARCHIVE_EXTENSION,
    EXPORT_EXTENSIONS,
    Exported,
    write_archive,
    write_perfetto,
)
from tracekit.report.write import check_extension
from tracekit.run.analyze import analyze
from tracekit.run.driver import OnDamage, check_on_damage, find_sources
from tracekit.run.ingest import ingest, with_absolute_path
from tracekit.store.files import Store, content_key, is_store, open_store
from tracekit.store.sources import OneRole, Paths


def export(
    paths: Paths | OneRole,
    output: str | os.PathLike[str],
    *,
    ranks: RankChoice | None = None,
    file_rank: int | None = None,
    rules: str | Path | None = None,
    schedule: str = "auto",
    workers: int | None = None,
    stacks: bool = False,
    on_damage: OnDamage = "warn",
) -> Exported:
    """Write traces with tracks of labels, cells, ideal cells and the critical path to *output*.

    A .json or .json.gz holds everything in one trace. A .tar holds the ranks' own files, a manifest
    that relates their clocks, and one small trace with the tracks: Perfetto 58 and newer open it as
    one trace.

    Options are those of ``analyze``, but *ranks* are those whose events are written.

    >>> import tempfile
    >>> done = export("sample_traces/reload", tempfile.mkdtemp() + "/reload.json.gz")
    >>> done.ranks
    (0, 1, 2, 3)
    """
    check_extension(output, EXPORT_EXTENSIONS)
    check_on_damage(on_damage)
    ranks = chosen_ranks(ranks)
    is_archive = Path(output).suffix.lower() == ARCHIVE_EXTENSION
    traces = _named_traces(paths, file_rank) if is_archive else {}
    with tempfile.TemporaryDirectory(prefix="tracekit-") as folder:
        store = _named_store(paths) if rules is None else None
        notices: tuple[Notice, ...] = ()
        if store is None:
            new_store = Path(folder) / "store"
            store = ingest(
                paths,
                new_store,
                file_rank=file_rank,
                rules=rules,
                workers=workers,
                stacks=stacks,
                on_damage=on_damage,
            )
            notices = store.notices
        if missing := set(ranks or ()) - set(store.ranks):
            raise unknown_rank_error(missing, store.ranks)
        # All ranks that were given are analysed: those that are not written still tell who waited
        # for whom.
        analysis = analyze(store.path, schedule=schedule, workers=workers)
        if is_archive:
            done = write_archive(store, analysis, output, traces=traces, ranks=ranks)
        else:
            done = write_perfetto(store, analysis, output, ranks=ranks)
        return replace(done, notices=tuple(dict.fromkeys((*notices, *done.notices))))


def _named_store(paths: Paths | OneRole) -> Store | None:
    """Return the store that the paths name; None for other paths."""
    path = paths[0] if isinstance(paths, list | tuple) and len(paths) == 1 else paths
    return (
        open_store(Path(path))
        if isinstance(path, str | os.PathLike) and is_store(Path(path))
        else None
    )


def _named_traces(
    paths: Paths | OneRole, file_rank: int | None
) -> dict[str, tuple[SourceRef, str]]:
    """Return the traces that the paths name, and their ``content_key``, by the path that a store of them has."""
    traces = {}
    refs = find_sources(paths, rank=file_rank).refs
    for ref in refs:
        if ref.reader == "store":
            raise no_rank_file_error(ref.path)
        named = with_absolute_path(ref)
        traces[named.path] = (named, content_key(named))
    return traces
