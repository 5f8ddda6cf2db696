"""An analysis read back from the JSON it was saved as: every figure, and none of the events behind them."""

from __future__ import annotations

import copy
import gzip
import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import msgspec
import polars as pl

from tracekit.analysis.figures import Figures
from tracekit.analysis.measured import RankResult
from tracekit.analysis.result import FORMAT
from tracekit.compare import WhatIf
from tracekit.errors import InputError, Notice

_TABLES = ("stragglers", "kernels", "copies", "lanes", "critical_path")
"""Keys of the JSON that are lists of rows."""


class SavedSchedule(msgspec.Struct, frozen=True, eq=False):
    """The run compared with its ideal, as the JSON holds it; pictures of it need the traces.

    >>> gap, orders = {"imbalance": 2, "unexplained": 1}, (("0F0", "0B0"),)
    >>> found = SavedSchedule("1f1b", 1, 1, 1, True, orders, measured_ns=33, ideal_ns=30, gap_ns=gap, what_if=())
    >>> found.measured_ns - found.ideal_ns == sum(found.gap_ns.values())
    True
    """

    name: str
    pp: int
    microbatches: int
    virtual: int
    exact: bool
    orders: tuple[tuple[str, ...], ...]
    """What each rank of the pipeline ran, in the notation."""
    measured_ns: int
    ideal_ns: int
    gap_ns: Mapping[str, int] | None
    """Parts of measured − ideal; None where the causes are not known."""
    what_if: tuple[WhatIf, ...]

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> SavedSchedule:
        """Return the ``schedule`` object of an analysis."""
        return cls(
            **{key: data[key] for key in ("name", "pp", "microbatches", "virtual", "exact", "gap_ns")},
            orders=tuple(tuple(order) for order in data["ranks"]),
            measured_ns=data["measured"]["makespan_ns"],
            ideal_ns=data["ideal"]["makespan_ns"],
            what_if=tuple(_what_if(line) for line in data["what_if"]),
        )


@dataclass(frozen=True, eq=False, repr=False)
class SavedAnalysis(Figures):
    """What ``read_analysis`` returns: the figures of every rank, and the small tables that went into the JSON.

    It can be compared (``tracekit.diff``, ``tracekit.gate``) like the analysis it was. Pages and pictures show events
    that JSON does not hold: they are made from the traces, or from a store.

    >>> import tempfile
    >>> from tracekit import analyze, read_analysis
    >>> file = tempfile.mkdtemp() + "/run.json"
    >>> analyze("sample_traces/reload", schedule="none").save(file)
    >>> read_analysis(file).total.overlap["broadcast"]
    0.0
    """

    document: Mapping[str, Any]
    ranks: tuple[RankResult, ...]
    tables: Mapping[str, pl.DataFrame]
    schedule: SavedSchedule | None
    notices: tuple[Notice, ...]
    paths: tuple[str, ...]

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> SavedAnalysis:
        """Return the analysis that ``to_dict`` gave *data* of; a key that is missing raises KeyError."""
        tables = {name: data[name] for name in _TABLES if name in data} | {"clocks": data["clocks"]["ranks"]}
        return cls(
            document=data,
            ranks=tuple(RankResult.from_dict(rank) for rank in data["ranks"]),
            tables={name: pl.DataFrame(rows, infer_schema_length=None) for name, rows in tables.items()},
            schedule=None if data["schedule"] is None else SavedSchedule.from_dict(data["schedule"]),
            notices=tuple(Notice(note["code"], note["message"]) for note in data["warnings"]),
            paths=tuple(data["source"]["paths"]),
        )

    @property
    def world_size(self) -> int | None:
        """Number of ranks in the run, as far as the files showed."""
        size: int | None = self.document["source"]["world_size"]
        return size

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON object as it was read: also the keys that only a later version knows."""
        return copy.deepcopy(dict(self.document))


def read_analysis(path: str | PathLike[str]) -> SavedAnalysis:
    """Return the analysis that ``save`` or ``analyze -o`` wrote as ``.json`` (also gzipped).

    >>> import tempfile
    >>> from tracekit import analyze
    >>> file = tempfile.mkdtemp() + "/run.json"
    >>> run = analyze("sample_traces/1f1b")
    >>> run.save(file)
    >>> saved = read_analysis(file)
    >>> saved.schedule.name, saved.to_dict() == run.to_dict()
    ('1f1b', True)
    """
    document = read_document(path)
    form, by = document.get("format"), document.get("tracekit")
    if form != FORMAT:
        said = f"its format is {form!r}, not {FORMAT}" if form else "holds no analysis"
        raise InputError(f"{path}: {said}", hint="write it with analyze -o FILE.json")
    try:
        return SavedAnalysis.from_dict(document)
    except (KeyError, TypeError, ValueError, AttributeError, pl.exceptions.PolarsError) as error:
        lacks = f"lacks {error}" if isinstance(error, KeyError) else "is not as tracekit writes it"
        raise InputError(f"{path}: this analysis (tracekit {by}) {lacks}", hint="analyze the traces again") from error


def read_document(path: str | PathLike[str]) -> dict[str, Any]:
    """Return the object that a JSON file holds, gzipped or not."""
    try:
        raw = Path(path).read_bytes()
        data = json.loads(gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw)
    except FileNotFoundError as error:
        raise InputError(f"{path}: there is no such file", hint="write it with analyze -o FILE.json") from error
    except (OSError, ValueError, EOFError, RecursionError, zlib.error) as error:
        raise InputError(f"{path}: is not complete JSON: {error}", hint="write it again") from error
    if not isinstance(data, dict):
        raise InputError(f"{path}: holds no analysis", hint="write it with analyze -o FILE.json")
    return data


def _what_if(line: Mapping[str, Any]) -> WhatIf:
    """Return one line of what-if; keys that this version does not know are left to ``to_dict``."""
    known: dict[str, Any] = {name: line[name] for name in WhatIf.__struct_fields__ if name in line}
    known |= {key: tuple(value) for key, value in known.items() if isinstance(value, list)}
    return WhatIf(**known)
