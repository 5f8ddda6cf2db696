"""Chunks and messages of several pipelines, step by step.

Steps of a run are alike: the same chunks in the same order with the same messages between them. ``StepTables.look``
describes a step independently of its times, so that a step which looks like an earlier one need not be examined again.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import NamedTuple

import msgspec
import numpy as np
import polars as pl

from tracekit._util.arrays import Bools, Ints
from tracekit._util.columns import to_int64
from tracekit.reconstruct.chunk_table import CHUNKS
from tracekit.reconstruct.chunks import CONFIDENCE_COUNTED, CONFIDENCE_POSITION
from tracekit.reconstruct.messages import MESSAGES
from tracekit.reconstruct.rank_pipeline import RankPipeline

Line = Sequence[int]
"""Ranks of a pipeline in stage order."""

_OPS = pl.Enum(("F", "I", "W", "B"))
_WEIGHTS = 2  # code of W


class _Part(NamedTuple):
    """Rows of one rank in one instance."""

    instance: int
    position: int
    first_chunk: int
    chunk_count: int
    first_message: int
    message_count: int


class StepTables(msgspec.Struct, frozen=True, eq=False):
    """Chunks and messages of pipelines. An *instance* is one pipeline in one step."""

    lines: Sequence[Line]
    instances: list[tuple[int, int]]
    """Index of the line, and step."""
    peers_by_order: list[bool]
    """Of each line: whether the peers of its messages were derived from their order."""
    chunks: pl.DataFrame
    """``CHUNKS`` with instance, position and rank, sorted by instance and position."""
    messages: pl.DataFrame
    """``MESSAGES`` with instance and position, sorted likewise; their peers are positions, null outside the line."""
    parts: list[list[_Part]]
    """By instance, the parts that have chunks, by position."""
    chunk_codes: Ints
    """What each chunk is: op, doubt about its pair, pair, row of its partner, stage and micro-batch."""
    last_ns: Ints
    """Last launch of each chunk."""
    send: Bools
    """Of each message, whether it is sent; ``peer`` and ``launch_ns`` are of messages too."""
    peer: Ints
    launch_ns: Ints

    @classmethod
    def of(cls, ranks: Mapping[int, RankPipeline], lines: Sequence[tuple[Line, Sequence[int]]]) -> StepTables:
        """Return the tables of *lines*, each with its steps, ascending; ranks of a line may have no trace."""
        instances = [(index, step) for index, (_, steps) in enumerate(lines) for step in steps]
        instance_index = pl.DataFrame(
            instances, schema={"line": pl.Int64, "step": pl.Int64}, orient="row"
        ).with_row_index("instance")
        members = pl.DataFrame(
            [(index, position, rank) for index, (line, _) in enumerate(lines) for position, rank in enumerate(line)],
            schema={"line": pl.Int64, "position": pl.Int32, "rank": pl.Int32},
            orient="row",
        )

        def collect(name: str, schema: pl.Schema) -> pl.DataFrame:
            tables: list[pl.DataFrame] = [
                getattr(ranks[rank], name).with_columns(
                    line=pl.lit(line, pl.Int64), position=pl.lit(position, pl.Int32), rank=pl.lit(rank, pl.Int32)
                )
                for line, position, rank in members.rows()
                if rank in ranks
            ]
            empty = schema.to_frame().with_columns(members.schema.to_frame())
            table = pl.concat([empty, *tables]).join(instance_index, on=["line", "step"], maintain_order="left")
            return table.sort("instance", "position", maintain_order=True)

        chunks = collect("chunks", CHUNKS)
        messages = collect("messages", MESSAGES)
        positions = members.select("line", peer="rank", peer_position="position")
        messages = messages.join(positions, on=["line", "peer"], how="left", maintain_order="left").with_columns(
            peer="peer_position"
        )
        parts: list[list[_Part]] = [[] for _ in instances]
        key = ["instance", "position"]
        with_chunks = _row_ranges(chunks, "first_chunk", "chunk_count")
        with_messages = _row_ranges(messages, "first_message", "message_count")
        for row in with_chunks.join(with_messages, on=key, how="left", maintain_order="left").fill_null(0).rows():
            parts[row[0]].append(_Part(*row))
        return cls(
            lines=[line for line, _ in lines],
            instances=instances,
            peers_by_order=[any(ranks[rank].peers_by_order for rank in line if rank in ranks) for line, _ in lines],
            chunks=chunks,
            messages=messages,
            parts=parts,
            chunk_codes=_encode_chunks(chunks),
            last_ns=chunks["last_ns"].to_numpy(),
            send=messages["send"].to_numpy(),
            peer=to_int64(messages["peer"], -1),
            launch_ns=messages["launch_ns"].to_numpy(),
        )

    def chunks_of(self, part: _Part) -> pl.DataFrame:
        """Return the chunks of one rank in one instance."""
        return self.chunks.slice(part.first_chunk, part.chunk_count)

    def messages_of(self, part: _Part) -> pl.DataFrame:
        """Return the messages of one rank in one instance."""
        return self.messages.slice(part.first_message, part.message_count)

    def look(self, instance: int) -> Hashable:
        """Return a key of what a step looks like: equal keys, equal stages, micro-batches and traffic."""
        pp = len(self.lines[self.instances[instance][0]])
        return pp, *(self._look_of_part(part, pp) for part in self.parts[instance])

    def _look_of_part(self, part: _Part, pp: int) -> Hashable:
        chunk_rows = slice(part.first_chunk, part.first_chunk + part.chunk_count)
        message_rows = slice(part.first_message, part.first_message + part.message_count)
        codes, send, peer = self.chunk_codes[chunk_rows], self.send[message_rows], self.peer[message_rows]
        last_ns = self.last_ns[chunk_rows][codes[:, 0] != _WEIGHTS]
        chunk_order = np.argsort(last_ns, kind="stable")
        # Each send, in launch order, with the number of chunks launched before it.
        launch_ns = self.launch_ns[message_rows][send]
        send_order = np.argsort(launch_ns, kind="stable")
        chunks_before = np.searchsorted(last_ns[chunk_order], launch_ns[send_order], side="right")
        return (
            part.position,
            codes.tobytes(),
            chunk_order.tobytes(),
            chunks_before.tobytes(),
            peer[send][send_order].tobytes(),
            bool((peer == pp - 1).any()),
        )


def _row_ranges(table: pl.DataFrame, first: str, count: str) -> pl.DataFrame:
    """Return the first row and the number of rows of each instance and position of a table sorted by these."""
    rows = table.with_row_index("row").group_by("instance", "position", maintain_order=True)
    return rows.agg(pl.col("row").first().alias(first), pl.len().alias(count))


def _encode_chunks(chunks: pl.DataFrame) -> Ints:
    """Return the columns of ``StepTables.chunk_codes``."""
    confidence = chunks["confidence"].fill_null(2.0).to_numpy()
    doubt = (confidence <= CONFIDENCE_COUNTED).astype(np.int64) + (confidence <= CONFIDENCE_POSITION)
    op = to_int64(chunks["op"].cast(_OPS).to_physical())
    numbers = [to_int64(chunks[name], -1) for name in ("pair", "beside", "stage", "microbatch")]
    return np.stack([op, doubt, *numbers], axis=1)
