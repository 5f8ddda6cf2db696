"""Text of an Nsight export that may be private: its warnings are counted, and none of it is kept."""

from __future__ import annotations

import io

import polars as pl
import pytest

from tests.parsers.nsight_files import Report, packed, training
from tests.parsers.nsight_reading import only
from tracekit.report.notices import notice_sentence

pytestmark = pytest.mark.slow


def test_lost_events_are_said_without_the_text(path):
    report = Report().kernel("k", 0, 1)
    for severity, text in [
        (1, "info SECRET"),
        (2, "Not all events: /home/SECRET"),
        (2, "lost SECRET"),
        (3, "bad SECRET"),
        (4, "SECRET"),
    ]:
        report.add("DIAGNOSTIC_EVENT", severity=severity, text=text, timestamp=0)
    messages = [
        notice_sentence(n)
        for n in only(report, path).source.notices
        if n.code == "profiler-warnings"
    ]
    assert [message.split(" (")[0] for message in messages] == [
        "some events were lost",
        "the profiler reported a problem",
    ]
    assert "2 such warnings" in messages[0]
    assert not any("SECRET" in message for message in messages)


def test_environment_command_line_and_output_reach_nothing(path):
    report = training()
    report.add("TARGET_INFO_SYSTEM_ENV", name="TOKEN", value="SECRET-env")
    report.add("META_DATA_CAPTURE", name="PROCESS_0:COMMAND", value="SECRET-command")
    report.add("META_DATA_EXPORT", name="EXPORT_HOST", value="SECRET-host")
    report.add("PROCESSES", globalPid=packed(100), pid=100, name="SECRET-process")
    report.add("ProcessStreams", globalPid=packed(100), contentId=report.string("SECRET-output"))
    rank = only(report, path)
    assert "SECRET" not in str(rank.source)
    for write in (pl.DataFrame.write_ipc, pl.DataFrame.write_parquet):
        stored = io.BytesIO()
        write(rank.events, stored, compression="uncompressed")
        assert b"gemm_f" in stored.getvalue()
        assert b"SECRET" not in stored.getvalue()
