"""Number of events that a trace lists, counted independently of the reader."""

from __future__ import annotations

import json
import re


def count_listed(raw: bytes) -> int | None:
    """Return how many elements an independent reader counts in the list of events, None where there is a doubt.

    A file that ends early counts as well if it is valid up to its end: the element that its end
    cuts in two is one.
    """
    if raw.count(b"traceEvents") != 1:
        return None
    try:
        text = raw.decode()
        data = json.loads(text, parse_constant=lambda word: 1 / 0)
        events = data.get("traceEvents") if isinstance(data, dict) else None
        return len(events) if isinstance(events, list) else None
    except (UnicodeDecodeError, RecursionError, ZeroDivisionError):
        return None
    except ValueError:
        return _count_cut(text)


def _count_cut(text: str) -> int | None:
    """Return how many elements start in a list of events that the end of the text cuts off.

    None if it is not valid.
    """
    decoder = json.JSONDecoder(parse_constant=lambda word: 1 / 0)
    begin = re.match(r'\s*\{\s*"traceEvents"\s*:\s*\[', text)
    if not begin:
        return None
    count, i = 0, begin.end()
    while True:
        separator = re.compile(r"\s*,?\s*" if count else r"\s*").match(text, i)
        i = separator.end()
        if i == len(text):
            return count
        # Whether a cut value is one is open.
        if text[i] != "{" or (count and "," not in separator.group()):
            return None
        try:
            _, i = decoder.raw_decode(text, i)
        except (RecursionError, ZeroDivisionError):
            return None
        except ValueError as error:
            is_cut = error.pos >= len(text.rstrip()) or "Unterminated string" in str(error)
            # Objects listed inside the cut element may as well be events behind damage.
            lists_objects = re.search(r"[\[,]\s*\{", text[i + 1 :]) is not None
            return count + 1 if is_cut and not lists_objects else None
        count += 1
