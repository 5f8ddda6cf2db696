"""Secrets of many kinds, planted anywhere in small traces and reports: none may be left in the redacted copy."""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import random
import sqlite3
import string
import uuid
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

from tests.fuzz.change import changed
from tests.fuzz.others import SAMPLES, one_line, small_report
from tracekit.errors import InputError
from tracekit.redact import redact

Choose = random.Random
EVENTS = 120
"""Events of a trace that secrets are planted in."""


def _digits(choose: Choose, count: int) -> str:
    return str(choose.randrange(10 ** (count - 1), 10**count))


def _letters(choose: Choose, count: int, alphabet: str = string.ascii_lowercase) -> str:
    return "".join(choose.choices(alphabet, k=count))


def _groups(choose: Choose, *counts: int, by: str) -> str:
    return by.join(_digits(choose, count) for count in counts)


KINDS: dict[str, Callable[[Choose], str]] = {
    "hex key": lambda choose: f"{choose.getrandbits(128):032x}",
    "short hash": lambda choose: f"{choose.getrandbits(48):012x}",
    "UUID": lambda choose: str(uuid.UUID(int=choose.getrandbits(128))),
    "MAC address": lambda choose: ":".join(f"{choose.randrange(256):02x}" for _ in range(6)),
    "card number": lambda choose: _groups(choose, 4, 4, 4, 4, by=choose.choice(" -")),
    "card number without spaces": lambda choose: _digits(choose, 16),
    "phone number": lambda choose: "+49 " + _groups(choose, 3, 4, 4, by=choose.choice(" -./")),
    "phone number in one": lambda choose: _digits(choose, 13),
    "social security number": lambda choose: _groups(choose, 3, 2, 4, by="-"),
    "IPv4 address": lambda choose: ".".join(str(choose.randrange(10, 255)) for _ in range(4)),
    "IPv6 address": lambda choose: ":".join(f"{choose.randrange(4096, 65536):x}" for _ in range(8)),
    "e-mail address": lambda choose: f"{_letters(choose, 6)}@{_letters(choose, 5)}.com",
    "host": lambda choose: f"gpu-node-{_digits(choose, 3)}",
    "full host": lambda choose: f"worker-{_digits(choose, 2)}.{_letters(choose, 6)}.internal",
    "home folder": lambda choose: f"/home/{_letters(choose, 6)}/model.py",
    "Windows folder": lambda choose: f"C:\\Users\\{_letters(choose, 6)}\\data",
    "network share": lambda choose: f"\\\\files\\{_letters(choose, 6)}",
    "relative path": lambda choose: f"checkpoints/{_letters(choose, 6)}/step.pt",
    "URL": lambda choose: f"s3://{_letters(choose, 6)}/data/train",
    "API token": lambda choose: (
        "sk-proj-" + _letters(choose, 24, string.ascii_letters + string.digits)
    ),
    "access key": lambda choose: (
        "AKIA" + _letters(choose, 16, string.ascii_uppercase + string.digits)
    ),
    "password": lambda choose: _letters(
        choose, 14, string.ascii_letters + string.digits + "!$%&*+-_=?"
    ),
    "codename": lambda choose: f"Acme{_letters(choose, 5).title()}Secret",
    "C++ name": lambda choose: f"{_letters(choose, 7)}::{_letters(choose, 6)}_kernel",
    "Python name": lambda choose: f"{_letters(choose, 6)}.{_letters(choose, 6)}_layer",
    "name with umlauts": lambda choose: f"M{choose.choice('üöä')}ller-{_letters(choose, 4)}ß",
    "name in Chinese": lambda choose: "".join(
        chr(choose.randrange(0x4E00, 0x9FA5)) for _ in range(4)
    ),
    "name in Cyrillic": lambda choose: "".join(
        chr(choose.randrange(0x430, 0x450)) for _ in range(6)
    ),
    "name in Devanagari": lambda choose: "".join(
        chr(choose.randrange(0x905, 0x94D)) for _ in range(6)
    ),
    "emoji": lambda choose: "".join(chr(choose.randrange(0x1F300, 0x1F5FF)) for _ in range(3)),
    "Arabic digits": lambda choose: "".join(chr(choose.randrange(0x660, 0x66A)) for _ in range(4)),
    "customer number": lambda choose: (
        f"{_letters(choose, 2, string.ascii_uppercase)}-{_digits(choose, 8)}"
    ),
}
SHAPES = (
    *(
        "{}",
        "{}",
        "load {}",
        "aten::{}",
        "void k<{}>(int)",
        "void gemm<128, {}>",
        "{}Backward0",
        "cuda{}",
        "nccl:{}",
    ),
    *(
        "layer {}",
        "layers.{}.mlp",
        "step {}",
        "rank {}",
        "ProfilerStep#{}",
        "PP:{}F0",
        "triton_poi_fused_{}_3",
    ),
    *(
        "torch::autograd::{}",
        "## {} ##",
        "flash_{}_attn",
        "Optimizer.step#{}.step",
        "NVIDIA {}",
        "2.9.0+{}",
        "[{}]",
    ),
    *("{}, seq = 3, op_id = 4, sizes = [[1, 2]]", "forward,{}", "(bool){}", "v{}", "sm90_{}_gemm"),
)
NAMED_CATEGORIES = (
    *(
        "kernel",
        "gpu_memcpy",
        "cpu_op",
        "user_annotation",
        "gpu_user_annotation",
        "cuda_runtime",
        "cuda_driver",
    ),
    *(
        "python_function",
        "Python_function",
        "overhead",
        "cuda_sync",
        "ac2g",
        "trace",
        "unheard_of",
        "",
    ),
)
ARGUMENTS = (
    *(
        "External id",
        "correlation",
        "stream",
        "device",
        "Input Dims",
        "Process Group Ranks",
        "grid",
        "bytes",
        "Call stack",
    ),
    *(
        "Collective name",
        "Process Group Name",
        "Process Group Description",
        "dtype",
        "Input type",
        "Concrete Inputs",
    ),
    *("kernel_file", "Addr", "name", "env"),
)
HEADER_KEYS = (
    *(
        "schemaVersion",
        "cuda_driver_version",
        "torch_version",
        "nccl_version",
        "traceName",
        "displayTimeUnit",
    ),
    *("hostname", "env", "with_stack", "baseTimeNanoseconds", "record_shapes", "trace_id"),
)


@cache
def _trace(*, whole: bool) -> str:
    raw = gzip.decompress((SAMPLES / "1f1b/rank0.pt.trace.json.gz").read_bytes())
    data = json.loads(raw)
    if not whole:
        data["traceEvents"] = data["traceEvents"][:EVENTS]
    return json.dumps(data)


def _nested(value: Any, choose: Choose) -> Any:
    return choose.choice(
        (
            value,
            [value],
            {"a": value},
            {value: 1} if isinstance(value, str) else value,
            [[value, 1]],
        )
    )


def _plant_in_header(data: dict[str, Any], secret: str, choose: Choose) -> None:
    info, device = data["distributedInfo"], data["deviceProperties"][0]
    group = info["pg_config"][0]
    case = choose.randrange(7)
    if case == 0:
        data[choose.choice(HEADER_KEYS)] = _nested(secret, choose)
    elif case == 1:
        data[secret] = choose.choice((1, "text", {secret: secret}))
    elif case == 2:
        info[choose.choice(("backend", "nccl_version", "hostname", secret))] = secret
    elif case == 3:
        group[choose.choice(("pg_name", "pg_desc", "backend_config", "note", secret))] = secret
    elif case == 4:
        device[choose.choice(("name", "uuid", "numSms", secret))] = secret
    elif case == 5:
        info["rank"], info["world_size"] = 0, secret
    else:
        group["ranks"] = [0, 1, secret]


def _plant_in_event(data: dict[str, Any], secret: str, choose: Choose) -> None:
    events = data["traceEvents"]
    event = {**choose.choice(events[:EVENTS])}
    event["args"] = dict(event.get("args", {}))
    events.append(event)
    case = choose.randrange(9)
    if case < 3:
        event |= {"ph": "X", "cat": choose.choice(NAMED_CATEGORIES), "name": secret}
    elif case == 3:
        event[
            choose.choice(("cat", "ph", "pid", "tid", "id", "bp", "s", "ts", "dur", "note", secret))
        ] = secret
    elif case < 6:
        event["args"][choose.choice((*ARGUMENTS, secret))] = _nested(secret, choose)
    elif case == 6:
        label = choose.choice(("process_name", "thread_name", "process_labels", secret))
        event |= {"ph": "M", "name": label, "args": {"name": secret, "labels": secret}}
    elif case == 7:
        event |= {
            "ph": choose.choice("iCbnO"),
            "name": choose.choice(("[memory]", secret)),
            "args": {"stack": secret},
        }
    elif secret.isdecimal():
        event["args"][
            choose.choice(("phone", "device", "Src Rank", "External id", "Input Dims"))
        ] = int(secret)
    else:
        event["args"] = secret


def _spelled(text: str, choose: Choose) -> str:
    """Return JSON text in one of the ways to write it: with or without escapes."""
    way = choose.randrange(3)
    if way == 0:
        return json.dumps(text)
    if way == 1:
        return json.dumps(text, ensure_ascii=False)
    units = text.encode("utf-16-be")
    return (
        '"' + "".join(f"\\u{units[i]:02x}{units[i + 1]:02x}" for i in range(0, len(units), 2)) + '"'
    )


def plant_in_trace(choose: Choose, count: int, *, whole: bool = False) -> tuple[bytes, list[str]]:
    """Return a trace (its first events, or the *whole* of it) and the secrets in it."""
    data, secrets = json.loads(_trace(whole=whole)), []
    for _ in range(count):
        secret = KINDS[choose.choice(list(KINDS))](choose)
        shaped = secret if secret.isdecimal() else choose.choice(SHAPES).format(secret)
        (_plant_in_event if choose.random() < 0.75 else _plant_in_header)(data, shaped, choose)
        secrets.append(secret)
    if choose.random() < 0.5:
        data["traceEvents"] = data.pop("traceEvents")
    text = json.dumps(data)
    for secret in secrets:
        spelled = json.dumps(secret)
        if spelled in text and choose.random() < 0.5:
            text = text.replace(spelled, _spelled(secret, choose))
    raw = text.encode()
    if choose.random() < 0.3:
        secrets.append("trailing-zeppelin")
        raw += b'\n{"trailing-zeppelin": 1}'
    if choose.random() < 0.5:
        packed = io.BytesIO()
        with gzip.GzipFile(filename="archived-zeppelin", mode="wb", fileobj=packed) as file:
            file.write(raw)
        return packed.getvalue(), [*secrets, "archived-zeppelin"]
    return raw, secrets


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _plant_in_report(report: sqlite3.Connection, secret: str, choose: Choose) -> None:
    tables = [
        name for (name,) in report.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
    ]
    quoted, literal = _quoted(secret), "'" + secret.replace("'", "''") + "'"
    number = choose.randrange(10**6, 10**9)
    case = choose.randrange(10)
    if case < 4:  # any cell of any table, text or not
        table = choose.choice(tables)
        columns = [
            _quoted(row[1]) for row in report.execute(f"PRAGMA table_info({_quoted(table)})")
        ]
        value: Any = choose.choice((secret, secret, secret.encode(), secret.encode("utf-16-le")))
        row = choose.choice(("", " WHERE rowid % 3 = 0"))
        report.execute(f"INSERT OR IGNORE INTO {_quoted(table)} DEFAULT VALUES")
        report.execute(
            f"UPDATE OR IGNORE {_quoted(table)} SET {choose.choice(columns)} = ?{row}", (value,)
        )
    elif case == 4:
        report.execute("INSERT INTO StringIds VALUES (?, ?)", (number, secret))
        table, column = choose.choice(
            (
                ("CUPTI_ACTIVITY_KIND_KERNEL", "demangledName"),
                ("CUPTI_ACTIVITY_KIND_KERNEL", "mangledName"),
                ("CUPTI_ACTIVITY_KIND_RUNTIME", "nameId"),
                ("NVTX_EVENTS", "textId"),
                ("NVTX_EVENTS", "jsonTextId"),
                ("ThreadNames", "nameId"),
                ("PROFILER_OVERHEAD", "nameId"),
            )
        )
        report.execute(f"UPDATE {table} SET {column} = ? WHERE rowid % 4 = 1", (number,))
    elif case == 5:
        payload = json.dumps({choose.choice(("Rank", "token", secret)): secret, "Peer rank": 1})
        report.execute("UPDATE NVTX_EVENTS SET jsonText = ? WHERE rowid % 5 = 2", (payload,))
        report.execute(
            "UPDATE NVTX_EVENTS SET binaryData = ? WHERE rowid % 5 = 3",
            (b"\0" * 8 + b"\1\0\0\0" + secret.encode(),),
        )
    elif case == 6:
        report.execute(
            f"ALTER TABLE {_quoted(choose.choice(tables))} ADD COLUMN {quoted} DEFAULT {literal}"
        )
    elif case == 7:
        report.execute(
            f"CREATE TABLE IF NOT EXISTS {quoted} (a TEXT DEFAULT {literal} /* {secret.replace('*', '')} */)"
        )
        report.execute(f"INSERT INTO {quoted} VALUES (?)", (secret,))
    elif case == 8:
        report.execute(f"CREATE VIEW IF NOT EXISTS {quoted} AS SELECT {literal}")
        report.execute(
            f'CREATE TRIGGER "on {number}" AFTER DELETE ON StringIds BEGIN SELECT {literal}; END'
        )
        report.execute(
            f'CREATE INDEX "index {number}" ON StringIds (value) WHERE value = {literal}'
        )
    else:
        report.execute("INSERT INTO StringIds VALUES (?, ?)", (number, secret * 400))
        report.commit()
        report.execute("DELETE FROM StringIds WHERE id = ?", (number,))


def plant_in_report(choose: Choose, count: int) -> tuple[bytes, list[str]]:
    """Return a report and the secrets in it."""
    report, secrets = sqlite3.connect(":memory:"), []
    report.deserialize(small_report())
    for _ in range(count):
        secret = KINDS[choose.choice(list(KINDS))](choose)
        secrets.append(secret)
        with contextlib.suppress(sqlite3.Error):  # a column may refuse text, or be given twice
            _plant_in_report(report, choose.choice(SHAPES).format(secret), choose)
    report.commit()
    raw = report.serialize()
    report.close()
    return raw, secrets


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield key
            yield from _texts(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _texts(inner)
    else:
        yield str(value)


def left_in(path: Path, secrets: list[str]) -> list[str]:
    """Return the secrets that a redacted file still holds: in its bytes, or in what its JSON spells."""
    raw = path.read_bytes()
    text = raw.decode("utf-8", "replace")
    if path.suffix != ".sqlite":
        unpacked = gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw
        text += unpacked.decode("utf-8", "replace") + "\n".join(_texts(json.loads(unpacked)))
    else:
        text += raw.decode("utf-16-le", "replace") + raw[1:].decode("utf-16-le", "replace")
    spelled = {secret: (secret, json.dumps(secret)[1:-1]) for secret in secrets}
    return [secret for secret, ways in spelled.items() if any(way in text for way in ways)]


def make(choose: Choose) -> bytes:
    """Return the secrets as a line of JSON, then the file that holds them."""
    plant = plant_in_trace if choose.random() < 0.8 else plant_in_report
    raw, secrets = plant(choose, choose.randrange(1, 12))
    if choose.random() < 0.2:
        raw = changed(raw, choose, times=choose.randrange(1, 6))
    return json.dumps(secrets).encode() + b"\n" + raw


def check(raw: bytes, folder: Path) -> None:
    """Redact a file that ``make`` returned and look for its secrets."""
    line, _, content = raw.partition(b"\n")
    secrets = json.loads(line)
    suffix = ".sqlite" if content.startswith(b"SQLite format 3") else ".json"
    source, target = folder / f"rank0{suffix}", folder / f"redacted{suffix}"
    source.write_bytes(content)
    target.unlink(missing_ok=True)
    try:
        redact(source, target)
    except InputError as error:
        one_line(error)
        assert not target.exists()
        return
    left = left_in(target, secrets)
    assert not left, f"left in the redacted file: {left}"
