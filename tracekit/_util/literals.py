"""Text without which a regular expression cannot be found: looking for it is a hundred times cheaper than trying.

Most patterns speak of something that a trace does not have. One look for the words that a pattern needs, in all names
of a trace at once, saves compiling it and trying it on every name.
"""

from __future__ import annotations

import re
from functools import cache

_PIECES = re.compile(
    r"[^\\\[\](){}.*+?|^$]+(?![*+?{])|\(\?[a-zA-Z]+\)|\((?:\?(?:p<\w+>|<?[=!]|[a-zA-Z-]*:))?"
    r"|\[\^?\]?(?:\\.|[^\]\\])*\]|(?:[*+?]|\{\d*,?\d*\})[?+]?|\\.|.",
    re.DOTALL,
)
"""Letters in a row, flags, an opening bracket, a set of letters, how often the piece before may come, anything else."""
_UNUSUAL = re.compile(r"\\[xuUN0-9]|\(\?(?:[a-zA-Z]*x|P=|[#(>])")
"""Letters by their number, references, conditions, comments: what is needed is then not asked."""
_OFTEN = ("*", "+", "?", "{")
_PERHAPS = ("*", "?", "{0", "{,")
_NO_WORD = frozenset(".^$")

Words = tuple[str, ...]


@cache
def needed(pattern: str) -> Words:
    r"""Return words, in small letters, of which any text that matches holds at least one; none where that is not known.

    >>> needed("(?i)all_?Reduce|^aten::(addmm|baddbmm)$")
    ('reduce', 'aten::')
    >>> needed(r"\d+|x")
    ()
    """
    if not pattern.isascii() or _UNUSUAL.search(pattern):
        return ()
    return _either(_PIECES.findall(pattern.lower()), 0)[0]


def lacks(text: str, words: Words) -> bool:
    """Return whether a text in small letters surely holds none of the *words* that something needs.

    Letters that are not plain have more than one spelling.

    >>> lacks("ncclkernel_allreduce", ("gemm",)), lacks("nvjet gemm", ("gemm",)), lacks("anything", ())
    (True, False, False)
    """
    return bool(words) and text.isascii() and not any(word in text for word in words)


def _either(pieces: list[str], at: int) -> tuple[Words, int]:
    """Return the words of what stands between two brackets, and the place behind: every alternative needs its own."""
    words: Words = ()
    known = True
    while True:
        one, at = _sequence(pieces, at)
        words += one
        known &= bool(one)
        at += 1
        if at > len(pieces) or pieces[at - 1] == ")":
            return words if known else (), at


def _sequence(pieces: list[str], at: int) -> tuple[Words, int]:
    """Return the words of one alternative, the longest that it has, and the place where it ends."""
    best: Words = ()
    length = 0
    while at < len(pieces) and (piece := pieces[at]) not in ("|", ")"):
        at += 1
        words: Words = ()
        if piece[0] == "(":
            if piece[-1] != ")":  # flags say nothing here
                words, at = _either(pieces, at)
                words = () if piece[-1] in "=!" else words  # what stands beside, or must not
        elif piece[0] not in "\\[" and piece not in _NO_WORD:
            words = (piece,)
        if at < len(pieces) and pieces[at].startswith(_OFTEN):
            words = () if pieces[at].startswith(_PERHAPS) else words
            at += 1
        if words and (worth := min(map(len, words))) > length:
            best, length = words, worth
    return best, at
