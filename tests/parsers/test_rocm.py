"""Recordings of ROCm's profilers: small files written here, whose events can be counted."""

import gzip
import json
import sqlite3

import polars as pl
import pytest

from tracekit.errors import InputError
from tracekit.parsers import rocm
from tracekit.parsers.discovery import discover
from tracekit.run.load import load
from tracekit.schema import UNTIMED

MS = 1_000_000
BOOT = 5_000 * MS
GUID = "_0199c0de_1f2e_7a5b_8c3d_0123456789ab"
KERNEL = "Cijk_Ailk_Bljk_HHS_BH_MT128x128"
OPERATOR = "aten::mm, seq = 7, op_id = 3, sizes = [[64, 32], [32, 16]]"


def write_rpd(path):
    """Write two steps of a process: in each a range with an operator, a kernel, and a copy on another queue."""
    with sqlite3.connect(path) as file:
        file.executescript(
            """
            CREATE TABLE rocpd_string (id INTEGER PRIMARY KEY, string TEXT);
            CREATE TABLE rocpd_op (id INTEGER PRIMARY KEY, gpuId INTEGER, queueId INTEGER, sequenceId INTEGER,
                                   completionSignal TEXT, start INTEGER, "end" INTEGER, description_id INTEGER,
                                   opType_id INTEGER);
            CREATE TABLE rocpd_api (id INTEGER PRIMARY KEY, pid INTEGER, tid INTEGER, start INTEGER, "end" INTEGER,
                                    apiName_id INTEGER, args_id INTEGER);
            CREATE TABLE rocpd_api_ops (id INTEGER PRIMARY KEY, api_id INTEGER, op_id INTEGER);
            CREATE TABLE rocpd_copyapi (api_ptr_id INTEGER PRIMARY KEY, stream TEXT, size INTEGER);
            """
        )
        texts = ["", KERNEL, "KernelExecution", "CopyDeviceToHost", "UserMarker", "hipLaunchKernel"]
        texts += ["hipMemcpyAsync", OPERATOR, "step 1", "step 2", "BarrierAnd"]
        file.executemany("INSERT INTO rocpd_string VALUES (?, ?)", list(enumerate(texts, start=1)))
        number = {text: index for index, text in enumerate(texts, start=1)}
        for step in (1, 2):
            start = BOOT + step * 10 * MS
            calls = [
                ("UserMarker", start, start + 9 * MS, f"step {step}"),
                ("UserMarker", start + MS, start + 3 * MS, OPERATOR),
                ("hipLaunchKernel", start + MS, start + 2 * MS, ""),
                ("hipMemcpyAsync", start + 4 * MS, start + 5 * MS, ""),
            ]
            for index, (name, begin, end, args) in enumerate(calls, start=100 * step):
                row = (index, 77, 78, begin, end, number[name], number[args])
                file.execute("INSERT INTO rocpd_api VALUES (?, ?, ?, ?, ?, ?, ?)", row)
            work = [
                (0, start + 3 * MS, start + 5 * MS, KERNEL, "KernelExecution", 100 * step + 2),
                (1, start + 5 * MS, start + 6 * MS, "", "CopyDeviceToHost", 100 * step + 3),
                (1, start + 6 * MS, start + 6 * MS, "", "BarrierAnd", None),
            ]
            for index, (queue, begin, end, text, kind, call) in enumerate(work, start=10 * step):
                row = (index, 2, queue, 0, "", begin, end, number[text], number[kind])
                file.execute("INSERT INTO rocpd_op VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", row)
                if call is not None:
                    file.execute("INSERT INTO rocpd_api_ops VALUES (NULL, ?, ?)", (call, index))
            file.execute("INSERT INTO rocpd_copyapi VALUES (?, '0x0', 4096)", (100 * step + 3,))
    file.close()
    return path


def write_rocpd(path):
    """Write one step as rocprofv3's database holds it: a range, a launch and its kernel."""
    with sqlite3.connect(path) as file:
        columns = {
            "rocpd_string": "id INTEGER PRIMARY KEY, string TEXT",
            "rocpd_event": "id INTEGER PRIMARY KEY, category_id INTEGER, stack_id INTEGER, extdata TEXT",
            "rocpd_info_process": "id INTEGER PRIMARY KEY, pid INTEGER",
            "rocpd_info_thread": "id INTEGER PRIMARY KEY, tid INTEGER",
            "rocpd_info_agent": "id INTEGER PRIMARY KEY, type TEXT, type_index INTEGER, name TEXT, product_name TEXT",
            "rocpd_info_kernel_symbol": "id INTEGER PRIMARY KEY, display_name TEXT",
            "rocpd_kernel_dispatch": "id INTEGER PRIMARY KEY, pid INTEGER, agent_id INTEGER, kernel_id INTEGER, "
            'queue_id INTEGER, stream_id INTEGER, start INTEGER, "end" INTEGER, event_id INTEGER',
            "rocpd_memory_copy": 'id INTEGER PRIMARY KEY, pid INTEGER, start INTEGER, "end" INTEGER, name_id INTEGER, '
            "dst_agent_id INTEGER, src_agent_id INTEGER, size INTEGER, stream_id INTEGER, event_id INTEGER",
            "rocpd_region": 'id INTEGER PRIMARY KEY, pid INTEGER, tid INTEGER, start INTEGER, "end" INTEGER, '
            "name_id INTEGER, event_id INTEGER",
        }
        for table, definition in columns.items():
            file.execute(f"CREATE TABLE {table}{GUID} ({definition})")
            file.execute(f"CREATE VIEW {table} AS SELECT * FROM {table}{GUID}")
        rows = {
            "rocpd_string": [(1, "HIP_RUNTIME_API_EXT"), (2, "MARKER_CORE_RANGE_API"), (3, "KERNEL_DISPATCH"),
                             (4, "hipLaunchKernel"), (5, "roctxRangePushA"), (6, "MEMORY_COPY_HOST_TO_DEVICE")],
            "rocpd_event": [(1, 2, 5, '{"message": "step 4"}'), (2, 1, 6, "{}"), (3, 3, 6, "{}"), (4, 3, 7, "{}")],
            "rocpd_info_process": [(1, 900)],
            "rocpd_info_thread": [(1, 901)],
            "rocpd_info_agent": [(1, "CPU", 0, "EPYC", ""), (2, "GPU", 3, "gfx942", "AMD Instinct MI300X")],
            "rocpd_info_kernel_symbol": [(8, KERNEL)],
            "rocpd_kernel_dispatch": [(1, 1, 2, 8, 5, 9, BOOT + 3 * MS, BOOT + 5 * MS, 3)],
            "rocpd_memory_copy": [(1, 1, BOOT + 5 * MS, BOOT + 6 * MS, 6, 2, 1, 256, 9, 4)],
            "rocpd_region": [(1, 1, 1, BOOT, BOOT + 9 * MS, 5, 1), (2, 1, 1, BOOT + MS, BOOT + 2 * MS, 4, 2)],
        }  # fmt: skip
        for table, values in rows.items():
            places = ", ".join("?" * len(values[0]))
            file.executemany(f"INSERT INTO {table}{GUID} VALUES ({places})", values)
    file.close()
    return path


def rocprofv3_process(pid, gpu):
    """One process of rocprofv3's JSON: a range, a launch, its kernel and a copy."""
    return {
        "metadata": {"pid": pid},
        "agents": [
            {"id": {"handle": 50}, "type": 1, "name": "EPYC"},
            {"id": {"handle": 51}, "type": 2, "logical_node_type_id": gpu, "name": "gfx950", "product_name": "MI350X"},
        ],
        "strings": {
            "buffer_records": [
                {"kind": "NONE", "operations": []},
                {"kind": "HIP_RUNTIME_API", "operations": ["none", "hipLaunchKernel"]},
                {"kind": "MEMORY_COPY", "operations": ["NONE", "MEMORY_COPY_DEVICE_TO_HOST"]},
                {"kind": "MARKER_CORE_RANGE_API", "operations": ["roctxThreadRangeA"]},
            ],
            "marker_api": [{"key": 1, "value": "step 2"}],
        },
        "kernel_symbols": [{"kernel_id": 8, "kernel_name": "k.kd", "formatted_kernel_name": KERNEL}],
        "buffer_records": {
            "kernel_dispatch": [record(3, BOOT + 3 * MS, BOOT + 5 * MS, correlation=2) | {
                "stream_id": {"handle": 6},
                "dispatch_info": {"agent_id": {"handle": 51}, "queue_id": {"handle": 9}, "kernel_id": 8},
            }],
            "memory_copy": [record(2, BOOT + 5 * MS, BOOT + 6 * MS, operation=1, correlation=4) | {
                "dst_agent_id": {"handle": 50}, "src_agent_id": {"handle": 51}, "bytes": 512,
                "stream_id": {"handle": 6},
            }],
            "hip_api": [record(1, BOOT + MS, BOOT + 2 * MS, operation=1, correlation=2)],
            "marker_api": [record(3, BOOT, BOOT + 9 * MS, correlation=1)],
        },
    }  # fmt: skip


def record(kind, start, end, *, operation=0, correlation=0):
    times = {"start_timestamp": start, "end_timestamp": end, "thread_id": 901}
    return {
        "kind": kind,
        "operation": operation,
        "correlation_id": {"internal": correlation},
        **times,
    }


def write_json(path, processes):
    path.write_text(json.dumps({"rocprofiler-sdk-tool": processes}))
    return path


def work_of(events):
    """Return the GPU work as name, start in ms from boot, duration in ms, stream and step."""
    rows = events.filter(pl.col("device").is_not_null()).sort("start_ns")
    return [
        (name, (start - BOOT) // MS, (end - start) // MS, stream, step)
        for name, start, end, stream, step in rows.select(
            pl.col("name").cast(pl.String), "start_ns", "end_ns", "stream", "step"
        ).rows()
    ]


def launch_of(events, name):
    """Return the name of the call that launched the GPU work of a name."""
    work = events.filter(pl.col("name").cast(pl.String) == name)
    calls = events.filter(pl.col("kind") == "runtime")
    joined = work.join(calls, on="correlation", suffix="_of_call")
    return joined["name_of_call"].cast(pl.String).unique().to_list()


def test_rpd_has_work_launches_operators_and_steps(tmp_path):
    (part,) = rocm.read(write_rpd(tmp_path / "trace.rpd"))
    copy = "Memcpy DtoH (Device -> Host)"
    assert work_of(part.events) == [
        (KERNEL, 13, 2, 0, 1),
        (copy, 15, 1, 1, 1),
        (KERNEL, 23, 2, 0, 2),
        (copy, 25, 1, 1, 2),
    ]
    assert launch_of(part.events, KERNEL) == ["hipLaunchKernel"]
    assert launch_of(part.events, copy) == ["hipMemcpyAsync"]
    copies = part.events.filter(pl.col("kind") == "memcpy")
    assert copies["bytes"].to_list() == [4096, 4096]
    operators = part.events.filter(pl.col("kind") == "cpu_op")
    assert operators.select(
        pl.col("name", "shapes").cast(pl.String), "sequence"
    ).unique().rows() == [("aten::mm", "[[64,32],[32,16]]", 7)]
    assert part.source.reader == "rocm"
    assert part.source.skipped == {"barriers": 2}


def test_a_database_of_rocprofv3_has_work_launches_and_names_of_gpus(tmp_path):
    (part,) = rocm.read(write_rocpd(tmp_path / "results.db"))
    assert work_of(part.events) == [
        (KERNEL, 3, 2, 9, 4),
        ("Memcpy HtoD (Host -> Device)", 5, 1, 9, None),
    ]
    assert launch_of(part.events, KERNEL) == ["hipLaunchKernel"]
    assert part.source.devices == ("AMD Instinct MI300X",)
    assert part.source.pid == 900


def test_json_of_rocprofv3_has_a_rank_for_each_process(tmp_path):
    path = write_json(
        tmp_path / "1_results.json", [rocprofv3_process(900, 0), rocprofv3_process(910, 1)]
    )
    parts = rocm.read(path)
    assert [part.source.rank for part in parts] == [0, 1]
    assert [part.source.pid for part in parts] == [900, 910]
    for part in parts:
        assert work_of(part.events) == [
            (KERNEL, 3, 2, 6, 2),
            ("Memcpy DtoH (Device -> Host)", 5, 1, 6, None),
        ]
        assert launch_of(part.events, KERNEL) == ["hipLaunchKernel"]
        assert part.source.devices == ("MI350X",)


def test_queues_are_streams_where_none_were_recorded(tmp_path):
    process = rocprofv3_process(900, 0)
    process["buffer_records"]["kernel_dispatch"][0]["stream_id"]["handle"] = 0
    (part,) = rocm.read(write_json(tmp_path / "1_results.json", [process]))
    assert part.events.filter(pl.col("kind") == "kernel")["stream"].to_list() == [9]


@pytest.mark.parametrize("write", [write_rpd, write_rocpd])
def test_files_are_known_by_content_also_packed(write, tmp_path):
    plain = write(tmp_path / "recording")
    packed = tmp_path / "packed"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    for path in (plain, packed):
        (ref,) = discover(path).refs
        assert ref.reader == "rocm"
        (part,) = load(path).parts
        assert part.source.counts["kernel"] >= 1


def test_times_that_cannot_be_are_counted(tmp_path):
    path = write_rpd(tmp_path / "trace.rpd")
    with sqlite3.connect(path) as file:
        file.execute('UPDATE rocpd_op SET "end" = start - 1 WHERE id = 10')
        file.execute("UPDATE rocpd_op SET start = 'soon' WHERE id = 20")
    file.close()
    (part,) = rocm.read(path)
    assert [name for name, *_ in work_of(part.events)] == ["Memcpy DtoH (Device -> Host)"] * 2
    assert part.source.skipped[UNTIMED] == 2


@pytest.mark.parametrize("keep", [0.3, 0.7])
@pytest.mark.parametrize("name", ["trace.rpd", "trace.rpd.gz", "1_results.json"])
def test_what_is_left_of_a_file_ends_in_one_line_or_is_read_in_part(
    name, keep, tmp_path, run_command
):
    path = tmp_path / name
    if name.endswith("json"):
        content = write_json(path, [rocprofv3_process(900, 0)]).read_bytes()
    else:
        content = write_rpd(tmp_path / "whole").read_bytes()
        content = gzip.compress(content) if name.endswith("gz") else content
    path.write_bytes(content[: int(keep * len(content))])
    result = run_command("analyze", path)
    assert result.returncode in (0, 2)
    if result.returncode == 2:
        assert result.stderr.count("\n") == 1
        assert str(path) in result.stderr


def test_a_database_without_work_is_refused(tmp_path):
    path = write_rpd(tmp_path / "trace.rpd")
    with sqlite3.connect(path) as file:
        file.execute("DELETE FROM rocpd_op")
    file.close()
    with pytest.raises(InputError, match="holds no work of a GPU"):
        rocm.read(path)
