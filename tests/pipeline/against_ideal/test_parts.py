"""Unit tests of replays, roles, placements and lanes."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from tracekit.errors import OptionError
from tracekit.pipeline.against_ideal.replay import CellGraph
from tracekit.pipeline.reconstruct.messages import RANK_MESSAGES
from tracekit.pipeline.reconstruct.parallel_groups import (
    find_parallel_groups,
    mesh_positions,
    parse_layout,
    split_layout,
)
from tracekit.pipeline.reconstruct.rank_pipeline import rank_pipeline, sample_steps
from tracekit.pipeline.reconstruct.stage_assignment import assign_stages, forward_destinations
from tracekit.pipeline.reconstruct.stalls import measure_lanes
from tracekit.pipeline.schedules import Times, generate, names, simulate
from tracekit.pipeline.schedules.registry import describe
from tracekit.report.notices import notice_sentence
from tracekit.schema import LABELLED, ProcessGroup, Source, conform

ALL = [name for name in names() if describe(name).pipeline]


def graph(plan):
    return CellGraph.of(simulate(plan).cells.rename({"rank": "position"}))


@pytest.mark.parametrize("name", ALL)
def test_a_replay_is_the_simulators(name):
    pp, microbatches = {"dualpipev": (2, 6)}.get(name, (4, 8))
    plan = generate(name, pp=pp, microbatches=microbatches)
    simulation = simulate(plan, Times(F=3, I=2, W=1, FB=5))
    replayed = graph(plan)
    start, end = replayed.run(simulation.end - simulation.start)
    assert start.tolist() == simulation.start.tolist()
    assert end.max() == simulation.makespan
    assert replayed.peak_activations == simulation.peak_activations
    idle = replayed.table.idle_by_phase(start, end)
    assert [sum(parts) for parts in idle] == simulation.bubble
    assert replayed.broken == 0


def test_delays_and_early_outputs_are_replayed():
    cells = graph(generate("1f1b", pp=2, microbatches=1))
    duration = np.array([4, 4, 4, 4])
    assert cells.run(duration)[1].max() == 16
    delay = np.array([0, 0, 3, 0])  # rank 1's forward starts 3 late
    assert cells.run(duration, delay)[1].max() == 19
    # Its forward started while rank 0's ran.
    start, end = (
        np.array([0, 10, 2, 6]),
        np.array([4, 14, 6, 10]),
    )
    ready, early = cells.find_ready_times(start, end)
    assert ready.tolist() == [0, 10, 2, 6]
    assert cells.run(duration, None, early)[0].tolist() == start.tolist()


def test_cells_that_wait_for_each_other_are_let_go_and_counted():
    cells = pl.DataFrame(
        {
            "position": [0, 0, 1, 1],
            "op": ["B", "F", "F", "B"],
            "stage": [0, 0, 1, 1],
            "microbatch": [0] * 4,
        },
    ).with_columns(b_stage=pl.lit(None, pl.Int32), b_microbatch=pl.lit(None, pl.Int32))
    ring = CellGraph.of(cells)
    assert ring.broken > 0
    assert len(ring.order) == 4


def chunks(text):
    """F0 F1 B0 …, launched one after another every 10 ns."""
    words = text.split()
    return pl.DataFrame({"op": [w[0] for w in words], "pair": [int(w[1:]) for w in words],
                         "last_ns": [10 * k for k in range(len(words))]})  # fmt: skip


def sent(*pairs):
    rows = [(k, to) for k, to in pairs]
    messages = [{"step": 0, "kernel": i, "send": True, "peer": to, "launch_ns": 10 * k + 5, "start_ns": 0, "end_ns": 1}
            for i, (k, to) in enumerate(rows)]  # fmt: skip
    return pl.DataFrame(messages, schema=RANK_MESSAGES)


def test_a_send_belongs_to_the_work_launched_last():
    assert forward_destinations(chunks("F0 F1 B0"), sent((0, 2), (1, 2), (2, 0))) == [2, 2]
    assert forward_destinations(chunks("F0 F1 B0 F2"), sent((0, 2), (2, 0), (2, 2), (3, 2))) == [
        2,
        2,
        2,
    ]


def test_one_stage_a_rank_is_a_line():
    result = assign_stages(
        {0: chunks("F0 F1"), 1: chunks("F0 F1")}, {0: sent((0, 1), (1, 1)), 1: sent()}, 2
    )
    assert result.shape == "line"
    assert result.places[1] == {0: (1, 0), 1: (1, 1)}


def test_the_last_rank_tells_the_chunks_of_a_loop():
    far = chunks("F0 F1 F2 F3")
    near = {
        0: sent(*((k, 1) for k in range(4))),
        1: sent(*((k, 2) for k in range(4))),
        2: sent((0, 0), (1, 0)),
    }
    result = assign_stages({0: far, 1: far, 2: far}, near, 3)
    assert (result.shape, result.virtual) == ("loop", 2)
    assert [result.places[1][k] for k in range(4)] == [(1, 0), (1, 1), (4, 0), (4, 1)]


def test_who_begins_on_the_last_rank_tells_a_v_from_two_pipelines():
    first, middle = sent((0, 1)), sent((0, 2), (1, 0))
    work = {0: chunks("F0 F1"), 1: chunks("F0 F1"), 2: chunks("F0 F1")}
    v_shape = assign_stages(work, {0: first, 1: middle, 2: sent((1, 1))}, 3)
    assert (v_shape.shape, v_shape.places[2]) == ("V", {0: (2, 0), 1: (3, 0)})
    two_way = assign_stages(work, {0: first, 1: middle, 2: sent((0, 1))}, 3)
    assert (two_way.shape, two_way.places[2]) == ("two-way", {0: (0, 1), 1: (2, 0)})


def test_what_cannot_be_told_is_said():
    nobody = sent((0, 1)).with_columns(peer=pl.lit(None, pl.Int32))
    result = assign_stages({0: chunks("F0")}, {0: nobody}, 2)
    assert (result.shape, result.places) == ("unknown", {})
    assert result.reason == "peers_unnamed"


def test_layouts_are_meshes_with_the_last_axis_fastest():
    assert parse_layout("pp=4, ep=2") == {"pp": 4, "ep": 2}
    assert [mesh_positions({"pp": 2, "ep": 2}, r)["pp"] for r in range(4)] == [0, 0, 1, 1]
    for wrong in ("ep=2", "pp", "pp=0", "pp=2,pp=2"):
        with pytest.raises(OptionError):
            parse_layout(wrong)


def test_groups_give_ranks_their_places():
    groups = (
        ProcessGroup("0", "default_pg", (0, 1, 2, 3)),
        ProcessGroup("1", "PIPELINE_MODEL_PARALLEL_GROUP", (1, 3)),
        ProcessGroup("2", "EXPERT_MODEL_PARALLEL_GROUP", (2, 3)),
        ProcessGroup("3", "mesh_tp", (3,)),
    )
    table = {"label": ["forward"], "start_ns": [0], "end_ns": [1]}
    rank = rank_pipeline(
        conform(pl.DataFrame(table), LABELLED), Source("x", "kineto", 3, "name", groups=groups)
    )
    assert find_parallel_groups([rank]).positions[3] == {"pp": 1, "ep": 1, "tp": 0}


def test_lanes_by_phase():
    rows = pl.DataFrame(
        [
            ("forward", "forward", 0, 10),
            ("offload", None, 5, 15),  # half hidden, while warming up
            ("dgrad", "backward", 20, 30),
            ("forward", "forward", 30, 40),
            ("ep_dispatch", "forward", 28, 44),  # 12 hidden: steady until 40
            ("wgrad", "backward", 50, 60),
            ("pp_comm", None, 52, 58),
        ],
        schema=["label", "pass", "start_ns", "end_ns"],
        orient="row",
    )
    work = pl.DataFrame(
        {
            "step": [0] * 4,
            "op": ["F", "B", "F", "W"],
            "beside": [-1] * 4,
            "start_ns": [0, 20, 30, 50],
            "end_ns": [10, 30, 40, 60],
        }
    )
    result = measure_lanes(rows, work)
    assert result.filter(label="offload").select("phase", "total_ns", "hidden_ns").rows() == [
        ("warm-up", 10, 5)
    ]
    assert result.filter(label="ep_dispatch").select("phase", "total_ns", "hidden_ns").rows() == [
        ("steady", 12, 12),
        ("cool-down", 4, 0),
    ]
    assert result.filter(label="pp_comm")["beside_wgrad_ns"].to_list() == [6]


def test_many_steps_are_sampled_alike_on_ranks_that_differ_by_a_step():
    rows = [pl.DataFrame({"step": list(range(first, 200))}) for first in (0, 1)]
    sampled = [sample_steps(rank)[0]["step"].to_list() for rank in rows]
    assert sampled[0] == list(range(0, 200, 8))
    assert sampled[1] == sampled[0][1:]


def test_step_numbers_that_skip_are_sampled_by_place():
    odd = pl.DataFrame({"step": list(range(1, 201, 2))})
    sampled, (notice,) = sample_steps(odd)
    assert sampled["step"].to_list() == list(range(1, 201, 8))
    assert "one step in 4" in notice_sentence(notice)


def test_few_steps_are_all_kept():
    rows = pl.DataFrame({"step": [1, 2, None]})
    sampled, notices = sample_steps(rows)
    assert sampled is rows
    assert notices == ()


def test_a_layout_may_say_how_many_ranks_a_node_has():
    assert split_layout("node=8, pp=4,ep=2") == ("pp=4,ep=2", 8)
    assert split_layout("pp=4") == ("pp=4", None)
    assert split_layout(None) == (None, None)
    for wrong in ("node=0", "node=8,node=4", "node", "node=x,pp=2", "node=8,ep=2", "pp=2,node=-1"):
        with pytest.raises(OptionError):
            split_layout(wrong)
