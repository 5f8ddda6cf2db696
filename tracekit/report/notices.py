"""Sentences of notices, made from their codes and values by the templates in ``notices.toml``."""

import string
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from tracekit._util.text import counted, join_with_and, listing, ms, percent, ranks_named
from tracekit.errors import Notice

MAX_RANKS_NAMED = 8
"""Parts of a list of ranks that a sentence names (a range is one part); of the others it says how
many there are."""

MAX_PIPELINES_NAMED = 4
"""Pipelines that a sentence names; of the others it says how many there are."""
MAX_NOTICES_OF_A_KIND = 5
"""Notices of one code that are shown one by one."""

Fields = Mapping[str, Any]
"""What a template can name: the values of a notice, its ranks and its labels."""
Templates = Mapping[str, str | Mapping[str, str]]
"""A template by code, or one for each ``case`` of the code."""


@cache
def templates() -> Templates:
    """Return the templates of all notices."""
    text = Path(__file__).with_name("notices.toml").read_bytes()
    return msgspec.toml.decode(text, type=dict[str, str | dict[str, str]])


def notice_sentence(notice: Notice) -> str:
    """Return what a notice says, with the ranks it is about.

    >>> notice_sentence(Notice("no-steps", ranks=(0, 1)))
    'ranks 0, 1: there are no step marks: the whole trace is taken as one step'
    >>> varied = Notice("graphs-whole", ranks=(0, 1), values={"graphs": 4}, varies=True)
    >>> notice_sentence(varied).endswith("labelled other (rank 1 too, with other numbers)")
    True
    """
    try:
        template = _template(notice)
        sentence = fill_template(template, notice)
    except (
        LookupError,
        TypeError,
        ValueError,
    ):
        # It was read from a file of a version with other values.
        return f"{notice.code} (a notice of another version of tracekit)"
    if not notice.ranks or "{ranks" in template:
        return sentence
    if not notice.varies:
        return f"{ranks_named(notice.ranks, most=MAX_RANKS_NAMED)}: {sentence}"
    first_rank, *other_ranks = notice.ranks
    if not other_ranks:
        return f"rank {first_rank}: {sentence}"
    others = ranks_named(other_ranks, most=MAX_RANKS_NAMED)
    return f"rank {first_rank}: {sentence} ({others} too, with other numbers)"


def _template(notice: Notice) -> str:
    """Return the template of a notice; KeyError if there is none."""
    entry = templates()[notice.code]
    return entry if isinstance(entry, str) else entry[str(notice.values["case"])]


def fill_template(template: str, notice: Notice) -> str:
    """Return a template with the values of a notice in it.

    >>> bad = Notice("bad-events", values={"count": 2, "gpu_events": 0})
    >>> fill_template("{count:counted event} {count:choose was|were} lost{gpu_events:if , {gpu_events} of a GPU}", bad)
    '2 events were lost'
    """
    fields = {**notice.values, "ranks": notice.ranks, "labels": notice.labels}
    return _Formatter().vformat(template, (), fields)


class _Formatter(string.Formatter):
    """A formatter that knows ``PHRASES`` beside the values, and ``VALUE_FORMATS`` beside those of Python."""

    def get_value(self, key: int | str, args: Sequence[Any], kwargs: Fields) -> Any:
        phrase = PHRASES.get(str(key))
        return kwargs[str(key)] if phrase is None else phrase(kwargs)

    def format_field(self, value: Any, format_spec: str) -> str:
        name, _, argument = format_spec.partition(" ")
        if name in VALUE_FORMATS:
            return VALUE_FORMATS[name](value, argument)
        return format(value, format_spec)


def _choose(count: float, words: str) -> str:
    """Return the first of two words for one, else the second."""
    singular, _, plural = words.partition("|")
    return singular if count == 1 else plural


def _first_of(names: Sequence[object], count: str) -> str:
    """Return names, and how many more there are if there are *count* in all."""
    more = int(count) - len(names)
    parts = [*map(str, names), f"+{more} more"] if more > 0 else [str(name) for name in names]
    return ", ".join(parts)


VALUE_FORMATS: Mapping[str, Callable[[Any, str], str]] = {
    "if": lambda value, text: text if value else "",
    "unless": lambda value, text: "" if value else text,
    "known": lambda value, text: "" if value is None else text,
    "unknown": lambda value, text: text if value is None else "",
    "choose": _choose,
    "counted": counted,
    "ms": lambda ns, digits: ms(ns, int(digits or 1)),
    "seconds": lambda ns, _: f"{ns / 1e9:,.1f} s",
    "percent": lambda share, digits: percent(share, digits=int(digits or 1)),
    "named": lambda ranks, _: ranks_named(ranks, most=MAX_RANKS_NAMED),
    "list": lambda names, most: listing(map(str, names), most=int(most or 4)),
    "joined": lambda names, _: ", ".join(map(str, names)),
    "and": lambda names, _: join_with_and(map(str, names)),
    "first_of": _first_of,
}
"""What a template may write behind the colon of a value:

- ``if TEXT``: the text if the value is neither 0 nor empty; ``unless TEXT``: the text if it is;
- ``known TEXT``: the text unless the value is None; ``unknown TEXT``: the text if it is;
- ``choose WORD|WORDS``: a word for one, or the words for another number;
- ``counted NOUN``: the number with its noun;
- ``ms DIGITS``, ``seconds``: nanoseconds as time; ``percent DIGITS``: a share;
- ``named``: ranks; ``list MOST``: at most so many names; ``joined``, ``and``: all names;
- ``first_of COUNT``: the first names of so many.
"""


def _cut_signs(fields: Fields) -> str:
    """Return what shows that a step is cut."""
    signs = []
    if fields["without_backward"]:
        signs.append(f"{fields['without_backward']} forwards have no backward")
    if fields["without_forward"]:
        signs.append(f"{fields['without_forward']} backwards have no forward")
    if fields["fewest_forwards"] != fields["most_forwards"]:
        signs.append(
            f"the ranks ran {fields['fewest_forwards']} to {fields['most_forwards']} forwards"
        )
    return ", ".join(signs)


def _list_sizes(schedules: Sequence[str], sizes: Sequence[Sequence[int]]) -> str:
    """Return names of schedules with the sizes at which they fit.

    >>> _list_sizes(["1f1b", "gpipe"], [[4], [2, 3]])
    '1f1b of 4 ranks, gpipe of 2, 3 ranks'
    """
    pairs = zip(schedules, sizes, strict=True)
    return ", ".join(
        f"{schedule} of {listing(map(str, fitting))} ranks" for schedule, fitting in pairs
    )


def _fitting(fields: Fields) -> str:
    return _list_sizes(fields["schedules"], fields["sizes"])


def _less_likely(fields: Fields) -> str:
    return _list_sizes(fields["other_schedules"], fields["other_sizes"])


def _skipped_files(fields: Fields) -> str:
    files = zip(fields["files"], fields["errors"], strict=True)
    return listing(f"{file} {error}" for file, error in files)


def _ranks_by_role(fields: Fields) -> str:
    roles = zip(fields["roles"], fields["counts"], strict=True)
    return ", ".join(f"{role} {count}" for role, count in roles)


def _pipelines(fields: Fields) -> str:
    pipelines = fields["pipelines"]
    named = []
    for ranks in pipelines[:MAX_PIPELINES_NAMED]:
        named.append(listing(map(str, ranks), most=MAX_RANKS_NAMED))
    more = len(pipelines) - len(named)
    return "; ".join(named) + (f" and {more} more" if more else "")


_RECORD_AGAIN = {
    "nsight": "export the report again: nsys export --type=sqlite --force-overwrite=true REPORT.nsys-rep",
    "kineto": "record this rank again",
}
"""What to do about a damaged recording, by its reader."""


def _record_again(fields: Fields) -> str:
    return _RECORD_AGAIN.get(fields["reader"], _RECORD_AGAIN["kineto"])


PHRASES: Mapping[str, Callable[[Fields], str]] = {
    "record_again": _record_again,
    "signs": _cut_signs,
    "fitting": _fitting,
    "less_likely": _less_likely,
    "skipped": _skipped_files,
    "ranks_by_role": _ranks_by_role,
    "pipelines_named": _pipelines,
}
"""Phrases that a template can name like a value; each is made of several values, or of a list of
lists."""


class NoticeLine(NamedTuple):
    """A notice as reports show it."""

    code: str
    message: str


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
