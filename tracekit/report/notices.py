"""Notices as reports show them: each as a sentence, many of a kind shortened."""

import inspect
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cache
from typing import NamedTuple

from msgspec.structs import replace

from tracekit._util.text import ranks_named
from tracekit.errors import Notice, TracekitError
from tracekit.report.notice_sentences import MAX_RANKS_NAMED, SENTENCES

MAX_NOTICES_OF_A_KIND = 5
"""Notices of one code that are shown one by one."""


def notice_sentence(notice: Notice) -> str:
    """Return what a notice says, with the ranks it is about.

    >>> notice_sentence(Notice("no-steps", ranks=(0, 1)))
    'ranks 0, 1: there are no step marks: the whole trace is taken as one step'
    >>> varied = Notice("graphs-whole", ranks=(0, 1), values={"graphs": 4}, varies=True)
    >>> notice_sentence(varied).endswith("labelled other (rank 1 too, with other numbers)")
    True
    """
    fields = {**notice.values, "ranks": notice.ranks, "labels": notice.labels}
    case = str(notice.values.get("case", ""))
    try:
        needed = fields_needed(notice.code, case)
        sentence = SENTENCES[notice.code, case](**{name: fields[name] for name in needed})
    except (
        LookupError,
        TypeError,
        ValueError,
    ):
        # It was read from a file of a version with other values.
        return f"{notice.code} (a notice of another version of tracekit)"
    if not notice.ranks or "ranks" in needed:
        return sentence
    if not notice.varies:
        return f"{ranks_named(notice.ranks, most=MAX_RANKS_NAMED)}: {sentence}"
    first_rank, *other_ranks = notice.ranks
    if not other_ranks:
        return f"rank {first_rank}: {sentence}"
    others = ranks_named(other_ranks, most=MAX_RANKS_NAMED)
    return f"rank {first_rank}: {sentence} ({others} too, with other numbers)"


@cache
def fields_needed(code: str, case: str) -> tuple[str, ...]:
    """Return the names of the values that a sentence needs; KeyError if there is no such sentence.

    >>> fields_needed("partial-step", "")
    ('step', 'events')
    """
    return tuple(inspect.signature(SENTENCES[code, case]).parameters)


def with_messages(notices: Iterable[Notice]) -> tuple[Notice, ...]:
    """Return notices with their sentences, as documents hold them.

    >>> with_messages([Notice("no-steps")])[0].message
    'there are no step marks: the whole trace is taken as one step'
    """
    return tuple(replace(notice, message=notice_sentence(notice)) for notice in notices)


def error_message(error: TracekitError) -> str:
    """Return what an error says, with the sentence of the notice that it is about.

    >>> error_message(TracekitError("rank0.json: is damaged", notice=Notice("truncated", values={"case": "packet"})))
    'rank0.json: is damaged: the file ends inside a packet'
    """
    if error.notice is None:
        return error.message
    return f"{error.message}: {notice_sentence(error.notice)}"


class NoticeLine(NamedTuple):
    """A notice as reports show it."""

    code: str
    message: str


HARMLESS_NOTICES = frozenset({"before-first-step"})
"""Codes of notices that change no figure: only the full report has them."""


def telling_notices(lines: Sequence[NoticeLine]) -> list[NoticeLine]:
    """Return the notices that a reader of the first screen should know of."""
    return [line for line in lines if line.code not in HARMLESS_NOTICES]


def shorten_notices(notices: Sequence[Notice]) -> list[NoticeLine]:
    """Return the first notices of each code and how many more there are.

    Failed ranks are all listed.

    >>> cut = [Notice("partial-step", values={"step": step, "events": 9}) for step in range(7)]
    >>> [line.message for line in shorten_notices(cut)][-2:]
    ['step 4 holds only 9 GPU events: it looks cut off', '2 more like this']
    """
    totals = Counter(notice.code for notice in notices)
    count_so_far: Counter[str] = Counter()
    shown: list[NoticeLine] = []
    for notice in notices:
        count_so_far[notice.code] += 1
        number = count_so_far[notice.code]
        if number <= MAX_NOTICES_OF_A_KIND or notice.code == "rank-failed":
            shown.append(NoticeLine(notice.code, notice_sentence(notice)))
        elif number == MAX_NOTICES_OF_A_KIND + 1:
            more = totals[notice.code] - MAX_NOTICES_OF_A_KIND
            shown.append(NoticeLine(notice.code, f"{more} more like this"))
    return shown
