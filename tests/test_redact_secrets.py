"""Private words planted in every place where a trace can hold them: after redacting none is found."""

from __future__ import annotations

import gzip
import io
import json
import shutil
import sqlite3
from itertools import count

import polars as pl
import pytest

import tracekit
from tests.test_redact import content, event, run
from tracekit.errors import OptionError

pytestmark = pytest.mark.slow


class Planted:
    """Words that stand nowhere else, each with the place it was put in."""

    def __init__(self):
        self.places, self._numbers = {}, count()

    def __call__(self, place, shape="{}"):
        word = f"ZQSECRET{next(self._numbers):03d}X"
        self.places[word] = place
        return shape.format(word)

    def found_in(self, *files):
        raw = b"".join(file.read_bytes() for file in files)
        raw += b"".join(gzip.decompress(file.read_bytes()) for file in files if file.suffix == ".gz")
        return [place for word, place in self.places.items() if word.encode() in raw]


ANNOTATIONS = (
    *(
        "load /home/ann/{}/ckpt.pt",
        "load checkpoints/{}/ckpt.pt",
        "load C:\\Users\\ann\\{}\\x.pt",
        "load \\\\fs\\{}\\x",
    ),
    *("get https://x.y/{}", "get s3://bucket/{}", "by {}@corp.com", "note {}", "on {}.corp.internal", "open /{}"),
    *("/mnt/My Data/{} files/x", "tcp [fe80::1]:29500 {}", "open $HOME/{}/x", "step_{}", "{}Forward", "forward/{}"),
)


def planted_json(samples, path):
    """A real trace with a word in every place that its format has for text."""
    put = Planted()
    data = json.loads(gzip.decompress((samples / "1f1b/rank0.pt.trace.json.gz").read_bytes()))
    info, device, events = data["distributedInfo"], data["deviceProperties"][0], data["traceEvents"]
    data["env"] = {"HF_TOKEN": put("env value"), put("env key"): "1"}
    for key, shape in (
        ("command_line", "python t.py --key {}"),
        ("hostname", "{}"),
        ("user", "{}"),
        ("cwd", "/home/a/{}"),
    ):
        data[key] = put(f"header {key}", shape)
    info["hostname"], info["custom"], info[put("unknown key")] = put("info host"), put("info custom"), 1
    info["pg_config"][0]["pg_desc"] = put("group description", "/data/{}/x")
    device["uuid"], device["host"] = put("device uuid"), put("device host")
    data["torch_version"], data["with_" + put("with_ key")] = put("version"), 1
    data["traceName"] = put("trace name", "/home/u/{}.json")
    start = events[0]["ts"]

    def add(name="x", cat="cpu_op", **args):
        events.append({**event(name, cat, **args), "ts": start + 1})

    for cat in ("python_function", "Python_function"):
        add(put(f"frame {cat}", "train.py(3): {}"), cat)
    for key in (
        "Call stack",
        "Call Stack",
        "Module",
        "cmd",
        "HF_TOKEN",
        "Concrete Inputs",
        "dtype",
        "Process Group Name",
    ):
        add(**{key: put(f"argument {key}", "/opt/{}/m.py(3)")})
    add(env={"AWS_SECRET": put("nested argument")}, stack=[put("stack in a list")], **{put("argument's key"): 1})
    for shape in ANNOTATIONS:
        add(put(f"annotation {shape}", shape), "user_annotation")
    for name, args in (
        ("process_name", {"name": put("process", "python /usr/bin/{}")}),
        ("process_name", {"name": put("command", "{} --x")}),
        ("process_labels", {"labels": put("labels")}),
        ("thread_name", {"name": put("thread")}),
        ("host_name", {"hostname": put("host event")}),
    ):
        events.append({"ph": "M", "name": name, "pid": 1, "args": args})
    events.append({"ph": "i", "name": "[memory]", "ts": start, "s": "t", "args": {"stack": put("instant")}})
    data["traceEvents"] = data.pop("traceEvents")  # last, so that more can be put behind
    text = json.dumps(data)
    for shape in ("\\u002fhome\\u002fann\\u002f{}", "\\/home\\/ann\\/{}"):
        text = text[:-2] + f', {{"ph": "X", "cat": "user_annotation", "name": "{put(shape, shape)}", "ts": {start}}}]}}'
    text = text[:-2] + f', {{"ph": "X", "cat": "python\\u005ffunction", "name": "{put("escaped")}", "ts": {start}}}]}}'
    json.loads(text)
    packed = io.BytesIO()
    with gzip.GzipFile(filename=put("name in the archive"), mode="wb", fileobj=packed) as file:
        file.write(text.encode())
    path.write_bytes(packed.getvalue())
    return put


def planted_sqlite(samples, path):
    """A real report with a word in every table that has room for text."""
    put = Planted()
    shutil.copy(samples / "nsys-1f1b/rank1.sqlite", path)
    report = sqlite3.connect(path)
    first = "rowid = (SELECT min(rowid) + {} FROM NVTX_EVENTS)"
    for number, column, shape in (
        (2, "text", "/home/ann/{}/y"),
        (3, "binaryData", "/home/ann/{}/y"),
        (4, "jsonText", '{{"p": "/home/ann/{}/z"}}'),
        (5, "jsonText", '{{"token": "{}", "Rank": 1}}'),
    ):
        value = put(f"{column} {shape}", shape)
        value = value.encode() if column == "binaryData" else value
        report.execute(f"UPDATE NVTX_EVENTS SET {column} = ? WHERE {first.format(number)}", (value,))
    for number, shape in ((0, "/home/ann/{}/x"), (1, "{}")):
        report.execute("INSERT INTO StringIds VALUES (?, ?)", (900_000 + number, put(f"string {shape}", shape)))
        report.execute(f"UPDATE NVTX_EVENTS SET textId = {900_000 + number} WHERE {first.format(number)}")
    report.execute("INSERT INTO StringIds VALUES (900009, ?)", (put("unused string"),))
    report.execute("UPDATE PROCESSES SET name = ?", (put("process"),))
    for name, shape in (
        ("ENVIRONMENT", "{}"),
        ("MY_VERSION_PATH", "/home/{}/v"),
        ("EXPORT_APP_VERSION", "{}"),
        ("APP_VERSION_STRING", "{}"),
    ):
        report.execute("INSERT INTO META_DATA_CAPTURE (name, value) VALUES (?, ?)", (name, put(name, shape)))
    for table in ("TARGET_INFO_SYSTEM_ENV", "ProcessStreams"):  # a word in every column, whatever its type
        report.execute(f"CREATE TABLE IF NOT EXISTS {table} (filenameId, contentId)")
        columns = [row[1] for row in report.execute(f"PRAGMA table_info({table})")]
        words = [put(f"{table}.{column}") for column in columns]
        report.execute(f"INSERT INTO {table} VALUES ({', '.join('?' * len(words))})", words)
    kernel = "CUPTI_ACTIVITY_KIND_KERNEL"
    report.execute(f"UPDATE {kernel} SET gridX = ? WHERE rowid = 1", (put("text in a column of numbers"),))
    report.execute("UPDATE TARGET_INFO_GPU SET name = ?", (put("GPU name", "/x/{}/g"),))
    report.execute(f"CREATE TABLE MINE (a TEXT /* {put('comment')} */)")
    report.execute("INSERT INTO MINE VALUES (?)", (put("unknown table"),))
    report.commit()
    report.execute("INSERT INTO StringIds VALUES (900010, ?)", (put("freed page") + "A" * 9000,))
    report.commit()
    report.execute("DELETE FROM StringIds WHERE id = 900010")
    report.commit()
    report.close()
    return put


def test_no_word_is_left_in_a_pytorch_trace(samples, tmp_path):
    put = planted_json(samples, tmp_path / "rank0.json.gz")
    run(tmp_path / "rank0.json.gz", tmp_path / "out.json.gz")
    assert len(put.places) > 45
    assert put.found_in(tmp_path / "out.json.gz") == []
    before, after = (tracekit.load(tmp_path / name, rank=0).events for name in ("rank0.json.gz", "out.json.gz"))
    numbers = ["start_ns", "end_ns", "stream", "correlation", "sequence", "shapes", "bytes"]
    assert before.filter(pl.col("kind") != "python").select(numbers).equals(after.select(numbers))


def test_no_word_is_left_in_a_report(samples, tmp_path):
    put = planted_sqlite(samples, tmp_path / "rank1.sqlite")
    run(tmp_path / "rank1.sqlite", tmp_path / "out.sqlite")
    assert len(put.places) > 15
    assert put.found_in(tmp_path / "out.sqlite") == []


@pytest.mark.parametrize("word", ["xy", "root", "admin", "a", "ZeppelinCorp"])
def test_words_that_are_named_always_go(tmp_path, word):
    source = tmp_path / "in.json"
    source.write_text(json.dumps({"traceEvents": [event(f"void {word}::gemm<1>({word}_t)", "kernel"), event(word)]}))
    run(source, tmp_path / "out.json", words=[word])
    names = [e["name"] for e in json.loads(content(tmp_path / "out.json"))["traceEvents"]]
    assert names == ["void <name>::gemm<1>(<name>_t)", "<name>"]


def test_a_group_has_one_name_on_every_rank(tmp_path):
    (tmp_path / "in").mkdir()
    for rank, first in enumerate(("zeppelin", "other")):  # another unknown word comes first on rank 1
        args = {"Process Group Name": "zeppelin_tp", "Collective name": "allreduce"}
        events = [event(first), event("nccl", "kernel", **args)]
        (tmp_path / f"in/rank{rank}.json").write_text(json.dumps({"traceEvents": events}))
    run(tmp_path / "in", tmp_path / "out")
    named = {
        json.loads(content(path))["traceEvents"][1]["args"]["Process Group Name"]
        for path in (tmp_path / "out").iterdir()
    }
    assert len(named) == 1
    assert "zeppelin" not in named.pop()


def test_keep_says_otherwise(tmp_path):
    source = tmp_path / "in.json"
    events = [
        event("zeppelin /home/ann/x", "user_annotation", secret=["abc", 3]),
        event("f.py(3): g", "python_function"),
    ]
    events.append({"ph": "M", "name": "process_name", "args": {"name": "trainer"}})
    source.write_text(json.dumps({"job_note": "night run", "traceEvents": events}))
    kept = ["annotations", "arguments", "frames", "header", "metadata"]
    run(source, tmp_path / "out.json", keep=kept)
    data = json.loads(content(tmp_path / "out.json"))
    assert data["traceEvents"][0]["name"] == "zeppelin <path>"
    assert data["traceEvents"][0]["args"] == {"secret": ["abc", 3]}
    assert len(data["traceEvents"]) == 3
    with pytest.raises(OptionError, match="there is no such part"):
        run(source, tmp_path / "out.json", keep=["stack"])


def test_files_beside_a_report_are_not_touched(samples, tmp_path):
    """Another program may still write the report: reading it changes neither it nor its log."""
    source = tmp_path / "rank1.sqlite"
    shutil.copy(samples / "nsys-1f1b/rank1.sqlite", source)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    run(source, tmp_path / "out.sqlite")
    (tmp_path / "out.sqlite").unlink()
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
