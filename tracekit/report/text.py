"""Text for people: numbers with their units, wrapping, and escaping for each kind of output.

What packages below the reports need too is in ``tracekit._util.text``.
"""

import codecs
import os.path
import re
import textwrap
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence

from tracekit._util.text import BUILD_COMMAND, UNKNOWN, ms, terminal, terminal_lines


def capitalize(text: str) -> str:
    """Return text with a capital first letter, unless its first word is a label or code.

    >>> capitalize("by rank: 0"), capitalize("dp_comm is exposed"), capitalize("aten::mm is slow"), capitalize("")
    ('By rank: 0', 'dp_comm is exposed', 'aten::mm is slow', '')
    """
    first_word = text.partition(" ")[0]
    is_code = "_" in first_word or "::" in first_word
    return text if is_code else text[:1].upper() + text[1:]


def ms_range(times_ns: Iterable[float]) -> str:
    """Return the shortest and the longest of some times in milliseconds, with as many digits as tell them apart.

    >>> ms_range([119_700_000, 122_900_000]), ms_range([15_900_000, 17_700_000, 16_800_000]), ms_range([4_200_000] * 2)
    ('120–123 ms', '16–18 ms', '4.2 ms')
    """
    times = list(times_ns)
    low = min(times) / 1e6
    high = max(times) / 1e6
    digits = 0
    while f"{low:.{digits}f}" == f"{high:.{digits}f}" and digits < (2 if low != high else 1):
        digits += 1
    shortest = f"{low:,.{digits}f}"
    longest = f"{high:,.{digits}f}"
    return f"{shortest} ms" if shortest == longest else f"{shortest}–{longest} ms"


def bare_ms(ns: float | None, digits: int = 3) -> str:
    """Return nanoseconds as milliseconds without the unit, for a column whose heading names it.

    >>> bare_ms(1_234_567), bare_ms(-1_000_000), bare_ms(None)
    ('1.235', '−1.000', '–')
    """
    return UNKNOWN if ns is None else f"{ns / 1e6:,.{digits}f}".replace("-", "−")


def signed_ms(ns: float, digits: int = 1) -> str:
    """Return a difference in nanoseconds as milliseconds with a sign.

    >>> signed_ms(1_234_567), signed_ms(-40_000)
    ('+1.2 ms', '−0.04 ms')
    """
    return ("+" if ns >= 0 else "−") + ms(abs(ns), digits)


def at_least(text: str, bound: bool) -> str:
    """Return a formatted number, marked as a lower bound if *bound*.

    >>> at_least("19.4 %", True), at_least("–", True), at_least("19.4 %", False)
    ('≥ 19.4 %', '–', '19.4 %')
    """
    return f"≥ {text}" if bound and text != UNKNOWN else text


def keep_units_together(text: str) -> str:
    r"""Return text with no-break spaces between numbers and their units, so that no line break separates them.

    >>> text = keep_units_together("takes 1.5 ms, < 3 %")
    >>> text.replace("\N{NO-BREAK SPACE}", "~")
    'takes 1.5~ms, <~3~%'
    """
    return re.sub(
        r"(?<=\d) (?=ms|µs|%)|(?<=[<≥]) (?=\d)|(?<=\brank) (?=\d)", "\N{NO-BREAK SPACE}", text
    )


def wrap_text(text: str, width: int, *, first: str = "", rest: str = "") -> str:
    """Wrap text for a terminal into lines of at most *width* characters.

    Numbers stay with their units.

    *first* and *rest* are the indents of the first and of the other lines. Control characters are
    escaped.

    >>> print(wrap_text("it takes 12.5 ms", 12, first="1. ", rest="   "))
    1. it takes
       12.5 ms
    """
    # textwrap also breaks lines at no-break spaces: use a character it does not take for white
    # space instead. The text cannot hold it, because terminal() escapes control characters.
    unbreakable = "\x1f"
    escaped = keep_units_together(terminal(text)).replace("\N{NO-BREAK SPACE}", unbreakable)
    # Words are not broken at hyphens: --include-json must not become --include- at the end of a
    # line.
    lines = textwrap.wrap(
        escaped, width, initial_indent=first, subsequent_indent=rest, break_on_hyphens=False
    )
    return "\n".join(lines or [first]).replace(unbreakable, " ")


def shorten_distinct(names: Iterable[str], *, most: int) -> list[str]:
    """Shorten names to *most* characters such that different names stay different.

    A name that is too long keeps its beginning and its end. If two names would then look alike,
    their common beginning is left out; if that does not help either, they are numbered.

    >>> shorten_distinct(["short", "a_very_long_name_indeed"], most=12)
    ['short', 'a_very…ndeed']
    >>> shorten_distinct(["void gemm<128, 64, bf16>(long)", "void gemm<128, 32, bf16>(long)"], most=12)
    ['…64, b…long)', '…32, b…long)']
    """
    full_names = list(names)
    shortened = {name: _shorten(name, most) for name in full_names}
    for ambiguous in [short for short, count in Counter(shortened.values()).items() if count > 1]:
        colliding = sorted(name for name, short in shortened.items() if short == ambiguous)
        start = _common_prefix_length(colliding)
        replacements = {name: _shorten("…" + name[start:], most) for name in colliding}
        if len(set(replacements.values())) < len(colliding):
            replacements = {
                name: _shorten(f"{i}: {name}", most) for i, name in enumerate(colliding, 1)
            }
        shortened |= replacements
    return [shortened[name] for name in full_names]


def _common_prefix_length(names: Sequence[str]) -> int:
    """Return how many characters all names begin with, up to the end of a word."""
    length = len(os.path.commonprefix(names))  # noqa: RUF071  (these are no paths)
    while length and names[0][length - 1].isalnum():
        length -= 1
    return length


def _shorten(name: str, most: int) -> str:
    if len(name) <= most:
        return name
    end_length = (most - 1) // 2
    return f"{name[: most - 1 - end_length]}…{name[-end_length:]}"


# Escaping. Names of kernels, files and devices come from the trace: no output may take them for
# markup or commands.

_MARKDOWN_ESCAPES = str.maketrans(
    {"&": "&amp;", "<": "&lt;", ">": "&gt;"} | {char: f"\\{char}" for char in "\\`*~[]$!|"}
)
_MENTIONS_AND_LINKS = re.compile(
    r"(?<=[@#%!~$^])(?=\w)"  # @name, #12; on GitLab also %milestone, !12, ~label, $snippet, ^alert
    r"|(?<=&amp;)(?=\w)"  # &12, an epic of GitLab
    r"|(?<=\bGH)(?=-\d)"  # GH-12
    r"|(?<=:)(?=//)|(?<=\bwww)(?=\.)"  # links
    r"|^(?=/)",  # /close, a quick action of GitLab
    re.IGNORECASE,
)
"""Where a zero-width space keeps names from becoming mentions, references, links or commands."""
_EMPHASIS_UNDERSCORE = re.compile(r"(?<![^\W_])_|_(?![^\W_])")
"""Underscores that could begin or end emphasis: those that are not inside a word."""


def markdown(text: object) -> str:
    r"""Return text that Markdown shows as it is: without formatting, mentions and links.

    >>> markdown("a|b `c` <b> pp_comm: _x_\nnext")
    'a\\|b \\`c\\` &lt;b&gt; pp_comm: \\_x\\_ next'
    >>> markdown("/close GH-1 @team #2 !3")
    '&#8203;/close GH&#8203;-1 @&#8203;team #&#8203;2 \\!&#8203;3'
    """
    escaped = _EMPHASIS_UNDERSCORE.sub(r"\\_", terminal(text).translate(_MARKDOWN_ESCAPES))
    return _MENTIONS_AND_LINKS.sub("&#8203;", escaped)


def markdown_code(text: object) -> str:
    r"""Return text as inline code for a cell of a Markdown table.

    >>> markdown_code("f<T>(a|b)"), markdown_code("`x`")
    ('`f<T>(a\\|b)`', '`` `x` ``')
    """
    code = terminal(text).replace("|", "\\|")
    # The fence must be longer than any run of backticks inside.
    fence = "`" * (max((len(run) for run in re.findall("`+", code)), default=0) + 1)
    padding = " " if code.startswith("`") or code.endswith("`") or not code else ""
    return f"{fence}{padding}{code}{padding}{fence}"


_WORKFLOW_COMMAND = re.compile(r"(?m)^(\s*)::")
_CI_VARIABLES = ("CI", "GITHUB_ACTIONS", "TF_BUILD", "TEAMCITY_VERSION")


def in_ci_job() -> bool:
    """Return whether a machine that obeys commands in a job's output runs this process."""
    return any(os.environ.get(variable) for variable in _CI_VARIABLES)


def without_ci_commands(text: str) -> str:
    r"""Return text of which no line is a command to a machine that runs jobs, such as ``::error …`` or ``##[group]``.

    >>> without_ci_commands("at::native\n ::error::x ##vso[task] ## [b]")
    'at::native\n : :error::x # #vso[task] ## [b]'
    """
    return BUILD_COMMAND.sub("# #", _WORKFLOW_COMMAND.sub(r"\1: :", text))


def escape_workflow(text: object, *, also: str = "") -> str:
    r"""Return text for a GitHub workflow command: ``%``, line breaks and the characters of *also* percent-encoded.

    >>> escape_workflow("a\nb%"), escape_workflow("x: y", also=":,")
    ('a%0Ab%25', 'x%3A y')
    """
    escaped = terminal_lines(str(text).replace("\r", "\n"))
    for char in "%\n" + also:
        escaped = escaped.replace(char, f"%{ord(char):02X}")
    return escaped


def spreadsheet_cell(text: str) -> str:
    """Return text of a CSV file that no spreadsheet takes for a formula.

    Such text gets an apostrophe before it.

    >>> spreadsheet_cell("=cmd|' /C calc'!A0"), spreadsheet_cell("a=b"), spreadsheet_cell(" @SUM(A1)")
    ("'=cmd|' /C calc'!A0", 'a=b', "' @SUM(A1)")
    """
    return f"'{text}" if FORMULA_START.match(text) else text


FORMULA_START = re.compile(r"\s*[=+\-@\uff1d\uff0b\uff0d\uff20]|[\t\r\n]")
"""Beginning of a text that spreadsheets may take for a formula; full-width signs count in Japanese
ones."""


def to_ascii(text: str) -> str:
    """Return the nearest text in ASCII; ``?`` for a character that has no equivalent.

    >>> to_ascii("✓ 3–4 → +1.5 µs …"), to_ascii("é"), to_ascii("日")
    ('+ 3-4 -> +1.5 us ...', 'e', '?')
    """
    replaced = text.translate(_ASCII)
    return unicodedata.normalize("NFKD", replaced).encode("ascii", "ignore").decode() or "?" * bool(
        replaced
    )


def encode_as_ascii(error: UnicodeError) -> tuple[str, int]:
    """Replace the characters that an encoding lacks by ASCII: the codec error handler ``errors="tracekit"``.

    The command line sets it on standard output and error, so that signs such as ``✓`` and ``→`` do
    not stop it on a terminal that is not UTF-8.

    >>> "3–4 ✓".encode("ascii", errors="tracekit")
    b'3-4 +'
    """
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(map(to_ascii, error.object[error.start : error.end])), error.end


codecs.register_error("tracekit", encode_as_ascii)
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


LEAST_GB_BYTES = 100_000
"""Bytes from which memory is stated in GB."""


def gb(count: float | None) -> str:
    """Return bytes in GB, with at least three figures; what is less than a tenth of a megabyte as less than that.

    >>> gb(1_527_521_280), gb(8_400_000), gb(150_109_880_320), gb(None), gb(16_400), gb(0)
    ('1.53', '0.00840', '150.1', '–', '< 0.0001', '0.00')
    """
    if count is None:
        return UNKNOWN
    if 0 < count < LEAST_GB_BYTES:
        return f"< {LEAST_GB_BYTES / 1e9:.4f}"
    return f"{count / 1e9:,.1f}" if count >= 10e9 else f"{count / 1e9:#.3g}"


def gb_range(low: float, high: float | None) -> str:
    """Return a range in GB.

    One figure if both ends look the same, a lower bound if *high* is unknown.

    >>> gb_range(1e9, 2e9), gb_range(1e9, 1.0001e9), gb_range(1e9, None)
    ('1.00 – 2.00', '1.00', '≥ 1.00')
    """
    if high is None:
        return f"≥ {gb(low)}"
    return gb(low) if gb(low) == gb(high) else f"{gb(low)} – {gb(high)}"
