"""Findings as examples: the figures that matter for their sentence, the others zero or unknown."""

from __future__ import annotations

from types import NoneType
from typing import Any, get_args

import msgspec

from tracekit.findings.kind import FindingKind
from tracekit.graph.change import Change
from tracekit.rooms import all_kinds


def example_of(
    code: str, case: str = "", *, change: Change | None = None, **fields: Any
) -> FindingKind:
    """Return a finding of a code and case with some *fields*.

    >>> example_of("recording", "ranks", labels="dp_comm", given_ranks=1, world_size=4).text().rpartition(": ")[2]
    'only 1 of 4 ranks is here'
    """
    kind = all_kinds()[code, case]
    missing = {
        field.name: _zero(field.type)
        for field in msgspec.structs.fields(kind)
        if field.required and field.name not in fields
    }
    finding = msgspec.convert({**missing, **fields}, kind, from_attributes=True)
    return msgspec.structs.replace(finding, change=change)


def _zero(annotation: Any) -> Any:
    """Return the value of a figure that does not matter: None where it may be unknown."""
    if NoneType in get_args(annotation):
        return None
    kind = get_args(annotation)[0] if get_args(annotation) else annotation
    return kind()
