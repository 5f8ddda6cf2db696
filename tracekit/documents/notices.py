"""Notices as documents show them."""

from collections.abc import Iterable

from msgspec import Struct

from tracekit.errors import Notice, NoticeValues


class WarningEntry(Struct, frozen=True):
    """A notice, as data and as a sentence."""

    code: str
    """What it is about; a code keeps its meaning."""
    message: str
    """The sentence for people."""
    ranks: tuple[int, ...]
    """Ranks that it is about; empty if that is the run, or all of its ranks alike."""
    labels: tuple[str, ...] = ()
    """Labels that it is about."""
    values: NoticeValues = {}
    """Figures and names in the sentence, by what they are; ``case`` tells apart what a code can
    mean."""
    varies: bool = False
    """Whether the values are those of the first rank alone, and other ranks have other values."""

    def to_notice(self) -> Notice:
        """Return the notice."""
        return Notice(
            self.code, ranks=self.ranks, labels=self.labels, values=self.values, varies=self.varies
        )


def warning_entries(notices: Iterable[Notice]) -> list[WarningEntry]:
    """Return notices as a document shows them."""
    return [
        WarningEntry(
            code=notice.code,
            message=notice.message,
            ranks=notice.ranks,
            labels=notice.labels,
            values=notice.values,
            varies=notice.varies,
        )
        for notice in notices
    ]
