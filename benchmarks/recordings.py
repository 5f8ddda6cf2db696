"""Dumps of a large run and memory snapshots with long histories: processor time and memory of the answers.

    python benchmarks/recordings.py [FOLDER] [--ranks 1024] [--collectives 1000000] [--snapshots 8]
    [--events 60000]

Both inputs are made up. A dump holds the collectives of one rank, of which one is late in every
third step. A snapshot holds the allocations of many steps: a pool of weights, and activations that
are allocated in the forward and freed in the backward, each with a stack of a dozen frames. Each
answer is computed in a process of its own; bars: 60 s and 1 GB for the dumps, 10 s for the
snapshots. Exits with 1 if one is missed.
"""

from __future__ import annotations

import argparse
import pickle
import random
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

EPOCH_NS = 1_700_000_000_000_000_000
MS = 1_000_000
COLLECTIVES_PER_STEP = 4
LATE_RANK = 3
ACTIVATIONS = 200
"""Tensors that a step allocates and frees."""
BARS = {"late": (60.0, 1_000), "memory": (10.0, None)}
"""Processor seconds and MB that an answer may take."""


def dump_of(rank: int, ranks: int, entries: int) -> dict:
    """The flight recorder of one rank."""
    rows = []
    for number in range(1, entries + 1):
        step, place = divmod(number - 1, COLLECTIVES_PER_STEP)
        late_ms = 30.0 if place == 0 and step % 3 == 0 and step else 0.0
        own_ms = late_ms if rank == LATE_RANK else 0.0
        called_ms = step * 100 + place * 20 + own_ms
        rows.append(
            {
                "record_id": number - 1,
                "pg_id": 0,
                "process_group": ("0", "default_pg"),
                "collective_seq_id": number,
                "p2p_seq_id": 0,
                "op_id": number,
                "profiling_name": "nccl:all_reduce",
                "time_created_ns": EPOCH_NS + round(called_ms * MS) + rank,  # none in the same ns
                "duration_ms": 5.0 + late_ms - own_ms,
                "input_sizes": [[(place + 1) << 20]],
                "input_dtypes": ["Float"],
                "output_sizes": [[(place + 1) << 20]],
                "output_dtypes": ["Float"],
                "state": "completed",
                "time_discovered_started_ns": None,
                "time_discovered_completed_ns": EPOCH_NS + round((called_ms + 60) * MS),
                "retired": True,
                "timeout_ms": 600_000,
                "is_p2p": False,
            }
        )
    groups = {"0": {"name": "0", "desc": "default_pg", "ranks": str(list(range(ranks)))}}
    return {"version": "2.10", "pg_config": groups, "pg_status": {}, "entries": rows}


def snapshot_of(rank: int, events: int) -> dict:
    """The memory snapshot of one rank."""
    choose = random.Random(rank)
    stacks = []
    for line in range(ACTIVATIONS):
        frames = [
            {"name": f"f{depth}", "filename": f"torch/nn/{depth}.py", "line": depth}
            for depth in range(11)
        ]
        stacks.append([*frames, {"name": "forward", "filename": "model.py", "line": line}])
    trace = []
    annotations = []
    time_us = EPOCH_NS // 1_000
    segment = {"address": 1 << 30, "total_size": 64 << 30}

    def add(action: str, address: int, size: int, stack: list) -> None:
        nonlocal time_us
        time_us += choose.randrange(1, 20)
        trace.append(
            {
                "action": action,
                "addr": address,
                "size": size,
                "stream": 0,
                "time_us": time_us,
                "frames": stack,
                "compile_context": "N/A",
                "user_metadata": "",
            }
        )

    add("segment_alloc", segment["address"], segment["total_size"], stacks[0])
    step = 0
    while len(trace) < events:
        annotations.append(
            {"stage": "START", "name": f"ProfilerStep#{step}", "device": rank, "time_us": time_us}
        )
        live = []
        for i in range(ACTIVATIONS):
            address = segment["address"] + (i << 24)
            size = (1 + i % 7) << 20
            add("alloc", address, size, stacks[i])
            live.append((address, size, stacks[i]))
        for address, size, stack in reversed(live):
            add("free_requested", address, size, stack)
            add("free_completed", address, size, stack)
        annotations.append(
            {"stage": "END", "name": f"ProfilerStep#{step}", "device": rank, "time_us": time_us}
        )
        step += 1
    block = {
        "address": segment["address"],
        "size": segment["total_size"],
        "requested_size": 0,
        "state": "inactive",
    }
    sizes = {"allocated_size": 0, "active_size": 0, "requested_size": 0}
    kind = {
        "device": rank,
        "stream": 0,
        "segment_type": "large",
        "segment_pool_id": (0, 0),
        "is_expandable": False,
    }
    return {
        "segments": [
            {**segment, **sizes, **kind, "frames": [], "blocks": [{**block, "frames": []}]}
        ],
        "device_traces": [[] for _ in range(rank)] + [trace],
        "allocator_settings": {"expandable_segments": False},
        "external_annotations": annotations,
    }


def write_inputs(folder: Path, options: argparse.Namespace) -> dict[str, Path]:
    """Write both inputs; return their folders."""
    folders = {"late": folder / "dumps", "memory": folder / "snapshots"}
    for path in folders.values():
        path.mkdir(parents=True, exist_ok=True)
    per_rank = options.collectives // options.ranks
    for rank in range(options.ranks):
        content = pickle.dumps(dump_of(rank, options.ranks, per_rank), protocol=2)
        (folders["late"] / f"nccl_trace_rank_{rank}").write_bytes(content)
    for rank in range(options.snapshots):
        content = pickle.dumps(snapshot_of(rank, options.events))
        (folders["memory"] / f"memory_rank{rank}.pickle").write_bytes(content)
    return folders


ANSWERS = {
    "late": "import sys, tracekit; run = tracekit.late(sys.argv[1]); print(run.late[0].ranks, run.late[0].period)",
    "memory": "import sys, tracekit; r = tracekit.memory(sys.argv[1]); r.to_json(); print(len(r.snapshots), 'ranks')",
}


def measure(name: str, folder: Path) -> bool:
    """Print what an answer takes; return whether it is within its bar."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    code = f"{ANSWERS[name]}; import resource; print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3)"
    done = subprocess.run(
        [sys.executable, "-c", code, folder], capture_output=True, text=True, check=True
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    *answer, megabytes = done.stdout.split("\n")[:2]
    most_seconds, most_megabytes = BARS[name]
    is_within = seconds <= most_seconds and (
        most_megabytes is None or float(megabytes) <= most_megabytes
    )
    print(
        f"{name}: {seconds:.1f} CPU s, {float(megabytes):,.0f} MB; {answer[0]}{'' if is_within else '  MISSED'}"
    )
    return is_within


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "folder",
        nargs="?",
        type=Path,
        help="where inputs are written; by default a temporary folder",
    )
    parser.add_argument("--ranks", type=int, default=1024)
    parser.add_argument("--collectives", type=int, default=1_000_000)
    parser.add_argument("--snapshots", type=int, default=8)
    parser.add_argument("--events", type=int, default=60_000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folders = write_inputs(options.folder or Path(temporary), options)
        results = [measure(name, folder) for name, folder in folders.items()]
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
