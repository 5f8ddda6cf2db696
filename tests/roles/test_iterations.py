"""Iterations counted by hand, and phases found from labels."""

import polars as pl
import pytest

from tests.roles.weight_updates.test_updates import process
from tracekit.documents.roles import WeightUpdate
from tracekit.metrics.process_phases import find_decode_steps, find_stretches
from tracekit.roles.iterations import find_iterations
from tracekit.schema import EVENTS, LABELLED, conform

KINDS = {"trainer": "trainer", "rollout": "rollout"}


def update(start, end):
    return WeightUpdate(
        start, end, 1, 1, 0, 0, 0, 0, None, 1.0, "trainer", "rollout", 1, (0,), None, None
    )


def colocated():
    """Return two ranks: rank 1 rolls out 20 longer; each iteration ends with an update of 10."""
    processes = []
    for rank, longer in ((0, 0), (1, 20)):
        rollouts = [("rollout", t, t + 10 + longer) for t in (0, 100)]
        syncs = [("weight_sync", t, t + 10) for t in (70, 170)]
        processes.append(
            process(
                "rollout",
                rank,
                ("reload", 75, 76, 1),
                stretches=sorted(rollouts + syncs, key=lambda s: s[1]),
            )
        )
        trains = [("train", t, t + 30) for t in (35, 135)]
        processes.append(
            process("trainer", rank, stretches=sorted(trains + syncs, key=lambda s: s[1]))
        )
    return processes


def test_phases_and_idle_time_sum_to_the_iteration():
    first, second = find_iterations(colocated(), KINDS, [update(70, 80), update(170, 180)])[0]
    assert (first.index, first.start_ns, first.end_ns) == (0, 0, 100)
    assert (second.index, second.start_ns, second.end_ns) == (1, 100, 180)
    assert first.phase_ns == {"rollout": 20, "train": 30, "weight_sync": 10, "idle": 40}
    assert sum(second.phase_ns.values()) == 80


def test_a_gpu_that_two_roles_share_counts_once():
    processes = colocated()
    busy = [p for p in processes if p.role == "trainer"]
    # The trainer also works while rank 1 still rolls out, from 10 to 30.
    overlapping = [
        process("trainer", p.rank, stretches=[("train", 20, 65), ("weight_sync", 70, 80)])
        for p in busy
    ]
    rollouts = [p for p in processes if p.role == "rollout"]
    (first, *_), _ = find_iterations(
        [*overlapping, *rollouts], KINDS, [update(70, 80), update(170, 180)]
    )
    assert first.phase_ns["train"] == 45
    assert first.phase_ns["rollout"] == (10 + 20) // 2  # of rank 1's 30, 10 are under training
    assert sum(first.phase_ns.values()) == first.end_ns - first.start_ns


def test_the_rank_that_rolls_out_longest_is_the_tail():
    tail = find_iterations(colocated(), KINDS, [update(70, 80), update(170, 180)])[0][
        0
    ].rollout_tail
    assert (tail.rank, tail.ns, tail.median_ns, tail.last_rank, tail.decode_steps) == (
        1,
        10,
        20,
        1,
        None,
    )


def test_a_rank_that_only_starts_late_is_not_the_tail():
    late = process(
        "rollout",
        0,
        ("reload", 75, 76, 1),
        stretches=[("rollout", 40, 50), ("weight_sync", 70, 80)],
    )
    others = [p for p in colocated() if (p.role, p.rank) != ("rollout", 0)]
    tail = find_iterations([late, *others], KINDS, [update(70, 80), update(170, 180)])[0][
        0
    ].rollout_tail
    assert (tail.rank, tail.last_rank) == (1, 0)


def test_which_role_waits_for_which():
    waits = {
        wait.role: wait
        for wait in find_iterations(colocated(), KINDS, [update(70, 80), update(170, 180)])[0][
            0
        ].roles
    }
    assert (waits["rollout"].idle_ns, waits["rollout"].waits_for, waits["rollout"].waited_ns) == (
        70,
        "trainer",
        {"trainer": 30},
    )
    assert (waits["trainer"].idle_ns, waits["trainer"].waits_for) == (60, "rollout")


def test_roles_of_different_sizes_are_on_gpus_of_their_own():
    one_rollout = [p for p in colocated() if p.role == "trainer" or p.rank == 0]
    first = find_iterations(one_rollout, KINDS, [update(70, 80), update(170, 180)])[0][0]
    # Three GPUs: two train 30 and synchronise 10, one rolls out 10 and synchronises 10.
    assert first.phase_ns == {
        "rollout": 10 // 3,
        "train": 60 // 3,
        "weight_sync": 30 // 3,
        "idle": 100 - 3 - 20 - 10,
    }


def test_no_iterations_without_a_rollout():
    trainers = [p for p in colocated() if p.role == "trainer"]
    assert find_iterations(trainers, KINDS, [update(70, 80)])[0] == []


def labelled(*rows):
    columns = ["label", "start_ns", "end_ns", "bytes", "annotations"]
    table = pl.DataFrame(
        [(*row, None)[:5] if len(row) == 4 else row for row in rows], schema=columns, orient="row"
    )
    return conform(table, LABELLED)


def test_the_forward_of_a_process_that_never_trains_is_rollout():
    assert find_stretches(labelled(("forward", 0, 5, None)))["phase"].to_list() == ["rollout"]
    assert find_stretches(labelled(("forward", 0, 5, None), ("wgrad", 5, 6, None)))[
        "phase"
    ].to_list() == ["train"]


@pytest.mark.parametrize(
    ("name", "phase"),
    [
        ("generate_sequences", "rollout"),
        ("update_actor", "train"),
        ("ppo_train", "train"),
        ("broadcast_to_vllm", "weight_sync"),
        ("actor_train", "train"),
        ("megatron_policy_worker/train", "train"),
        ("step > vllm_worker/generate > x", "rollout"),
    ],
)
def test_annotations_of_frameworks_name_the_phase(name, phase):
    row = find_stretches(labelled(("other", 0, 5, None, name))).row(0, named=True)
    assert (row["phase"], row["annotated"]) == (phase, True)


def test_a_barrier_after_the_last_broadcast_ends_the_synchronisation():
    rows = [
        ("wgrad", 0, 5, None),
        ("broadcast", 6, 8, 99999),
        ("comm", 50, 60, 0),
        ("memory", 95, 96, 64),
        ("forward", 97, 99, None),
    ]
    stretches = find_stretches(labelled(*rows)).select("phase", "start_ns", "end_ns").rows()
    assert stretches == [("train", 0, 5), ("weight_sync", 6, 60), ("train", 95, 99)]


def test_every_new_length_of_the_cache_is_a_decode_step():
    ops = [
        {
            "kind": "cpu_op",
            "name": "aten::scaled_dot_product_attention",
            "start_ns": i,
            "end_ns": i + 1,
            "shapes": f"[[8,4,{q},64],[8,4,{k},64]]",
        }
        for i, (q, k) in enumerate([(128, 128), (1, 129), (1, 129), (1, 130), (1, 130)])
    ]
    assert find_decode_steps(conform(pl.DataFrame(ops), EVENTS))["keys"].to_list() == [
        129,
        129,
        130,
        130,
    ]
