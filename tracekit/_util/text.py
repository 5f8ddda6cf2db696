"""Numbers and lists in words, and every escape: the one place that turns values into words.

Numbers of a figure are written the same way everywhere: a share as ``12.3 %``, a time as ``1.2 ms``, a change with a
real minus sign, what is unknown as ``–``, and what is there never as nothing.
"""

from __future__ import annotations

import codecs
import difflib
import html as _html
import re
import textwrap
import unicodedata
from collections.abc import Iterable, Sequence

UNKNOWN = "–"


def plural(noun: str) -> str:
    """Return the plural of a noun.

    >>> plural("rank"), plural("micro-batch")
    ('ranks', 'micro-batches')
    """
    return noun + ("es" if noun.endswith(("ch", "sh", "s", "x")) else "s")


def counted(count: float, noun: str) -> str:
    """Return a number with its noun.

    >>> counted(1, "rank"), counted(1024, "rank"), counted(8, "micro-batch")
    ('1 rank', '1,024 ranks', '8 micro-batches')
    """
    return f"{count:,} {noun if count == 1 else plural(noun)}"


def listing(names: Iterable[str], *, most: int = 4) -> str:
    """Join names, the first few and how many more.

    >>> listing("abcdef")
    'a, b, c, d, +2 more'
    """
    every = list(names)
    more = [f"+{len(every) - most} more"] if len(every) > most else []
    return ", ".join([*every[:most], *more])


def joined(parts: Iterable[str]) -> str:
    """Join the parts of a sentence.

    >>> joined(["a"]), joined(["a", "b"]), joined(["a", "b", "c"])
    ('a', 'a and b', 'a, b and c')
    """
    every = list(parts)
    return " and ".join(filter(None, (", ".join(every[:-1]), *every[-1:])))


def spans(numbers: Iterable[int], *, most: int = 12) -> str:
    """Write numbers that follow each other as spans.

    >>> spans([0, 1, 2, 3, 7])
    '0–3, 7'
    """
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][-1] + 1:
            parts[-1][1:] = [number]
        else:
            parts.append([number])
    return listing(("–".join(map(str, part)) for part in parts), most=most)


def sentence(text: str) -> str:
    """Return text with a capital; a label or a word to type keeps its own letters.

    >>> sentence("by rank: 0"), sentence("dp_comm is exposed"), sentence("`--what-if` ranks"), sentence("")
    ('By rank: 0', 'dp_comm is exposed', '`--what-if` ranks', '')
    """
    return text if "_" in text.partition(" ")[0] else text[:1].upper() + text[1:]


def ranks_named(numbers: Iterable[int], *, most: int = 8) -> str:
    """Name ranks, those that follow each other as a span.

    >>> ranks_named([3]), ranks_named([0, 1]), ranks_named([0, 1, 2, 3, 7])
    ('rank 3', 'ranks 0, 1', 'ranks 0–3, 7')
    """
    every = list(numbers)
    if len(every) < 3:
        return f"{'rank' if len(every) == 1 else 'ranks'} {', '.join(map(str, every))}"
    return f"ranks {spans(every, most=most)}"


def size(count: int) -> str:
    """Return a number of bytes.

    >>> size(3_400_000)
    '3.4 MB'
    """
    for unit, divisor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= divisor:
            return f"{count / divisor:.1f} {unit}"
    return f"{count} bytes"


def ms(ns: float | None, digits: int = 1) -> str:
    """Return nanoseconds as milliseconds, with as many digits as it takes to show what is there.

    >>> ms(1_234_567), ms(4_200), ms(-4_200), ms(0), ms(None)
    ('1.2 ms', '0.004 ms', '−0.004 ms', '0.0 ms', '–')
    """
    if ns is None:
        return UNKNOWN
    value = ns / 1e6
    while value and abs(value) < 10**-digits and digits < 6:
        digits += 1
    return f"{value:,.{digits}f} ms".replace("-", "−")


def bare_ms(ns: float | None, digits: int = 3) -> str:
    """Return nanoseconds as milliseconds for a column whose head names the unit.

    >>> bare_ms(1_234_567), bare_ms(-1_000_000), bare_ms(None)
    ('1.235', '−1.000', '–')
    """
    return UNKNOWN if ns is None else f"{ns / 1e6:,.{digits}f}".replace("-", "−")


def signed(number: float, digits: int = 1) -> str:
    """Return a number with its sign, minus as a minus; what rounds to nothing has none.

    >>> signed(1.25, 1), signed(-3.0, 1), signed(-0.0001, 1)
    ('+1.2', '−3.0', '0.0')
    """
    if not round(number, digits):
        return f"{0:.{digits}f}"
    return f"{number:+,.{digits}f}".replace("-", "−")


def signed_ms(ns: float, digits: int = 1) -> str:
    """Return nanoseconds more or less, as milliseconds.

    >>> signed_ms(1_234_567), signed_ms(-40_000)
    ('+1.2 ms', '−0.04 ms')
    """
    return ("+" if ns >= 0 else "−") + ms(abs(ns), digits)


def percent(part: float | None, whole: float | None = 1.0, *, digits: int = 1) -> str:
    """Return a share of *whole* as per cent; what is there is never shown as nothing.

    >>> percent(1, 4), percent(0.0001), percent(-0.004), percent(0.0), percent(None), percent(1, 0)
    ('25.0 %', '< 0.1 %', '−0.4 %', '0.0 %', '–', '–')
    """
    if part is None or not whole:
        return UNKNOWN
    share = part / whole
    least = 10.0 ** -(digits + 2)
    if 0 < abs(share) < least / 2:
        return f"{'< ' if share > 0 else '> −'}{least:.{digits}%}".replace("%", " %")
    return f"{share:.{digits}%}".replace("-", "−").replace("%", " %")


def at_least(text: str, bound: bool) -> str:
    """Return a figure marked as a lower bound.

    >>> at_least("19.4 %", True), at_least("–", True), at_least("19.4 %", False)
    ('≥ 19.4 %', '–', '19.4 %')
    """
    return f"≥ {text}" if bound and text != UNKNOWN else text


def unbroken(text: str) -> str:
    r"""Return text whose numbers stay on one line with their units, by spaces that do not break.

    >>> unbroken("takes 1.5 ms, < 3 %") == "takes 1.5\N{NO-BREAK SPACE}ms, <\N{NO-BREAK SPACE}3\N{NO-BREAK SPACE}%"
    True
    """
    return re.sub(r"(?<=\d) (?=ms|µs|%)|(?<=[<≥]) (?=\d)|(?<=\brank) (?=\d)", "\N{NO-BREAK SPACE}", text)


def wrapped(text: str, width: int, *, first: str = "", rest: str = "") -> str:
    """Return text in lines of at most *width* letters, numbers with their units; control characters are shown.

    >>> print(wrapped("it takes 12.5 ms", 12, first="1. ", rest="   "))
    1. it takes
       12.5 ms
    """
    # What does not break is not white space to textwrap while it is another sign.
    clean = unbroken(terminal(text)).replace("\N{NO-BREAK SPACE}", "\x1f")
    # An option is one word: at the end of a line --include-json must not become --include-.
    lines = textwrap.wrap(clean, width, initial_indent=first, subsequent_indent=rest, break_on_hyphens=False) or [first]
    return "\n".join(lines).replace("\x1f", " ")


def did_you_mean(word: str, known: Iterable[str], *, otherwise: str, cutoff: float = 0.6) -> str:
    """Return the hint for a word that is not *known*: the nearest one, or *otherwise* where none is near.

    >>> did_you_mean("dualpip", ["1f1b", "dualpipe"], otherwise="--list names them all")
    'did you mean dualpipe?'
    """
    near = difflib.get_close_matches(word, list(known), n=1, cutoff=cutoff)
    return f"did you mean {near[0]}?" if near else otherwise


def apart(names: Iterable[str], *, most: int) -> list[str]:
    """Shorten names to *most* letters so that two that differ still look different.

    A name that is too long keeps its two ends; where two would then look alike, what they begin with goes instead.

    >>> apart(["short", "a_very_long_name_indeed"], most=12)
    ['short', 'a_very…ndeed']
    >>> apart(["void gemm<128, 64, bf16>(long)", "void gemm<128, 32, bf16>(long)"], most=12)
    ['…64, b…long)', '…32, b…long)']
    """
    every = list(names)
    kept = [_ends(name, most) for name in every]
    for alike in {short for short in kept if kept.count(short) > 1}:
        same = sorted({name for name, short in zip(every, kept, strict=True) if short == alike})
        if len(same) > 1:
            head = _common(same)
            better = {name: _ends("…" + name[head:], most) for name in same}
            if len(set(better.values())) < len(same):
                better = {name: _ends(f"{at}: {name}", most) for at, name in enumerate(same, 1)}
            kept = [better.get(name, short) for name, short in zip(every, kept, strict=True)]
    return kept


def _common(names: Sequence[str]) -> int:
    """Return how many letters all of these sorted names begin with, up to where a word ends."""
    pairs = enumerate(zip(names[0], names[-1], strict=False))
    same = next((at for at, (a, b) in pairs if a != b), min(len(names[0]), len(names[-1])))
    while same and names[0][same - 1].isalnum():
        same -= 1
    return same


def _ends(name: str, most: int) -> str:
    half = (most - 1) // 2
    return name if len(name) <= most else f"{name[: most - 1 - half]}…{name[-half:]}"


# Escapes: what a trace calls its kernels, files and devices is text, wherever it is shown.

_SIGNS = {"&": "&amp;", "<": "&lt;", ">": "&gt;"} | {sign: f"\\{sign}" for sign in "\\`*~[]$!|"}
_PLAIN = str.maketrans(_SIGNS)
"""What Markdown or HTML would read as more than text."""
_CALLS = re.compile(r"(?<=[@#])(?=\w)|(?<=:)(?=//)|(?<=\bwww)(?=\.)", re.IGNORECASE)
"""Where people, issues and links are called: a gap of no width there keeps them text."""
_EDGE = re.compile(r"(?<![^\W_])_|_(?![^\W_])")
"""Underscores that could begin or end emphasis; those inside a word cannot."""


def terminal(text: object) -> str:
    r"""Return text that moves no cursor and changes no colour: control characters are shown as what they are.

    >>> terminal("a\x1b[31mb\nc"), terminal("\N{RIGHT-TO-LEFT OVERRIDE}x")
    ('a\\x1b[31mb c', '\\u202ex')
    """
    line = " ".join(str(text).split())
    if line.isascii() and line.isprintable():
        return line
    return "".join(c if unicodedata.category(c)[0] != "C" else repr(c)[1:-1] for c in line)


def terminal_lines(text: object) -> str:
    r"""Return text of several lines for a terminal: line breaks and tabs stay, each control character becomes one sign.

    >>> terminal_lines("a\n\x1b[31mb\u202e\ud800")
    'a\n␛[31mb��'
    """
    return str(text).translate(_UNSEEN_SIGNS)


def one_line(text: object) -> str:
    r"""Return text for one line of a terminal whose blanks are set on purpose, such as a table's.

    >>> one_line("  a   b\nc\x07")
    '  a   b c␇'
    """
    return terminal_lines(str(text).replace("\n", " "))


def markdown(text: object) -> str:
    r"""Return text that Markdown and HTML read as text: it formats nothing, calls nobody and links nowhere.

    >>> markdown("a|b `c` <b> pp_comm: _x_\nnext")
    'a\\|b \\`c\\` &lt;b&gt; pp_comm: \\_x\\_ next'
    """
    clean = terminal(text).translate(_PLAIN)
    return _CALLS.sub("&#8203;", _EDGE.sub(r"\\_", clean))


def markdown_code(text: object) -> str:
    r"""Return a name as code, for a cell of a Markdown table.

    >>> markdown_code("f<T>(a|b)"), markdown_code("`x`")
    ('`f<T>(a\\|b)`', '`` `x` ``')
    """
    clean = terminal(text).replace("|", "\\|")
    fence = "`" * (max((len(run) for run in re.findall("`+", clean)), default=0) + 1)
    gap = " " if clean.startswith("`") or clean.endswith("`") or not clean else ""
    return f"{fence}{gap}{clean}{gap}{fence}"


def html(text: object) -> str:
    r"""Return text for a page, or XML: nothing in it is markup, and nothing such that no file can hold it.

    >>> html('<b> "x"\ud800')
    '&lt;b&gt; &quot;x&quot;\ufffd'
    """
    return _html.escape(terminal_lines(text))


def workflow(text: object, *, also: str = "") -> str:
    r"""Return text for a GitHub workflow command: what would end the command early is percent-encoded.

    >>> workflow("a\nb%"), workflow("x: y", also=":,")
    ('a%0Ab%25', 'x%3A y')
    """
    clean = terminal_lines(str(text).replace("\r", "\n"))
    for sign in "%\n" + also:
        clean = clean.replace(sign, f"%{ord(sign):02X}")
    return clean


def csv(text: object) -> str:
    r"""Return text for a cell that a spreadsheet must not take for a formula.

    >>> csv("=cmd|' /C calc'!A0"), csv("aten::mm"), csv("-1.5"), csv("-x")
    ("'=cmd|' /C calc'!A0", 'aten::mm', '-1.5', "'-x")
    """
    clean = terminal(text)
    return f"'{clean}" if clean.startswith(("=", "+", "-", "@")) and not _NUMBER.fullmatch(clean) else clean


def json_text(text: str) -> str:
    r"""Return JSON text in which what no terminal or file can take stands as escapes; other letters stay letters.

    >>> json_text('{"name": "é\x9b\ud800"}')
    '{"name": "é\\u009b\\ud800"}'
    """
    return text.translate(_UNSEEN_JSON)


def in_ascii(text: str) -> str:
    """Return text in ASCII, for terminals that know no other letters.

    >>> in_ascii("✓ 3–4 → +1.5 µs …"), in_ascii("é"), in_ascii("日")
    ('+ 3-4 -> +1.5 us ...', 'e', '?')
    """
    spelled = text.translate(_ASCII)
    return unicodedata.normalize("NFKD", spelled).encode("ascii", "ignore").decode() or "?" * bool(spelled)


def spell_out(error: UnicodeError) -> tuple[str, int]:
    """Handle what an encoding has no letters for (``errors="tracekit"``): in ASCII instead."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(map(in_ascii, error.object[error.start : error.end])), error.end


codecs.register_error("tracekit", spell_out)

_UNSEEN = (
    *(*range(0x7F, 0xA0), 0x61C, 0x200E, 0x200F, 0x2028, 0x2029),
    *(*range(0x202A, 0x202F), *range(0x2066, 0x206A), *range(0xD800, 0xE000)),
)
"""Control characters above ASCII, line breaks and marks that turn a line around, and halves of letters."""
_UNSEEN_SIGNS = dict.fromkeys(_UNSEEN, "\N{REPLACEMENT CHARACTER}") | {0x7F: "\N{SYMBOL FOR DELETE}"}
_UNSEEN_SIGNS |= {code: chr(0x2400 + code) for code in range(32) if code not in (9, 10)}
_UNSEEN_JSON = {code: f"\\u{code:04x}" for code in _UNSEEN}
_NUMBER = re.compile(r"[+-]?[\d.,]+(?:[eE][+-]?\d+)?")
_ASCII = str.maketrans(
    {
        **{"✓": "+", "✗": "x", "▲": "^", "▼": "v", "·": "-", "•": "*", "×": "x", "→": "->", "←": "<-", "…": "..."},
        **{"–": "-", "—": "-", "−": "-", "“": '"', "”": '"', "’": "'", "≥": ">=", "≤": "<=", "≈": "~", "µ": "u"},
        **{"✅": "+", "🚀": "^", "❌": "x", "⚠": "!", "⛔": "x", "\N{VARIATION SELECTOR-16}": "", "Δ": "d"},
        **dict.fromkeys("│┃╎", "|"), **dict.fromkeys("─━╌┄", "-"), **dict.fromkeys("█▇▆▅■▓▰", "#"),
        **dict.fromkeys("▄▃▂▁░▒□▱", "."), "\N{REPLACEMENT CHARACTER}": "?",
        **{chr(0x2400 + code): "?" for code in range(0x22)},
    }
)  # fmt: skip
