"""Redaction of text: known words stay, everything else becomes a pseudonym.

A text is cut into words. A word stays if it is listed in ``words.txt``; anything else (words,
numbers, paths, addresses) is replaced by ``x1``, ``x2``, …, the same pseudonym wherever the same
text occurs. What a word looks like never decides.
"""

import re
import unicodedata
from collections.abc import Iterable
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

MAX_INDEX_DIGITS = 6
"""Digits in a row of indices such as ``layers.3.1``; more may be a phone or card number."""
MAX_CODE_DIGITS = 5
"""Digits of a template argument such as ``<128, 64>``."""
MIN_LETTERS_TO_REPLACE_INSIDE = 4
"""Length from which a word given with ``--word`` is also replaced inside other words."""
MIN_SPACED_LETTERS = 4
"""Single letters in a row, each behind a space, dot, underscore or the like, that are one word:
v e r m i l i o n."""
MAX_SINGLE_LETTERS = 3
"""Different letters that stand alone in one text and stay, as T and U of a template: more may be a
word with other words between its letters."""
FIRST_NUMBER_PSEUDONYM = 4_000_000_000
"""First of the numbers that stand for process, thread and flow numbers beyond 32 bits."""
MAX_CACHED_TEXTS = 100_000
MAX_WORD_LENGTH = 2_000
"""Characters of a word that is looked into; a longer one is replaced as a whole."""
MAX_PARTS_OF_WORD = 6
"""Parts that one listed word can be cut into, such as e4m3fn."""

_HEX = "[0-9A-Fa-f]"
_HEX_PAIRS = rf"{_HEX}{{2}}(?:[:-]{_HEX}{{2}}){{5,}}"
"""MAC and InfiniBand addresses, fingerprints of keys."""
_HEX_GROUP = rf"{_HEX}{{1,4}}"
_IPV6 = "|".join(
    (
        rf"{_HEX_GROUP}(?::{_HEX_GROUP}){{7}}",
        # Shortened. A name in C++ has one word before its first ::, and no digit after it.
        rf"(?<!\w){_HEX_GROUP}(?::{_HEX_GROUP}){{1,6}}::[0-9A-Fa-f:]*",
        rf"(?<!\w){_HEX_GROUP}::\d[0-9A-Fa-f:]*",
    )
)
_HEX_ADDRESS = f"{_HEX_PAIRS}|{_IPV6}"
_PATH_CHARACTER = r"[^\s\"\\/:;,()<>|\[\]{}'=]"
_PATH_PART = f"{_PATH_CHARACTER}+"
_REST_OF_PATH = r"[^\"()<>:;,|\n]*"
_LOCATION = "|".join(
    (
        r"\b[a-zA-Z][a-zA-Z0-9+.-]{1,12}://[^\s\"]+",  # URL
        r"[\w.+-]{1,64}@[\w.-]+",  # e-mail address, user@host
        rf"\$\{{?\w+\}}?/{_REST_OF_PATH}",
        # Only at the start of a part: from every ~ of ~a~a~a… the search would go on to the end.
        rf"(?<!{_PATH_CHARACTER})~(?:{_PATH_PART})?(?:/{_PATH_PART})+/?",
        # Folders below these often have spaces in their names.
        rf"(?<![\w/.])/(?:home|Users|root|mnt|data)/{_REST_OF_PATH}",
        rf"(?<![\w/.])/{_PATH_PART}(?:/{_PATH_PART})+/?",
        rf"\\\\{_PATH_PART}(?:\\{_REST_OF_PATH})?",
        rf"(?<!\w)[A-Za-z]:\\{{1,2}}{_REST_OF_PATH}",
        r"(?<![\d.])\d{1,3}(?:\.\d{1,3}){3}(?![\d.])",  # IPv4 address
        _HEX_ADDRESS,
    )
)
_LOCATIONS = re.compile(_LOCATION)
_LETTER = r"[^\W\d_]"
_SPACED_WORD = (
    rf"(?<![^\W_]){_LETTER}(?:[\W_]{{1,3}}{_LETTER}){{{MIN_SPACED_LETTERS - 1},}}(?![^\W_])"
)
_SPACED_WORDS = re.compile(f"({_SPACED_WORD})")
_LOCATIONS_AND_WORDS = re.compile(
    # A word ends where an address begins: cuda32:29:fc:47:59:12.
    rf"(?P<location>{_LOCATION}|{_SPACED_WORD})|(?:(?!{_HEX_ADDRESS})[\w\u0080-\U0010ffff])+"
)
_WORD_PARTS = re.compile(
    r"\d{1,4}(?:x\d{1,4})+(?!\d)|[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+|_+|[^\d_A-Za-z]+"
)
_TILE = re.compile(r"\d{1,4}(?:x\d{1,4})+", re.ASCII)
_CODE_NUMBER = re.compile(rf"\d{{1,{MAX_CODE_DIGITS}}}(?:u|l|ul|ull|f)?", re.IGNORECASE | re.ASCII)
_BEFORE_CODE_NUMBER = re.compile(r"(?:^|[<>,(\[{)#=&*])[ -]*\Z")
_BEFORE_INDEX = re.compile(r"[\s._#:=\[(/|-]{0,3}")
_TRITON_NAME = re.compile(r"(triton_\w+?_)(\d{1,4})", re.ASCII)

_TOKENS_OF_BATCH = r"\((?:\d{1,9}|sq\d{1,9}sk\d{1,9}sqsq\d{1,12}sqsk\d{1,12})\)"
KNOWN_TEXTS = re.compile(
    r"ProfilerStep#\d{1,7}|\d{1,3}F\d{1,3}B"
    r"|PP:\d{1,4}(?:(?:SEND_|RECV_)?[FIWB]\d{1,5}|UNSHARD|RESHARD|REDUCE_GRAD)"
    r"|PP:\(\d{1,4}F\d{1,5};\d{1,4}[IWB]\d{1,5}\)(?:OVERLAP_F_B)?"
    r"|nccl:(?:send|recv) \d{1,5}(?:->|<-)\d{1,5}"
    r"|execute_(?:\d{1,6}_)?context_\d{1,6}"
    rf"{_TOKENS_OF_BATCH}_generation_\d{{1,6}}{_TOKENS_OF_BATCH}",
    re.ASCII,
)
"""Ranges of PyTorch that name steps, pipeline actions and messages by number, and vLLM's steps."""


class Vocabulary(NamedTuple):
    """The words of ``words.txt``, in lower case."""

    words: frozenset[str]
    numbered: frozenset[str]
    """Words that may be followed by a number."""
    stems: re.Pattern[str]
    """Words that are also kept inside longer, unknown words."""


@cache
def vocabulary() -> Vocabulary:
    """Return the words that may stay."""
    lines = Path(__file__).with_name("words.txt").read_text(encoding="ascii").splitlines()
    words: set[str] = set()
    numbered: set[str] = set()
    stems: list[str] = []
    for line in lines:
        if line.startswith("#"):
            continue
        for entry in line.split():
            word = entry.strip("*#")
            words.add(word)
            if entry.endswith("#"):
                numbered.add(word)
            if entry.startswith("*"):
                stems.append(word)
    stems.sort(key=len, reverse=True)  # of two stems at one place the longer one counts
    return Vocabulary(
        words=frozenset(words),
        numbered=frozenset(numbered),
        stems=re.compile(f"({'|'.join(stems)})", re.IGNORECASE),
    )


class NameRedactor:
    """Replaces unknown words by pseudonyms.

    One instance serves all files of a run, so that ranks still match.

    >>> redactor = NameRedactor(["root"])
    >>> redactor.redact("load /home/ann/a.pt: zeppelin.forward, layers.3.mlp, 4111 1111")
    'load x1: x2.forward, layers.3.mlp, x3 x4'
    >>> redactor.redact("zeppelin on root"), redactor.redact("aten::mm"), redactor.redact("aten::zeppelin_mm")
    ('x2 on x5', 'aten::mm', 'aten::x2_mm')
    >>> redactor.redact_code("void zeppelin::gemm<128, true>(</home/ann/a.cu>)")
    'void x2::gemm<128, true>(<x6>)'
    """

    def __init__(self, words: Iterable[str] = ()) -> None:
        self.replaced = 0
        """Texts that were changed."""
        self._pseudonyms: dict[str, str] = {}
        self._numbers: dict[str, int] = {}
        self._cache: dict[tuple[str, str], str] = {}
        folded = sorted(
            {_normalised(word).casefold() for word in words if word}, key=len, reverse=True
        )
        self._user_words = (
            re.compile("|".join(map(_word_pattern, folded)), re.IGNORECASE) if folded else None
        )
        squeezed = (_letters_and_digits(word) for word in folded)
        self._squeezed_words = [
            word for word in squeezed if len(word) >= MIN_LETTERS_TO_REPLACE_INSIDE
        ]

    def redact(self, text: str) -> str:
        """Return a range's or operator's name, or any other text, with known words and indices only."""
        return self._cached(text, "text")

    def redact_code(self, text: str) -> str:
        """Return a kernel's name with known words, template numbers and tile sizes only."""
        return self._cached(text, "code")

    def redact_kept(self, text: str) -> str:
        """Return text that ``--keep`` asks for, without paths, addresses and the user's words."""
        return self._cached(text, "kept")

    def _cached(self, text: str, mode: str) -> str:
        clean = self._cache.get((mode, text))
        if clean is None:
            clean = self._redact(_normalised(text), mode)
            if len(self._cache) < MAX_CACHED_TEXTS:
                self._cache[mode, text] = clean
        self.replaced += clean != text
        return clean

    def _redact(self, text: str, mode: str) -> str:
        if mode == "kept":
            clean = _LOCATIONS.sub(lambda match: self.pseudonym(match[0]), text)
        elif KNOWN_TEXTS.fullmatch(text):
            clean = text
        else:
            clean = _WordPass(self, text, code=mode == "code").result()
        return self._without_user_words(clean)

    def _without_user_words(self, text: str) -> str:
        if self._user_words is None:
            return text
        text = self._user_words.sub(lambda match: self.pseudonym(match[0].casefold()), text)
        # A word can be spread over punctuation, as in Acme<Titan>, or be folded differently (ß and
        # SS).
        if any(word in _letters_and_digits(text.casefold()) for word in self._squeezed_words):
            return self.pseudonym(text)
        return text

    @property
    def has_user_words(self) -> bool:
        """Whether words were given with ``--word``."""
        return self._user_words is not None

    def is_user_word(self, text: str) -> bool:
        """Return whether *text* is one of the words given with ``--word``."""
        return self._user_words is not None and self._user_words.fullmatch(text) is not None

    def pseudonym(self, text: str) -> str:
        """Return the pseudonym of *text*: numbered in order of first use, so that nothing can be derived from it."""
        return self._pseudonyms.setdefault(text, f"x{len(self._pseudonyms) + 1}")

    def number_pseudonym(self, number: str) -> int:
        """Return the number that stands for a large one, as the file spells it, wherever it occurs.

        >>> redactor = NameRedactor()
        >>> [redactor.number_pseudonym(number) for number in ("4111111111111111", "-1e15", "-1e15")]
        [4000000000, 4000000001, 4000000001]
        """
        return self._numbers.setdefault(number, FIRST_NUMBER_PSEUDONYM + len(self._numbers))


class _WordPass:
    """One pass over a text, word by word.

    Remembers whether the word before may be followed by a number.
    """

    def __init__(self, redactor: NameRedactor, text: str, *, code: bool) -> None:
        self._pseudonym = redactor.pseudonym
        self._text = text
        self._code = code
        self._vocabulary = vocabulary()
        self._word_end = 0
        self._expects_index = False
        self._index_digits = 0
        self._single_letters: set[str] = set()

    def result(self) -> str:
        """Return the text with all unknown words replaced."""
        return _LOCATIONS_AND_WORDS.sub(self._replacement, self._text)

    def _replacement(self, match: re.Match[str]) -> str:
        word = match[0]
        start = match.start()
        if not _BEFORE_INDEX.fullmatch(self._text, self._word_end, start):
            self._expects_index = False
        self._word_end = match.end()
        if match["location"] or len(word) > MAX_WORD_LENGTH:
            return self._pseudonym(word)
        may_be_argument = self._code and _CODE_NUMBER.fullmatch(word)
        if may_be_argument and _BEFORE_CODE_NUMBER.search(self._text, max(start - 8, 0), start):
            self._expects_index = False
            return word
        if numbered := _TRITON_NAME.fullmatch(word):  # Inductor numbers its kernels
            redacted = self._redacted_word(numbered[1]) + numbered[2]
            self._expects_index = False
            return redacted
        return self._redacted_word(word)

    def _redacted_word(self, word: str) -> str:
        # Letters one by one, as in fused_v_e_r_m, stand at every other place.
        parts = _SPACED_WORDS.split(word)
        for i, part in enumerate(parts):
            parts[i] = self._pseudonym(part) if i % 2 else self._redacted_part(part)
        return "".join(parts)

    def _redacted_part(self, word: str) -> str:
        redacted = []
        # Unknown pieces in a row are one unknown word.
        for is_known, pieces in groupby(self._pieces(word), key=lambda piece: piece[1]):
            text = "".join(piece for piece, _ in pieces)
            redacted.append(text if is_known else self._without_stems(text))
        return "".join(redacted)

    def _without_stems(self, unknown: str) -> str:
        """Replace an unknown word, but for the stems in it."""
        stems = self._vocabulary.stems
        pieces = [piece for piece in stems.split(unknown) if piece]
        for i, piece in enumerate(pieces):
            if not stems.fullmatch(piece):
                pieces[i] = self._pseudonym(piece)
        return "".join(pieces)

    def _pieces(self, word: str) -> list[tuple[str, bool]]:
        """Cut a word at underscores, digits and capitals.

        Return each piece and whether it is known.
        """
        parts = _WORD_PARTS.findall(word)
        pieces: list[tuple[str, bool]] = []
        while parts:
            count = self._count_known(parts)
            piece = "".join(parts[: count or 1])
            is_known = count > 0
            del parts[: count or 1]
            if is_known:
                self._expects_index = piece.lower() in self._vocabulary.numbered
                self._index_digits = 0
            elif piece[0].isdecimal():
                is_known = self._is_index(piece) or self._is_tile(piece, pieces)
            elif piece[0] == "_":
                is_known = True
            else:
                self._expects_index = False
            pieces.append((piece, is_known))
        kept = []
        for i, (piece, is_known) in enumerate(pieces):
            is_word = is_known or _is_lone_letter(pieces, i)
            kept.append((piece, is_word and self._may_stand_alone(piece)))
        return _without_accidental_words(kept)

    def _may_stand_alone(self, piece: str) -> bool:
        """Return whether a piece has several characters, or is one of the first single letters of the text."""
        letter = piece.lower()
        if len(letter) > 1 or not letter.isalpha() or letter in self._single_letters:
            return True
        if len(self._single_letters) == MAX_SINGLE_LETTERS:
            return False
        self._single_letters.add(letter)
        return True

    def _count_known(self, parts: list[str]) -> int:
        """Return how many of the first parts make up one known word, the longest: bf and 16 do, as bf16."""
        words = self._vocabulary.words
        counts = range(min(len(parts), MAX_PARTS_OF_WORD), 0, -1)
        return next((count for count in counts if "".join(parts[:count]).lower() in words), 0)

    def _is_index(self, digits: str) -> bool:
        self._index_digits += len(digits)
        self._expects_index = (
            self._expects_index and digits.isascii() and self._index_digits <= MAX_INDEX_DIGITS
        )
        return self._expects_index

    def _is_tile(self, text: str, before: list[tuple[str, bool]]) -> bool:
        return (
            self._code
            and _TILE.fullmatch(text) is not None
            and all(is_known for _, is_known in before[-1:])
        )


def _is_lone_letter(pieces: list[tuple[str, bool]], i: int) -> bool:
    """Return whether a piece is one letter beside known words (TBackward), not among digits or unknown letters."""
    piece = pieces[i][0]
    beside = [*pieces[max(i - 1, 0) : i], *pieces[i + 1 : i + 2]]
    alone = all(is_known and not text[0].isdecimal() for text, is_known in beside)
    return len(piece) == 1 and piece.isascii() and piece.isalpha() and alone


def _without_accidental_words(pieces: list[tuple[str, bool]]) -> list[tuple[str, bool]]:
    """Reject known pieces with digits beside unknown ones: f8 and a10 are words, but not in the hash f8a10d72."""
    kept = []
    for is_underscores, run in groupby(pieces, key=lambda piece: piece[0][0] == "_"):
        between_underscores = list(run)
        is_all_known = all(is_known for _, is_known in between_underscores)
        for text, is_known in between_underscores:
            is_no_accident = is_underscores or is_all_known or text.isalpha()
            kept.append((text, is_known and is_no_accident))
    return kept


def _normalised(text: str) -> str:
    return text if text.isascii() else unicodedata.normalize("NFKC", text)


def _letters_and_digits(text: str) -> str:
    return "".join(filter(str.isalnum, text))


def _word_pattern(word: str) -> str:
    """Return the pattern of a user's word: a short one is replaced only where no letter is beside it."""
    pattern = re.escape(word)
    return (
        pattern
        if len(word) >= MIN_LETTERS_TO_REPLACE_INSIDE
        else rf"(?<![^\W\d_]){pattern}(?![^\W\d_])"
    )
