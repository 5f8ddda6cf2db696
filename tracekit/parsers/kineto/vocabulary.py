"""Words of PyTorch's profiler, from ``vocabulary.toml``: keys of events, categories, element types."""

import tomllib
from pathlib import Path

from tracekit._loops.json_scanner import Column, Level, Target

_WORDS = tomllib.loads(Path(__file__).with_name("vocabulary.toml").read_text(encoding="utf-8"))
_TARGETS: dict[str, Column | Target] = {**Column.__members__, **Target.__members__}

KEYS = {
    Level[level]: {key: _TARGETS[name] for key, name in keys.items()}
    for level, keys in _WORDS["keys"].items()
}
"""Keys that the scanner looks for, and the column each fills."""
MEMORY_COLUMNS = {name: Column[column] for name, column in _WORDS["memory_columns"].items()}
"""Columns of ``schema.MEMORY``, and where the scanner puts their values (see
``Level.MEMORY_ARGS``)."""
CATEGORIES: dict[str, str] = {
    category: kind for kind, categories in _WORDS["categories"].items() for category in categories
}
"""Kind of event by the profiler's category in lower case (files of 2021 capitalise them)."""
ITEM_BYTES = {name: int(size) for size, names in _WORDS["item_bytes"].items() for name in names}
"""Size of an element by the profiler's name of its type."""
