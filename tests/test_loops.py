"""Compiled loops give what the same source gives uncompiled, on inputs made at random."""

from __future__ import annotations

import copy
import importlib
import importlib.util
import inspect
import pickle
import shutil
import subprocess
import sys
import sysconfig
from functools import cache
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest

from tracekit import _loops
from tracekit._loops.critical_path import NO_LIMIT
from tracekit.intervals import union

SOURCE = Path(_loops.__file__).parent


@cache
def uncompiled(name):
    """Import a module of ``_loops`` from its source, beside the compiled one, as where Cython is not installed."""
    spec = importlib.util.spec_from_file_location(f"uncompiled_{name}", SOURCE / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    with patch.dict(sys.modules, {"cython": None}):
        spec.loader.exec_module(module)
    return module


def int64s(*values):
    return np.array(values, np.int64)


def flags(rng, *shape):
    return rng.integers(0, 2, shape).astype(np.uint8)


def intervals(rng, size):
    start = np.sort(rng.integers(0, 60, size))
    return rng.integers(0, 3, size), start, start + rng.integers(0, 9, size)


def interval_set(rng):
    group, start, end = intervals(rng, 12)
    built = union(start, end + 1, group)
    return built.group, built.start_ns, built.end_ns


def parents(rng, size):
    """For every row an earlier one, or none."""
    return np.array([rng.integers(-1, max(row, 1)) if row else -1 for row in range(size)], np.int64)


def join(rng):
    group, start, end = intervals(rng, 20)
    if rng.integers(4) == 0:
        start = rng.permutation(start)
    return {
        "group": group,
        "start": start,
        "end": end,
        "state": np.empty((3, 4), np.int64),
        "out": np.zeros((3, 20), int),
    }


def subtract(rng):
    a, b = interval_set(rng), interval_set(rng)
    return [*a, *b, np.zeros((3, len(a[0]) + len(b[0])), np.int64)]


def measure_covered(rng):
    group, start, end = interval_set(rng)
    query_group, query_start, query_end = (rng.permutation(column) for column in intervals(rng, 15))
    running = np.concatenate([[0], np.cumsum(end - start)])
    return [group, start, end, running, query_group, query_start, query_end, np.zeros(15, np.int64)]


def host_ranges(rng, size=40):
    thread, start = np.sort(rng.integers(0, 3, size)), rng.integers(0, 50, size)
    end = start + rng.integers(0, 20, size)
    order = np.lexsort((-end, start, thread))
    return thread[order], start[order], end[order]


def nest(rng):
    thread, start, end = host_ranges(rng)
    point_thread, point_time, _ = host_ranges(rng, 20)
    size = len(start)
    return {
        "thread": thread,
        "start": start,
        "end": end,
        "kind": flags(rng, size),
        "name": rng.integers(-1, 2**31 - 1, size).astype(np.int32),
        "point_thread": point_thread,
        "point_time": point_time,
        "stacks": np.zeros((3, size + 1), np.int32),
        "op_around": np.zeros(size, np.int32),
        "annotation_around": np.zeros(size, np.int32),
        "path_hash": np.zeros(size, np.uint64),
        "siblings": np.zeros((2, size * int(rng.integers(2))), np.int32),
        "op_around_point": np.full(20, -1, np.int64),
        "annotation_around_point": np.full(20, -1, np.int64),
    }


def find_nearest_marked(rng):
    return [parents(rng, 30).astype(np.int32), flags(rng, 30), np.full(30, -1, np.int32)]


def assign_lines(rng):
    return [
        *host_ranges(rng),
        np.zeros(40, np.int64),
        np.zeros(4, np.int64),
        np.zeros(40, np.int64),
    ]


def find_nodes(rng):
    size = 40
    return {
        "parent": parents(rng, size).astype(np.int32),
        "is_op": flags(rng, size),
        "name": rng.integers(-1, 6, size).astype(np.int32),
        "name_flags": rng.integers(0, 64, 7),
        "sequence": rng.integers(-1, 9, size),
        "node_of": np.zeros(size, np.int32),
        "number": np.zeros(size, np.int64),
        "flags": np.zeros(size, np.uint8),
        "ops_outside_nodes": np.zeros(size, np.int32),
        "possible_reruns": np.zeros(size, np.int32),
        "counts": np.zeros(2, np.int64),
    }


def spread_flags(rng):
    marks = rng.integers(0, 32, 40).astype(np.uint8)
    return [parents(rng, 40).astype(np.int32), marks, *np.zeros((2, 40), np.int32)]


def number_pairs(rng):
    span = int(rng.integers(1, 2**62))
    a, b = (np.repeat(rng.choice(int64s(-span, -1, 0, 7, 2 * span - 1), 30), 2) for _ in range(2))
    size = 1 << int(rng.integers(2, 8))
    return [a, b, np.full(size, -1), np.zeros(size, np.int64), np.zeros(60, np.int64)]


def replay_events(rng):
    """Events that each start after those with smaller numbers.

    Every third has a launch, some are in a match.
    """
    size, match_count = 40, 6
    start = np.cumsum(rng.integers(1, 9, size))
    launch = np.where(np.arange(size) % 3 == 0, start - rng.integers(0, 5, size), NO_LIMIT)
    launched = np.flatnonzero(launch != NO_LIMIT)
    before = np.stack([parents(rng, size) for _ in range(6)]).astype(np.int32)
    before[2:] = -1
    before[2, launched[1:]] = launched[:-1]
    for row in (3, 4, 5):  # a release, room in the launch queue, a batch
        is_held = rng.random(len(launched) - 1) < 0.3
        before[row, launched[1:]] = np.where(is_held, launched[:-1], -1)
    nodes = np.concatenate([launched + size, np.arange(size)])
    times = np.concatenate([launch[launched], start])
    decisive = np.where(rng.random(size) < 0.3, rng.integers(0, match_count, size), -1).astype(
        np.int32
    )
    return {
        "order": nodes[np.argsort(times, kind="stable")].astype(np.uint32),
        "times": np.stack(
            [start, start + rng.integers(1, 9, size), launch, np.full(size, start[0])]
        ),
        "delays": rng.integers(0, 4, (6, size)),
        "before": before,
        "factors": np.stack(
            [rng.random(size), rng.choice([1.0, 0.5], size), rng.choice([0.0, 1.0], size)]
        ),
        "first_match": np.cumsum(np.append(0, decisive >= 0)).astype(np.int32),
        "matches": decisive[decisive >= 0],
        "decisive": decisive,
        "replayed": np.zeros((5, size), np.int64),
        "arrivals": np.full((2, match_count), -NO_LIMIT),
    }


def walk_back(rng):
    arguments = replay_events(rng)
    uncompiled("critical_path").replay_events(**arguments)
    return {
        "event": 39,
        "now": arguments["replayed"][1, 39],
        "at_start": bool(rng.integers(2)),
        "walk": 1,
        "begins": arguments["times"][3, :2].copy(),
        "rank_index": rng.integers(0, 2, 40).astype(np.int32),
        **{name: arguments[name] for name in ("before", "decisive", "replayed", "arrivals")},
        "visited": np.zeros((2, 40), np.int32),
        "segments": np.zeros((4 * 40 + 4, 5), np.int64),
    }


def check_pickle(rng):
    """A pickle of plain values with a few bytes changed."""
    value = {
        "entries": [
            {"id": n, "sizes": [[n, 2]], "name": "nccl:send", "pair": ("a", n)} for n in range(4)
        ]
    }
    data = bytearray(pickle.dumps(value, protocol=int(rng.integers(2, 6))))
    for _ in range(rng.integers(0, 4)):
        data[rng.integers(len(data))] = rng.integers(256)
    scratch = {name: np.zeros(len(data), np.int32) for name in ("stack", "memo", "depths")}
    scratch |= {name: np.zeros(len(data), np.uint8) for name in ("kinds", "shared")}
    scratch |= {"expanded": np.zeros(len(data), np.int64), "position_out": int64s(0)}
    return {
        "data": np.array(data),
        "max_depth": 6,
        "max_integer_bytes": 16,
        "max_expanded": 1_000,
        **scratch,
    }


CASES = {
    "autograd_nodes": [find_nodes, spread_flags],
    "critical_path": [
        replay_events,
        walk_back,
    ],
    "grouping": [number_pairs],
    "interval_sets": [join, measure_covered, subtract],
    "nesting": [nest, find_nearest_marked, assign_lines],
    "pickle_check": [check_pickle],
}
"""Functions of loops that share a name."""


def why_uncompiled():
    """Return which loops run uncompiled, and whether this machine has a compiler and Python's headers."""
    files = {module: str(importlib.import_module(module).__file__) for module in _loops.MODULES}
    uncompiled = [
        module.rpartition(".")[2] for module, file in files.items() if file.endswith(".py")
    ]
    headers = Path(sysconfig.get_path("include"), "Python.h")
    return f"not compiled: {', '.join(uncompiled)} (cc: {shutil.which('cc')}, Python.h: {headers.exists()})"


needs_compiled_loops = pytest.mark.skipif(not _loops.is_compiled(), reason=why_uncompiled())


def called(function, arguments):
    """Call a loop with copies of the arguments; return what it returns and writes."""
    given = copy.deepcopy(arguments)
    returned = function(**given) if isinstance(given, dict) else function(*given)
    values = given.values() if isinstance(given, dict) else given
    return returned, [value.tolist() for value in values if isinstance(value, np.ndarray)]


@needs_compiled_loops
@pytest.mark.parametrize(
    ("module", "make"), [(module, make) for module, makes in CASES.items() for make in makes]
)
def test_compiled_and_uncompiled_give_the_same(module, make):
    name = make.__name__
    compiled = getattr(importlib.import_module(f"tracekit._loops.{module}"), name)
    for seed in range(30):
        arguments = make(np.random.default_rng(seed))
        assert called(compiled, arguments) == called(
            getattr(uncompiled(module), name), arguments
        ), seed


ROWS_OF_OTHERS = {
    "before",
    "held_by",
    "last_to_arrive",
    "launch_before",
    "order",
    "parent",
}
"""Arguments of loops that point from rows to other rows."""
TIMES = {"end", "last_arrival", "own_arrival", "point_time", "start", "start_a", "start_b"}


def in_impossible_order(function, arguments, rng):
    """Return the arguments by name, with times in any order, and rows that point anywhere, also in a circle."""
    if isinstance(arguments, list):
        arguments = inspect.signature(function).bind(*arguments).arguments
    changed = copy.deepcopy(dict(arguments))
    for name, values in changed.items():
        if name in ROWS_OF_OTHERS:
            changed[name] = rng.integers(0, values.shape[-1], values.shape).astype(values.dtype)
        elif name in TIMES:
            changed[name] = rng.permuted(values, axis=-1)
    return changed


def limit_lines(limit):
    """Return a trace function that fails when more than *limit* lines have run."""
    lines = 0

    def trace(_, event, __):
        nonlocal lines
        lines += event == "line"
        assert lines <= limit, f"more than {limit} lines"
        return trace

    return trace


@pytest.mark.parametrize(
    ("module", "make"), [(module, make) for module, makes in CASES.items() for make in makes]
)
def test_a_loop_ends_within_its_input_whatever_the_order_of_events(module, make):
    function = getattr(uncompiled(module), make.__name__)
    for seed in range(10):
        rng = np.random.default_rng(seed)
        arguments = in_impossible_order(function, make(rng), rng)
        items = sum(np.size(value) for value in arguments.values())
        before = sys.gettrace()
        sys.settrace(limit_lines(100 * items))
        try:
            function(**arguments)
        except (IndexError, OverflowError, RuntimeWarning):
            pass  # a bounds check has ended it, or a number that C would wrap around
        finally:
            sys.settrace(before)


@needs_compiled_loops
@pytest.mark.parametrize(
    ("module", "make"), [(module, make) for module, makes in CASES.items() for make in makes]
)
def test_a_loop_can_be_interrupted(module, make):
    compiled = importlib.import_module(f"tracekit._loops.{module}")
    with (
        patch.object(compiled, "let_interrupt", side_effect=KeyboardInterrupt),
        pytest.raises(KeyboardInterrupt),
    ):
        called(getattr(compiled, make.__name__), make(np.random.default_rng(0)))


def test_compiled_modules_do_not_import_cython():
    without_cython = "import sys; sys.modules['cython'] = sys.modules['Cython'] = None"
    code = f"{without_cython}; from tracekit import _loops; assert _loops.is_compiled()"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("module", _loops.MODULES)
def test_every_module_can_run_uncompiled_without_cython(module):
    assert uncompiled(module.rpartition(".")[2]).cython.__name__ == "tracekit._loops.uncompiled"
    assert uncompiled(module.rpartition(".")[2]).__doc__


@pytest.mark.parametrize("module", CASES)
def test_every_loop_is_compared(module):
    functions = inspect.getmembers(uncompiled(module), inspect.isfunction)
    own = {
        name
        for name, function in functions
        if not name.startswith("_") and function.__module__.endswith(module)
    }
    assert {make.__name__ for make in CASES[module]} == own


@needs_compiled_loops
def test_an_array_of_another_type_is_refused():
    from tracekit._loops.nesting import find_nearest_marked

    with pytest.raises(ValueError, match="Buffer dtype mismatch"):
        find_nearest_marked(np.zeros(2, np.int64), np.zeros(2, np.uint8), np.zeros(2, np.int32))
