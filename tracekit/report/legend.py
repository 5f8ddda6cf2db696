"""Legends that fit: as many entries beside each other as the figure is wide, read row by row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.artist import Artist

_LETTER, _KEY = 0.07, 0.42
"""Inches a letter takes, and a key with the space around it."""


def rows_of(handles: Sequence[Artist], inches: float) -> dict[str, Any]:
    """Return a legend's handles and columns; matplotlib fills it column by column, the first ones longer.

    >>> from matplotlib.patches import Patch
    >>> found = rows_of([Patch(label=name * 10) for name in "abcde"], 4.0)
    >>> found["ncols"], [one.get_label()[0] for one in found["handles"]]
    (3, ['a', 'd', 'b', 'e', 'c'])
    """
    widest = max((len(str(one.get_label())) for one in handles), default=1)
    fit = max(1, int(inches / (_LETTER * widest + _KEY)))
    rows = max(1, -(-len(handles) // fit))
    columns = max(1, -(-len(handles) // rows))
    return {"handles": [one for column in range(columns) for one in handles[column::columns]], "ncols": columns}
