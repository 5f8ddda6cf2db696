"""Names of collective operations, sizes of their elements, and ranks of groups, as recorders write them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from math import prod

BYTES_OF_ELEMENT: Mapping[str, int] = {
    "bool": 1,
    "byte": 1,
    "char": 1,
    "short": 2,
    "int": 4,
    "long": 8,
    "half": 2,
    "bfloat16": 2,
    "float": 4,
    "double": 8,
    "complexhalf": 4,
    "complexfloat": 8,
    "complexdouble": 16,
    "qint8": 1,
    "quint8": 1,
    "qint32": 4,
    "uint16": 2,
    "uint32": 4,
    "uint64": 8,
    "float8_e5m2": 1,
    "float8_e4m3fn": 1,
    "float8_e5m2fnuz": 1,
    "float8_e4m3fnuz": 1,
    "float8_e8m0fnu": 1,
    "float4_e2m1fn_x2": 1,
}
"""Bytes of an element by the name of its type in PyTorch, in lower case."""

_MAX_INT64 = 2**63 - 1

_OPS = {
    "_all_gather_base": "all_gather",
    "all_gather_into_tensor": "all_gather",
    "all_gather_into_tensor_coalesced": "all_gather",
    "allgather": "all_gather",
    "_reduce_scatter_base": "reduce_scatter",
    "reduce_scatter_tensor": "reduce_scatter",
    "reduce_scatter_tensor_coalesced": "reduce_scatter",
    "reducescatter": "reduce_scatter",
    "allreduce": "all_reduce",
    "allreduce_coalesced": "all_reduce",
    "all_reduce_coalesced": "all_reduce",
    "all_reduce_sparse": "all_reduce",
    "all_reduce_barrier": "barrier",
    "all_to_allv": "all_to_all",
    "all_to_all_base": "all_to_all",
    "alltoall": "all_to_all",
    "alltoall_base": "all_to_all",
    "alltoallv": "all_to_all",
    "_broadcast_oop": "broadcast",
    "_reduce_oop": "reduce",
}
"""One name for operations that PyTorch and NCCL name in several ways; others keep theirs."""

_MESSAGE_NAME = re.compile(r"(send|recv) (\d{1,9})(?:->|<-)(\d{1,9})")


def operation_name(name: str) -> str:
    """Return the operation that a recorder's name stands for.

    >>> operation_name("nccl:_all_gather_base"), operation_name("AllReduce"), operation_name("nccl:send 0->1")
    ('all_gather', 'all_reduce', 'send')
    """
    plain = name.rpartition(":")[2].strip().partition(" ")[0].lower()
    return _OPS.get(plain, plain)


def message_ranks(name: str) -> tuple[int, int] | None:
    """Return the own rank and the peer of a message, both counted within its group.

    None for other operations.

    >>> message_ranks("nccl:recv 3<-2"), message_ranks("nccl:all_reduce")
    ((3, 2), None)
    """
    match = _MESSAGE_NAME.search(name)
    return (int(match[2]), int(match[3])) if match else None


def tensor_bytes(sizes: Sequence[Sequence[int]], dtypes: Sequence[str]) -> int | None:
    """Return the bytes of tensors with these sizes and types.

    None if they are not known or no possible size.

    >>> tensor_bytes([[2, 3], [4]], ["Float", "BFloat16"])
    32
    >>> tensor_bytes([[2]], ["Unheard"]) is None
    True
    """
    if len(sizes) != len(dtypes):
        # A list of tensors has one type.
        dtypes = [dtypes[0]] * len(sizes) if len(set(dtypes)) == 1 else []
    total = 0
    for size, dtype in zip(sizes, dtypes, strict=False):
        element = BYTES_OF_ELEMENT.get(dtype.lower())
        if element is None or any(dimension < 0 for dimension in size):
            return None
        total += element * prod(size)
    return total if sizes and dtypes and total <= _MAX_INT64 else None


def valid_int64(value: int | None) -> int | None:
    """Return a number if a column can hold it and it is not negative, else None.

    NCCL Inspector writes negative sizes as numbers around 2**64.

    >>> valid_int64(8), valid_int64(18446744073709551502), valid_int64(None)
    (8, None, None)
    """
    return value if value is not None and 0 <= value <= _MAX_INT64 else None


def parse_ranks(ranks: object) -> tuple[int, ...]:
    """Return the ranks of a group, which recorders write as text or as a list.

    Empty if it is neither.

    >>> parse_ranks("[0, 1, 2, 3]"), parse_ranks([4, 5]), parse_ranks(None)
    ((0, 1, 2, 3), (4, 5), ())
    """
    if isinstance(ranks, str):
        numbers = re.findall(r"\d{1,9}", ranks)
        return tuple(int(number) for number in numbers)
    if isinstance(ranks, list | tuple) and all(
        isinstance(rank, int) and rank >= 0 for rank in ranks
    ):
        return tuple(ranks)
    return ()


def group_identity(name: str, ranks: Sequence[int]) -> str:
    """Return a name that the members of a group share and no other group has: names may repeat in other ranks' dumps.

    >>> group_identity("0", [0, 1, 2, 3]), group_identity("dp", [1, 5, 9]), group_identity("tp", [1, 5])
    ('0 [0-3]', 'dp [1-9 by 4]', 'tp [1,5]')
    """
    if not ranks:
        return name
    members = ",".join(map(str, ranks))
    stride = ranks[1] - ranks[0] if len(ranks) > 2 else 0
    if stride > 0 and list(ranks) == list(range(ranks[0], ranks[-1] + 1, stride)):
        members = (
            f"{ranks[0]}-{ranks[-1]}" if stride == 1 else f"{ranks[0]}-{ranks[-1]} by {stride}"
        )
    return f"{name} [{members}]"
