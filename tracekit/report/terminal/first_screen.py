"""The first screen in the terminal: about twelve lines at 80 columns, none of them wider than the terminal."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence

from msgspec import structs
from rich.text import Text

from tracekit._util.text import counted, percent, short_ms, size
from tracekit.analysis import Analysis
from tracekit.documents.findings import Finding
from tracekit.report import first_screen as content
from tracekit.report.blocks import (
    FindingItem,
    Headline,
    Line,
    Sentence,
    StepBar,
    Warnings,
)
from tracekit.report.findings import (
    bound_sign,
    finding_title,
    is_of_one_iteration,
    main_findings,
)
from tracekit.report.terminal.bars import ASCII_FILLS, FILLS, draw_bar
from tracekit.report.text import wrap_text

BAR_LENGTH = 32
"""Characters of the bar at 80 columns; a narrower terminal has a shorter one."""
MIN_LENGTH_OF_BAR_BESIDE_WORDS = 16
"""Characters from which a bar stands beside its words; else it has a line of its own."""
MODEL_OF_GPU = r"(?:RTX |GTX )?[A-Z]*[0-9]+[A-Za-z]*"
"""Model in the name of a GPU, the shortest that says what it is."""
MAX_TITLES = 3
"""Further findings up to which they are named by their titles."""
CUT_MARK = "…"
"""Stands where a text is cut."""
INDENT = "    "
"""Spaces before the further lines of a finding."""


def first_screen(
    analysis: Analysis,
    width: int,
    *,
    unicode: bool = True,
    brief: bool = False,
    options: Sequence[str] = ("--full", "-o report.html"),
) -> list[Text]:
    """Return the lines of the first screen, at most *width* columns wide.

    Args:
        analysis: The run.
        width: Columns of the terminal.
        unicode: Whether the terminal shows more than ASCII.
        brief: Return its beginning, up to the first finding.
        options: Options that lead to more and are suggested; a notebook, where more is folded below,
            has none.

    """
    blocks = content.brief_screen(analysis) if brief else content.first_screen(analysis)
    lines: list[Text] = []
    for block in blocks:
        lines += block_lines(block, width, unicode=unicode, full="--full" not in options)
    if options and not brief:
        shown = [block.number for block in blocks if isinstance(block, FindingItem)]
        lines += hint_lines(analysis, width, options=options, shown=shown)
    return lines


def block_lines(block: Line, width: int, *, unicode: bool = True, full: bool = False) -> list[Text]:
    """Return the lines of a block; *full* if all that it leaves out stands below."""
    match block:
        case Headline():
            return [headline(block, width)]
        case StepBar():
            return bar_lines(block, width, unicode=unicode)
        case Sentence():
            return sentence_lines(block, width)
        case FindingItem():
            return finding_lines(block, width)
        case Warnings():
            return warning_lines(block, width, full=full)


def headline(facts: Headline, width: int) -> Text:
    """Return what ran on what, and the step time, in one line.

    The step time is never cut off: what matters least, or is known to who reads it, goes first. A name
    that is too long beside the least goes alone.
    """
    short_device = facts.device.partition(" (")[0]
    model = re.search(MODEL_OF_GPU, short_device)
    shortest_device = short_device if model is None else model[0]
    with_short_device = structs.replace(facts, device=short_device)
    without_name = structs.replace(with_short_device, name="")
    least = structs.replace(without_name, steps="")
    shorter = (
        facts,
        with_short_device,
        structs.replace(with_short_device, steps=""),
        without_name,
        least,
        structs.replace(least, device=shortest_device),
        structs.replace(least, device=""),
    )
    for candidate in shorter:
        if len(candidate.text) <= width:
            return Text(candidate.text, style="bold")
    ranks = cut_text(facts.ranks, width - len(facts.time) - 3)
    return Text(f"{facts.time} · {ranks}", style="bold")


def bar_lines(bar: StepBar, width: int, *, unicode: bool = True) -> list[Text]:
    """Return a bar with its parts beside it, or in lines below it where it is narrow."""
    words = "  ".join(bar.words)
    beside = width - len(words) - 2
    if beside >= MIN_LENGTH_OF_BAR_BESIDE_WORDS:
        drawn = step_bar(bar, min(BAR_LENGTH, beside), unicode=unicode)
        return [drawn.append("  ").append(words)]
    wrapped = textwrap.wrap(" · ".join(bar.words), width)
    return [
        step_bar(bar, min(2 * BAR_LENGTH, width), unicode=unicode),
        *(Text(line) for line in wrapped),
    ]


def step_bar(bar: StepBar, length: int, *, unicode: bool = True) -> Text:
    """Draw the parts of a step, and nothing for what is too short to be named."""
    fills = FILLS if unicode else ASCII_FILLS
    drawn = draw_bar(bar.bar, length, fills=fills)
    return drawn.append(" " * (length - len(drawn)))


def sentence_lines(sentence: Sentence, width: int) -> list[Text]:
    """Return a sentence: a heading in bold, an aside dim and indented."""
    if sentence.style == "aside":
        return _wrapped(sentence.text, width, first="  ", rest=INDENT, style="dim")
    return _wrapped(sentence.text, width, style="bold" if sentence.style == "heading" else "")


def finding_lines(item: FindingItem, width: int) -> list[Text]:
    """Return a finding: its number, saving, share and text, and below it the advice."""
    sentence = item.finding.text
    if item.remarks:
        sentence += f" ({item.remarks})"
    first = f"{item.number:>2} {saving(item.finding)}  "
    text = _wrapped(sentence, width, first=first, rest=INDENT)
    advice = _wrapped(item.advice, width, first=f"{INDENT}→ ", rest=f"{INDENT}  ", style="dim")
    return [*text, *advice]


def saving(finding: Finding) -> str:
    """Return what a finding saves and its share of the step; of what one iteration has that it is once.

    What it costs where no saving is predicted.

    >>> saving(Finding(code="host_sync", cost_ns=4_000_000, share=0.2, saves_ns=3_000_000, evidence={"step_ns": 1}))
    '  3.00 ms  15 %'
    >>> saving(Finding(code="host_sync", cost_ns=4_000_000, share=0.2))
    '≤ 4.00 ms  20 %'
    >>> saving(Finding(code="leak", cost_ns=0, cost_bytes=8_388_608, share=0.0))
    '   8.4 MB      '
    """
    if finding.cost_bytes and not finding.cost_ns:
        return f"{size(finding.cost_bytes):>9} {'':>5}"
    share = percent(finding.effect_share, digits=0)
    if is_of_one_iteration(finding):
        share = "once"
    return f"{bound_sign(finding):<2}{short_ms(finding.effect_ns):>7} {share:>5}"


def warning_lines(block: Warnings, width: int, *, full: bool) -> list[Text]:
    """Return the first warning in a line, or two where its first clause is longer, and how many more there are."""
    count = len(block.warnings)
    first = block.warnings[0].message
    option = "" if full else " (--full)"
    heading = "  warning: " if count == 1 else f"  {count} warnings{option}, first: "
    beside = width - len(heading)
    message = first_clauses(first, beside)
    if message.endswith(CUT_MARK):
        message = first_clauses(first, beside + width - 2 * len(INDENT))
    return _wrapped(message, width, first=heading, rest=INDENT, style="dim")


def hint_lines(
    analysis: Analysis, width: int, *, options: Sequence[str], shown: Sequence[int]
) -> list[Text]:
    """Return where there is more.

    Args:
        analysis: The run.
        width: Columns of the terminal.
        options: Options that lead to more.
        shown: Numbers of the findings above.

    """
    hints = []
    for option in options:
        hints.append(
            f"{option}{_further_findings(analysis, shown)}" if option == "--full" else option
        )
    if main_findings(analysis):
        hints.insert(1 if "--full" in options else 0, "--explain 1")
    return _wrapped(f"more: {', '.join(hints)}", width, first="  ", rest="    ", style="dim")


def _further_findings(analysis: Analysis, shown: Sequence[int]) -> str:
    """Return how many findings are not *shown*, in brackets, and their titles if these are few."""
    smaller = []
    for number, finding in enumerate(main_findings(analysis), start=1):
        if number not in shown:
            smaller.append(finding)
    if not smaller:
        return ""
    titles = dict.fromkeys(finding_title(finding) for finding in smaller)
    of_what = f": {', '.join(titles)}" if len(smaller) <= MAX_TITLES else ""
    return f" ({counted(len(smaller), 'more finding')}{of_what})"


def first_clauses(text: str, width: int) -> str:
    """Return the clauses of a sentence that fit into *width* columns; cut where its first one does not.

    >>> first_clauses("7 events ran between steps: not counted; their launch is not in the file", 40)
    '7 events ran between steps: not counted'
    >>> first_clauses("rank 0: seven events ran between steps", 20)
    'rank 0: seven event…'
    >>> first_clauses("7 events have no launch; by name alone (rank 1 too, with other numbers)", 60)
    '7 events have no launch'
    """
    if len(text) <= width:
        return text
    ends = []
    for match in re.finditer(r"[:;,] ", text[: width + 1]):
        before = text[: match.start()]
        if before.count("(") == before.count(")"):
            ends.append(match.start())
    last = max(ends, default=0)
    return text[:last] if 3 * last >= width else cut_text(text, width)


def cut_text(text: str, width: int) -> str:
    """Return text that fits into *width* columns, with … where it was cut.

    >>> cut_text("abcdef", 4)
    'abc…'
    """
    return text if len(text) <= width else f"{text[: max(width - 1, 0)]}{CUT_MARK}"


def _wrapped(
    text: str, width: int, *, first: str = "", rest: str = "", style: str = ""
) -> list[Text]:
    """Return text as lines of at most *width* columns."""
    wrapped = []
    for line in wrap_text(text, width, first=first, rest=rest).split("\n"):
        wrapped.append(Text(line, style=style))
    return wrapped
