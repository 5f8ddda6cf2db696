"""What allocations are for, leaks and activations in flight, on histories that can be counted by hand."""

from __future__ import annotations

import polars as pl
import pytest

from tracekit.memory.measures.activations import (
    MIN_SHARE_IN_FLIGHT,
    measure_activations,
    most_in_flight,
)
from tracekit.memory.measures.contents import contents_at, find_purposes
from tracekit.memory.measures.host_work import HOST_WORK
from tracekit.memory.measures.leaks import find_leaks
from tracekit.memory.measures.replay import ALLOCATIONS, LEVELS, Replay
from tracekit.memory.measures.stacks import source_line, stack_origin
from tracekit.schema import conform

MODULE = "site-packages/torch/nn/modules/module.py"
FORWARD = (("forward", "model.py", 25), ("_call_impl", MODULE, 1790), ("main", "train.py", 9))
WEIGHTS = (("convert", MODULE, 1370), ("_apply", MODULE, 965), ("main", "train.py", 3))
OPTIMIZER = (("_init_group", "site-packages/torch/optim/adam.py", 180), ("main", "train.py", 12))
GATHER = (
    ("foreach_all_gather", "torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py", 7),
    *FORWARD,
)
STACKS = (FORWARD, WEIGHTS, OPTIMIZER, GATHER)
IN_FORWARD, IN_SETUP, IN_OPTIMIZER, IN_GATHER = range(4)


def replay_of(*rows):
    """Rows (allocated at, freed at or None, bytes, stack); an event for each time."""
    times = sorted({time for row in rows for time in row[:2] if time is not None})
    position = {time: row for row, time in enumerate(times)}
    table = []
    for alloc_ns, free_ns, size, stack in rows:
        table.append(
            {
                "bytes": size,
                "stack": stack,
                "alloc_ns": alloc_ns,
                "alloc_row": position.get(alloc_ns),
                "free_ns": free_ns,
                "free_row": position.get(free_ns),
            }
        )
    allocations = conform(pl.DataFrame(table, infer_schema_length=None), ALLOCATIONS)
    levels = conform(pl.DataFrame({"at_ns": times}), LEVELS)
    return Replay(allocations, levels, 0, 0, 0, 0, 0), position


def steps(*starts):
    return pl.DataFrame(
        {"step": range(len(starts)), "start_ns": starts},
        schema={"step": pl.Int64, "start_ns": pl.Int64},
    )


def purposes_of(*rows, starts=(0,), work=None, chunks=None, stacks=STACKS):
    replay, position = replay_of(*rows)
    host_work = None
    if work is not None:
        host_rows = [{"row": position[time], **values} for time, values in work.items()]
        host_work = conform(pl.DataFrame(host_rows, infer_schema_length=None), HOST_WORK)
    return find_purposes(
        replay, host_work, stacks=stacks, chunks=chunks, step_starts=steps(*starts)
    ), position


def categories(*rows, **options):
    return purposes_of(*rows, **options)[0]["category"].to_list()


@pytest.mark.parametrize(
    ("stack", "origin"),
    [
        (FORWARD, "forward"),
        (WEIGHTS, "weights"),
        (OPTIMIZER, "optimizer"),
        (GATHER, "communication"),
        ((("unpack_hook", "site-packages/torch/utils/checkpoint.py", 1), *FORWARD), "recompute"),
        ((("backward", "my_function.py", 3),), "backward"),
        ((("create_recv_tensor", "torch/distributed/pipelining/stage.py", 3),), "communication"),
        ((("main", "optimizer/train.py", 3),), None),
    ],
)
def test_a_stack_tells_where_an_allocation_comes_from(stack, origin):
    assert stack_origin(stack) == origin


def test_the_line_of_a_stack_is_the_innermost_of_the_users_own_code():
    assert source_line(OPTIMIZER) == "train.py:12 main"
    assert source_line(FORWARD) == "model.py:25 forward"
    assert source_line((WEIGHTS[0],)) == f"{MODULE}:1370 convert"
    assert source_line(()) is None


def test_stacks_and_lifetimes_tell_contents_without_a_trace():
    rows = [
        (1, None, 10, IN_SETUP),  # weights
        (12, 15, 1, IN_FORWARD),  # freed in its step: an activation
        (14, 25, 2, None),  # autograd's thread has no stack: freed in the next step, a gradient
        (16, None, 4, IN_OPTIMIZER),  # kept: state
        (17, 18, 5, IN_OPTIMIZER),  # gone at once
        (19, 20, 7, IN_GATHER),
    ]
    assert categories(*rows, starts=(10, 22)) == [
        "weights",
        "activations",
        "gradients",
        "optimizer_state",
        "workspace",
        "communication",
    ]


def test_what_has_neither_time_nor_stack_is_from_before_the_recording():
    assert categories((None, 5, 1, None), (None, None, 2, IN_SETUP)) == [
        "before_recording",
        "weights",
    ]


def test_launches_tell_what_stacks_do_not():
    work = {1: {"phase": "forward"}, 2: {"phase": "backward"}, 3: {"phase": "optimizer"}}
    rows = [(1, 9, 1, None), (2, 3, 1, None), (3, None, 1, None)]
    assert categories(*rows, work=work, stacks=()) == [
        "activations",
        "gradients",
        "optimizer_state",
    ]


def test_what_the_backward_frees_again_is_workspace():
    work = {1: {"phase": "backward"}, 2: {"phase": "backward"}}
    assert categories((1, 2, 1, None), work=work, stacks=()) == ["workspace"]


def test_what_an_operator_frees_before_it_ends_is_workspace():
    work = {1: {"phase": "forward", "op_end_ns": 5}, 3: {"phase": "forward"}}
    assert categories((1, 3, 1, None), work=work, stacks=()) == ["workspace"]
    later = {1: work[1], 7: {"phase": "forward"}}
    assert categories((1, 7, 1, None), work=later, stacks=()) == ["activations"]


def chunk_table(*rows):
    """Rows (op, pair, first launch, last launch)."""
    columns = ("op", "pair", "launch_ns", "last_ns")
    table = pl.DataFrame(
        rows, schema=dict(zip(columns, (pl.String, *[pl.Int64] * 3), strict=True)), orient="row"
    )
    return table.with_columns(step=pl.lit(0, pl.Int64))


def test_what_a_split_backward_keeps_for_its_weight_gradient_is_an_activation_of_its_micro_batch():
    chunks = chunk_table(("F", 0, 0, 4), ("I", 0, 10, 14), ("F", 1, 20, 24), ("W", 0, 30, 34))
    work = {
        11: {"phase": "backward", "chunk": 1, "step": 0},
        31: {"phase": "backward", "chunk": 3, "step": 0},
    }
    purposes, _ = purposes_of((11, 31, 1, None), work=work, chunks=chunks, stacks=())
    assert purposes.select("category", "pair").row(0) == ("activations", 0)


def test_workspaces_of_libraries_are_kept_and_no_gradients_or_activations():
    rows = [
        (1, 35, 5, IN_SETUP),
        (2, None, 6, IN_SETUP),
        (11, None, 32, None),
        (12, None, 32, IN_FORWARD),
    ]
    assert categories(*rows, starts=(10, 20, 30))[2:] == ["workspace", "workspace"]


def test_gradients_that_are_never_freed_are_as_many_as_weights():
    weights = [(1, 35, 5, IN_SETUP), (2, None, 6, IN_SETUP)]
    gradients = [(11, None, 5, None), (12, None, 6, None)]
    assert categories(*weights, *gradients, starts=(10, 20, 30))[2:] == ["gradients", "gradients"]


def test_contents_are_those_of_the_moment():
    purposes, position = purposes_of(
        (1, 5, 10, IN_SETUP), (2, 3, 4, IN_FORWARD), (2, 6, 3, IN_FORWARD)
    )
    at_two = contents_at(purposes, position[2])
    assert at_two.select("category", "bytes", "count").rows() == [
        ("weights", 10, 1),
        ("activations", 7, 2),
    ]
    assert contents_at(purposes, position[3])["bytes"].to_list() == [10, 3]
    assert contents_at(purposes, position[6]).is_empty()


def leaking(*, steps_that_leak, number_of_steps=6, kept_until=None):
    rows = []
    for step in steps_that_leak:
        rows.append((10 * step + 1, kept_until, 8, IN_FORWARD))
    for step in range(number_of_steps):
        rows.append((10 * step + 2, 10 * step + 5, 3, IN_FORWARD))
    starts = tuple(10 * step for step in range(number_of_steps))
    purposes, _ = purposes_of(*rows, starts=starts)
    return find_leaks(purposes, steps(*starts))


def test_what_every_step_leaves_behind_is_a_leak():
    (row,) = leaking(steps_that_leak=range(6)).rows(named=True)
    # The last two steps cannot tell yet.
    assert (row["bytes"], row["bytes_per_step"], row["steps"]) == (32, 8, [0, 1, 2, 3])


@pytest.mark.parametrize(
    ("leaking_steps", "is_leak"),
    [
        ([0], False),
        ([0, 1, 2, 3], True),
        ([1, 2, 3], True),
        ([2, 3], True),
        ([0, 3], True),
        ([4, 5], False),
    ],
    ids=str,
)
def test_one_step_is_no_leak_and_half_of_the_steps_are(leaking_steps, is_leak):
    assert bool(len(leaking(steps_that_leak=leaking_steps))) == is_leak


def test_two_of_eight_steps_are_no_leak():
    assert leaking(steps_that_leak=[0, 5], number_of_steps=10).is_empty()


def test_what_is_freed_before_the_end_is_no_leak():
    assert leaking(steps_that_leak=range(4), kept_until=49).is_empty()
    # By the last step, which may be the program's end.
    assert len(leaking(steps_that_leak=range(4), kept_until=51))


def test_three_steps_are_too_few_to_tell():
    assert leaking(steps_that_leak=range(3), number_of_steps=3).is_empty()


def in_flight(*rows):
    """Rows (pair, allocated at, freed at, bytes) of forwards."""
    columns = ("pair", "alloc_ns", "free_ns", "bytes")
    table = pl.DataFrame(rows, schema=dict.fromkeys(columns, pl.Int64), orient="row")
    text = {"category": pl.lit("activations"), "phase": pl.lit("forward")}
    return measure_activations(table.with_columns(step=pl.lit(0, pl.Int64), **text))


def test_a_micro_batch_is_in_flight_until_half_of_it_is_gone():
    assert MIN_SHARE_IN_FLIGHT == 0.5
    counts = in_flight((0, 1, 50, 10), (0, 2, 40, 10), (0, 3, 60, 10), (1, 45, None, 8))
    assert counts.select("pair", "bytes", "start_ns", "end_ns").rows() == [
        (0, 30, 1, 50),
        (1, 8, 45, None),
    ]
    assert most_in_flight(counts) == 2


def test_one_that_begins_when_another_ends_is_not_beside_it():
    assert most_in_flight(in_flight((0, 1, 5, 10), (1, 5, 9, 10))) == 1


def test_nothing_is_in_flight_without_forwards():
    assert most_in_flight(in_flight()) == 0


ALLOCATOR = ("c10::cuda::CUDACachingAllocator::malloc(void**)", "CUDACachingAllocator.cpp", 0)
INTERPRETER = ("cfunction_call", "/usr/local/src/conda/python-3.12.7/Objects/methodobject.c", 537)
HEADER = ("_PyEval_EvalFrame", "/conda/python-3.12.7/Include/internal/pycore_ceval.h", 89)


def test_frames_of_the_interpreter_are_no_source_lines():
    stack = (ALLOCATOR, INTERPRETER, ("forward", "model.py", 25), HEADER, ("main", "train.py", 9))
    assert source_line(stack) == "model.py:25 forward"
    assert source_line((ALLOCATOR, INTERPRETER, HEADER)) is None


def test_windows_paths_tell_libraries_and_origins():
    library = r"C:\Users\me\anaconda3\envs\x\Lib\site-packages\torch"
    own = ("forward", r"D:\code\model.py", 41)
    stack = (
        ("einsum", rf"{library}\functional.py", 373),
        own,
        ("_call_impl", rf"{library}\nn\modules\module.py", 1787),
    )
    assert source_line(stack) == r"D:\code\model.py:41 forward"
    assert stack_origin(stack) == "forward"


@pytest.mark.parametrize(
    ("function", "origin"),
    [
        ("torch::autograd::Engine::evaluate_function(std::shared_ptr<GraphTask>&)", "backward"),
        ("c10d::ProcessGroupNCCL::allreduce(std::vector<at::Tensor>&)", "communication"),
        ("at::native::_fused_adamw_kernel_cuda_(at::TensorList)", "optimizer"),
        ("torch::autograd::VariableType::(anonymous namespace)::mm(at::Tensor const&)", "forward"),
        ("at::native::empty_strided_cuda(c10::ArrayRef<long>)", None),
    ],
)
def test_stacks_without_python_have_origins_by_their_frames_of_cpp(function, origin):
    assert stack_origin((ALLOCATOR, (function, "??", 0))) == origin


def test_backward_is_told_before_the_forward_operators_that_it_calls():
    engine = ("torch::autograd::Engine::thread_main(std::shared_ptr<GraphTask>&)", "", 0)
    operator = ("torch::autograd::VariableType::(anonymous namespace)::mul(at::Tensor)", "", 0)
    assert stack_origin((ALLOCATOR, operator, engine)) == "backward"


def test_tensors_of_own_constructors_are_weights_and_those_of_own_optimizers_are_theirs():
    assert stack_origin((("__init__", "layers/linear.py", 19), ("main", "t.py", 3))) == "weights"
    assert (
        stack_origin((("__init__", "my/AdamWOptimizer.py", 27), ("main", "t.py", 3))) == "optimizer"
    )
    # A folder called like an optimizer tells nothing.
    assert stack_origin((("load", "/home/adam/data.py", 27),)) is None


def test_state_that_is_made_before_the_first_step_and_replaced_in_it_is_state():
    replay, _ = replay_of((1, 25, 8, IN_OPTIMIZER), (22, 24, 4, IN_OPTIMIZER))
    times = pl.DataFrame({"start_ns": [20], "end_ns": [30]})
    purposes = find_purposes(
        replay, None, stacks=STACKS, step_starts=steps(0, 30), optimizer_times=times
    )
    assert purposes["category"].to_list() == ["optimizer_state", "workspace"]


LOADED = (("load", "data.py", 9), ("main", "train.py", 3))
UNKNOWN_LIBRARY = (("make", "site-packages/somewhere/ops.py", 5), *LOADED)


def test_what_the_program_makes_outside_of_its_model_is_its_own_and_a_librarys_is_unknown():
    rows = [(1, None, 1, 0), (2, None, 2, 1)]
    assert categories(*rows, stacks=(LOADED, UNKNOWN_LIBRARY)) == ["program", "other"]
