"""JSON Schemas of everything that ``--json`` prints.

A key keeps its name and meaning as long as the number of its format stays the same; new keys may be added at any time.
Null means unknown or absent; no number stands for it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tracekit.metrics.memory import MEMORY_PHASES
from tracekit.schema import COMMUNICATION_LABELS, COPY_LABELS, EXPOSURE_CAUSES, GAP_CAUSES, LABELS

Schema = dict[str, Any]

DRAFT = "https://json-schema.org/draft/2020-12/schema"
EXPOSABLE = (*COMMUNICATION_LABELS, *COPY_LABELS)
INT: Schema = {"type": "integer"}
NUMBER: Schema = {"type": "number"}
TEXT: Schema = {"type": "string"}
BOOL: Schema = {"type": "boolean"}


def _or_null(schema: Schema) -> Schema:
    return {"anyOf": [schema, {"type": "null"}]}


def _list(items: Schema) -> Schema:
    return {"type": "array", "items": items}


def _object(required: dict[str, Schema], **optional: Schema) -> Schema:
    return {"type": "object", "properties": {**required, **optional}, "required": list(required)}


def _by_name(names: Sequence[str], values: Schema) -> Schema:
    """Return the schema of an object whose keys are among *names*."""
    return {"type": "object", "propertyNames": {"enum": list(names)}, "additionalProperties": values}


def _measured() -> dict[str, Schema]:
    """Return the keys of a rank, a step, or all ranks together."""
    return {
        "span_ns": INT,
        "budget_ns": _object(
            {"compute": INT, "exposed": _by_name(EXPOSABLE, INT), "idle": _or_null(INT)}, not_recorded=INT
        ),
        "label_ns": _by_name(LABELS, INT),
        "label_count": _by_name(LABELS, INT),
        "overlap": _by_name(
            ("communication", "copy", *LABELS), _or_null({"type": "number", "minimum": 0, "maximum": 1})
        ),
        "hidden_ns": _by_name(EXPOSABLE, {"type": "object", "additionalProperties": INT}),
        "wait_ns": _by_name(COMMUNICATION_LABELS, _or_null(INT)),
        "blocking_ns": _by_name(EXPOSABLE, _or_null(INT)),
        "exposed_because_ns": _by_name(EXPOSABLE, _by_name(EXPOSURE_CAUSES, INT)),
        "bubble": _object(
            {"idle_ns": _or_null(INT), "wait_ns": _or_null(INT), "fraction": _or_null(NUMBER), "lower_bound": BOOL}
        ),
    }


def _schedule() -> Schema:
    side = _object({"makespan_ns": INT, "outside_cells": NUMBER})
    change = _object(
        {
            "change": {"enum": ["schedule", "layout", "microbatches", "chunks"]},
            "name": TEXT,
            "virtual": _or_null(INT),
            "ideal_ns": _or_null(INT),
            "predicted_ns": _or_null(INT),
            "predicted_range_ns": _or_null(_list(INT)),
            "saves_ns": _or_null(INT),
            "slower": BOOL,
            "ran": BOOL,
            "outside_cells": _or_null(NUMBER),
            "peak_activations": _or_null(NUMBER),
            "least_activations": _or_null(NUMBER),
            "peak_bytes": _or_null(_list(_or_null(INT))),
            "fits": _or_null(BOOL),
            "microbatches": _or_null(INT),
            "layout": _or_null(TEXT),
            "rests_on": _list(TEXT),
            "unknown": _list(TEXT),
        }
    )
    return _object(
        {
            "name": TEXT,
            "pp": INT,
            "microbatches": INT,
            "virtual": INT,
            "ranks": _list(_list(TEXT)),
            "measured": side,
            "ideal": side,
            "gap_ns": _or_null(_by_name(tuple(GAP_CAUSES), INT)),
            "exact": BOOL,
            "step": _or_null(INT),
            "pipeline_ranks": _list(INT),
            "what_if": _list(change),
        }
    )


def _memory() -> Schema:
    peak = _object({"at_least": INT, "at_most": INT})
    rank = _object(
        {
            "rank": INT,
            "device": INT,
            "capacity_bytes": _or_null(INT),
            "peak_bytes": INT,
            "reserved_bytes": _or_null(INT),
            "first_bytes": INT,
            "by_phase": _by_name(tuple(dict.fromkeys(MEMORY_PHASES.values())), peak),
            "base_bytes": _or_null(INT),
            "chunk_bytes": _or_null(_list(INT)),
            "chunks": _or_null(INT),
            "ideal_chunks": _or_null(INT),
            "line": _object({"at_ns": _list(INT), "allocated": _list(INT), "reserved": _list(_or_null(INT))}),
        }
    )
    return _object({"peak_bytes": INT, "ranks": _list(rank)})


def _warnings() -> Schema:
    return _list(_object({"code": TEXT, "message": TEXT}))


def _by() -> Schema:
    """Return the schema of ``--by``; the rows add up to ``total_ns`` and are null if no event has a place."""
    row = _object(
        {
            "name": TEXT,
            "stage": _or_null(INT),
            "ranks": _list(INT),
            "layer": _or_null(INT),
            "path": _or_null(TEXT),
            "evidence": _or_null(TEXT),
            "count": INT,
            "ns": INT,
            "share": _or_null(NUMBER),
            "compute_ns": INT,
            "communication_ns": INT,
            "copy_ns": INT,
            "calls": _or_null(INT),
            "flop": _or_null(INT),
            "tflop_s": _or_null(NUMBER),
            "share_of_peak": _or_null(NUMBER),
            "below_peak_ns": _or_null(INT),
        },
        inclusive_ns=_or_null(INT),
    )
    return _object(
        {
            "by": {"enum": ["layer", "module", "annotation", "shape"]},
            "total_ns": INT,
            "steps": INT,
            "rows": _or_null(_list(row)),
            "notes": _list(TEXT),
        }
    )


def analysis() -> Schema:
    """Return the schema of ``tracekit analyze --json``."""
    rank = _object({"rank": INT, "steps": _list(INT), **_measured(), "per_step": _list(_object(_measured()))})
    source = _object({"paths": _list(TEXT), "reader": TEXT, "ranks": _list(INT), "world_size": _or_null(INT)})
    return _object(
        {
            "tracekit": TEXT,
            "format": {"const": "tracekit.analysis/1"},
            "source": source,
            "ranks": _list(rank),
            "total": _object(_measured()),
            "schedule": _or_null(_schedule()),
            "stragglers": _list(_object({"rank": INT, "label": TEXT, "caused_ns": INT, "operations": INT})),
            "clocks": {"type": "object"},
            "kernels": _list(_object({"name": TEXT, "label": TEXT, "count": NUMBER, "ns": INT})),
            "copies": _list({"type": "object"}),
            "reload": _or_null({"type": "object"}),
            "rates": _or_null({"type": "object"}),
            "memory": _or_null(_memory()),
            "warnings": _warnings(),
        },
        critical_path=_list(
            _object({"rank": INT, "kind": TEXT, "what": TEXT, "label": _or_null(TEXT), "start_ns": INT, "end_ns": INT})
        ),
        what_if=_list(
            _object(
                {
                    "change": TEXT,
                    "changes": _list(TEXT),
                    "measured_ns": INT,
                    "predicted_ns": _or_null(INT),
                    "predicted_range_ns": _or_null(_list(INT)),
                    "saves_ns": _or_null(INT),
                    "critical_path": _list(_object({"rank": INT, "label": _or_null(TEXT), "ns": INT})),
                    "rests_on": _list(TEXT),
                    "why_not": _or_null(TEXT),
                }
            )
        ),
        by=_by(),
        hiding=_or_null({"type": "object"}),
        lanes=_list({"type": "object"}),
    )


def schedule() -> Schema:
    """Return the schema of ``tracekit schedule --json``."""
    return _object(
        {
            "format": {"const": "tracekit.schedule/1"},
            "name": TEXT,
            "time": {"type": "object"},
            "ranks": _list(_list(TEXT)),
            "cells": _list(_object({"rank": INT, "op": TEXT, "start": NUMBER, "end": NUMBER})),
            "makespan": NUMBER,
        },
        pp=INT,
        microbatches=INT,
        virtual=INT,
        bubble=_list(NUMBER),
        bubble_fraction=NUMBER,
        bubble_rate_zb=NUMBER,
        peak_activations=_list(NUMBER),
    )


def diff() -> Schema:
    """Return the schema of ``tracekit diff --json``."""
    return _object(
        {
            "tracekit": TEXT,
            "format": {"const": "tracekit.diff/1"},
            "before": {"type": "object"},
            "after": {"type": "object"},
            "metrics": _list({"type": "object"}),
            "labels": _list({"type": "object"}),
            "ranks": _list({"type": "object"}),
        }
    )


def gate() -> Schema:
    """Return the schema of ``tracekit gate --json``."""
    verdicts = ["pass", "regressed", "inconclusive"]
    check = _object({"metric": TEXT, "verdict": {"enum": [*verdicts, "improved", "waived", "unusable"]}})
    return _object(
        {
            "tracekit": TEXT,
            "format": {"const": "tracekit.gate/1"},
            "verdict": {"enum": [*verdicts, "unusable"]},
            "exit_code": {"enum": [0, 1, 2, 3]},
            "checks": _list(check),
        }
    )


def doctor() -> Schema:
    """Return the schema of ``tracekit doctor --json``."""
    return _object(
        {
            "format": {"const": "tracekit.doctor/1"},
            "paths": _list(TEXT),
            "reader": TEXT,
            "ranks": _list(INT),
            "world_size": _or_null(INT),
            "steps": _list(INT),
            "counts": {"type": "object", "additionalProperties": INT},
            "findings": _list(_object({"code": TEXT})),
            "extras": _list(_object({"code": TEXT, "adds": TEXT, "how": TEXT})),
            "warnings": _warnings(),
        }
    )


SCHEMAS: dict[str, Callable[[], Schema]] = {
    "analysis": analysis,
    "schedule": schedule,
    "diff": diff,
    "gate": gate,
    "doctor": doctor,
}


def json_schema(name: str) -> Schema:
    """Return the JSON Schema of a format.

    >>> json_schema("analysis")["title"]
    'tracekit.analysis/1'
    """
    schema = SCHEMAS[name]()
    return {"$schema": DRAFT, "title": schema["properties"]["format"]["const"], **schema}


def write_schemas(folder: str | Path) -> None:
    """Write every schema into *folder*, one file per format."""
    for name in SCHEMAS:
        schema = json_schema(name)
        file = Path(folder) / f"{schema['title'].replace('/', '-')}.json"
        file.write_text(json.dumps(schema, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    write_schemas(sys.argv[1])
