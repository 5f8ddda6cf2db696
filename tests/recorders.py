"""Flight-recorder dumps and Inspector logs built in a few lines."""

from __future__ import annotations

import json
import pickle
import random

MS = 1_000_000
EPOCH_NS = 1_700_000_000_000_000_000


def entry(
    number,
    op="all_reduce",
    *,
    at_ms=0.0,
    took_ms=None,
    sizes=(1000,),
    group="0",
    state="completed",
    **fields,
):
    """An entry of the flight recorder; *number* counts collectives from 1."""
    enqueued = EPOCH_NS + round(at_ms * MS)
    made = {
        "record_id": number - 1,
        "pg_id": int(group) if group.isdecimal() else 0,
        "process_group": (group, "default_pg" if group == "0" else f"group {group}"),
        "collective_seq_id": number,
        "p2p_seq_id": 0,
        "op_id": number,
        "profiling_name": f"nccl:{op}",
        "time_created_ns": enqueued,
        "input_sizes": [list(sizes)],
        "input_dtypes": ["Float"],
        "output_sizes": [list(sizes)],
        "output_dtypes": ["Float"],
        "state": state,
        "time_discovered_started_ns": None,
        "time_discovered_completed_ns": enqueued + 200 * MS if state == "completed" else None,
        "retired": state == "completed",
        "timeout_ms": 600_000,
        "is_p2p": False,
    }
    if took_ms is not None:
        made["duration_ms"] = took_ms
    return {**made, **fields}


def message(number, text, *, at_ms=0.0, batch=1, sizes=(1000,), **fields):
    """An entry for a send ("send 0->1") or a recv ("recv 1<-0") within a batch."""
    made = entry(number, text, at_ms=at_ms, sizes=sizes, state="scheduled")
    return {**made, "collective_seq_id": 0, "p2p_seq_id": batch, "is_p2p": True, **fields}


def batch_end(number, *, at_ms=0.0, batch=1, took_ms=None, state="completed"):
    """The entry behind the messages of a batch."""
    made = entry(number, "coalesced", at_ms=at_ms, took_ms=took_ms, state=state)
    nothing = {"input_sizes": [], "input_dtypes": [], "output_sizes": [], "output_dtypes": []}
    return {**made, **nothing, "collective_seq_id": 0, "p2p_seq_id": batch}


def dump(entries, *, ranks=(0, 1), version="2.10", **keys):
    """A dump of one rank whose only group has these ranks."""
    groups = {}
    for made in entries:
        name, description = made["process_group"]
        groups[name] = {"name": name, "desc": description, "ranks": str(list(ranks))}
    last = str(max((made["collective_seq_id"] for made in entries), default=0))
    status = {
        "0": {f"last_{what}_collective": last for what in ("enqueued", "started", "completed")}
    }
    made = {"version": version, "pg_config": groups, "pg_status": status, "entries": list(entries)}
    return {**made, **keys}


def later(made, ns):
    """Return an entry that was called some nanoseconds later."""
    time = made.get("time_created_ns")
    return {**made, "time_created_ns": time + ns} if isinstance(time, int) else made


def write_dumps(folder, dumps, *, as_json=False):
    """Write one dump per rank; return the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for rank, content in enumerate(dumps):
        if content is None:
            continue
        # No two ranks call anything in the same nanosecond.
        own = {**content, "entries": [later(made, rank) for made in content["entries"]]}
        if as_json:
            (folder / f"fr_rank{rank}.json").write_text(json.dumps(own))
        else:
            (folder / f"nccl_trace_rank_{rank}").write_bytes(pickle.dumps(own, protocol=2))
    return folder


def log_line(
    number,
    op="AllReduce",
    *,
    rank=0,
    ranks=2,
    at_ms=0.0,
    took_ms=1.0,
    waits_ms=0.0,
    size=1 << 20,
    **options,
):
    """A line of an Inspector log; with ``verbose=False`` without times, with ``peer`` a message."""
    start_us = EPOCH_NS // 1_000 + round(at_ms * 1_000)
    kernel_us = start_us + round(waits_ms * 1_000)
    end_us = kernel_us + round(took_ms * 1_000)
    kind = "coll" if options.get("peer") is None else "p2p"
    times = {
        f"{kind}_start_ts": start_us,
        f"{kind}_stop_ts": start_us + 5,
        "kernel_events": [
            {"channel_id": 0, "kernel_start_ts": kernel_us, "kernel_stop_ts": end_us}
        ],
    }
    operation = {
        kind: op,
        f"{kind}_sn": number,
        f"{kind}_msg_size_bytes": size,
        f"{kind}_exec_time_us": end_us - kernel_us,
        f"{kind}_timing_source": options.get("timing", "kernel_gpu"),
    }
    if kind == "p2p":
        operation["p2p_peer"] = options["peer"]
    if options.get("verbose", True):
        operation["event_trace_ts"] = times
    return {
        "header": {
            "id": options.get("group", "0xabc"),
            "comm_name": "unknown",
            "rank": rank,
            "n_ranks": ranks,
        },
        "metadata": {
            "inspector_output_format_version": options.get("version", "v4.0"),
            "dump_timestamp_us": end_us + 400,
            "hostname": options.get("host", "node0"),
            "pid": options.get("pid", 100 + rank),
        },
        f"{kind}_perf": operation,
    }


def write_log(path, lines):
    """Write the lines of one process."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def ddp_dumps(
    ranks=4,
    steps=12,
    *,
    late_ms=None,
    gpu_late_ms=None,
    clock_ms=None,
    timing=True,
    warm_up=True,
    sizes=None,
    transfer_ms=None,
    compute_ms=50.0,
    jitter_ms=0.0,
    seed=1,
    first_step=0,
):
    """Dumps of a data-parallel run: two all-reduces per step, of which the first waits for the rank that is latest.

    Args:
        ranks, steps: Their numbers.
        late_ms: Delay of a rank's host before a step, as a function of rank and step.
        gpu_late_ms: Delay of a rank's GPU, which its host does not have.
        clock_ms: What a rank's clock is ahead, as a function of the rank.
        timing: Whether durations on the GPU are recorded.
        warm_up: Whether operations come before the steps.
        sizes: Elements of the step's operations.
        transfer_ms: Time of a transfer, as a function of the step.
        compute_ms, jitter_ms: Time before the first operation, and its variation.
        seed: Of the variation.
        first_step: The first step that the ring still holds.

    """
    choose = random.Random(seed)
    nothing = lambda *_: 0.0  # noqa: E731
    late_ms, gpu_late_ms, clock_ms = late_ms or nothing, gpu_late_ms or nothing, clock_ms or nothing
    transfer_ms = transfer_ms or (lambda _: 5.0)
    sizes = sizes or (1_000_000, 2_000_000)
    entries = [[] for _ in range(ranks)]
    number = 0
    now = 0.0

    def add(op, calls, ready, *, took, size, step):
        """Add an operation that takes *took* from the moment at which all are ready."""
        nonlocal number, now
        number += 1
        now = max(ready) + took
        for rank in range(ranks):
            fields = {"at_ms": calls[rank] + clock_ms(rank), "sizes": (size,)}
            if timing:
                fields["took_ms"] = now - ready[rank]
            made = entry(number, op, **fields)
            seen = EPOCH_NS + round((now + clock_ms(rank) + 0.3 + choose.random() * 50) * MS)
            if step is None or step >= first_step:
                entries[rank].append({**made, "time_discovered_completed_ns": seen})

    if warm_up:
        for size in (7, 70, 700):
            add(
                "broadcast",
                [now + 20] * ranks,
                [now + 20] * ranks,
                took=3.0,
                size=size,
                step=None if first_step == 0 else -1,
            )
    for step in range(1 if warm_up else 0, steps + (1 if warm_up else 0)):
        start = now
        calls = [
            start + compute_ms + late_ms(rank, step) + choose.random() * jitter_ms
            for rank in range(ranks)
        ]
        ready = [call + gpu_late_ms(rank, step) for rank, call in enumerate(calls)]
        for size in sizes:
            add("all_reduce", calls, ready, took=transfer_ms(step), size=size, step=step)
            calls = [call + 1.0 for call in calls]
            ready = [now] * ranks
    return [dump(of_rank, ranks=range(ranks)) for of_rank in entries]
