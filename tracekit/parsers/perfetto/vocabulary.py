"""Words of PyTorch in Perfetto traces, from ``vocabulary.toml`` and those of its JSON traces."""

import tomllib
from pathlib import Path

from tracekit._loops.event_columns import EventColumn
from tracekit._loops.json_scanner import Level
from tracekit._loops.packet_scanner import FIRST_TRAIT, PacketColumn, PacketLevel, Trait
from tracekit.parsers.kineto.vocabulary import KEYS

_VOCABULARY = tomllib.loads(Path(__file__).with_name("vocabulary.toml").read_text(encoding="utf-8"))
_COLUMN_NUMBERS: dict[str, int] = {**EventColumn.__members__, **PacketColumn.__members__}

PACKET_TARGETS: dict[PacketLevel, dict[str, int]] = {
    PacketLevel.EVENT: {
        **KEYS[Level.ARGS],
        **{key: _COLUMN_NUMBERS[name] for key, name in _VOCABULARY["arguments"].items()},
        **{key: FIRST_TRAIT + Trait[name] for key, name in _VOCABULARY["traits"].items()},
    },
    PacketLevel.INSTANT: dict(KEYS[Level.MEMORY_ARGS]),
}
"""Arguments that the scanner looks for, and the column or trait of each."""
STAGE_CATEGORIES: dict[str, str] = _VOCABULARY["stages"]
"""Category by the name of a render stage."""
PERFETTO_MEMORY_KINDS: dict[str, str] = _VOCABULARY["memory_kinds"]
"""Kinds of memory as the names of copies spell them."""
