"""Saving and loading of analyses: a whole analysis as JSON, and the tables of one rank as a file of a store.

A saved analysis (``read_analysis``) holds every figure and none of the events behind them.

A rank's tables (``write_tables``, ``read_tables``) are all that ``combine`` needs of a rank. Their
file is a zip with one Arrow stream per table (as small as Parquet for small tables, and read in a
fifth of the time) and ``tables.json`` for everything else. It is one file and not forty, because a
run of a thousand ranks would have forty thousand. Reading runs no code from the file: each field is
built as the type that it is declared with, and the tables are checked (``table_checks``). The
largest tables, the pieces of the critical path and the events of the replay, stay in the file until
they are loaded.
"""

from __future__ import annotations

import dataclasses
import io
import zipfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec
import polars as pl
from msgspec import UnsetType
from msgspec.structs import replace

from tracekit._version import __version__
from tracekit.align.clocks import CLOCKS, Clocks
from tracekit.analysis.combine.stragglers import Stragglers
from tracekit.analysis.measure.tables import Measures, RankTables
from tracekit.analysis.result import Analysis, Role, RoleResults, Tables
from tracekit.analysis.table_checks import (
    check_graph_events,
    check_host_work,
    check_path_pieces,
    check_rank_tables,
)
from tracekit.critical_path.pieces import LoadableTable
from tracekit.documents.analysis import (
    AnalysisDocument,
    HostActivity,
    Kernel,
    Lane,
    PathSegment,
    Phase,
    RankFigures,
)
from tracekit.documents.coding import (
    decode,
    encode,
    known,
    read_document,
    table_schema,
    to_plain,
)
from tracekit.documents.store_manifest import TABLES_FORMAT, TablesDocument
from tracekit.errors import InputError, Notice
from tracekit.intervals import Intervals
from tracekit.metrics.bandwidth import COPIES
from tracekit.metrics.host.time_by_activity import HOST_TIME
from tracekit.metrics.label_intervals import TIMELINE
from tracekit.metrics.operations import OPERATIONS
from tracekit.metrics.overlap import HIDDEN
from tracekit.parsers.file_type import inflated_limit
from tracekit.schema import Source
from tracekit.whatif.packed_events import pack_events, unpack_events

Value = TypeVar("Value")

# ---- a whole analysis, as JSON

_JSON_TABLES = {
    "kernels": table_schema(Kernel),
    "copies": pl.Schema({"rank": pl.Int32(), "step": pl.Int64(), **COPIES}),
    "lanes": table_schema(Lane),
    "critical_path": table_schema(PathSegment),
}
"""Keys of the JSON object whose values are rows of a table, with its columns."""
_STEPS = pl.Schema(
    {
        "rank": pl.Int32(),
        "step": pl.Int64(),
        "time_ns": pl.Int64(),
        "partial": pl.Boolean(),
        "start_ns": pl.Int64(),  # null: when a step ran is not saved
        "end_ns": pl.Int64(),
    }
)
_TABLES_OF_EVENTS = {
    "timeline": pl.Schema({"rank": pl.Int32(), **TIMELINE}),
    "operations": pl.Schema({"rank": pl.Int32(), **OPERATIONS, "wait_ns": pl.Int64()}),
    "hidden": pl.Schema({"rank": pl.Int32(), "step": pl.Int64(), **HIDDEN}),
    "host_time": pl.Schema({"rank": pl.Int32(), "step": pl.Int64(), **HOST_TIME}),
    "phases": pl.Schema({"rank": pl.Int32(), **table_schema(Phase)}),
    "reasons": pl.Schema(dict.fromkeys(("name", "label", "module"), pl.String())),
}
"""Tables that reports look into and that only the events can fill."""
ANALYZE_AGAIN = "write it again with analyze -o FILE.json"


def analysis_of(document: AnalysisDocument) -> Analysis:
    """Return the analysis that a document describes, as far as it holds it.

    Its figures, findings and small tables are those of the document; what needs the events (the
    timeline, the pipeline's cells, what-if) is not there.
    """
    plain = to_plain(document)
    tables = {name: _table(plain.get(name) or (), schema) for name, schema in _JSON_TABLES.items()}
    tables |= {name: schema.to_frame() for name, schema in _TABLES_OF_EVENTS.items()}
    steps = []
    for rank in document.ranks:
        steps += [
            (rank.rank, step.step, step.time_ns, step.partial, None, None) for step in rank.per_step
        ]
    tables["steps"] = pl.DataFrame(steps, schema=_STEPS, orient="row")
    for name, rows in (("lanes", document.lanes), ("critical_path", document.critical_path)):
        if isinstance(rows, UnsetType):
            del tables[name]
    source = document.source
    clocks = Clocks(
        _table(plain["clocks"]["ranks"], CLOCKS),
        residual_ns=document.clocks.residual_ns,
        worst_ns=document.clocks.worst_ns,
    )
    tables["clocks"] = clocks.table
    stragglers = Stragglers(rows=tuple(document.stragglers))
    for name, make_table in stragglers.tables().items():
        tables[name] = make_table()
    return Analysis(
        sources=tuple(
            Source(
                source.paths[0] if source.paths else "",
                source.reader,
                rank.rank,
                "content",
                world_size=source.world_size,
                devices=tuple(source.devices),
            )
            for rank in document.ranks
        ),
        rank_results=tuple(_with_other_activities(rank) for rank in document.ranks),
        tables=Tables.of(tables),
        clocks=clocks,
        stragglers=stragglers,
        hiding=document.hiding,
        changed_steps=tuple(known(document.what_if, ())),
        notices=(*document.warnings, _saved_notice(document)),
        paths=tuple(source.paths),
        shapes=tuple(source.shapes),
        tokens_per_step=source.tokens_per_step,
        step_kinds=tuple(known(document.step.kinds, [])),
        workload=document.workload,
        role_results=_role_results(document),
        document=document,
    )


def _saved_notice(document: AnalysisDocument) -> Notice:
    """Return what a saved analysis does not show, because only the events could."""
    shown_from_events = {
        "timeline": True,
        "schedule": document.schedule is not None,
        "rates": document.rates is not None,
        "memory": document.memory is not None,
        "by": not isinstance(document.by, UnsetType),
        "late": not isinstance(document.late, UnsetType),
        "reload": document.reload is not None,
    }
    parts = tuple(name for name, is_left_out in shown_from_events.items() if is_left_out)
    return Notice("saved-analysis", values={"kernels": len(document.kernels), "parts": parts})


def _table(rows: Sequence[Mapping[str, Any]], schema: pl.Schema) -> pl.DataFrame:
    """Return rows of a document as a table; columns that they do not have are null."""
    return pl.DataFrame(rows, schema=schema, strict=False)


def _role_results(document: AnalysisDocument) -> RoleResults:
    roles = []
    for role in known(document.roles, []):
        analysis = analysis_of(role.analysis)
        roles.append(Role(role.name, role.kind, role.ranks, analysis, analysis.clocks))
    return RoleResults(
        main_role=known(document.main_role, "") or None,
        roles=tuple(roles),
        iterations=tuple(known(document.iterations, [])),
        weight_updates=tuple(known(document.weight_updates, [])),
        bands=tuple(known(document.phases, [])),
    )


def read_saved(path: str | PathLike[str]) -> Analysis:
    """Return the analysis in a JSON file that ``save`` or ``analyze -o`` wrote, or in that file gzipped."""
    document = read_document(path, AnalysisDocument, hint=ANALYZE_AGAIN)
    contradiction = find_contradiction(document)
    if contradiction is not None:
        raise InputError(f"{path}: {contradiction}", hint=ANALYZE_AGAIN)
    try:
        return analysis_of(document)
    # A path may hold lone surrogates, a name in a table may not; a figure may be too large for one.
    except (UnicodeEncodeError, OverflowError, pl.exceptions.PolarsError) as error:
        raise InputError(
            f"{path}: a name or figure in its tables cannot be used", hint=ANALYZE_AGAIN
        ) from error


def find_contradiction(document: AnalysisDocument) -> str | None:
    """Return what contradicts itself in a document: its ranks, or the parts of a time; None if nothing does.

    tracekit writes no such document, and no answer may rest on one.
    """
    ranks = [rank.rank for rank in document.ranks]
    if not ranks:
        return "holds no ranks"
    if len(set(ranks)) < len(ranks) or set(ranks) != set(document.source.ranks):
        return "its ranks are not those of its source"
    budgets = {"$.step": document.step.budget_ns, "$.total": document.total.budget}
    for i, rank in enumerate(document.ranks):
        budgets[f"$.ranks[{i}]"] = rank.budget
        for k, step in enumerate(rank.per_step):
            budgets[f"$.ranks[{i}].per_step[{k}]"] = step.budget
            budgets[f"$.ranks[{i}].per_step[{k}].time_budget_ns"] = step.time_budget
    for place, budget in budgets.items():
        if not budget.conserved:
            return f"{place}: the parts of the time do not sum to it"
    for role in known(document.roles, []):
        contradiction = find_contradiction(role.analysis)
        if contradiction is not None:
            return f"role {role.name}: {contradiction}"
    return None


def _with_other_activities(rank: RankFigures) -> RankFigures:
    """Return a rank with host activity beyond the longest rows, which has no detail."""
    rest_ns = Counter(rank.idle_host_ns or {})
    for activity in rank.idle_host:
        rest_ns[activity.instead] -= activity.ns
    rest = tuple(HostActivity(kind, None, None, ns, 0) for kind, ns in rest_ns.items() if ns)
    return replace(rank, idle_host=(*rank.idle_host, *rest))


# ---- a rank's tables

FILE = "tables.zip"
_JSON_MEMBER = "tables.json"
_TABLE_SUFFIX = ".arrows"
_UNREADABLE = (
    OSError,
    ValueError,
    KeyError,
    TypeError,
    zipfile.BadZipFile,
    pl.exceptions.PolarsError,
)
"""Errors that reading a damaged file of tables may raise."""


def _as_it_is(table: pl.DataFrame) -> pl.DataFrame:
    return table


class _LargeTable(NamedTuple):
    """How a table that is loaded when it is needed is stored, and what it must be."""

    check: Callable[..., None]
    """Raises ``ValueError`` if it is not one that tracekit wrote."""
    pack: Callable[[pl.DataFrame], pl.DataFrame] = _as_it_is
    unpack: Callable[[pl.DataFrame], pl.DataFrame] = _as_it_is


_LARGE_TABLES: Mapping[str, _LargeTable] = {
    "path": _LargeTable(check_path_pieces),
    "graph_events": _LargeTable(check_graph_events, pack_events, unpack_events),
    "graph_host_work": _LargeTable(check_host_work),
}
"""The tables that are loaded when they are needed, by their field of ``RankTables``."""


@dataclass(frozen=True, eq=False)
class TableInFile(LoadableTable):
    """A table that stays in the zip file of a rank.

    Pickled, it takes its position along, not its content.
    """

    file: Path
    name: str
    """Its field of ``RankTables``, and the number of the table in the file."""
    written_ns: int
    """Time at which the file was last written when the other tables of the rank were read."""
    parts: int
    """Number of steps, which its rows point to."""

    def load(self) -> pl.DataFrame:
        """Read the table; raise InputError if the file is unreadable or was written again since."""
        try:
            if self.file.stat().st_mtime_ns != self.written_ns:
                raise OSError("it was written again since")
            large_table = _LARGE_TABLES[self.name.partition(".")[0]]
            with zipfile.ZipFile(self.file) as archive:
                table = large_table.unpack(_read_frame(archive, self.name))
            large_table.check(table, parts=self.parts)
            return table
        except _UNREADABLE as error:
            raise InputError(
                f"{self.file}: cannot be read: {error}", hint="analyze the store again"
            ) from error


@dataclass(frozen=True, eq=False)
class CompressedTable(LoadableTable):
    """A table in memory as it would be in a file of a store: for runs of many ranks."""

    name: str
    """Its field of ``RankTables``."""
    data: bytes

    @classmethod
    def of(cls, name: str, table: LoadableTable) -> CompressedTable:
        """Compress the table of a field of ``RankTables``."""
        return cls(name, _ipc_stream(_LARGE_TABLES[name].pack(table.load())))

    def load(self) -> pl.DataFrame:
        """Return the table."""
        return _LARGE_TABLES[self.name].unpack(pl.read_ipc_stream(self.data))


def _ipc_stream(table: pl.DataFrame) -> bytes:
    """Return a table as a compressed Arrow stream."""
    buffer = io.BytesIO()
    table.write_ipc_stream(buffer, compression="zstd")
    return buffer.getvalue()


def write_tables(tables: RankTables, folder: Path) -> Path:
    """Write a rank's tables into its folder of a store; return the file.

    >>> import tempfile
    >>> from tracekit.run.measure import Options
    >>> from tracekit.store.sources import find
    >>> measured = Options().source_tables(find("sample_traces/reload", ranks=[0]).refs[0])[0]
    >>> folder = Path(tempfile.mkdtemp())
    >>> _ = write_tables(measured, folder)
    >>> read_tables(folder).operations.equals(measured.operations)
    True
    """
    frames: dict[str, pl.DataFrame] = {}
    # Then one object stands for both, which is written once.
    has_one_step = tables.by_step is tables.window
    fields = _encode(tables, "", frames, without="by_step" if has_one_step else None)
    document = TablesDocument(TABLES_FORMAT, __version__, fields)
    # ZipInfo without a time: equal tables are equal bytes, and a clock before 1980 does no harm.
    with zipfile.ZipFile(folder / FILE, "w") as archive:
        archive.writestr(zipfile.ZipInfo(_JSON_MEMBER), encode(document, indent=None))
        for name, frame in frames.items():
            archive.writestr(zipfile.ZipInfo(f"{name}{_TABLE_SUFFIX}"), _ipc_stream(frame))
    return folder / FILE


def _encode(
    value: Any, name: str, frames: dict[str, pl.DataFrame], *, without: str | None = None
) -> Any:
    """Return a value as plain data.

    Its tables are put into *frames*, and their names stand in their place.

    Args:
        value: A field of ``RankTables``, or the whole.
        name: Names of the fields that lead to it, joined by dots.
        frames: Tables by name, filled here.
        without: Field to leave out.
    """
    if isinstance(value, LoadableTable):
        value = _LARGE_TABLES[name].pack(value.load())
    if isinstance(value, Intervals):
        value = value.to_frame()
    if dataclasses.is_dataclass(value):
        names = [field.name for field in dataclasses.fields(value) if field.name != without]
        encoded = {}
        for field in names:
            encoded[field] = _encode(getattr(value, field), f"{name}.{field}".lstrip("."), frames)
        return encoded

    def put_table(table: pl.DataFrame) -> str:
        table_name = f"{name}.{len(frames)}"
        frames[table_name] = table
        return table_name

    return msgspec.to_builtins(value, str_keys=True, enc_hook=put_table)


def read_tables(folder: Path) -> RankTables | None:
    """Return a rank's tables.

    None if there are none, they are damaged, or another version measured them.

    In these cases the rank must be measured again, from the labelled events in the same folder. All
    tables are read but the largest, which stay in the file until they are loaded.
    """
    file = (folder / FILE).absolute()
    try:
        with zipfile.ZipFile(file) as archive:
            document = decode(
                _read_member(archive, _JSON_MEMBER),
                TablesDocument,
                file,
                hint="analyze the store again",
            )
            if document.tracekit != __version__:
                return None
            return _decode(document.tables, archive, file)
    except (*_UNREADABLE, InputError):
        return None


def _decode(fields: Mapping[str, Any], archive: zipfile.ZipFile, file: Path) -> RankTables:
    """Return the tables that ``write_tables`` turned into *fields* and the Arrow streams of *archive*."""
    written_ns = file.stat().st_mtime_ns
    parts = _read_frame(archive, fields["steps"]).height

    def get_table(table_type: type[Any], name: str) -> Any:
        if table_type is LoadableTable:
            return TableInFile(file, name, written_ns, parts)
        return _read_frame(archive, name)

    measures: dict[str, Measures] = {}
    for name in ("window", "by_step"):
        if name in fields:
            covered = _read_frame(archive, fields[name]["covered"])
            intervals = Intervals(
                group=covered["group"].to_numpy(),
                start_ns=covered["start_ns"].to_numpy(),
                end_ns=covered["end_ns"].to_numpy(),
            )
            with_intervals = {**fields[name], "covered": intervals}
            measures[name] = msgspec.convert(
                with_intervals, Measures, str_keys=True, dec_hook=get_table
            )
    measures.setdefault("by_step", measures["window"])
    tables: RankTables = msgspec.convert(
        {**fields, **measures}, RankTables, str_keys=True, dec_hook=get_table
    )
    check_rank_tables(tables, fields)
    return tables


def _read_frame(archive: zipfile.ZipFile, name: str) -> pl.DataFrame:
    """Read one Arrow stream of the zip, unless it unpacks to more than a table of ours would."""
    from tracekit._util.arrow_sizes import unpacked_bytes  # it imports pyarrow

    packed = _read_member(archive, f"{name}{_TABLE_SUFFIX}")
    size = unpacked_bytes(packed)
    if size > inflated_limit(len(packed)):
        raise ValueError(f"{name} unpacks to {size:,} bytes")
    return pl.read_ipc_stream(packed)


def _read_member(archive: zipfile.ZipFile, name: str) -> bytes:
    """Read a member, which ``write_tables`` never compresses: a kilobyte of zip holds no gigabyte."""
    if archive.getinfo(name).compress_type != zipfile.ZIP_STORED:
        raise ValueError(f"{name} is compressed")
    return archive.read(name)
