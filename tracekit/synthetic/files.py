"""Files of synthetic runs as the PyTorch profiler writes them."""

import gzip
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tracekit._util.files import atomic_write, output_folder
from tracekit.synthetic.emit import rank_events
from tracekit.synthetic.recipe import EPOCH_NS, Recipe

_CATEGORY = {
    "cpu_op": "cpu_op",
    "runtime": "cuda_runtime",
    "kernel": "kernel",
    "memcpy": "gpu_memcpy",
    "annotation": "user_annotation",
}


def groups(recipe: Recipe, rank: int) -> list[dict[str, Any]]:
    """Return the process groups a rank's file lists."""
    position, replica = divmod(rank, recipe.replicas)
    pipeline = [recipe.rank(other, replica) for other in range(recipe.schedule.pp)]
    listed = [
        {"pg_name": f"pp{replica}", "pg_desc": "PIPELINE_MODEL_PARALLEL_GROUP", "ranks": pipeline}
    ]
    if recipe.replicas > 1:
        experts = [recipe.rank(position, r) for r in range(recipe.replicas)]
        listed.append(
            {"pg_name": f"ep{position}", "pg_desc": "EXPERT_MODEL_PARALLEL_GROUP", "ranks": experts}
        )
    return listed


def write_kineto(recipe: Recipe, rank: int, path: str | os.PathLike[str]) -> Path:
    """Write one rank as a PyTorch profiler trace (compressed if the name ends in ``.gz``).

    >>> import tempfile
    >>> from tracekit.pipeline.schedules import generate
    >>> recipe = Recipe(generate("1f1b", pp=2, microbatches=2))
    >>> write_kineto(recipe, 0, tempfile.mkdtemp() + "/rank0.json.gz").name
    'rank0.json.gz'
    """
    file = Path(path)
    data = {
        "schemaVersion": 1,
        "baseTimeNanoseconds": EPOCH_NS,
        "record_shapes": int(recipe.shapes),
        "distributedInfo": {
            "backend": "nccl",
            "rank": rank,
            "world_size": recipe.world_size,
            "pg_config": groups(recipe, rank),
        },
        "traceEvents": [_event(row) for row in rank_events(recipe, rank).iter_rows(named=True)],
    }
    text = json.dumps(data).encode()
    with atomic_write(file) as temporary:
        Path(temporary).write_bytes(gzip.compress(text, mtime=0) if file.suffix == ".gz" else text)
    return file


def _event(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row of events as an event of the PyTorch profiler."""
    args: dict[str, Any] = {}
    if row["stream"] is not None:
        args |= {"device": row["device"], "stream": row["stream"]}
    names = {
        "correlation": "correlation",
        "sequence": "Sequence number",
        "fwd_thread": "Fwd thread id",
        "collective": "Collective name",
        "group": "Process Group Name",
        "group_desc": "Process Group Description",
        "group_ranks": "Process Group Ranks",
    }
    args |= {key: row[name] for name, key in names.items() if row[name] is not None}
    if row["shapes"]:
        args["Input Dims"] = json.loads(row["shapes"])
    if row["strides"]:
        args["Input Strides"] = json.loads(row["strides"])
    if row["concrete"]:
        values = json.loads(row["concrete"])
        args["Concrete Inputs"] = ["" if value is None else str(value) for value in values]
    if row["peer"] is not None:
        args["Dst Rank" if row["collective"] == "send" else "Src Rank"] = row["peer"]
    if row["bytes"] is not None and row["kind"] == "memcpy":
        args["bytes"] = row["bytes"]
    return {
        "ph": "X",
        "cat": _CATEGORY[row["kind"]],
        "name": row["name"],
        "pid": row["pid"],
        "tid": row["tid"],
        "ts": (row["start_ns"] - EPOCH_NS) / 1000,
        "dur": (row["end_ns"] - row["start_ns"]) / 1000,
        "args": args,
    }


def write_run(
    recipe: Recipe, folder: str | os.PathLike[str], *, ranks: Iterable[int] | None = None
) -> list[Path]:
    """Write a run into *folder*, one rank after another, so that thousands of ranks take little memory.

    >>> import tempfile
    >>> from tracekit.pipeline.schedules import generate
    >>> recipe = Recipe(generate("1f1b", pp=2, microbatches=2))
    >>> [file.name for file in write_run(recipe, tempfile.mkdtemp())]
    ['rank0.pt.trace.json.gz', 'rank1.pt.trace.json.gz']
    """
    wanted = range(recipe.world_size) if ranks is None else ranks
    with output_folder(folder) as target:
        return [
            write_kineto(recipe, rank, target / f"rank{rank}.pt.trace.json.gz") for rank in wanted
        ]
