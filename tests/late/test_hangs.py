"""Hangs: which rank did not join which operation, what it did last, who waits."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.recorders import EPOCH_NS, MS, batch_end, ddp_dumps, dump, entry, message, write_dumps
from tracekit.late import late
from tracekit.late.view import hang_details, hang_sentence, headline

SAMPLES = Path(__file__).parents[2] / "sample_traces/always-on"


def test_the_real_hang_names_rank_2_and_the_operation():
    """Truth: after 27 steps ranks 0, 1 and 3 call all_reduce of 1,000 floats; rank 2 never does."""
    run = late(SAMPLES / "hang")
    hang = run.hang
    assert hang.kind == "missing"
    assert [state.rank for state in hang.missing] == [2]
    assert (hang.op, hang.bytes, hang.dtype, hang.sequence) == ("all_reduce", 4_000, "Float", 137)
    assert hang.waiting == (0, 1, 3)
    assert hang.missing[0].sequence == 136
    assert hang.missing[0].state == "completed"
    assert hang.certain
    assert headline(run).startswith("Rank 2 did not join all_reduce of 4.0 kB")


def test_runs_that_completed_do_not_hang():
    assert late(SAMPLES / "late").hang is None


def test_messages_of_a_batch_that_completed_do_not_hang():
    """Entries of sends and receives stay "scheduled": what counts is their batch."""
    assert late(SAMPLES / "1f1b").hang is None


def waiting(number, rank_waited_ms=5_000.0, at_ms=10_000, **fields):
    """An operation that was seen to start, and no more."""
    seen = EPOCH_NS + round((10_000 + rank_waited_ms) * MS)
    return entry(number, at_ms=at_ms, state="started", time_discovered_started_ns=seen, **fields)


def hang_of(folder, last, *, ranks=4, **options):
    """The hang of a run of 10 steps, behind which each rank has its own entries."""
    dumps = ddp_dumps(ranks, 10, **options)
    for content, entries in zip(dumps, last, strict=True):
        content["entries"] += entries
    return late(write_dumps(folder, dumps)).hang


NEXT = 24
"""Number of the operation behind those of the made-up run: 3 of warm-up, 20 of the steps."""


def test_a_rank_without_a_dump_is_named(tmp_path):
    dumps = ddp_dumps(3, 10)
    for content in dumps:
        content["entries"].append(waiting(NEXT))
    hang = late(write_dumps(tmp_path, [dumps[0], None, dumps[2]])).hang
    assert hang.kind == "missing"
    assert hang.no_record == (1,)
    assert hang.missing == ()
    assert any("no dump" in line for line in hang_details(hang))
    assert hang_sentence(hang).startswith("Rank 1 may not have joined all_reduce")
    assert "(has no dump); ranks 0, 2 wait" in hang_sentence(hang)


def test_a_rank_without_a_dump_is_not_said_to_have_stayed_away(tmp_path):
    for rank in (1, 2, 3):
        shutil.copy(SAMPLES / "hang" / f"fr_rank{rank}.pickle", tmp_path)
    hang = late(tmp_path).hang
    assert [state.rank for state in hang.missing] == [2]
    assert hang.no_record == (0,)
    sentence = hang_sentence(hang)
    assert sentence.startswith("Rank 2 did not join all_reduce")
    assert "; rank 0 unknown (no dump); ranks 1, 3 wait" in sentence


def test_members_that_call_different_operations_are_named(tmp_path):
    last = [[waiting(NEXT)], [waiting(NEXT)], [waiting(NEXT, op="broadcast")], [waiting(NEXT)]]
    hang = hang_of(tmp_path, last)
    assert hang.kind == "mismatch"
    assert [(state.rank, state.op) for state in hang.different] == [(2, "broadcast")]
    assert hang.waiting == (0, 1, 3)
    assert hang_sentence(hang).startswith(
        "rank 2 called broadcast of 4.0 kB, number 24 where ranks 0–1, 3 called"
    )


@pytest.mark.parametrize("fields", [{"sizes": (999,)}, {"input_dtypes": ["Int"]}])
def test_members_that_call_other_sizes_or_types_are_named(tmp_path, fields):
    last = [[waiting(NEXT)], [waiting(NEXT, **fields)], [waiting(NEXT)], [waiting(NEXT)]]
    hang = hang_of(tmp_path, last)
    assert hang.kind == "mismatch"
    assert [state.rank for state in hang.different] == [1]


def test_sizes_of_all_to_alls_may_differ(tmp_path):
    last = [[waiting(NEXT, op="all_to_all", sizes=(rank + 1,))] for rank in range(4)]
    hang = hang_of(tmp_path, last)
    assert hang.kind == "stuck"
    assert hang.waiting == (0, 1, 2, 3)


def test_an_operation_that_all_joined_is_stuck(tmp_path):
    hang = hang_of(tmp_path, [[waiting(NEXT)]] * 4)
    assert hang.kind == "stuck"
    assert "though all 4 members joined" in hang_sentence(hang)


def test_ranks_called_in_another_order(tmp_path):
    """Rank 0 calls A then B, rank 1 B then A."""
    a = {"sizes": (10,)}
    b = {"sizes": (20,)}
    first = [waiting(NEXT, **a), entry(NEXT + 1, at_ms=10_001, state="scheduled", **b)]
    second = [waiting(NEXT, **b), entry(NEXT + 1, at_ms=10_001, state="scheduled", **a)]
    hang = hang_of(tmp_path, [first, second], ranks=2)
    assert hang.kind == "mismatch"
    assert hang.sequence == NEXT


@pytest.mark.parametrize(("milliseconds", "certain"), [(500.0, False), (900.0, True)])
def test_a_wait_of_ten_steps_is_a_hang(tmp_path, milliseconds, certain):
    """Steps take 60 ms."""
    last = [[waiting(NEXT, milliseconds)], []]
    hang = hang_of(tmp_path, last, ranks=2)
    assert hang.certain is certain
    assert hang.waited_ns == milliseconds * MS


@pytest.mark.parametrize(("seconds", "certain"), [(7.0, False), (15.0, True)])
def test_without_steps_a_wait_of_ten_seconds_is_a_hang(tmp_path, seconds, certain):
    dumps = [dump([waiting(1, seconds * 1_000)]), dump([])]
    dumps[1]["pg_config"] = dumps[0]["pg_config"]
    assert late(write_dumps(tmp_path, dumps)).hang.certain is certain


def test_a_timeout_is_certain(tmp_path):
    """The watchdog dumps after the timeout: the dump itself has no later time."""
    last = [[entry(NEXT, at_ms=10_000, state="scheduled", retired=True)], []]
    hang = hang_of(tmp_path, last, ranks=2)
    assert hang.certain
    assert [state.rank for state in hang.missing] == [1]


def test_of_several_groups_the_one_that_was_called_first_is_named(tmp_path):
    """Ranks 0 and 1 wait in their own group for rank 1's other operation, in which rank 2 is missing."""
    dumps = ddp_dumps(3, 10)
    dumps[0]["entries"] += [waiting(NEXT)]
    dumps[1]["entries"] += [waiting(NEXT)]
    later = entry(1, at_ms=10_050, group="7", state="scheduled", record_id=99)
    dumps[0]["entries"].append(later)
    dumps[0]["pg_config"]["7"] = {"name": "7", "desc": "pair", "ranks": "[0, 1]"}
    dumps[1]["pg_config"]["7"] = dumps[0]["pg_config"]["7"]
    hang = late(write_dumps(tmp_path, dumps)).hang
    assert hang.group == "0 [0-2]"
    assert [state.rank for state in hang.missing] == [2]


def test_a_message_that_nobody_sends_is_named(tmp_path):
    first = [
        message(1, "recv 0<-1", batch=1), batch_end(2, batch=1),
        message(3, "recv 0<-1", batch=2), {**batch_end(4, batch=2, state="started"), "retired": True},
    ]  # fmt: skip
    second = [message(1, "send 1->0", batch=1), batch_end(2, batch=1)]
    hang = late(write_dumps(tmp_path, [dump(first), dump(second)])).hang
    assert (hang.kind, hang.op) == ("missing", "recv")
    assert [state.rank for state in hang.missing] == [1]
    assert hang.waiting == (0,)
    assert hang.certain


def test_the_stack_of_the_rank_that_did_not_join_is_told(tmp_path):
    frames = [{"name": "save_checkpoint", "filename": "train.py", "line": 12}]
    dumps = ddp_dumps(2, 10)
    dumps[0]["entries"].append(waiting(NEXT))
    dumps[1]["entries"][-1]["frames"] = frames
    hang = late(write_dumps(tmp_path, dumps)).hang
    assert hang.missing[0].stack == ("save_checkpoint (train.py:12)",)
    assert any("train.py:12" in line for line in hang_details(hang))


def test_a_rank_whose_dump_lost_the_operation_did_not_stay_away(tmp_path):
    """Its ring holds later operations alone: it called this one before them."""
    last = [[waiting(NEXT)], [waiting(NEXT)], [waiting(NEXT + 5, at_ms=10_001)]]
    dumps = ddp_dumps(3, 10)
    for content, entries in zip(dumps, last, strict=True):
        content["entries"] += entries
    dumps[2]["entries"] = entries
    hang = late(write_dumps(tmp_path, dumps)).hang
    assert (hang.kind, hang.sequence, hang.waiting) == ("stuck", NEXT, (0, 1, 2))
    assert hang.missing == ()


def test_members_that_no_dump_names_are_not_all_of_them(tmp_path):
    dumps = ddp_dumps(3, 10)
    for content in dumps:
        content["entries"] += [waiting(NEXT)]
        for group in content["pg_config"].values():
            group["ranks"] = ""
    hang = late(write_dumps(tmp_path, [*dumps[:2], None])).hang
    assert (hang.kind, hang.waiting, hang.members_known) == ("stuck", (0, 1), False)
    assert "though the 2 members in the dumps joined" in hang_sentence(hang)
