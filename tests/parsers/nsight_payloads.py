"""Payloads of NCCL's ranges, and the tables that say how to read them, as an Nsight export holds them."""

from __future__ import annotations

import struct

SEND = 16777225
INIT = 16777227


def payload(schema, *fields):
    """The bytes of a payload: a head, then the fields of its schema."""
    body = struct.pack("<QQi4x" if schema == SEND else "<Qiii4x", *fields)
    return struct.pack("<QQQQ", 1, schema, len(body), len(body) + 32) + body


def with_schemas(report):
    """The report, with the schemas of both payloads."""
    named = {
        SEND: [
            ("NCCL communicator ID", 18, None),
            ("Message size [bytes]", 22, 8),
            ("Peer rank", 5, 16),
        ],
        INIT: [
            ("NCCL communicator ID", 18, None),
            ("No. of ranks", 5, 8),
            ("Rank", 5, 12),
            ("CUDA device", 5, 16),
        ],
    }
    for schema, fields in named.items():
        for i, (name, kind, offset) in enumerate(fields):
            report.add(
                "NVTX_PAYLOAD_SCHEMA_ENTRIES",
                domainId=1,
                schemaId=schema,
                idx=i,
                type=kind,
                name=name,
                offset=offset,
            )
    return report
