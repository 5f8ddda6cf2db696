"""Dumps and logs that do not fit together, or are damaged: each is named, and nothing is guessed."""

from __future__ import annotations

import pickle

import pytest

from tests.recorders import ddp_dumps, log_line, write_dumps, write_log
from tracekit.errors import InputError
from tracekit.report.notices import notice_sentence
from tracekit.run.late import late

HOUR_MS = 3_600_000.0
LATE = {"late_ms": lambda rank, step: 10.0 * (rank == 1)}


def codes(run):
    return [(notice.code, notice.ranks) for notice in run.notices]


@pytest.mark.parametrize(("minutes", "named"), [(9.9, False), (10.1, True)])
def test_a_clock_ten_minutes_off_is_named(tmp_path, minutes, named):
    dumps = ddp_dumps(4, 12, clock_ms=lambda rank: minutes * 60_000 * (rank == 3))
    assert (("recorded-clocks-apart", (3,)) in codes(late(write_dumps(tmp_path, dumps)))) is named


def test_clocks_hours_apart_are_named_and_lateness_is_still_told(tmp_path):
    run = late(
        write_dumps(
            tmp_path, ddp_dumps(4, 12, clock_ms=lambda rank: 5 * HOUR_MS * (rank == 3), **LATE)
        )
    )
    (notice,) = run.notices
    assert (
        notice_sentence(notice)
        == "rank 3: the clock is 5.0 h off: it is wrong, or the record is of another run"
    )
    assert [fact.ranks for fact in run.late] == [(1,)]  # from durations, which need no clock


def test_two_runs_in_one_folder_are_named(tmp_path):
    write_dumps(tmp_path / "run/a", ddp_dumps(2, 12))
    later = ddp_dumps(2, 12, clock_ms=lambda rank: 3 * HOUR_MS)
    write_dumps(tmp_path / "run/b", later)
    with pytest.raises(
        InputError, match=r"rank 0 has dumps of several runs.*a/nccl_trace.*b/nccl_trace"
    ):
        late(tmp_path / "run")


def test_a_rank_that_restarted_is_named(tmp_path):
    write_log(tmp_path / "node0-pid7.log", [log_line(1, rank=0, pid=7), log_line(2, rank=0, pid=7)])
    write_log(tmp_path / "node0-pid9.log", [log_line(1, rank=0, pid=9), log_line(2, rank=0, pid=9)])
    with pytest.raises(InputError, match=r"two logs are of rank 0 of one communicator.*restarted"):
        late(tmp_path)


@pytest.mark.parametrize(("starts_at_ms", "refused"), [(1_000, True), (100, False)])
def test_logs_of_a_run_that_was_started_again_are_named(tmp_path, starts_at_ms, refused):
    """Each start has a communicator of its own.

    Those of one run, of two replicas say, run at the same time.
    """
    for start, first_ms in enumerate((0, starts_at_ms)):
        for rank in range(2):
            pid = 100 * start + rank
            options = {"rank": rank, "pid": pid, "group": f"0x{start}"}
            lines = [log_line(i, at_ms=first_ms + 60 * i, **options) for i in range(8)]
            write_log(tmp_path / f"node0-pid{pid}.log", lines)
    if refused:
        with pytest.raises(
            InputError, match=r"of several runs, one after the other.*pid0\.log.*pid100\.log"
        ):
            late(tmp_path)
    else:
        assert len(late(tmp_path).ranks) == 4


@pytest.mark.parametrize("cut", [1, 100, 2_000])
def test_a_cut_dump_is_left_out_by_name(tmp_path, cut):
    folder = write_dumps(tmp_path, ddp_dumps(3, 12, **LATE))
    path = folder / "nccl_trace_rank_2"
    path.write_bytes(path.read_bytes()[:-cut])
    run = late(folder)
    failed = [notice for notice in run.notices if notice.code == "recording-failed"]
    assert [notice.ranks for notice in failed] == [(2,)]
    assert "nccl_trace_rank_2" in notice_sentence(failed[0])
    assert [fact.ranks for fact in run.late] == [(1,)]


def test_a_cut_line_of_a_log_is_counted(tmp_path):
    for rank in range(2):
        write_log(
            tmp_path / f"node0-pid{100 + rank}.log",
            [log_line(i, rank=rank, at_ms=60 * i) for i in range(8)],
        )
    path = tmp_path / "node0-pid101.log"
    path.write_bytes(path.read_bytes()[:-40])
    (notice,) = late(tmp_path).notices
    assert notice.code == "damaged-entries"
    assert notice.values["case"] == "cut_lines"
    assert notice.values["count"] == 1


class Runs:
    def __reduce__(self):
        return print, ("a dump ran code",)


def test_a_hostile_dump_is_refused_and_runs_nothing(tmp_path, capfd):
    folder = write_dumps(tmp_path, ddp_dumps(3, 12, **LATE))
    (folder / "nccl_trace_rank_2").write_bytes(pickle.dumps({**ddp_dumps(3, 1)[2], "more": Runs()}))
    run = late(folder)
    assert "ran code" not in capfd.readouterr().out
    assert ("recording-failed", (2,)) in codes(run)


def test_missing_ranks_are_named(tmp_path):
    dumps = ddp_dumps(8, 12, **LATE)
    run = late(write_dumps(tmp_path, [*dumps[:5], None, None, None]))
    (notice,) = run.notices
    assert notice.code == "missing-ranks"
    assert notice.values["missing"] == (5, 6, 7)
