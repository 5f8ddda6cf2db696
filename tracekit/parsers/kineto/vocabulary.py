"""Words of PyTorch's profiler, from ``vocabulary.toml``: keys of events, categories, element types."""

import tomllib
from pathlib import Path

from tracekit._loops.event_columns import EventColumn
from tracekit._loops.json_scanner import Level, Target
from tracekit._util.values import invert_lists

_VOCABULARY = tomllib.loads(Path(__file__).with_name("vocabulary.toml").read_text(encoding="utf-8"))
_TARGETS: dict[str, EventColumn | Target] = {**EventColumn.__members__, **Target.__members__}


KEYS: dict[Level, dict[str, EventColumn | Target]] = {
    Level[level]: {key: _TARGETS[name] for key, name in names_of_keys.items()}
    for level, names_of_keys in _VOCABULARY["keys"].items()
}
"""Keys that the scanner looks for, and the column each fills."""
UNASKED_OPERATORS: tuple[str, ...] = tuple(_VOCABULARY["inputs"]["unasked"])
"""Operators whose concrete inputs and strides are not kept."""
MEMORY_COLUMNS = {
    name: EventColumn[column] for name, column in _VOCABULARY["memory_columns"].items()
}
"""Columns of ``schema.MEMORY``, and where the scanner puts their values (see
``Level.MEMORY_ARGS``)."""
CATEGORIES: dict[str, str] = invert_lists(_VOCABULARY["categories"])
"""Kind of event by the profiler's category in lower case (files of 2021 capitalise them)."""
ITEM_BYTES = {name: int(size) for name, size in invert_lists(_VOCABULARY["item_bytes"]).items()}
"""Size of an element by the profiler's name of its type."""
