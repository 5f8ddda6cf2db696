"""What must not stay in any text: paths, URLs, addresses, names of hosts and users, and words that nobody knows."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import cached_property

from tracekit.redaction.allowed import CALL, GPU_MODEL, LIBRARIES, OPERATOR, vocabulary

_PART = r"(?:[^\s\"\\/:;,()<>|\[\]{}'=]|\\u[0-9a-fA-F]{4})+"
_TO_THE_END = r"[^\"()<>:;,|\n]*"
_PATTERNS = tuple(
    (trigger, re.compile(pattern), replacement)
    for trigger, pattern, replacement in (
        ("://", r"\b[a-zA-Z][a-zA-Z0-9+.-]{1,12}://[^\s\"]+", "<url>"),
        ("$", rf"\$\{{?\w+\}}?/{_TO_THE_END}", "<path>"),
        ("~", rf"~(?:{_PART})?(?:/{_PART})+/?", "<path>"),
        # Below a home folder names may hold spaces: go on to the end of what can be a name.
        ("/", rf"/(?<![\w/.<]/)(?:home|Users|root|mnt|data)/{_TO_THE_END}", "<path>"),
        ("/", rf"/(?<![\w/.<]/){_PART}(?:/{_PART})+/?", "<path>"),
        ("\\\\", rf"\\\\{_PART}(?:\\{_TO_THE_END})?", "<path>"),
        (":\\", rf"(?<!\w)[A-Za-z]:\\{{1,2}}{_TO_THE_END}", "<path>"),
        ("@", r"[\w.+-]+@[\w-]+(?:\.[\w-]+)*\.[a-zA-Z]{2,}\b", "<address>"),
        (".", r"(?<![\d.])\d{1,3}\.\d{1,3}\.\d{1,3}\.\d{1,3}(?![\d.])", "<address>"),
    )
)
"""What to look for, each with a sign without which it cannot be there: most texts are passed over by that alone."""
_HANDLER_NAME = re.compile(r"^(?P<host>[A-Za-z][\w.-]*?)_\d+\.\d{9,}(?:\.|$)")
_TOKEN = re.compile(rf"(?:\b(?:{LIBRARIES})(?:::\w+)+)|[A-Za-z0-9_\x80-\U0010ffff]+")
_SUBWORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+|[^A-Za-z0-9_]+")
LONGEST_NUMBER = 6
"""Digits of a number that says which step, layer or micro-batch; a longer one may be anybody's."""
LONG_WORD = 4
"""Letters from which a word that the user names goes even where it is part of another."""

HARMLESS_WORDS = frozenset(
    (
        *("root", "user", "users", "ubuntu", "admin", "nobody", "localhost", "local", "default"),
        *("python", "python3", "worker", "rank", "trace", "none", "null"),
    )
)
"""Names that name nobody: found in a header, they are not looked for elsewhere. Those the user names always are."""

NAMING_KEY = re.compile(r"(?i)host|user|machine|node_?name|owner|job|pod|cluster|login")
"""Header keys whose text is a name to be replaced everywhere."""


class Scrubber:
    """Replaces what is sensitive in texts, and counts. One serves all files of a run, so that they still fit together.

    >>> scrub = Scrubber(["xy"])
    >>> scrub("void gemm<128>(xy::Params) /home/ann/a.cu")
    'void gemm<128>(<name>::Params) <path>'
    >>> scrub.free("load weights/zeppelin/7.bin: step 3"), scrub.free("zeppelin.forward"), scrub.free("layers.3.mlp")
    ('load weights/x1/7.x2: step 3', 'x1.forward', 'layers.3.mlp')
    """

    def __init__(
        self, words: Iterable[str] = (), *, names: Iterable[str] = (), ids: dict[str, int] | None = None
    ) -> None:
        self.asked = tuple(sorted({word for word in words if word}))
        self.names = tuple(sorted({w for w in names if len(w) > 2 and w.lower() not in HARMLESS_WORDS}))
        self.replaced = 0
        self._ids = {} if ids is None else ids
        self._known: dict[tuple[bool, str], str] = {}

    @cached_property
    def _words(self) -> re.Pattern[str] | None:
        parts = [(_asked_pattern(word), len(word)) for word in self.asked]
        parts += [(rf"(?<![A-Za-z0-9]){re.escape(word)}(?![A-Za-z0-9])", len(word)) for word in self.names]
        longest_first = [part for part, _ in sorted(parts, key=lambda pair: -pair[1])]
        return re.compile(f"(?i){'|'.join(longest_first)}") if parts else None

    def __call__(self, text: str) -> str:
        """Return code's own name for something, without what is sensitive in it."""
        return self._cached(text, free=False)

    def free(self, text: str) -> str:
        """Return text that anybody may have written: of its words, those that everybody knows stay."""
        return self._cached(text, free=True)

    def _cached(self, text: str, *, free: bool) -> str:
        key = (free, text)
        clean = self._known.get(key)
        if clean is None:
            clean = self._patterns(text)
            if free and not OPERATOR.fullmatch(clean):
                clean = _TOKEN.sub(self._token, clean)
            if len(self._known) < 100_000:
                self._known[key] = clean
        self.replaced += clean != text
        return clean

    def _patterns(self, text: str) -> str:
        clean = text
        for trigger, pattern, replacement in _PATTERNS:
            if trigger in clean:
                clean = pattern.sub(replacement, clean)
        return self._words.sub("<name>", clean) if self._words else clean

    def _token(self, match: re.Match[str]) -> str:
        token = match[0]
        if "::" in token or CALL.fullmatch(token):
            return token
        if token.isascii() and token.isdecimal() and len(token) <= LONGEST_NUMBER:
            return token
        parts = _SUBWORD.findall(token)
        known = [part for part in parts if part.lower() in vocabulary()]
        if all(_harmless(part) for part in parts) or token.lower() in vocabulary() or GPU_MODEL.fullmatch(token):
            return token
        number = self._ids.setdefault(token.lower(), len(self._ids) + 1)
        return "_".join([f"x{number}", *(part for part in known if len(part) > 2)])

    def with_names(self, words: Iterable[str]) -> Scrubber:
        """Return a scrubber that replaces these names too."""
        return Scrubber(self.asked, names=[*self.names, *words], ids=self._ids)


def _harmless(part: str) -> bool:
    return (
        (part.isascii() and len(part) == 1)
        or part.lower() in vocabulary()
        or (part.isascii() and part.isdecimal() and len(part) <= LONGEST_NUMBER)
    )


def _asked_pattern(word: str) -> str:
    """A word the user names goes wherever it stands; a short one where no letter is beside it."""
    if len(word) >= LONG_WORD:
        return re.escape(word)
    return rf"(?<![A-Za-z]){re.escape(word)}(?![A-Za-z])"


def host_in_name(name: str) -> list[str]:
    """Return the host name that ``tensorboard_trace_handler`` puts into a file's name.

    >>> host_in_name("gpu-node-17_4242.1694128201545.pt.trace.json"), host_in_name("rank0.json")
    (['gpu-node-17'], [])
    """
    match = _HANDLER_NAME.match(name)
    return [match["host"]] if match and not re.match(r"(?i)rank|worker", match["host"]) else []


def names_in(value: object) -> list[str]:
    """Return the texts that stand under a key which names a host, a user or a job.

    >>> names_in({"hostname": "gpu-17", "x": {"user": "ann"}, "n": 3})
    ['gpu-17', 'ann']
    """
    names: list[str] = []
    todo: list[object] = [value]
    while todo:
        one = todo.pop(0)
        if isinstance(one, Mapping):
            names += [v for k, v in one.items() if isinstance(v, str) and NAMING_KEY.search(str(k))]
            todo += [v for v in one.values() if not isinstance(v, str)]
        elif isinstance(one, list):
            todo += one
    return names
