"""Notices as reports show them: each as a sentence, many of a kind shortened."""

from collections import Counter
from collections.abc import Hashable, Sequence
from typing import NamedTuple

from tracekit.errors import Notice, Severity, TracekitError

MAX_NOTICES_OF_A_KIND = 5
"""Notices of one code and case that are shown one by one."""


def notice_sentence(notice: Notice) -> str:
    """Return what a notice says, with the ranks it is about.

    >>> notice_sentence(Notice("no-steps"))
    'no-steps (written by another version of tracekit: ingest the traces again to read it)'
    """
    return (
        notice.message
        or f"{notice.code} (written by another version of tracekit: ingest the traces again to read it)"
    )


def error_message(error: TracekitError) -> str:
    """Return what an error says, with the sentence of the notice that it is about.

    >>> error_message(TracekitError("rank0.json: is damaged", notice=Notice("truncated", "it ends inside a packet")))
    'rank0.json: is damaged: it ends inside a packet'
    """
    if error.notice is None:
        return error.message
    return f"{error.message}: {notice_sentence(error.notice)}"


class NoticeLine(NamedTuple):
    """A notice as reports show it."""

    code: str
    message: str
    severity: Severity = "warning"


def telling_notices(lines: Sequence[NoticeLine]) -> list[NoticeLine]:
    """Return the notices that a reader of the first screen should know of: the full report has notes as well."""
    return [line for line in lines if line.severity == "warning"]


def shorten_notices(notices: Sequence[Notice]) -> list[NoticeLine]:
    """Return the first notices of each code and case, and how many more there are.

    Failed ranks are all listed.

    >>> cut = [Notice("partial-step", f"step {step} looks cut off") for step in range(7)]
    >>> [line.message for line in shorten_notices(cut)][-2:]
    ['step 4 looks cut off', '2 more like this']
    """
    totals = Counter(map(_kind, notices))
    count_so_far: Counter[Hashable] = Counter()
    shown: list[NoticeLine] = []
    for notice in notices:
        count_so_far[_kind(notice)] += 1
        number = count_so_far[_kind(notice)]
        if number <= MAX_NOTICES_OF_A_KIND or notice.code == "rank-failed":
            shown.append(NoticeLine(notice.code, notice_sentence(notice), notice.severity))
        elif number == MAX_NOTICES_OF_A_KIND + 1:
            more = totals[_kind(notice)] - MAX_NOTICES_OF_A_KIND
            shown.append(NoticeLine(notice.code, f"{more} more like this", notice.severity))
    return shown


def _kind(notice: Notice) -> Hashable:
    """Return what notices have in common that say the same of several things."""
    return notice.code, notice.values.get("case")
