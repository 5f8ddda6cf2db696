"""Decoding of texts as the file spells them; damaged ones are repaired and marked."""

import json
import re

DAMAGE = "\udfff"
"""Mark of a repaired text: half of a surrogate pair, which valid text never holds."""
_SURROGATES = re.compile("[\ud800-\udfff]")


def decode_string(raw: bytes) -> str:
    """Return the text of a JSON string, given without its quotes.

    Invalid bytes, escapes and control characters are kept as far as possible; ``DAMAGE`` is
    appended then.
    """
    try:
        text = raw.decode()
        return (
            _replace_surrogates(str(json.loads(f'"{text}"')))
            if "\\" in text or not text.isprintable()
            else text
        )
    except ValueError:
        text = raw.decode("utf-8", "replace")
    try:
        return _replace_surrogates(str(json.loads(f'"{text}"', strict=False))) + DAMAGE
    except ValueError:
        return text + DAMAGE


def compact_json(raw: bytes) -> str:
    """Return JSON without blanks between its values; what is not JSON stays as it is.

    Invalid bytes and halves of surrogate pairs are replaced; ``DAMAGE`` is appended then.
    """
    text = _decode_utf8(raw)
    try:
        value = json.loads(text.removesuffix(DAMAGE))
        compact = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    except (ValueError, RecursionError):
        return text
    repaired = _replace_surrogates(compact)
    return repaired + DAMAGE if text.endswith(DAMAGE) else repaired


def remove_blanks(raw: bytes) -> str:
    """Return a list of numbers without blanks; text with strings in it stays as it is.

    Invalid bytes are replaced; ``DAMAGE`` is appended then.
    """
    text = _decode_utf8(raw)
    return "".join(text.split()) if '"' not in text else text


def _decode_utf8(raw: bytes) -> str:
    """Return the text of *raw*; invalid bytes are replaced, and ``DAMAGE`` is appended then."""
    try:
        return raw.decode()
    except ValueError:
        return raw.decode("utf-8", "replace") + DAMAGE


def _replace_surrogates(text: str) -> str:
    r"""Replace halves of surrogate pairs, which JSON can spell and UTF-8 cannot hold, and append ``DAMAGE``.

    >>> _replace_surrogates("a\ud800").removesuffix(DAMAGE)
    'a\ufffd'
    """
    if text.isascii():
        return text
    clean = _SURROGATES.sub("\N{REPLACEMENT CHARACTER}", text)
    return text if clean == text else clean + DAMAGE
