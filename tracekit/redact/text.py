"""What must not stay in any text: paths, URLs, addresses, and the names of hosts and users."""

from __future__ import annotations

import re
from collections.abc import Iterable

_PART = r"(?:[^\s\"\\/:;,()<>|\[\]{}'=]|\\u[0-9a-fA-F]{4})+"
_TO_THE_END = r"[^\"()<>:;,|\n]*"
_PATTERNS = tuple(
    (trigger, re.compile(pattern), replacement)
    for trigger, pattern, replacement in (
        ("://", r"\b[a-zA-Z][a-zA-Z0-9+.-]{1,12}://[^\s\"]+", "<url>"),
        ("~", rf"~(?:{_PART})?(?:/{_PART})+/?", "<path>"),
        # Below a home folder names may hold spaces: go on to the end of what can be a name.
        ("/", rf"/(?<![\w/.<]/)(?:home|Users|root)/{_TO_THE_END}", "<path>"),
        ("/", rf"/(?<![\w/.<]/){_PART}(?:/{_PART})+/?", "<path>"),
        (":\\", rf"(?<!\w)[A-Za-z]:\\{{1,2}}{_TO_THE_END}", "<path>"),
        ("@", r"[\w.+-]+@[\w-]+(?:\.[\w-]+)*\.[a-zA-Z]{2,}\b", "<address>"),
        (".", r"(?<![\d.])\d{1,3}\.\d{1,3}\.\d{1,3}\.\d{1,3}(?![\d.])", "<address>"),
    )
)
"""What to look for, each with a sign without which it cannot be there: most texts are passed over by that alone."""
_HANDLER_NAME = re.compile(r"^(?P<host>[A-Za-z][\w.-]*?)_\d+\.\d{9,}(?:\.|$)")

HARMLESS_WORDS = frozenset(
    (
        *("root", "user", "users", "ubuntu", "admin", "nobody", "localhost", "local", "default"),
        *("python", "python3", "worker", "rank", "trace", "none", "null"),
    )
)
"""Names that name nobody: replacing them would only damage other text."""

NAMING_KEY = re.compile(r"(?i)host|user|machine|node_?name|owner|job|pod|cluster|login")
"""Header keys whose text is a name to be replaced everywhere."""


class Scrubber:
    """Replaces what is sensitive in texts, and counts.

    >>> scrub = Scrubber(["gpu-node-17"])
    >>> scrub('"name": "load /home/ann/a b.pt on gpu-node-17"')
    '"name": "load <path>"'
    >>> scrub('"memory bandwidth (GB/s)": 1.5, "x": "Torch-Compiled Region: 0/0"')
    '"memory bandwidth (GB/s)": 1.5, "x": "Torch-Compiled Region: 0/0"'
    >>> scrub.replaced
    1
    """

    def __init__(self, words: Iterable[str] = ()) -> None:
        self.words = tuple(sorted({w for w in words if len(w) > 2 and w.lower() not in HARMLESS_WORDS}))
        self.replaced = 0
        self._words = _word_pattern(self.words)

    def __call__(self, text: str) -> str:
        """Return *text* without what is sensitive in it."""
        clean = text.replace("\\/", "/") if "\\/" in text else text
        for trigger, pattern, replacement in _PATTERNS:
            if trigger in clean:
                clean = pattern.sub(replacement, clean)
        if self._words:
            clean = self._words.sub("<name>", clean)
        self.replaced += clean != text
        return clean

    def with_words(self, words: Iterable[str]) -> Scrubber:
        """Return a scrubber that replaces these words too."""
        return Scrubber([*self.words, *words])


def host_in_name(name: str) -> list[str]:
    """Return the host name that ``tensorboard_trace_handler`` puts into a file's name.

    >>> host_in_name("gpu-node-17_4242.1694128201545.pt.trace.json"), host_in_name("rank0.json")
    (['gpu-node-17'], [])
    """
    found = _HANDLER_NAME.match(name)
    return [found["host"]] if found and not re.match(r"(?i)rank|worker", found["host"]) else []


def _word_pattern(words: tuple[str, ...]) -> re.Pattern[str] | None:
    if not words:
        return None
    longest_first = sorted(words, key=len, reverse=True)
    return re.compile(rf"(?i)(?<![A-Za-z0-9])(?:{'|'.join(map(re.escape, longest_first))})(?![A-Za-z0-9])")
