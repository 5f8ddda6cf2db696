"""Tables made when they are first asked for: most questions need few, and of a thousand ranks they are large."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import polars as pl

Make = Callable[[], pl.DataFrame]


class Tables(Mapping[str, pl.DataFrame]):
    """Tables by name; each is made once.

    >>> tables = Tables({"steps": lambda: pl.DataFrame({"step": [1, 2]})})
    >>> "steps" in tables, len(tables), tables["steps"].height
    (True, 1, 2)
    """

    def __init__(self, makers: Mapping[str, Make]) -> None:
        self._makers = dict(makers)
        self._made: dict[str, pl.DataFrame] = {}

    def __getitem__(self, name: str) -> pl.DataFrame:
        if name not in self._made:
            self._made[name] = self._makers[name]()
        return self._made[name]

    def __contains__(self, name: object) -> bool:
        return name in self._makers

    def __iter__(self) -> Iterator[str]:
        return iter(self._makers)

    def __len__(self) -> int:
        return len(self._makers)

    def __reduce__(self) -> tuple[type[dict[str, pl.DataFrame]], tuple[dict[str, pl.DataFrame]]]:
        return dict, (dict(self),)  # what travels is what was asked for, not how to make it
