"""Numbers in redacted copies: each stays only where it can be what its key or column holds."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing

import polars as pl
import pytest

import tracekit
from tests.fuzz.others import small_report
from tests.parsers.nsight_files import Report
from tests.redact.test_redact import content, event, run
from tracekit.redact.names import NameRedactor

CARD_NUMBER = 4_111_111_111_110_000
PHONE_FRACTION = 0.415_555_123_4


def tables_of(report):
    query = "SELECT name FROM sqlite_master WHERE type = 'table'"
    return [name for (name,) in report.execute(query).fetchall()]


def values_of(path):
    """Return all values in a database."""
    values = set()
    with closing(sqlite3.connect(path)) as report:
        for table in tables_of(report):
            for row in report.execute(f'SELECT * FROM "{table}"'):
                values.update(row)
    return values


def plant_in_every_column(path, value_of_column):
    """Set every number of a report, column by column, to another planted value; return the values."""
    planted = []
    with closing(sqlite3.connect(path)) as report, report:
        for table in tables_of(report):
            columns = [row[1] for row in report.execute(f'PRAGMA table_info("{table}")').fetchall()]
            report.execute(f'CREATE TABLE loose AS SELECT * FROM "{table}"')  # takes any type
            report.execute(f'DROP TABLE "{table}"')
            report.execute(f'ALTER TABLE loose RENAME TO "{table}"')
            for column in columns:
                planted.append(value_of_column(len(planted)))
                report.execute(
                    f'UPDATE "{table}" SET "{column}" = ? WHERE typeof("{column}") <> \'text\'',
                    (planted[-1],),
                )
    return planted


@pytest.mark.parametrize(
    "value_of_column",
    [lambda i: CARD_NUMBER + i, lambda i: -(CARD_NUMBER + i), lambda i: i + PHONE_FRACTION],
    ids=["16 digits", "negative", "decimals"],
)
def test_a_number_that_no_column_can_hold_is_left_in_none(tmp_path, value_of_column):
    source = tmp_path / "rank0.sqlite"
    source.write_bytes(small_report())
    planted = plant_in_every_column(source, value_of_column)
    assert len(planted) > 200
    run(source, tmp_path / "out.sqlite")
    assert values_of(tmp_path / "out.sqlite") & set(planted) == set()


def report_with(tmp_path, **kernel):
    """Redact a report of one launch and one kernel; return the rows of the copy's kernels."""
    report = Report().call("cudaLaunchKernel", 0, 5, corr=1)
    report.kernel("gemm", 10, 20, corr=1, pid=100).kernel("gemm", 30, 40, corr=2, pid=100)
    source = report.save(tmp_path / "rank0.sqlite")
    with closing(sqlite3.connect(source)) as database, database:
        for column, value in kernel.items():
            database.execute(
                f"UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET {column} = ? WHERE start = 30", (value,)
            )
    run(source, tmp_path / "out.sqlite")
    return read_rows(tmp_path / "out.sqlite", "CUPTI_ACTIVITY_KIND_KERNEL")


def read_rows(path, table):
    with closing(sqlite3.connect(path)) as copy:
        copy.row_factory = sqlite3.Row
        return [dict(row) for row in copy.execute(f"SELECT * FROM {table}")]


@pytest.mark.parametrize(
    ("column", "value", "kept"),
    [
        ("end", 10**15 - 1, 10**15 - 1),
        ("end", 10**15, None),
        ("deviceId", 999_999, 999_999),
        ("deviceId", 1_000_000, None),
        ("correlationId", 2**32 - 1, 2**32 - 1),
        ("correlationId", 2**32, 4_000_000_000),
        ("streamId", -7, 4_000_000_000),
    ],
)
def test_a_number_stays_below_the_bound_of_its_column(tmp_path, column, value, kept):
    assert report_with(tmp_path, **{column: value})[1][column] == kept


@pytest.mark.parametrize(
    ("clock", "kept"),
    [
        (10**18 - 1, None),
        (10**18, 10**18),
        (4 * 10**18, 4 * 10**18),
        (4 * 10**18 + 1, None),
    ],
)
def test_the_clock_of_a_session_is_between_2001_and_2096(tmp_path, clock, kept):
    report = Report().kernel("gemm", 10, 20, corr=1)
    report.rows["TARGET_INFO_SESSION_START_TIME"] = [{"utcEpochNs": clock}]
    run(report.save(tmp_path / "rank0.sqlite"), tmp_path / "out.sqlite")
    rows = read_rows(tmp_path / "out.sqlite", "TARGET_INFO_SESSION_START_TIME")
    assert rows == [{"utcEpochNs": kept}]


def test_large_ids_are_replaced_alike_so_that_launches_are_found(tmp_path):
    report = (
        Report().call("cudaLaunchKernel", 0, 5, corr=10**15).kernel("gemm", 10, 20, corr=10**15)
    )
    report.add("StringIds", id=10**14, value="zeppelin")
    source = report.save(tmp_path / "rank0.sqlite")
    run(source, tmp_path / "out.sqlite")
    events = tracekit.load(tmp_path / "out.sqlite").rank(0).events
    assert events["correlation"].n_unique() == 1
    assert events["correlation"][0] != 10**15
    assert events["name"].cast(pl.String).sort().to_list() == ["cudaLaunchKernel", "gemm"]


def test_machines_are_numbered_in_their_order_and_processes_and_threads_stay(tmp_path):
    report = Report()
    for machine, pid in ((77, 100), (14, 200), (77, 300)):
        report.kernel(f"k{pid}", 10, 20, corr=pid, pid=pid, machine=machine)
    source = report.save(tmp_path / "run.sqlite")
    run(source, tmp_path / "out.sqlite")
    ids = [
        row["globalPid"] for row in read_rows(tmp_path / "out.sqlite", "CUPTI_ACTIVITY_KIND_KERNEL")
    ]
    assert [packed >> 48 for packed in ids] == [2, 1, 2]
    assert [packed >> 24 & 0xFFFFFF for packed in ids] == [100, 200, 300]
    before = tracekit.load(source)
    after = tracekit.load(tmp_path / "out.sqlite")
    for one, other in zip(before.parts, after.parts, strict=True):
        assert one.events.drop("name").equals(other.events.drop("name"))


def redacted_event(tmp_path, words=(), **changes):
    source = tmp_path / "in.json"
    text = json.dumps({"traceEvents": [event("aten::mm") | changes]})
    source.write_text(text.replace('"<', "").replace('>"', ""))
    run(source, tmp_path / "out.json", words=words)
    return json.loads(content(tmp_path / "out.json"), parse_float=str)["traceEvents"][0]


@pytest.mark.parametrize(
    ("spelled", "kept"),
    [("17.123", "17.123"), ("17.123456", "17.123456"), ("17.1234567", "17.123456")],
)
def test_a_time_has_at_most_six_digits_behind_the_point(tmp_path, spelled, kept):
    assert redacted_event(tmp_path, ts=f"<{spelled}>")["ts"] == kept


@pytest.mark.parametrize("key", ["correlation", "stream", "bytes", "device", "Input Dims"])
@pytest.mark.parametrize("value", [3.5, "3.5", [[2, 3.5]], "[2, 3.5]"])
def test_an_id_or_size_has_no_decimals(tmp_path, key, value):
    assert redacted_event(tmp_path, args={key: value})["args"] == {}


@pytest.mark.parametrize(("spelled", "stays"), [("0.123456", True), ("0.1234567", False)])
def test_a_rate_has_at_most_six_digits_behind_the_point(tmp_path, spelled, stays):
    args = redacted_event(tmp_path, args={"blocks per SM": f"<{spelled}>"})["args"]
    assert args == ({"blocks per SM": spelled} if stays else {})


NUMBER = 98_765


@pytest.mark.parametrize("key", ["pid", "tid", "id", "ts", "dur"])
def test_a_number_given_as_a_word_goes_from_every_key_of_an_event(tmp_path, key):
    assert redacted_event(tmp_path, words=[str(NUMBER)], **{key: NUMBER})[key] != NUMBER


def test_a_group_named_by_a_given_number_is_replaced(tmp_path):
    args = redacted_event(tmp_path, words=["1234"], args={"Process Group Name": "1234"})["args"]
    assert args == {"Process Group Name": "x1"}


def test_a_number_given_as_a_word_goes_from_every_column_of_a_report(tmp_path):
    source = tmp_path / "rank0.sqlite"
    source.write_bytes(small_report())
    plant_in_every_column(source, lambda _: NUMBER)
    with closing(sqlite3.connect(source)) as report, report:
        text = f"aten::mm, seq = {NUMBER}, op_id = 4, sizes = [[{NUMBER}, 2]]"
        report.execute(
            "UPDATE NVTX_EVENTS SET text = ?, jsonText = ?", (text, f'{{"Rank": {NUMBER}}}')
        )
    run(source, tmp_path / "out.sqlite", words=[str(NUMBER)])
    assert not [value for value in values_of(tmp_path / "out.sqlite") if str(NUMBER) in str(value)]


SEPARATORS = (
    "____",
    "    ",
    " , , ",
    " gemm ",
    "_gemm_",
    "<int>",
    "::gemm::",
    "(int)",
    ", 1, ",
    "<1>",
)


@pytest.mark.parametrize("separator", SEPARATORS)
@pytest.mark.parametrize("shape", ["{}", "void k<{}>(int)", "sm90_{}_gemm"])
def test_a_word_with_other_words_between_its_letters_is_replaced(separator, shape):
    spelled = shape.format(separator.join("vermilion"))
    for redacted in (NameRedactor().redact(spelled), NameRedactor().redact_code(spelled)):
        words = "".join(letter if letter.isalpha() else " " for letter in redacted).split()
        letters = [word for word in words if len(word) == 1]
        assert not set("vermilion") <= {*letters, "v"} - {"x"}
        assert redacted.count("x") >= 5


@pytest.mark.parametrize(
    ("name", "redacted"),
    [("k<T, 1, U, 2, V>", "k<T, 1, U, 2, x1>"), ("k<T, 1, U, 2, T>", "k<T, 1, U, 2, T>")],
)
def test_three_letters_of_templates_stay(name, redacted):
    assert NameRedactor().redact_code(name) == redacted
