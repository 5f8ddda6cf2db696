"""Paths in, one source per rank out."""

from __future__ import annotations

import gzip
import json
import os
import pickle
import shlex
import signal

import pytest

from tracekit.errors import InputError, OptionError
from tracekit.parsers.discovery import discover
from tracekit.parsers.source_refs import rank_in_name
from tracekit.report.notices import notice_sentence

EVENT = {"ph": "X", "cat": "kernel", "name": "k", "ts": 1, "dur": 1, "pid": 0, "tid": 7}


def trace(rank=None, size=None, *, late=False, array=False):
    """The text of a small trace; with *late*, the header comes after the events."""
    if array:
        return json.dumps([EVENT])
    info = (
        {}
        if rank is None
        else {"distributedInfo": {"backend": "nccl", "rank": rank, "world_size": size}}
    )
    events = {"traceEvents": [EVENT]}
    return json.dumps({**events, **info} if late else {"schemaVersion": 1, **info, **events})


def lay(folder, files):
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if name.endswith(".gz"):
            path.write_bytes(gzip.compress(content.encode()))
        else:
            path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return folder


FOUND = {
    "content beats name": ({"rank9.json": trace(3, 4)}, [(3, "content")]),
    "content after the events": ({"rank9.json": trace(3, 4, late=True)}, [(3, "content")]),
    "gzip": (
        {"a.json.gz": trace(1, 2), "b.json.gz": trace(0, 2)},
        [(0, "content"), (1, "content")],
    ),
    "rank3": ({"rank3.json": trace()}, [(3, "name")]),
    "rank-3": ({"rank-3.Apr_03.pt.trace.json": trace()}, [(3, "name")]),
    "rank_3": ({"rank_3.json": trace()}, [(3, "name")]),
    "rank3_trace": ({"run7_rank3_trace.json": trace()}, [(3, "name")]),
    "worker3": ({"worker3_step_12.169.pt.trace.json": trace()}, [(3, "name")]),
    "a folder per rank": (
        {"rank0/t.json": trace(), "rank1/t.json": trace()},
        [(0, "name"), (1, "name")],
    ),
    "only file": ({"host_4242.169412.pt.trace.json": trace()}, [(0, "only file")]),
    "bare array": ({"t.json": trace(array=True)}, [(0, "only file")]),
    "unrelated files are skipped": (
        {
            "rank0.json": trace(),
            "README.md": "# hi",
            "truth.json": '{"answer": 42}',
            "notes.txt": "[1]",
            ".x": "y",
        },
        [(0, "name")],
    ),
    "world size unknown in one": (
        {"rank0.json": trace(0, 2), "rank1.json": trace()},
        [(0, "content"), (1, "name")],
    ),
}


@pytest.mark.parametrize("case", FOUND)
def test_a_folder_becomes_one_source_a_rank(tmp_path, case):
    files, expected = FOUND[case]
    assert [(ref.rank, ref.rank_from) for ref in discover(lay(tmp_path, files)).refs] == expected


REFUSED = {
    "two files for one rank": (
        {"a.json": trace(0, 2), "b.json": trace(0, 2)},
        "rank 0 has 2 files in .*: a.json, b.json",
    ),
    "many files for one rank": ({f"{i}.json": trace(0, 2) for i in range(9)}, r"3.json, \+5 more"),
    "two runs": (
        {f"{run}/rank{n}.json": trace(n, 2) for run in ("after", "before") for n in (0, 1)},
        "these look like 2 runs in .*: after, before",
    ),
    "two runs, one of them by host": (
        {
            f"{folder}/t{n}.json": trace(n, 2)
            for folder, n in (("a/h0", 0), ("a/h1", 1), ("b", 0), ("b", 1))
        },
        r"these look like 2 runs in .*: a, b \(",
    ),
    "three runs, two in one folder": (
        {f"{folder}/rank0.json": trace(0, 1) for folder in ("a/first", "a/second", "b")},
        r"these look like 3 runs in .*: a/first, a/second, b \(",
    ),
    "a run beside the folder of another": (
        {f"{folder}rank0.json": trace(0, 1) for folder in ("", "a/")},
        "these look like 2 runs in ",
    ),
    "name against content": ({"a.json": trace(1, 2), "rank1.json": trace()}, "rank 1 has 2 files"),
    "two world sizes": (
        {"a.json": trace(0, 2), "b.json": trace(1, 4)},
        "different runs .*world sizes.*2: .*4: ",
    ),
    "two tools": (
        {"rank0.json": trace(), "rank1.sqlite": b"SQLite format 3\0"},
        "different runs .*different tools",
    ),
    "no ranks": (
        {"x_1.1690000000.json": trace(), "x_2.1690000000.json": trace()},
        "2 files do not say their rank",
    ),
    "no traces": ({"README.md": "# hi", "truth.json": "{}"}, r"holds no traces \(2 other files\)"),
    "a png among none": ({"rank0.json": b"\x89PNG\r\n\x1a\n"}, "holds no traces"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_one_run_is_refused_and_listed(tmp_path, case):
    files, message = REFUSED[case]
    with pytest.raises(InputError, match=message):
        discover(lay(tmp_path, files))


FILES = {
    "png": (b"\x89PNG\r\n\x1a\n", "is not a trace: neither JSON nor"),
    "no trace": (b'{"answer": 42}', 'is JSON but not a trace: it has no "traceEvents"'),
    "numbers": (b"[1, 2, 3]", "is JSON but not a trace"),
    "empty": (b"", "is empty"),
    "cut gzip": (b"\x1f\x8b\x08\x00garbage", "damaged gzip"),
}


@pytest.mark.parametrize("case", FILES)
def test_a_file_that_is_no_trace_is_one_line(tmp_path, case):
    content, message = FILES[case]
    path = tmp_path / "trace.json"
    path.write_bytes(content)
    with pytest.raises(InputError, match=message) as error:
        discover(path)
    assert "\n" not in str(error.value)


def test_a_pipe_is_not_waited_for(tmp_path):
    """Opening one blocks until somebody writes into it: the alarm ends this test where it is opened."""
    lay(tmp_path, {"rank0.json": trace(0, 2)})
    os.mkfifo(tmp_path / "rank1.json")
    signal.alarm(20)
    try:
        discovered = discover(tmp_path)
        assert [ref.rank for ref in discovered.refs] == [0]
        assert "rank1.json is a pipe or a device" in notice_sentence(discovered.notices[0])
        with pytest.raises(InputError, match="is a pipe or a device; save it as a file first"):
            discover(tmp_path / "rank1.json")
    finally:
        signal.alarm(0)


def test_a_run_beside_a_pipe_and_another_run_gives_no_empty_name_in_a_command(
    tmp_path, monkeypatch
):
    lay(tmp_path, {"rank0.json": trace(0, 1), "b/rank0.json": trace(0, 1)})
    os.mkfifo(tmp_path / "pipe")
    monkeypatch.chdir(tmp_path)
    for place in (".", "*", str(tmp_path)):
        with pytest.raises(InputError, match="look like 2 runs") as caught:
            discover(place)
        assert "''" not in caught.value.hint
        assert caught.value.hint.startswith(
            "name the files of one run, or its folder: tracekit analyze "
        )
        assert caught.value.hint.endswith("b")


def test_commands_for_runs_with_blanks_in_their_names_can_be_pasted(tmp_path):
    lay(tmp_path, {"my a/rank0.json": trace(0, 1), "my b/rank0.json": trace(0, 1)})
    with pytest.raises(InputError, match="look like 2 runs") as caught:
        discover(tmp_path)
    words = shlex.split(caught.value.hint.partition("ran together: ")[2])
    assert words == ["--role", f"my a={tmp_path}/my a", "--role", f"my b={tmp_path}/my b"]


def test_a_link_back_up_leads_nowhere_new(tmp_path):
    lay(tmp_path, {"runs/rank0.json": trace(0, 1)})
    (tmp_path / "runs/again").symlink_to(tmp_path / "runs")
    (tmp_path / "runs/up").symlink_to(tmp_path)
    assert [ref.path for ref in discover(tmp_path).refs] == [str(tmp_path / "runs/rank0.json")]


def test_links_to_traces_elsewhere_are_followed(tmp_path):
    lay(tmp_path, {"there/rank0.json": trace(0, 1), "here/notes.txt": ""})
    (tmp_path / "here/linked").symlink_to(tmp_path / "there")
    (tmp_path / "here/rank1.json").symlink_to(tmp_path / "nowhere")
    discovered = discover(tmp_path / "here")
    assert [ref.name for ref in discovered.refs] == ["rank0.json"]
    assert "rank1.json cannot be read: No such file or directory" in notice_sentence(
        discovered.notices[0]
    )


def test_a_trace_that_names_no_rank_is_missed_too(tmp_path):
    """A file the profiler named after its host, cut to nothing: it was one of the ranks."""
    lay(
        tmp_path,
        {"rank0.json": trace(0, 2), "node7_4242.169412.pt.trace.json": b"", "config.json": b"{}"},
    )
    notices = discover(tmp_path).notices
    assert [notice_sentence(n) for n in notices] == [
        "skipped node7_4242.169412.pt.trace.json is empty"
    ]


def test_an_empty_word_is_not_this_folder(tmp_path, monkeypatch):
    """``tracekit analyze "$RUN"`` where RUN is not set."""
    monkeypatch.chdir(lay(tmp_path, {"rank0.json": trace(0, 1)}))
    assert len(discover(".").refs) == 1
    with pytest.raises(InputError, match="an empty path was given"):
        discover("")


def test_brackets_in_names_are_names_first(tmp_path):
    folder = lay(tmp_path / "träce [a*] ☃?", {"rank0.json": trace(0, 2), "rank1.json": trace(1, 2)})
    assert len(discover(str(folder)).refs) == 2
    assert len(discover(str(folder / "rank[01].json").replace("[a*]", "[[]a[*]]")).refs) == 2


def test_nothing_there(tmp_path):
    with pytest.raises(InputError, match="there is no such file or folder"):
        discover(tmp_path / "nowhere")
    with pytest.raises(InputError, match="is an empty folder"):
        discover(tmp_path)
    with pytest.raises(InputError, match="matches nothing"):
        discover(str(tmp_path / "*.json"))
    with pytest.raises(OptionError, match="no path"):
        discover([])


def test_a_rank_that_cannot_be_read_is_named_not_passed_over(tmp_path):
    lay(tmp_path, {"rank0.json": trace(), "rank1.json": b""})
    (notice,) = discover(tmp_path).notices
    assert "rank1.json is empty" in notice_sentence(notice)


def test_files_globs_and_repeats(tmp_path):
    lay(tmp_path, {f"rank{i}.json": trace() for i in range(4)})
    both = [tmp_path / "rank2.json", tmp_path / "rank0.json"]
    assert [ref.rank for ref in discover(both).refs] == [0, 2]
    assert [ref.rank for ref in discover(str(tmp_path / "rank[13].json")).refs] == [1, 3]
    assert [ref.rank for ref in discover([tmp_path, *both]).refs] == [0, 1, 2, 3]


def test_the_rank_option_is_for_one_file_that_does_not_say(tmp_path):
    lay(tmp_path, {"t.json": trace(), "rank3.json": trace()})
    (ref,) = discover(tmp_path / "t.json", rank=5).refs
    assert (ref.rank, ref.rank_from) == (5, "option")
    with pytest.raises(OptionError, match="is rank 3"):
        discover(tmp_path / "rank3.json", rank=5)
    with pytest.raises(OptionError, match="there are 2"):
        discover([tmp_path / "rank3.json", tmp_path / "t.json"], rank=5)


def test_only_the_ranks_asked_for(samples):
    assert [ref.rank for ref in discover(samples / "1f1b", ranks=[1, 3]).refs] == [1, 3]
    with pytest.raises(InputError, match="there is no rank 9"):
        discover(samples / "1f1b", ranks=[1, 9])


def test_one_report_in_several_formats_is_read_once(samples):
    discovered = discover(samples / "nsys-1f1b")
    assert [(ref.rank, ref.name) for ref in discovered.refs] == [
        (i, f"rank{i}.sqlite") for i in range(4)
    ]
    (notice,) = discovered.notices
    assert notice.code == "several-exports"
    assert "rank0.parquetdir" in notice_sentence(notice)


def test_of_two_runs_the_hint_says_what_to_type(tmp_path):
    folder = lay(
        tmp_path, {f"{run}/rank{n}.json": trace(n, 2) for run in ("my run", "b") for n in (0, 1)}
    )
    with pytest.raises(InputError) as caught:
        discover(folder)
    one, two = f"{tmp_path}/b", f"'{tmp_path}/my run'"
    start = f"name one: tracekit analyze {one}; compare two: tracekit diff {one} {two}; or, if they ran together: "
    assert caught.value.hint.startswith(start)
    assert f"--role b={one}" in caught.value.hint


@pytest.mark.parametrize("name", ["rank0.parquetdir", "rank0.sqlite"])
def test_each_export_can_be_named(samples, name):
    (ref,) = discover(samples / "nsys-1f1b" / name).refs
    assert (ref.reader, ref.rank) == ("nsight", 0)


def test_naming_two_exports_of_one_rank_is_an_error(samples):
    folder = samples / "nsys-1f1b"
    with pytest.raises(InputError, match="rank 0 has 2 files"):
        discover([folder / "rank0.parquetdir", folder / "rank0.sqlite"])


def test_a_url_is_listed_and_read_through_fsspec(tmp_path):
    pytest.importorskip("fsspec")
    lay(
        tmp_path,
        {"run/rank0.json": trace(0, 2), "run/rank1.json.gz": trace(1, 2), "run/README.md": "x"},
    )
    discovered = discover(f"file://{tmp_path}/run")
    assert [(ref.rank, ref.name) for ref in discovered.refs] == [
        (0, "rank0.json"),
        (1, "rank1.json.gz"),
    ]
    assert discovered.notices == ()  # of the file that is no trace and is not named like one
    assert [ref.rank for ref in discover(f"file://{tmp_path}/run/*.gz").refs] == [1]
    with pytest.raises(InputError, match="no such file"):
        discover(f"file://{tmp_path}/run/rank7.json")
    with pytest.raises(InputError, match="nosuch://x"):
        discover("nosuch://x/y.json")


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("frank3.json", None),
        ("resnet50_num_workers_0.worker1.1623.pt.trace.json.gz", 1),
        ("RANK12.json", 12),
        ("rank=5/events.parquet", 5),
        ("a/rank2/rank3.json", 3),
    ],
)
def test_ranks_in_names(name, rank):
    assert rank_in_name(name) == rank


def test_an_unrelated_file_among_those_named_is_skipped_and_named(tmp_path):
    lay(tmp_path, {"rank0.json": trace(), "rank1.json": trace(), "truth.json": '{"answer": 42}'})
    discovered = discover(sorted(tmp_path.glob("*.json")))
    assert [ref.rank for ref in discovered.refs] == [0, 1]
    assert [notice.code for notice in discovered.notices] == ["not-a-trace"]
    assert notice_sentence(discovered.notices[0]).startswith("skipped truth.json: ")


@pytest.mark.parametrize("damaged", ["rank1.json", "step.pt.trace.json"])
def test_a_file_named_like_a_trace_is_not_skipped_among_others(tmp_path, damaged):
    lay(tmp_path, {"rank0.json": trace(), damaged: '{"answer": 42}'})
    with pytest.raises(InputError, match=damaged):
        discover(sorted(tmp_path.glob("*.json")))


def test_files_of_which_none_is_a_trace_are_refused(tmp_path):
    lay(tmp_path, {"truth.json": '{"answer": 42}', "notes.json": "{}"})
    with pytest.raises(InputError, match="none of the 2 files is a trace"):
        discover(sorted(tmp_path.glob("*.json")))


UNREADABLE = {
    "empty": (b"", "is empty"),
    "noise": (
        bytes(range(128, 256)),
        "neither JSON nor a Perfetto trace nor an Nsight Systems export",
    ),
    "a damaged gzip file": (b"\x1f\x8b" + b"x" * 200, "is a damaged gzip file"),
}


@pytest.mark.parametrize("name", ["rank2.json", "rank_2/trace.json"])
@pytest.mark.parametrize("case", UNREADABLE)
def test_a_ranks_file_of_which_nothing_can_be_read_is_a_failed_rank(tmp_path, case, name):
    content, why = UNREADABLE[case]
    lay(tmp_path, {"rank0.json": trace(0, 3), "rank1.json": trace(1, 3), name: content})
    notice = discover(tmp_path).notices[0]
    assert notice.code == "rank-failed"
    assert notice_sentence(notice).startswith(f"rank 2 is left out: {name.rpartition('/')[2]} ")
    assert why in notice_sentence(notice)


def test_an_unreadable_file_beside_a_trace_of_its_rank_is_skipped_and_named(tmp_path):
    lay(
        tmp_path,
        {
            "rank0.json": trace(0, 2),
            "rank1.json": trace(1, 2),
            "rank1.old.json": b"",
            "host_7.json.gz": "",
        },
    )
    (tmp_path / "host_7.json.gz").write_bytes(b"\x00\x01")
    notices = discover(tmp_path).notices
    assert [notice.code for notice in notices] == ["not-a-trace"]
    assert "rank1.old.json is empty" in notice_sentence(notices[0])
    assert "host_7.json.gz is not a trace" in notice_sentence(notices[0])


def test_a_folder_of_unreadable_files_names_them(tmp_path):
    lay(tmp_path, {"rank0.json": b"", "rank1.json": b"", "rank2.json": b"", "README.md": "# hi"})
    with pytest.raises(
        InputError, match=r"4 other files: rank0\.json is empty, rank1\.json is empty"
    ):
        discover(tmp_path)


DUMP = {"version": "2.10", "pg_config": {}, "entries": [{"profiling_name": "nccl:all_reduce"}]}
SNAPSHOT = {"segments": [], "device_traces": [[]]}
LOG = b'{"header": {"rank": 0}, "metadata": {"inspector_output_format_version": "v4.0"}}\n'
RECORDING_FILES = {
    "dump.json": (json.dumps(DUMP).encode(), "flight_recorder"),
    "nccl_trace_rank_1": (pickle.dumps(DUMP, protocol=2), "flight_recorder"),
    "dump.gz": (gzip.compress(pickle.dumps(DUMP)), "flight_recorder"),
    "host-pid7.log": (LOG, "nccl_inspector"),
    "memory.pickle": (pickle.dumps(SNAPSHOT), "memory_snapshot"),
}


@pytest.mark.parametrize("name", RECORDING_FILES)
def test_recordings_are_known_by_their_content(tmp_path, name):
    content, reader = RECORDING_FILES[name]
    (tmp_path / name).write_bytes(content)
    discovered = discover(tmp_path, need_traces=False)
    assert [ref.reader for ref in discovered.recordings] == [reader]
    assert not discovered.refs
    with pytest.raises(InputError, match="no profiler trace, only 1"):
        discover(tmp_path)


def test_recordings_lie_beside_traces_without_being_traces(tmp_path):
    for name, (content, _) in RECORDING_FILES.items():
        (tmp_path / name).write_bytes(content)
    (tmp_path / "rank0.json").write_bytes(b'{"traceEvents": []}')
    discovered = discover(tmp_path)
    assert [ref.name for ref in discovered.refs] == ["rank0.json"]
    assert len(discovered.recordings) == len(RECORDING_FILES)
    assert not discovered.notices


def test_other_pickles_are_no_recordings(tmp_path):
    (tmp_path / "rank0.pickle").write_bytes(pickle.dumps({"weights": [1, 2]}))
    with pytest.raises(InputError, match="neither a flight-recorder dump nor a memory snapshot"):
        discover(tmp_path / "rank0.pickle", need_traces=False)


def merged_trace():
    """The text of two ranks in one file, as SGLang merges them."""
    events = [{**EVENT, "pid": f"[TP0{rank}] 0"} for rank in (0, 1)]
    return json.dumps({"traceEvents": events})


def test_a_folder_with_ranks_and_their_merged_file_takes_the_ranks_and_says_so(tmp_path):
    ranks = {f"17-TP-{rank}.trace.json.gz": trace() for rank in (0, 1)}
    lay(tmp_path, {**ranks, "merged-17.trace.json.gz": merged_trace()})
    found = discover(str(tmp_path))
    assert [(ref.rank, ref.name) for ref in found.refs] == list(enumerate(ranks))
    (notice,) = found.notices
    assert notice.values["files"] == ("merged-17.trace.json.gz",)


@pytest.mark.parametrize(
    ("names", "ranks"),
    [
        (["17-TP-3.trace.json.gz"], [3]),
        (["17-TP-0-DP-0.json", "17-TP-1-DP-1.json"], [0, 1]),
        (["17-TP-0-PP-0.json", "17-TP-1-PP-0.json", "17-TP-0-PP-1.json"], [0, 1, 2]),
        (["17-TP-0-DP-0.json", "17-TP-0-DP-1.json"], [0, 1]),
    ],
)
def test_names_of_positions_give_ranks(tmp_path, names, ranks):
    lay(tmp_path, dict.fromkeys(names, trace()))
    found = discover(str(tmp_path))
    assert {ref.name: ref.rank for ref in found.refs} == dict(zip(names, ranks, strict=True))
