"""Text that packages below the reports need too: words and numbers of messages, and safe text for a terminal.

A share is written as ``12.3 %``, a time as ``1.2 ms``, a change with a minus sign (not a hyphen),
an unknown value as ``–``. A value other than zero is never rounded to zero.
``tracekit.report.text`` has the rest of what reports write.
"""

import difflib
import json
import re
import unicodedata
from collections.abc import Iterable, Sequence

UNKNOWN = "–"
"""Stands for a value that is not known."""
MIN_ROUNDED = 0.001
"""Size from which a figure is told from nothing."""


def plural(noun: str) -> str:
    """Return the plural of a noun.

    >>> plural("rank"), plural("micro-batch")
    ('ranks', 'micro-batches')
    """
    return noun + ("es" if noun.endswith(("ch", "sh", "s", "x")) else "s")


def counted(count: float, noun: str) -> str:
    """Return a count with its noun, in the plural unless the count is one.

    >>> counted(1, "rank"), counted(1024, "rank"), counted(8, "micro-batch")
    ('1 rank', '1,024 ranks', '8 micro-batches')
    """
    return f"{count:,} {noun if count == 1 else plural(noun)}"


def listing(names: Iterable[str], *, most: int = 4) -> str:
    """Join the first *most* names with commas, and say how many more there are.

    >>> listing("abcdef")
    'a, b, c, d, +2 more'
    """
    all_names = list(names)
    more = [f"+{len(all_names) - most} more"] if len(all_names) > most else []
    return ", ".join([*all_names[:most], *more])


def join_with_and(parts: Iterable[str]) -> str:
    """Join parts with commas, the last one with "and".

    >>> join_with_and(["a"]), join_with_and(["a", "b"]), join_with_and(["a", "b", "c"])
    ('a', 'a and b', 'a, b and c')
    """
    *head, last = list(parts) or [""]
    return f"{', '.join(head)} and {last}" if head else last


def format_ranges(numbers: Iterable[int], *, most: int = 12) -> str:
    """Return sorted numbers as text, consecutive ones as a range; at most *most* parts are shown.

    >>> format_ranges([0, 1, 2, 3, 7])
    '0–3, 7'
    """
    ranges: list[tuple[int, int]] = []
    for number in numbers:
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1] = ranges[-1][0], number
        else:
            ranges.append((number, number))
    texts = [f"{first}" if first == last else f"{first}–{last}" for first, last in ranges]
    return listing(texts, most=most)


def ranks_named(numbers: Iterable[int], *, most: int = 8) -> str:
    """Return the name of one or several ranks, three or more with consecutive ones as a range.

    >>> ranks_named([3]), ranks_named([0, 1]), ranks_named([0, 1, 2, 3, 7])
    ('rank 3', 'ranks 0, 1', 'ranks 0–3, 7')
    """
    ranks = list(numbers)
    if len(ranks) < 3:
        return f"{'rank' if len(ranks) == 1 else 'ranks'} {', '.join(map(str, ranks))}"
    return f"ranks {format_ranges(ranks, most=most)}"


def verb(count: float, singular: str, plural: str) -> str:
    """Return the word that goes with a count.

    >>> verb(1, "is", "are"), verb(0, "is", "are")
    ('is', 'are')
    """
    return singular if count == 1 else plural


def joined(names: Iterable[object]) -> str:
    """Return all names, separated by commas."""
    return ", ".join(map(str, names))


def listed(names: Iterable[object], *, most: int = 4) -> str:
    """Return the first *most* names, and how many more there are."""
    return listing(map(str, names), most=most)


def first_of(names: Sequence[object], *, count: int) -> str:
    """Return names, and how many more there are if there are *count* in all.

    >>> first_of([3, 5], count=2), first_of([3, 5], count=4)
    ('3, 5', '3, 5, +2 more')
    """
    more = count - len(names)
    return joined([*names, f"+{more} more"] if more > 0 else names)


def ms(ns: float | None, digits: int = 1) -> str:
    """Return nanoseconds as milliseconds, with more digits if *digits* would round the value to zero.

    >>> ms(1_234_567), ms(4_200), ms(-4_200), ms(0), ms(None)
    ('1.2 ms', '0.004 ms', '−0.004 ms', '0.0 ms', '–')
    """
    if ns is None:
        return UNKNOWN
    value = ns / 1e6
    while value and abs(value) < 10**-digits and digits < 6:
        digits += 1
    return f"{value:,.{digits}f} ms".replace("-", "−")


def short_ms(ns: float | None, digits: int = 3) -> str:
    """Return a time with three significant digits, or as many as it is known to.

    >>> short_ms(284_415_681), short_ms(67_123_250), short_ms(4_510_000), short_ms(9_000), short_ms(None)
    ('284 ms', '67.1 ms', '4.51 ms', '9 µs', 'unknown')
    >>> short_ms(1_945_900_000), short_ms(12_345_000_000), short_ms(1_945_900_000, 2), short_ms(284_415_681, 2)
    ('1.95 s', '12.3 s', '1.9 s', '280 ms')
    """
    if ns is None:
        return "unknown"
    for unit, unit_ns in (("s", 1e9), ("ms", 1e6)):
        if abs(ns) >= 0.9995 * unit_ns or (unit == "ms" and abs(ns) >= 100_000):
            value = float(f"{ns / unit_ns:.{digits}g}")
            whole_digits = len(f"{abs(value):.0f}") if abs(value) >= 1 else 0
            return f"{value:,.{min(max(digits - whole_digits, 0), 2)}f} {unit}".replace("-", "−")
    return f"{ns / 1e3:.0f} µs".replace("-", "−")


def rounded(value: float) -> str:
    """Return a figure with three significant digits, or all digits before the point; next to nothing as 0.

    >>> rounded(1204.6), rounded(1.98), rounded(0.5), rounded(0.0004)
    ('1,205', '1.98', '0.5', '0')
    """
    if abs(value) < MIN_ROUNDED:
        return "0"
    return f"{value:,.0f}" if abs(value) >= 1_000 else f"{value:.3g}"


def size(count: int) -> str:
    """Return a number of bytes in a readable unit (decimal: 1 MB is 10⁶ bytes).

    >>> size(3_400_000)
    '3.4 MB'
    """
    for unit, divisor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= divisor:
            return f"{count / divisor:.1f} {unit}"
    return f"{count} bytes"


def signed(number: float, digits: int = 1) -> str:
    """Return a number with its sign; a number that rounds to zero has none.

    >>> signed(1.25, 1), signed(-3.0, 1), signed(-0.0001, 1)
    ('+1.2', '−3.0', '0.0')
    """
    if not round(number, digits):
        return f"{0:.{digits}f}"
    return f"{number:+,.{digits}f}".replace("-", "−")


def percent(part: float | None, whole: float | None = 1.0, *, digits: int = 1) -> str:
    """Return *part* of *whole* as per cent; a share that would round to zero is shown as a bound.

    >>> percent(1, 4), percent(0.0001), percent(-0.004), percent(0.0), percent(None), percent(1, 0)
    ('25.0 %', '< 0.1 %', '−0.4 %', '0.0 %', '–', '–')
    """
    if part is None or not whole:
        return UNKNOWN
    share = part / whole
    smallest_shown = 10.0 ** -(digits + 2)
    if 0 < abs(share) < smallest_shown / 2:
        return f"{'< ' if share > 0 else '> −'}{smallest_shown:.{digits}%}".replace("%", " %")
    return f"{share:.{digits}%}".replace("-", "−").replace("%", " %")


def did_you_mean(word: str, choices: Iterable[str], *, otherwise: str, cutoff: float = 0.6) -> str:
    """Return the hint for a word that is not among *choices*: the most similar one, or *otherwise* if none is similar.

    >>> did_you_mean("dualpip", ["1f1b", "dualpipe"], otherwise="--list names them all")
    'did you mean dualpipe?'
    """
    matches = difflib.get_close_matches(word, list(choices), n=1, cutoff=cutoff)
    return f"did you mean {matches[0]}?" if matches else otherwise


def record_again(reader: str) -> str:
    """Return what to do about a damaged recording, by its reader."""
    if reader == "nsight":
        return "export the report again: nsys export --type=sqlite --force-overwrite=true REPORT.nsys-rep"
    return "record this rank again"


def terminal(text: object) -> str:
    r"""Return text as one line for a terminal, runs of white space as one space, control characters escaped.

    >>> terminal("a\x1b[31mb\nc"), terminal("\N{RIGHT-TO-LEFT OVERRIDE}x"), terminal("\N{HANGUL FILLER}")
    ('a\\x1b[31mb c', '\\u202ex', '\\u3164')
    """
    line = " ".join(str(text).split())
    if line.isascii() and line.isprintable():
        return line
    shown = []
    for character in line:
        is_invisible = unicodedata.category(character)[0] == "C" or ord(character) in _VISIBLE_SIGNS
        shown.append(ascii(character)[1:-1] if is_invisible else character)
    return "".join(shown)


def terminal_lines(text: object) -> str:
    r"""Return text for a terminal with its line breaks and tabs.

    Other control characters become visible signs.

    >>> terminal_lines("a\n\x1b[31mb\u202e\ud800")
    'a\n␛[31mb��'
    """
    return str(text).translate(_VISIBLE_SIGNS)


def one_line(text: object) -> str:
    r"""Return text as one line for a terminal with its white space kept, such as a row of a table.

    >>> one_line("  a   b\nc\x07")
    '  a   b c␇'
    """
    return terminal_lines(str(text).replace("\n", " "))


def json_text(text: str) -> str:
    r"""Return JSON text with control characters and lone surrogates as escapes.

    Other characters stay as they are.

    So do the signs that begin a command to a machine that runs jobs (``##[group]``).

    >>> json_text('{"name": "é\x9b\ud800", "ranks": "##[group]"}')
    '{"name": "é\\u009b\\ud800", "ranks": "#\\u0023[group]"}'
    """
    # ``translate`` takes 15 times as long.
    escaped = _INVISIBLE_SIGN.sub(lambda match: json.dumps(match[0])[1:-1], text)
    return BUILD_COMMAND.sub(r"#\\u0023", escaped) if "##" in escaped else escaped


_BLANK = (
    *(0xAD, 0x34F, 0xFEFF),  # soft hyphen, joiners
    *(0x115F, 0x1160, 0x3164, 0xFFA0),  # Hangul fillers, which count as letters
    *(0x17B4, 0x17B5),
    *range(0x180B, 0x1810),
    *range(0x200B, 0x200E),  # without width
    *range(0x2060, 0x2066),
    *range(0x206A, 0x2070),
    *(*range(0xFE00, 0xFE10), *range(0xE0100, 0xE01F0)),  # variation selectors
    *range(0xFFF9, 0xFFFC),
    *range(0x1D173, 0x1D17B),
    *range(0xE0000, 0xE0080),  # tags
)
"""Characters that nothing is shown of, in which a name can hide text or pass for another."""
_INVISIBLE = (
    *range(0x7F, 0xA0),  # control characters
    # Marks that change the writing direction.
    *(
        0x61C,
        0x200E,
        0x200F,
        *range(0x202A, 0x202F),
        *range(0x2066, 0x206A),
    ),
    *(0x2028, 0x2029),  # line and paragraph separators
    *_BLANK,
    *range(0xD800, 0xE000),  # surrogates, which no file can hold
)
"""Characters above ASCII that a terminal would obey, or show nothing of."""
_VISIBLE_SIGNS = dict.fromkeys(_INVISIBLE, "\N{REPLACEMENT CHARACTER}") | {
    0x7F: "\N{SYMBOL FOR DELETE}"
}
# All but tab and line break.
_VISIBLE_SIGNS |= {code: chr(0x2400 + code) for code in range(32) if code not in (9, 10)}
BUILD_COMMAND = re.compile(r"##(?=\w*\[)")
"""How commands to a machine that runs jobs begin, such as ``##vso[`` and ``##teamcity[``."""
_INVISIBLE_SIGN = re.compile(f"[{''.join(map(chr, _INVISIBLE))}]")
