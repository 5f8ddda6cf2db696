"""Bytes of a trace's text to what they say; what is damaged is read as it stands, and marked."""

from __future__ import annotations

import json
import re

DAMAGE = "\udfff"
"""Marks damaged text: half of a letter, which text that is whole never holds."""
_HALVES = re.compile("[\ud800-\udfff]")


def plain(raw: bytes) -> str:
    """Read a JSON string's text. Damage (bad bytes, escapes, control characters) is read as it stands, and marked."""
    try:
        text = raw.decode()
        return _whole(str(json.loads(f'"{text}"'))) if "\\" in text or not text.isprintable() else text
    except ValueError:
        return _repair(raw)


def _repair(raw: bytes) -> str:
    text = raw.decode("utf-8", "replace")
    try:
        return _whole(str(json.loads(f'"{text}"', strict=False))) + DAMAGE
    except ValueError:
        return text + DAMAGE


def listed(raw: bytes) -> str:
    """A list of words without the spaces between them; what is not JSON stays as it is."""
    text = raw.decode("utf-8", "replace")
    try:
        return json.dumps(json.loads(text), separators=(",", ":"), ensure_ascii=False)
    except (ValueError, RecursionError):
        return text


def _whole(text: str) -> str:
    r"""Mark and replace halves of letters: JSON can spell them, no text can hold them.

    >>> _whole("a\ud800").removesuffix(DAMAGE)
    'a\ufffd'
    """
    if text.isascii():
        return text
    clean = _HALVES.sub("\N{REPLACEMENT CHARACTER}", text)
    return text if clean == text else clean + DAMAGE


def compact(raw: bytes) -> str:
    """Numbers in brackets without the spaces."""
    text = raw.decode("utf-8", "replace")
    return "".join(text.split()) if '"' not in text else text
