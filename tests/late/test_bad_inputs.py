"""Dumps and logs that do not fit together, or are damaged: each is named, and nothing is guessed."""

from __future__ import annotations

import pickle
import shutil

import pytest

from tests.recorders import ddp_dumps, log_line, write_dumps, write_log
from tracekit.errors import InputError
from tracekit.late import late
from tracekit.report.notices import notice_sentence

HOUR_MS = 3_600_000.0
LATE = {"late_ms": lambda rank, step: 10.0 * (rank == 1)}


def codes(run):
    return [(notice.code, notice.ranks) for notice in run.notices]


@pytest.mark.parametrize(("minutes", "named"), [(9.9, False), (10.1, True)])
def test_a_clock_ten_minutes_off_is_named(tmp_path, minutes, named):
    dumps = ddp_dumps(4, 12, clock_ms=lambda rank: minutes * 60_000 * (rank == 3))
    assert (("clocks-apart", (3,)) in codes(late(write_dumps(tmp_path, dumps)))) is named


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
        assert len(late(tmp_path).document.ranks) == 4


@pytest.mark.parametrize("cut", [1, 100, 2_000])
def test_a_cut_dump_is_left_out_by_name(tmp_path, cut):
    folder = write_dumps(tmp_path, ddp_dumps(3, 12, **LATE))
    path = folder / "nccl_trace_rank_2"
    path.write_bytes(path.read_bytes()[:-cut])
    run = late(folder)
    failed = [notice for notice in run.notices if notice.code == "rank-failed"]
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
    assert notice.code == "bad-events"
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
    assert ("rank-failed", (2,)) in codes(run)


def test_missing_ranks_are_named(tmp_path):
    dumps = ddp_dumps(8, 12, **LATE)
    run = late(write_dumps(tmp_path, [*dumps[:5], None, None, None]))
    (notice,) = run.notices
    assert notice.code == "missing-ranks"
    assert notice.values["missing"] == (5, 6, 7)


def sized_dumps(ranks=4, steps=10):
    """Dumps of a run whose operations have two sizes in turn."""
    dumps = ddp_dumps(ranks, steps)
    for content in dumps:
        for number, made in enumerate(content["entries"]):
            made["input_sizes"] = made["output_sizes"] = [[1000 * (1 + number % 2)]]
    return dumps


def test_entries_that_stand_there_twice_count_once(tmp_path):
    once = late(write_dumps(tmp_path / "once", sized_dumps()))
    dumps = sized_dumps()
    dumps[1]["entries"] = [made for made in dumps[1]["entries"] for _ in range(2)]
    twice = late(write_dumps(tmp_path / "twice", dumps))
    (notice,) = [notice for notice in twice.notices if notice.code == "repeated-events"]
    assert (notice.ranks, notice.values["entries"]) == ((1,), len(dumps[0]["entries"]))
    assert twice.to_dict()["late"] == once.to_dict()["late"]
    assert twice.to_dict()["lost_ns"] == once.to_dict()["lost_ns"]


def test_numbers_that_are_off_by_one_are_not_matched(tmp_path):
    dumps = sized_dumps()
    for made in dumps[2]["entries"]:
        made["collective_seq_id"] += 1
    run = late(write_dumps(tmp_path, dumps))
    (notice,) = [notice for notice in run.notices if notice.code == "recorder-disagrees"]
    assert notice.values["operations"] == len(dumps[0]["entries"]) - 1
    assert "called different operations or sizes" in notice_sentence(notice)
    assert not run.late
    assert not run.to_dict()["lost_ns"]


def test_a_file_copied_over_another_is_left_out(tmp_path):
    write_dumps(tmp_path, sized_dumps())
    shutil.copy(tmp_path / "nccl_trace_rank_1", tmp_path / "nccl_trace_rank_2")
    run = late(tmp_path)
    (notice,) = [notice for notice in run.notices if notice.code == "copied-ranks"]
    assert notice.ranks == (1, 2)
    assert [source.rank for source in run.sources] == [0, 3]
    for rank in (0, 2, 3):
        shutil.copy(tmp_path / "nccl_trace_rank_1", tmp_path / f"nccl_trace_rank_{rank}")
    with pytest.raises(InputError, match="copies of each other"):
        late(tmp_path)
