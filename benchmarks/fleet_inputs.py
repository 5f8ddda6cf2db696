"""Synthetic run of many ranks: independent 1F1B pipelines of four ranks each.

Ranks of one stage have the same events; each file says its own rank, peers and process groups, so
that operations match as in a real run.
"""

from __future__ import annotations

import json
import tempfile
from dataclasses import replace
from pathlib import Path

import polars as pl
from msgspec import structs

from tracekit.analysis.persistence import FILE, write_tables
from tracekit.pipeline.schedules import generate
from tracekit.store.files import file_checksum
from tracekit.synthetic import Recipe, write_kineto

PP, MICROBATCHES, MOST = 4, 16, 1024


def recipe(*, steps, layers=24, replicas=MOST):
    return Recipe(generate("1f1b", pp=PP, microbatches=MICROBATCHES), replicas=replicas, layers=layers, steps=steps,
                  jitter=0.03, p2p_ns=50_000, ep_ns=200_000, ep_exposed_ns=40_000)  # fmt: skip


def stages(megabytes):
    """The text of each stage's trace as PyTorch lays it out, for the first replica.

    About *megabytes* each.
    """
    steps = 1
    while True:
        made = recipe(steps=steps)
        texts = [_text(made, position) for position in range(PP)]
        size = (
            sum(len(_renumbered(made, text, at, 0, 16)) for at, text in enumerate(texts)) / PP / 1e6
        )
        if size > 0.9 * megabytes:
            return made, texts
        steps = max(steps + 1, round(steps * megabytes / size))


def _text(made, position):
    with tempfile.TemporaryDirectory() as folder:
        file = write_kineto(made, made.rank(position), Path(folder) / "trace.json")
        return json.dumps(json.loads(file.read_bytes()), indent=1).encode()


def write(made, texts, folder, ranks, some=None):
    """Write the replicas' files (or only *some*): the stages' texts with the numbers of other ranks in them."""
    folder.mkdir(parents=True, exist_ok=True)
    replicas = ranks // PP
    for replica in some or range(replicas):
        for position, text in enumerate(texts):
            file = folder / f"rank{position * replicas + replica}.pt.trace.json"
            if not file.exists():
                file.write_bytes(_renumbered(made, text, position, replica, replicas))


def _renumbered(made, text, position, replica, replicas):
    """Ranks in the text are position × MOST; they become position × replicas + replica."""
    start = text.index(b'"traceEvents"')
    head, events = text[:start], text[start:]
    new = [at * replicas + replica for at in range(PP)]
    info = json.loads(head.rstrip().removesuffix(b",") + b"}")
    experts = [position * replicas + r for r in range(replicas)]
    info["distributedInfo"] |= {"rank": new[position], "world_size": PP * replicas}
    info["baseTimeNanoseconds"] += replica  # equal times are those of copies of one rank
    info["distributedInfo"]["pg_config"] = [
        {"pg_name": f"pp{replica}", "pg_desc": "PIPELINE_MODEL_PARALLEL_GROUP", "ranks": new},
        {"pg_name": f"ep{position}", "pg_desc": "EXPERT_MODEL_PARALLEL_GROUP", "ranks": experts},
    ]
    old = [made.rank(at) for at in range(PP)]
    lists = ((old, new), ([made.rank(position, r) for r in range(MOST)], experts))
    swaps = [(_quoted(a, tight), _quoted(b, tight)) for a, b in lists for tight in (True, False)]
    for way in ("Dst", "Src"):
        for end in ("\n", ","):
            swaps += [
                (f'"{way} Rank": {a}{end}', f'"{way} Rank": {b}{end}')
                for a, b in zip(old, new, strict=True)
            ]
    swaps.append(('"pp0"', f'"pp{replica}"'))
    # Two passes, so that a number that was put in is not taken for one still to be replaced.
    for n, (a, _) in enumerate(swaps):
        events = events.replace(a.encode(), b"\x00%d\x00" % n)
    for n, (_, b) in enumerate(swaps):
        events = events.replace(b"\x00%d\x00" % n, b.encode())
    return json.dumps(info, indent=1).encode().removesuffix(b"\n}") + b",\n " + events


def _quoted(ranks, tight):
    """A list of ranks as it stands inside a JSON string."""
    return json.dumps(json.dumps(ranks, separators=(",", ":") if tight else (", ", ": ")))


def copied(entry, tables, replica, place):
    """Write the tables of the rank that stands in another replica where that of *tables* does in the first."""
    # Of the pipeline; experts keep theirs.
    new = {rank: rank + replica for rank in tables.pipeline.groups[0].ranks}
    rank, pipeline = new[entry.rank], f"pp{replica}"
    groups = tuple(structs.replace(group, name=pipeline, ranks=tuple(new.values())) if group.name == "pp0" else group
                   for group in entry.source.groups)  # fmt: skip
    path = entry.source.path.replace(f"rank{entry.rank}.", f"rank{rank}.")
    # Its times are those of the first replica, but it is no copy of that rank's file.
    source = structs.replace(entry.source, rank=rank, groups=groups, path=path, times_digest=None)
    lists = {
        str(list(old)).replace(" ", ""): str(list(to)).replace(" ", "")
        for old, to in [(new, new.values())]
    }
    message = pl.element().struct
    peers = pl.col("messages").list.eval(
        pl.struct(send=message.field("send"), peer=message.field("peer").replace(new))
    )
    named = pl.col("group").replace("pp0", pipeline)
    group_ranks = pl.col("group_ranks").cast(pl.String).replace(lists)

    def renumbered(table, *columns):
        """The table of the other rank; only some have its number in them."""
        own = [pl.lit(rank, pl.Int32).alias("rank")] if "rank" in table.columns else []
        return table.with_columns(*columns, *own).cast(table.schema)

    messages = tables.pipeline.messages.with_columns(named, pl.col("peer").replace(new))
    changed = replace(
        tables,
        source=source,
        steps=renumbered(tables.steps),
        operations=renumbered(tables.operations, named, group_ranks, peers),
        gaps=renumbered(tables.gaps),
        timeline=renumbered(tables.timeline),
        experts=renumbered(tables.experts),
        reasons=renumbered(tables.reasons, group_ranks, pl.col("peer").replace(new)),
        pipeline=replace(
            tables.pipeline, rank=rank, groups=groups, group=pipeline, messages=messages
        ),
    )
    folder = place / f"rank={rank}"
    folder.mkdir(parents=True)
    write_tables(changed, folder)
    return structs.replace(
        entry,
        rank=rank,
        source=source,
        together=(rank,),
        digests={FILE: file_checksum(folder / FILE)},
    )
