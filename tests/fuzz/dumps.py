"""Dumps that disagree: entries twice, numbers off, files copied over others, ranks missing, states changed."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path

from tests.fuzz.others import one_line
from tests.recorders import ddp_dumps, write_dumps
from tracekit.errors import TracekitError
from tracekit.late import late
from tracekit.late.view import hang_sentence

STATES = ("completed", "started", "scheduled", "timed_out", "", None)
OPS = ("nccl:all_reduce", "nccl:broadcast", "nccl:all_gather", "nccl:send 0->1", "", None)


def make(choose: random.Random) -> bytes:
    """Dumps of a run of two to four ranks, changed in some ways; which ranks have a file."""
    ranks = choose.randrange(2, 5)
    dumps = ddp_dumps(ranks, choose.randrange(2, 7), jitter_ms=1.0, seed=choose.randrange(1000))
    for _ in range(choose.randrange(1, 5)):
        _change(dumps, choose)
    present = [choose.random() < 0.85 for _ in range(ranks)]
    copies = []
    if choose.random() < 0.25:
        copies.append([choose.randrange(ranks), choose.randrange(ranks)])
    return json.dumps([dumps, present, copies]).encode()


def _change(dumps: list[dict], choose: random.Random) -> None:
    """Change the entries of one dump."""
    content = choose.choice(dumps)
    entries = content["entries"]
    if not entries:
        return
    kind = choose.randrange(7)
    if kind == 0:
        content["entries"] = [made for made in entries for _ in range(choose.randrange(1, 3))]
    elif kind == 1:
        off_by = choose.choice((-1, 1, 2, 10**6))
        for made in entries:
            made["collective_seq_id"] += off_by
    elif kind == 2:
        del entries[choose.randrange(len(entries)) :]
    elif kind == 3:
        choose.shuffle(entries)
    elif kind == 4:
        choose.choice(entries)["state"] = choose.choice(STATES)
    elif kind == 5:
        made = choose.choice(entries)
        made["input_sizes"] = made["output_sizes"] = [[choose.choice((0, 1, 999, 2**40))]]
    else:
        choose.choice(entries)["profiling_name"] = choose.choice(OPS)


def check(raw: bytes, folder: Path) -> None:
    """Read them: an error of one line, or a result that says nothing of ranks without a dump."""
    dumps, present, copies = json.loads(raw)
    run = folder / "run"
    shutil.rmtree(run, ignore_errors=True)
    kept = [content if is_kept else None for content, is_kept in zip(dumps, present, strict=True)]
    write_dumps(run, kept)
    for source, target in copies:
        if (run / f"nccl_trace_rank_{source}").exists() and source != target:
            shutil.copy(run / f"nccl_trace_rank_{source}", run / f"nccl_trace_rank_{target}")
    try:
        result = late(run)
        document = result.to_dict()
        str(result)
    except TracekitError as error:
        one_line(error)
        return
    read = {source.rank for source in result.sources}
    for fact in document["late"]:
        assert set(fact["ranks"]) <= read, f"{fact['ranks']} late, {read} read"
    assert (document["lost_ns"] or 0) >= 0
    hang = result.hang
    if hang is not None:
        assert {state.rank for state in hang.missing} <= read, "a rank without a dump is missing"
        assert not read.intersection(hang.no_record), "a rank with a dump has none"
        sentence = hang_sentence(hang)
        for rank in hang.no_record:
            assert f"Rank {rank} did not join" not in sentence
