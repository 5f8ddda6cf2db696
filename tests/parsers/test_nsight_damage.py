"""Exports that lost something sqlite does not check: each is counted, leaves figures null, or is refused in a line."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import polars as pl
import pytest

from tests.parsers.nsight_files import Report
from tracekit import analyze
from tracekit.errors import InputError
from tracekit.parsers import nsight
from tracekit.parsers.nsight.tables import MAX_GPU_EVENT_NS, MAX_TIME_NS
from tracekit.redact import redact
from tracekit.report.notices import notice_sentence
from tracekit.schema import UNTIMED

pytestmark = pytest.mark.slow

KERNEL = "CUPTI_ACTIVITY_KIND_KERNEL"
KERNELS = 300
NCCL = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
SOUND = {
    "span": 2996,
    "compute": 1200,
    "exposed": {"comm": 600},
    "idle": 1196,
    "not_recorded": 0,
}
"""What the budget of the sound export says."""


def program():
    """300 kernels of 6 ns every 10 ns; each third of them NCCL's."""
    report = Report()
    for i in range(KERNELS):
        name = NCCL if i % 3 == 0 else "gemm"
        report.kernel(name, 10 * i, 10 * i + 6, corr=i).call(
            "cudaLaunchKernel", 10 * i - 5, 10 * i - 4, corr=i
        )
    return report


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    return program().save(tmp_path_factory.mktemp("sound") / "rank0.sqlite")


@pytest.fixture
def damaged(tmp_path):
    def make(*statements, **options):
        path = program().save(tmp_path / "rank0.sqlite", **options)
        with closing(sqlite3.connect(path)) as connection, connection:
            # Columns that take any type.
            connection.execute(f"CREATE TABLE loose AS SELECT * FROM {KERNEL}")
            connection.execute(f"DROP TABLE {KERNEL}")
            connection.execute(f"ALTER TABLE loose RENAME TO {KERNEL}")
            for statement in statements:
                connection.execute(statement)
        return path

    return make


def refused(path):
    with pytest.raises(InputError) as caught:
        analyze(path, schedule="none")
    assert "nsys export" in caught.value.hint
    assert "\n" not in caught.value.message
    return caught.value.message


def budget(path):
    analysis = analyze(path, schedule="none")
    messages: dict[str, str] = {}
    for note in analysis.notices:
        messages[note.code] = messages.get(note.code, "") + notice_sentence(note)
    return analysis.to_dict()["total"]["budget_ns"], messages


def test_the_sound_file_says_how_long_it_computes(sound):
    spent, messages = budget(sound)
    assert spent == SOUND
    assert not messages.keys() & {"bad-events", "gpu-events-lost", "unnamed"}


@pytest.mark.parametrize(
    "way",
    [
        "null",
        "text start",
        "reversed",
        "long",
        *(pytest.param(way, marks=pytest.mark.nightly) for way in ("text", "huge", "null start")),
    ],
)
def test_a_kernel_without_usable_times_is_counted_and_leaves_idle_null(damaged, way):
    change = {
        "null": "end = NULL",
        "text": "end = 'abc'",
        "reversed": "end = start - 1",
        "huge": "end = 9223372036854775807",
        "text start": "start = 'abc'",
        "null start": "start = NULL",
        "long": f"end = start + {MAX_GPU_EVENT_NS}",
    }[way]
    spent, messages = budget(damaged(f"UPDATE {KERNEL} SET {change} WHERE correlationId = 100"))
    assert (spent["compute"], spent["exposed"], spent["idle"]) == (1194, {"comm": 600}, None)
    assert "1 of 300 kernels were left out" in messages["bad-events"]
    assert "1 of 300 GPU events" in messages["gpu-events-lost"]


def test_more_than_a_hundredth_of_them_and_the_file_is_refused(damaged):
    few, many = (int(KERNELS * 0.01) + more for more in (0, 1))
    path = damaged(f"UPDATE {KERNEL} SET end = NULL WHERE correlationId < {few}")
    assert budget(path)[0]["idle"] is None
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(f"UPDATE {KERNEL} SET end = NULL WHERE correlationId < {many}")
    assert f"{many} of 300 GPU events have no usable start or end" in refused(path)


@pytest.mark.parametrize("gone", ["start", "end"])
def test_a_missing_column_of_times_is_named(damaged, gone):
    text = refused(damaged(f"ALTER TABLE {KERNEL} DROP COLUMN {gone}"))
    assert f"{KERNEL} has no column '{gone}'" in text


def test_times_at_the_edge_of_what_can_be_are_kept(damaged):
    last = f"end = start + {MAX_GPU_EVENT_NS - 1}"
    (rank,) = nsight.read(damaged(f"UPDATE {KERNEL} SET {last} WHERE correlationId = 299"))
    assert rank.source.skipped == {}
    (rank,) = nsight.read(damaged_start := rank.source.path)
    assert rank.events.filter(pl.col("kind") == "kernel").height == KERNELS
    with closing(sqlite3.connect(damaged_start)) as connection, connection:
        connection.execute(
            f"UPDATE {KERNEL} SET start = {MAX_TIME_NS}, end = {MAX_TIME_NS} WHERE correlationId = 299"
        )
    (rank,) = nsight.read(damaged_start)
    assert rank.source.skipped == {UNTIMED: 1}


def test_text_far_down_a_long_table_costs_its_row_alone(tmp_path):
    report = Report()
    for i in range(70_000):  # more than is fetched at once
        report.kernel("gemm", 10 * i, 10 * i + 6, corr=i)
    path = report.save(tmp_path / "rank0.sqlite")
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(f"UPDATE {KERNEL} SET start = 'abc' WHERE correlationId = 69000")
    (rank,) = nsight.read(path)
    assert rank.events.height == 69_999
    assert rank.source.skipped == {UNTIMED: 1}


# --- names ---


def test_without_a_string_table_the_file_is_refused(damaged):
    text = refused(damaged("DROP TABLE StringIds"))
    assert "300 of 300 kernels have no name" in text
    assert "StringIds" in text


def test_half_a_string_table_is_no_better_where_communication_lost_its_name(damaged):
    gone = f"DELETE FROM StringIds WHERE value LIKE '%{NCCL[:20]}%'"
    assert "100 of 300 kernels have no name" in refused(damaged(gone))


def test_a_kernel_takes_another_of_its_names_where_one_is_lost(damaged):
    path = damaged(f"UPDATE {KERNEL} SET demangledName = 9999 WHERE correlationId % 3 = 0")
    assert budget(path)[0] == SOUND


def test_one_nameless_kernel_is_counted(damaged):
    lost = "demangledName = 9999, shortName = 9999, mangledName = NULL"
    spent, messages = budget(damaged(f"UPDATE {KERNEL} SET {lost} WHERE correlationId = 1"))
    assert spent["compute"] == 1200
    assert "1 of 300 kernels have no name" in messages["unnamed"]


def test_names_that_are_not_utf8_are_lost_names(damaged):
    broken = f"UPDATE StringIds SET value = CAST(x'ff' || CAST(value AS BLOB) AS TEXT) WHERE value LIKE '%{NCCL[:20]}%'"
    assert "100 of 300 kernels have no name" in refused(damaged(broken))


def test_nameless_calls_and_ranges_are_counted_too(tmp_path):
    report = program().range("step 1", 0, 3000, registered=True)
    report.strings = {
        text: i for text, i in report.strings.items() if text not in ("cudaLaunchKernel", "step 1")
    }
    (rank,) = nsight.read(report.save(tmp_path / "rank0.sqlite"))
    messages = sorted(
        notice_sentence(note) for note in rank.source.notices if note.code == "unnamed"
    )
    assert len(messages) == 2
    assert "300 of 300 CUDA calls" in messages[1]
    assert "1 of 1 NVTX ranges" in messages[0]


# --- tables ---


def test_without_launches_kernels_go_by_name_and_that_is_said(damaged):
    spent, messages = budget(damaged(without=["CUPTI_ACTIVITY_KIND_RUNTIME"]))
    assert spent == SOUND
    assert "300 of 300 GPU events have no launch" in messages["no-launches"]


def test_a_clock_that_cannot_be_is_none(damaged):
    path = damaged("UPDATE TARGET_INFO_SESSION_START_TIME SET utcEpochNs = 9223372036854775807")
    spent, messages = budget(path)
    assert spent["idle"] == 1196
    assert "no-clock" in messages


ENDLESS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i AS"


@pytest.mark.parametrize(
    ("table", "rows"),
    [
        (KERNEL, "SELECT * FROM loose"),
        (KERNEL, f"{ENDLESS} start, i + 1 AS end, 0 AS deviceId, 1 AS globalPid FROM n"),
        ("StringIds", f"{ENDLESS} id, 'gemm' AS value FROM n"),
        ("NVTX_EVENTS", f"{ENDLESS} start FROM n"),
        ("META_DATA_EXPORT", f"{ENDLESS} name, i AS value FROM n"),
    ],
)
@pytest.mark.parametrize(
    "use", [lambda p: analyze(p, schedule="none"), lambda p: redact(p, p.parent / "out.sqlite")]
)
def test_a_view_in_place_of_a_table_is_refused(damaged, use, table, rows):
    path = damaged(f"ALTER TABLE {table} RENAME TO loose", f"CREATE VIEW {table} AS {rows}")
    with pytest.raises(InputError) as caught:
        use(path)
    assert (
        caught.value.message
        == f"{path}: {table} is a view or a virtual table, not a table with rows"
    )
    assert "nsys export" in caught.value.hint


def test_a_virtual_table_in_place_of_a_table_is_refused(damaged):
    path = damaged("DROP TABLE StringIds", "CREATE VIRTUAL TABLE StringIds USING fts5(id, value)")
    assert "StringIds is a view or a virtual table" in refused(path)


def test_a_view_that_is_not_read_changes_nothing(damaged):
    path = damaged(f"CREATE VIEW ENUM_ANYTHING AS {ENDLESS} id FROM n")
    assert budget(path)[0] == SOUND


def test_calls_with_ends_before_their_starts_are_counted(damaged):
    path = damaged("UPDATE CUPTI_ACTIVITY_KIND_RUNTIME SET end = start - 1 WHERE correlationId = 7")
    spent, messages = budget(path)
    assert spent["idle"] == 1196
    assert "1 of 300 CUDA calls" in messages["bad-events"]


# --- what sqlite takes and a profiler never writes ---

STRANGE = {
    "no types": ([], SOUND, None),
    "times with fractions": (
        [f"UPDATE {KERNEL} SET start = start + 0.5 WHERE correlationId % 3 = 0"],
        SOUND,
        None,
    ),
    "a stream of more than 32 bits": (
        [f"UPDATE {KERNEL} SET streamId = 5000000000 WHERE rowid % 2"],
        SOUND,
        None,
    ),
    "no processes": ([f"ALTER TABLE {KERNEL} DROP COLUMN globalPid"], SOUND, None),
    "no correlations": ([f"ALTER TABLE {KERNEL} DROP COLUMN correlationId"], SOUND, "no-launches"),
    "one correlation for all": (
        [
            f"UPDATE {table} SET correlationId = 5"
            for table in (KERNEL, "CUPTI_ACTIVITY_KIND_RUNTIME")
        ],
        *(SOUND, None),
    ),
    "every kernel twice": (
        [f"INSERT INTO {KERNEL} SELECT * FROM {KERNEL}"],
        SOUND,
        "repeated-events",
    ),
    "no ranges": (["DROP TABLE IF EXISTS NVTX_EVENTS"], SOUND, "no-ranges"),
}


@pytest.mark.parametrize("case", STRANGE)
def test_strange_exports_give_the_figures_of_the_sound_one(damaged, case):
    statements, expected, code = STRANGE[case]
    spent, messages = budget(damaged(*statements))
    assert spent == expected
    assert code is None or code in messages
    assert (code == "repeated-events") == ("repeated-events" in messages)


@pytest.mark.parametrize(
    "change", ["end = NULL", "end = 'abc'", "start = NULL", "end = start - 1000000"]
)
def test_every_third_kernel_without_times_and_the_file_is_refused(damaged, change):
    text = refused(damaged(f"UPDATE {KERNEL} SET {change} WHERE correlationId % 3 = 0"))
    assert "100 of 300 GPU events have no usable start or end" in text


# --- write-ahead logs ---


@pytest.mark.parametrize(
    "use", [lambda p: analyze(p, schedule="none"), lambda p: redact(p, p.parent / "out.sqlite")]
)
def test_a_file_in_wal_mode_is_used_without_a_trace(sound, tmp_path, use):
    folder = tmp_path / "in"
    folder.mkdir()
    path = folder / "rank0.sqlite"
    path.write_bytes(sound.read_bytes())
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("CREATE TABLE more (x)")
        connection.commit()
    before = path.read_bytes()
    use(path)
    assert {file.name for file in folder.iterdir()} - {"out.sqlite"} == {"rank0.sqlite"}
    assert path.read_bytes() == before
