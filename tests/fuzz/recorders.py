"""Dumps and logs nobody wrote: damage is an error in one line or a notice, and never runs anything."""

from __future__ import annotations

import gzip
import json
import pickle
import random
from functools import cache
from pathlib import Path

from tests.fuzz.others import one_line
from tests.recorders import ddp_dumps, entry
from tracekit.errors import TracekitError
from tracekit.late import late
from tracekit.parsers.plain_pickle import load_plain_pickle

SAMPLES = Path(__file__).parents[2] / "sample_traces/always-on"
VALUES = (
    *(None, -1, 0, 2**31, 2**63, 2**70, 0.5, 1e300, float("nan"), True),
    *("", "abc", "9" * 40, "\x1b[2J", [], [[]], {}),
)
FORBIDDEN = "tracekit-fuzz-ran"


@cache
def _dump() -> dict:
    """The dump of one rank of a small run that hangs."""
    content = ddp_dumps(2, 6)[0]
    content["entries"].append(entry(16, at_ms=9_000, state="started"))
    return content


@cache
def _pipeline_dump() -> bytes:
    return pickle.dumps(
        json.loads(gzip.decompress((SAMPLES / "1f1b/fr_rank0.json.gz").read_bytes()))
    )


@cache
def _log() -> list[bytes]:
    path = sorted((SAMPLES / "late").glob("*.log.gz"))[0]
    return gzip.decompress(path.read_bytes()).splitlines()[:40]


class _Runs:
    def __reduce__(self):
        return open, (FORBIDDEN, "w")


def _change_values(choose: random.Random, content: dict) -> dict:
    """Return a dump with some values replaced, removed or repeated."""
    content = pickle.loads(pickle.dumps(content))
    for _ in range(choose.randrange(1, 6)):
        target = choose.choice([content, *content["entries"][-3:], *content["entries"][:3]])
        if not isinstance(target, dict) or not target:
            continue
        key = choose.choice(list(target))
        if choose.random() < 0.2:
            del target[key]
        else:
            target[key] = choose.choice(VALUES)
        if not isinstance(content.get("entries"), list) or not content["entries"]:
            break
    return content


def _change_bytes(choose: random.Random, data: bytes) -> bytes:
    changed = bytearray(data)
    for _ in range(choose.randrange(1, 8)):
        changed[choose.randrange(len(changed))] = choose.randrange(256)
    if choose.random() < 0.3:
        del changed[choose.randrange(len(changed)) :]
    return bytes(changed)


def make(choose: random.Random) -> bytes:
    """A dump or a log with bytes, values or lines changed."""
    kind = choose.randrange(6)
    if kind == 0:
        return pickle.dumps(_change_values(choose, _dump()), protocol=choose.randrange(2, 6))
    if kind == 1:
        return json.dumps(_change_values(choose, _dump())).encode()
    if kind == 2:
        return _change_bytes(choose, choose.choice((pickle.dumps(_dump()), _pipeline_dump())))
    if kind == 3:
        lines = [_change_bytes(choose, line) if choose.random() < 0.2 else line for line in _log()]
        choose.shuffle(lines)
        return b"\n".join(lines)
    if kind == 4:
        lines = []
        for line in _log():
            content = json.loads(line)
            section = choose.choice([content["header"], content["metadata"], content["coll_perf"]])
            section[choose.choice(list(section))] = choose.choice(VALUES)
            lines.append(json.dumps(content).encode())
        return b"\n".join(lines)
    content = {**_dump(), choose.choice(("entries", "pg_config", "more")): [_Runs()]}
    return pickle.dumps(content, protocol=choose.randrange(2, 6))


def check(raw: bytes, folder: Path) -> None:
    """Read it beside a sound dump of another rank.

    Raise for anything but an error of one line or a result.
    """
    forbidden = Path(FORBIDDEN)
    run = folder / "run"
    run.mkdir(exist_ok=True)
    (run / "fr_rank0").write_bytes(raw)
    (run / "fr_rank1").write_bytes(pickle.dumps(ddp_dumps(2, 6)[1]))
    try:
        late(run).to_json()
    except TracekitError as error:
        one_line(error)
    if raw[:1] == b"\x80":
        try:
            load_plain_pickle(raw, name="dump")
        except TracekitError as error:
            one_line(error)
    assert not forbidden.exists(), "a pickle ran code"
