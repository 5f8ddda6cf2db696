"""Events as lines of Chrome's JSON, made column by column; microseconds with three digits, so that no ns is lost."""

from __future__ import annotations

import json
from collections.abc import Mapping

import polars as pl

CATEGORIES = {
    "kernel": "kernel",
    "memcpy": "gpu_memcpy",
    "memset": "gpu_memset",
    "graph": "gpu_graph",
    "gpu_annotation": "gpu_user_annotation",
    "runtime": "cuda_runtime",
    "driver": "cuda_driver",
    "annotation": "user_annotation",
    "python": "python_function",
}
"""Categories as the PyTorch profiler names them; other kinds keep their own name."""

ARGS: Mapping[str, str] = {
    "label": "label",
    "pass": "pass",
    "module": "module",
    "microbatch": "microbatch",
    "stage": "stage",
    "rule": "rule",
    "confidence": "confidence",
    "step": "step",
    "correlation": "correlation",
    "external_id": "External id",
    "sequence": "Sequence number",
    "shapes": "Input Dims",
    "collective": "Collective name",
    "group": "Process Group Name",
    "group_desc": "Process Group Description",
    "group_ranks": "Process Group Ranks",
    "peer": "Peer",
    "bytes": "bytes",
    "graph": "graph node id",
    "domain": "domain",
    "device": "device",
    "stream": "stream",
}
"""What the details of an event show, under the names PyTorch's traces use where they have one."""


def event_lines(events: pl.DataFrame, base_ns: int) -> pl.Series:
    r"""Return one line of JSON an event; *events* has ``to_pid`` and ``to_tid``, and any of the columns in ``ARGS``.

    >>> one = pl.DataFrame({"kind": ["kernel"], "name": ['a"b'], "start_ns": [1_000_001_234], "end_ns": [1_000_001_239],
    ...                     "to_pid": [1], "to_tid": [2], "bytes": [7]})
    >>> print(event_lines(one, 1_000_000_000)[0])
    {"ph":"X","cat":"kernel","name":"a\"b","pid":1,"tid":2,"ts":1.234,"dur":0.005,"args":{"bytes":7}}
    """
    kind = pl.col("kind").cast(pl.String)
    instant = kind == "mark"
    args = pl.concat_str(
        [pl.lit(""), *(_arg(events, column, shown) for column, shown in ARGS.items() if column in events.columns)]
    )
    texts = events.with_columns(
        name=_quoted(events["name"]),
        category=kind.replace(CATEGORIES),
        args=args.str.strip_prefix(","),
        start=_us(pl.col("start_ns") - base_ns),
        length=_us((pl.col("end_ns") - pl.col("start_ns")).clip(0)),
    )
    return texts.select(line=_line(instant))["line"]


def _line(instant: pl.Expr) -> pl.Expr:
    how = pl.when(instant).then(pl.lit('"s":"t"')).otherwise(pl.concat_str(pl.lit('"dur":'), "length"))
    return pl.concat_str(
        pl.when(instant).then(pl.lit('{"ph":"i","cat":"')).otherwise(pl.lit('{"ph":"X","cat":"')),
        "category",
        pl.lit('","name":'),
        "name",
        pl.lit(',"pid":'),
        "to_pid",
        pl.lit(',"tid":'),
        "to_tid",
        pl.lit(',"ts":'),
        "start",
        pl.lit(","),
        how,
        pl.lit(',"args":{'),
        "args",
        pl.lit("}}"),
    )


def flow_lines(flows: pl.DataFrame, base_ns: int, first_id: int) -> pl.Series:
    r"""Return two lines a flow, from a launch (``launch_ns``, ``launch_pid``, ``launch_tid``) to what it launched.

    >>> one = pl.DataFrame({"launch_ns": [5], "launch_pid": [1], "launch_tid": [2], "start_ns": [7],
    ...                     "to_pid": [3], "to_tid": [4]})
    >>> print(*flow_lines(one, 0, 9), sep="\n")
    {"ph":"s","cat":"ac2g","name":"ac2g","id":9,"pid":1,"tid":2,"ts":0.005}
    {"ph":"f","bp":"e","cat":"ac2g","name":"ac2g","id":9,"pid":3,"tid":4,"ts":0.007}
    """
    numbered = flows.with_row_index("id", offset=first_id)
    ends = {
        '{"ph":"s"': ("launch_pid", "launch_tid", "launch_ns"),
        '{"ph":"f","bp":"e"': ("to_pid", "to_tid", "start_ns"),
    }
    both = [
        pl.concat_str(
            pl.lit(f'{opening},"cat":"ac2g","name":"ac2g","id":'),
            "id",
            pl.lit(',"pid":'),
            pid,
            pl.lit(',"tid":'),
            tid,
            pl.lit(',"ts":'),
            _us(pl.col(at) - base_ns),
            pl.lit("}"),
        )
        for opening, (pid, tid, at) in ends.items()
    ]
    return numbered.select(line=pl.concat_list(both))["line"].explode()


def _arg(events: pl.DataFrame, column: str, shown: str) -> pl.Expr:
    value = pl.lit(_quoted(events[column])) if not events[column].dtype.is_numeric() else pl.col(column)
    if events[column].dtype.is_float():
        value = pl.col(column).round(3)
    key = pl.lit(f",{json.dumps(shown)}:")
    return pl.when(pl.col(column).is_not_null()).then(pl.concat_str(key, value)).otherwise(pl.lit(""))


def _quoted(texts: pl.Series) -> pl.Series:
    """Text as JSON strings; what repeats is quoted once. Letters stay letters: Perfetto does not undo all escapes."""
    plain = texts.cast(pl.String)
    known = plain.unique().drop_nulls()
    quoted = pl.Series([json.dumps(text, ensure_ascii=False) for text in known], dtype=pl.String)
    return plain.replace_strict(known, quoted, default=None)


def _us(ns: pl.Expr) -> pl.Expr:
    """Nanoseconds, none negative, as microseconds with three digits."""
    return pl.concat_str(ns // 1000, pl.lit("."), (ns % 1000).cast(pl.String).str.zfill(3))
