"""The critical path as tracks of its own: a thread for each rank, and arrows from one segment to the next rank's."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import polars as pl

_ARGS = ("step", "kind", "label", "cause", "stage", "peer")


def path_lines(segments: pl.DataFrame, pid: int, tids: Mapping[int, int], base_ns: int, first: int) -> Iterator[str]:
    """Yield events of the segments, and arrows where the path changes rank, numbered from *first*.

    >>> table = pl.DataFrame({"rank": [0, 1], "step": [2, 2], "kind": ["cell", "message"], "what": ["0F0", "recv"],
    ...     "label": ["forward", "pp_comm"], "cause": [None, None], "stage": [0, 1], "peer": [None, 0],
    ...     "start_ns": [1000, 3000], "end_ns": [3000, 3500]})
    >>> [json.loads(line)["ph"] for line in path_lines(table, 1, {0: 1, 1: 2}, 0, 1)]
    ['X', 'X', 's', 'f']
    """
    before: dict[str, Any] | None = None
    for row in segments.iter_rows(named=True):
        args = {name: row[name] for name in _ARGS if row[name] is not None}
        name = row["what"] or row["kind"]
        head = {"ph": "X", "cat": "critical_path", "name": f"host: {name}" if row["kind"] == "host" else name}
        more = {"dur": _us(row["end_ns"] - row["start_ns"]), "args": json.dumps(args, ensure_ascii=False)}
        yield _line(head, pid, tids[row["rank"]], row["start_ns"] - base_ns, more)
        if before is not None and before["rank"] != row["rank"] and before["step"] == row["step"]:
            arrow = {"cat": "critical_path", "name": "goes on", "id": first}
            at = row["start_ns"] - base_ns
            # An arrow must begin inside the segment it leaves: at its last nanosecond.
            yield _line({"ph": "s", **arrow}, pid, tids[before["rank"]], max(at - 1, 0), {})
            yield _line({"ph": "f", "bp": "e", **arrow}, pid, tids[row["rank"]], at, {})
            first += 1
        before = row


def arrows(segments: pl.DataFrame) -> int:
    """Return how many arrows ``path_lines`` draws."""
    same = (pl.col("rank") != pl.col("rank").shift(1)) & pl.col("step").eq_missing(pl.col("step").shift(1))
    return int(segments.select(same.sum()).item() or 0)


def _us(ns: int) -> str:
    return f"{ns // 1000}.{ns % 1000:03d}"


def _line(head: dict[str, Any], pid: int, tid: int, at_ns: int, more: Mapping[str, str]) -> str:
    text = json.dumps({**head, "pid": pid, "tid": tid}, separators=(",", ":"), ensure_ascii=False)[:-1]
    rest = "".join(f',"{name}":{value}' for name, value in more.items())
    return f'{text},"ts":{_us(at_ns)}{rest}}}'
