"""Communication ops: collective, peer, size and communicator, from the ranges of NCCL and torch.distributed.

A PyTorch trace carries these on ``record_param_comms`` ops and on the kernels launched inside them.
In an export the ops have only shapes, so the collective comes from the ``c10d::`` op around them,
and peer, size and communicator from the payload of the NCCL ranges inside them, where the export
has payloads.

NCCL has no call for an all-to-all: a library sends to and receives from every member. Those
messages stand in one group, right between its ``ncclGroupStart`` and ``ncclGroupEnd``.
Point-to-point messages that are launched together stand in a group of their own each, inside a
common one.

Payloads are exported as JSON text, or as bytes whose layout is in the table
NVTX_PAYLOAD_SCHEMA_ENTRIES: a header of four 64-bit numbers (domain, schema, payload size, total
size), then the fields.
"""

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import polars as pl

from tracekit._util.categories import CategoryColumn
from tracekit._util.values import invert_lists
from tracekit.parsers.nsight.tables import VOCABULARY, NsightExport, read_table
from tracekit.schema import conform

FIELDS = {
    "NCCL communicator ID": "communicator",
    "Message size [bytes]": "bytes",
    "Peer rank": "peer",
    "No. of ranks": "ranks",
    "Rank": "own_rank",
}
"""Names of payload fields that are read, and the columns they fill."""
_NUMPY_TYPES = {
    3: "<i2",
    4: "<u2",
    5: "<i4",
    6: "<u4",
    7: "<i8",
    8: "<u8",
    17: "<i8",
    18: "<u8",
    22: "<u8",
}
"""Field type → numpy type: short, int, long long, int64, uint64, size_t, signed and unsigned."""
HEADER_BYTES = 32
SCHEMA_ID = slice(8, 12)
"""Bytes of a payload's header that name its schema."""
_NUMBER_FIELDS = ("bytes", "peer", "ranks", "own_rank")
_SCHEMA = pl.Schema(
    {"_row": pl.UInt32(), "communicator": pl.String(), **dict.fromkeys(_NUMBER_FIELDS, pl.Int64())}
)

Layouts = dict[int, list[tuple[str, str, int]]]
"""Schema id → (column, numpy type, offset in bytes) of each field that is read."""


def payload_layouts(export: NsightExport) -> Layouts:
    """Return the layout of each payload schema in the file."""
    entries = read_table(
        export, "NVTX_PAYLOAD_SCHEMA_ENTRIES", ["schemaId", "type", "name", "offset"]
    )
    layouts: Layouts = {}
    for schema_id, field_type, name, offset in entries.unique().rows():
        if name in FIELDS and field_type in _NUMPY_TYPES:
            layouts.setdefault(schema_id, []).append(
                (FIELDS[name], _NUMPY_TYPES[field_type], offset or 0)
            )
    return layouts


def decode_payloads(ranges: pl.DataFrame, layouts: Layouts) -> pl.DataFrame:
    """Replace ``jsonText`` and ``binaryData`` by the columns that the payloads of NCCL's ranges fill (``FIELDS``)."""
    rows = ranges.with_row_index("_row")
    calls = rows.filter(pl.col("domain") == "NCCL")
    text = _decode_json(calls.filter(pl.col("jsonText").is_not_null()).select("_row", "jsonText"))
    binary = calls.filter(pl.col("jsonText").is_null(), pl.col("binaryData").is_not_null())
    payloads = pl.concat([text, _decode_bytes(binary.select("_row", "binaryData"), layouts)])
    decoded = rows.join(payloads, on="_row", how="left", maintain_order="left")
    return decoded.drop("_row", "jsonText", "binaryData")


def _decode_json(rows: pl.DataFrame) -> pl.DataFrame:
    """Decode each distinct text once."""
    fields = {text: _json_fields(text) for text in rows["jsonText"].unique()}
    table = [{"jsonText": text, **values} for text, values in fields.items() if values]
    schema = pl.Schema(
        {"jsonText": pl.String(), **{k: v for k, v in _SCHEMA.items() if k != "_row"}}
    )
    return rows.join(pl.DataFrame(table, schema=schema), on="jsonText", how="inner").select(
        _SCHEMA.names()
    )


def _json_fields(text: str) -> dict[str, Any]:
    """Return the fields of a JSON payload by column; a communicator as the text of its number.

    >>> _json_fields('{"NCCL communicator ID": 7, "Message size [bytes]": 4194304, "Peer rank": 1}')
    {'communicator': '7', 'bytes': 4194304, 'peer': 1}
    """
    values: dict[str, Any] = {}
    for name, number in payload_numbers(text):
        if FIELDS[name] == "communicator":
            values["communicator"] = str(number)
        elif abs(number) < 1 << 63:
            values[FIELDS[name]] = number
    return values


def payload_numbers(text: str) -> Iterator[tuple[str, int]]:
    """Yield the name and number of each field that is read, anywhere in a JSON payload.

    >>> list(payload_numbers('{"Peer rank": 1, "token": "secret", "p": {"Rank": "0x2"}}'))
    [('Peer rank', 1), ('Rank', 2)]
    """
    try:
        pending: list[Any] = [json.loads(text)]
    except (ValueError, RecursionError):
        return
    while pending:
        item = pending.pop()
        if isinstance(item, list):
            pending.extend(item)
        elif isinstance(item, dict):
            for name, value in item.items():
                number = _as_number(value)
                if name in FIELDS and number is not None:
                    yield name, number
                else:
                    pending.append(value)


def _as_number(value: Any) -> int | None:
    """Return a number or the number in a text, None if it is none of 64 bits."""
    if isinstance(value, bool) or not isinstance(value, int | str):
        return None
    try:
        number = int(str(value), 0)
    except ValueError:
        return None
    return number if abs(number) < 1 << 64 else None


def _decode_bytes(rows: pl.DataFrame, layouts: Layouts) -> pl.DataFrame:
    """Decode payloads, all of one length and schema at a time."""
    rows = rows.select("_row", blob=_as_bytes(rows["binaryData"])).filter(
        pl.col("blob").bin.size() > HEADER_BYTES
    )
    parts = [_SCHEMA.to_frame()]
    for _, group in rows.group_by(pl.col("blob").bin.size()):
        blob_bytes = len(group["blob"][0])
        # One row per payload.
        matrix = np.frombuffer(b"".join(group["blob"]), dtype=np.uint8).reshape(-1, blob_bytes)
        schema_ids = matrix[:, SCHEMA_ID].copy().view("<u4").ravel()
        for schema_id in np.unique(schema_ids):
            has_schema = schema_ids == schema_id
            fields = {}
            for column, numpy_type, offset in layouts.get(int(schema_id), []):
                start = HEADER_BYTES + offset
                end = start + np.dtype(numpy_type).itemsize
                if end <= blob_bytes:
                    fields[column] = matrix[has_schema, start:end].copy().view(numpy_type).ravel()
            numbers = pl.DataFrame({"_row": group["_row"].filter(pl.Series(has_schema)), **fields})
            parts.append(
                conform(
                    numbers.cast({name: _SCHEMA[name] for name in fields}, strict=False), _SCHEMA
                )
            )
    return pl.concat(parts)


def _as_bytes(data: pl.Series) -> pl.Series:
    """Return the bytes of payloads; formats that hold them as text write hex or base64."""
    if data.dtype == pl.Binary:
        return data
    return data.str.decode("hex", strict=False).fill_null(data.str.decode("base64", strict=False))


RECORD = "record_param_comms"
ALL_TO_ALL = "all_to_allv"
PART_OF_ALL_TO_ALL = "part"
"""Collective of the calls of an all-to-all after the first: they are no operation of their own."""
_COLLECTIVE_BY_OP = invert_lists(VOCABULARY["collectives_of_ops"])
_COLLECTIVE_BY_CALL = invert_lists(VOCABULARY["collectives_of_calls"])
_P2P = ("send", "recv")
_THREAD = ["process", "tid"]


def add_communication(ranges: pl.DataFrame) -> pl.DataFrame:
    """Fill ``collective``, ``peer``, ``bytes`` and ``group`` of communication ops, from decoded payloads.

    An NCCL call outside any ``record_param_comms`` (a program without torch.distributed) becomes
    such an op itself.
    """
    ranges = ranges.with_row_index("_row")
    records = ranges.filter(pl.col("kind") == "cpu_op", pl.col("name") == RECORD).select(
        "_row", *_THREAD, "start_ns", "end_ns", "shapes"
    )
    calls = _join_covering(
        _nccl_calls(ranges), records.select(*_THREAD, "start_ns", "end_ns", record="_row"), "record"
    )
    communication = pl.concat(
        [_communication_of_records(ranges, records, calls), _communication_of_calls(calls)]
    )
    own_ops = calls.filter(
        pl.col("record").is_null() & (pl.col("collective") != PART_OF_ALL_TO_ALL)
    )["_row"]
    becomes_op = pl.col("_row").is_in(own_ops.implode())
    return (
        ranges.drop(FIELDS.values())
        .join(communication, on="_row", how="left", maintain_order="left")
        .with_columns(
            kind=pl.when(becomes_op).then(pl.lit("cpu_op")).otherwise("kind"),
            name=pl.when(becomes_op).then(pl.lit(RECORD)).otherwise("name"),
        )
        .drop("_row")
    )


def created_communicators(ranges: pl.DataFrame) -> pl.DataFrame:
    """Return communicators whose creation was recorded: ``process``, ``communicator``, ``ranks``, ``own_rank``."""
    return ranges.select("process", "communicator", "ranks", "own_rank").drop_nulls(
        ["ranks", "own_rank"]
    )


def add_to_kernels(
    kernels: pl.DataFrame, calls: pl.DataFrame, records: pl.DataFrame
) -> pl.DataFrame:
    """Give NCCL kernels launched inside a ``record_param_comms`` that op's collective, peer, size and group.

    Batched sends and receives are launched after their ops have ended and get nothing, as in a
    PyTorch trace.
    """
    if not records.height:
        return kernels
    is_nccl = CategoryColumn.from_series(kernels["name"]).map(lambda name: name.startswith("nccl"))
    nccl_kernels = kernels.with_row_index("_row").filter(pl.Series(is_nccl, dtype=pl.Boolean))
    if not nccl_kernels.height:
        return kernels
    facts = ["collective", "peer", "bytes", "group"]
    launches = calls.select("process", "correlation", "tid", "start_ns").unique("correlation")
    launched = nccl_kernels.select("_row", "process", "correlation").join(
        launches, on=["process", "correlation"]
    )
    launched = _join_covering(
        launched, records.select(*_THREAD, "start_ns", "end_ns", *facts), *facts
    )
    return (
        kernels.with_row_index("_row")
        .join(
            launched.select("_row", *facts),
            on="_row",
            how="left",
            maintain_order="left",
            suffix="_of_call",
        )
        .with_columns(bytes=pl.coalesce("bytes", "bytes_of_call"))  # copies have bytes of their own
        .drop("_row", "bytes_of_call")
    )


def _nccl_calls(ranges: pl.DataFrame) -> pl.DataFrame:
    """Return NCCL's own ranges with their payload."""
    calls = ranges.filter(
        pl.col("domain") == "NCCL", pl.col("kind") == "annotation", pl.col("tid").is_not_null()
    )
    collective = pl.col("name").replace_strict(
        _COLLECTIVE_BY_CALL, default=None, return_dtype=pl.String
    )
    calls = join_all_to_alls(calls.with_columns(collective=collective))
    return calls.select(
        "_row", *_THREAD, "start_ns", "end_ns", "collective", "communicator", "bytes", "peer"
    )


def _join_covering(points: pl.DataFrame, ranges: pl.DataFrame, *columns: str) -> pl.DataFrame:
    """Add *columns* of the range on the same thread that covers each point's start.

    Ranges must not nest.
    """
    latest = points.sort("start_ns").join_asof(
        ranges.rename({"end_ns": "_range_end_ns"}).sort("start_ns"),
        on="start_ns",
        by=_THREAD,
        check_sortedness=False,
    )
    is_covered = pl.col("start_ns") <= pl.col("_range_end_ns")
    return latest.with_columns(pl.when(is_covered).then(name).alias(name) for name in columns).drop(
        "_range_end_ns"
    )


def _communication_of_records(
    ranges: pl.DataFrame, records: pl.DataFrame, calls: pl.DataFrame
) -> pl.DataFrame:
    """Return one row per ``record_param_comms``: collective of the op around it, peer and size of the calls inside."""
    ops = ranges.filter(pl.col("kind") == "cpu_op", pl.col("name").str.contains(r"^_?c10d\w*::"))
    op = pl.col("name").str.extract(r"::(\w+?)_?$")
    collective = op.replace_strict(_COLLECTIVE_BY_OP, default=None, return_dtype=pl.String)
    records = _join_covering(
        records, ops.select(*_THREAD, "start_ns", "end_ns", collective=collective), "collective"
    )
    calls_inside = (
        calls.filter(pl.col("record").is_not_null(), pl.col("collective") != PART_OF_ALL_TO_ALL)
        .group_by(pl.col("record").alias("_row"))
        .agg(
            call_collective=pl.col("collective").first(),
            peer=pl.when(pl.len() == 1).then(pl.col("peer").first()),
            bytes=pl.col("bytes").max(),
            group=pl.col("communicator").first(),
        )
    )
    has_no_tensor = pl.col("shapes").str.contains(r"^\[(\[\],?)*\]$").fill_null(False)
    # An op without collective and without tensor waits for a collective that was started before.
    waits = pl.when(has_no_tensor).then(pl.lit("wait"))
    collective = pl.coalesce("collective", "call_collective", waits)
    return records.join(calls_inside, on="_row", how="left").select(
        "_row", "peer", "bytes", "group", collective=collective
    )


def _communication_of_calls(calls: pl.DataFrame) -> pl.DataFrame:
    """Return one row per NCCL call.

    The collective is left to the op around it, where there is one.
    """
    has_own_collective = pl.col("record").is_null() | (pl.col("collective") == PART_OF_ALL_TO_ALL)
    collective = pl.when(has_own_collective).then("collective")
    return calls.drop_nulls("collective").select(
        "_row", "peer", "bytes", pl.col("communicator").alias("group"), collective=collective
    )


def join_all_to_alls(calls: pl.DataFrame) -> pl.DataFrame:
    """Turn the sends and receives of each all-to-all into one operation.

    Args:
        calls: NCCL calls with ``name``, ``collective``, ``communicator``, ``peer``, ``bytes``,
            times and thread.

    Returns:
        The calls by thread and start. The first call of an all-to-all stands for it: its bytes are
        those that all its calls send, and it ends with the last of them. The other calls have the
        collective ``part``.

    >>> names = ["ncclGroupStart", "ncclSend", "ncclRecv", "ncclSend", "ncclRecv", "ncclGroupEnd"]
    >>> calls = pl.DataFrame({"name": names, "collective": [None, "send", "recv", "send", "recv", None],
    ...     "communicator": "7", "peer": [None, 0, 0, 1, 1, None], "bytes": [None, 4, 4, 8, 8, None],
    ...     "start_ns": range(6), "end_ns": range(1, 7), "process": 1, "tid": 1})
    >>> join_all_to_alls(calls).drop_nulls("collective").select("collective", "peer", "bytes", "end_ns").rows()[:2]
    [('all_to_allv', None, 12, 5), ('part', None, 4, 3)]
    """
    if not calls["collective"].is_in(_P2P).any():
        return calls
    # Calls between two edges of groups, opening or closing, form a section.
    is_edge = pl.col("name").is_in(["ncclGroupStart", "ncclGroupEnd"])
    calls = calls.sort(*_THREAD, "start_ns", maintain_order=True).with_columns(
        _section=is_edge.cum_sum().over(_THREAD)
    )
    section = [*_THREAD, "_section"]
    # A library asks for the number of members right before an all-to-all: in the section before
    # that of the messages.
    counted = calls.group_by(*_THREAD, _section=pl.col("_section") + 1).agg(
        _counted=(pl.col("name") == "ncclCommCount").any()
        & (pl.col("collective").is_in(_P2P).sum() == 0)
    )
    calls = calls.join(counted, on=section, how="left", maintain_order="left")
    is_send = pl.col("collective") == "send"
    is_receive = pl.col("collective") == "recv"
    is_balanced = (is_send.sum() >= 2) & (is_send.sum() == is_receive.sum())
    reaches_all = (
        _peers_are_all_members(is_send) & _peers_are_all_members(is_receive)
        | pl.col("peer").is_null().all()
    )
    is_section_of_all_to_all = (is_balanced & reaches_all) | pl.col("_counted").fill_null(
        False
    ).any()
    is_part = is_section_of_all_to_all.over(section) & pl.col("collective").is_in(_P2P)
    is_first = is_part & (is_part.cum_sum().over(section) == 1)
    sent_bytes = pl.col("bytes").filter(is_send)
    total_bytes = pl.when(sent_bytes.count() > 0).then(sent_bytes.sum()).over(section)
    last_end_ns = pl.col("end_ns").filter(is_send | is_receive).max().over(section)
    exchange = (
        pl.when("_first").then(pl.lit(ALL_TO_ALL)).when("_part").then(pl.lit(PART_OF_ALL_TO_ALL))
    )
    return (
        calls.with_columns(_part=is_part, _first=is_first)
        .with_columns(
            collective=exchange.otherwise("collective"),
            peer=pl.when(~pl.col("_part")).then("peer"),
            bytes=pl.when("_first").then(total_bytes).otherwise("bytes"),
            end_ns=pl.when("_first").then(last_end_ns).otherwise("end_ns"),
        )
        .drop("_section", "_counted", "_part", "_first")
    )


def _peers_are_all_members(is_direction: pl.Expr) -> pl.Expr:
    """Return whether the messages of one direction go to members 0, 1, … n-1 in any order, oneself included."""
    peers = pl.col("peer").filter(is_direction & pl.col("peer").is_not_null())
    messages = is_direction.sum()
    return (peers.n_unique() == messages) & (peers.min() == 0) & (peers.max() == messages - 1)
