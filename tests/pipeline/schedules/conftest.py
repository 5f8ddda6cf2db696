"""Reference orders, and a slow simulator that shares nothing with the package's."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

ORDERS = json.loads((Path(__file__).parents[2] / "orders.json").read_text())


def case_name(case: dict) -> str:
    return f"{case['schedule']}-p{case['pp']}-m{case['microbatches']}-v{case['virtual']}"


@pytest.fixture(params=[c for c in ORDERS if c.get("exact", True)], ids=case_name)
def exact_case(request):
    return request.param


@pytest.fixture(
    params=[c for c in ORDERS if c.get("exact", True) and "simulated" in c], ids=case_name
)
def timed_case(request):
    return request.param


@pytest.fixture(params=[c for c in ORDERS if not c.get("exact", True)], ids=case_name)
def searched_case(request):
    return request.param


@pytest.fixture(scope="session")
def slow_simulate():
    """Relax every op's start until nothing moves: (rank, position) → (start, end), by the rules as written down."""

    def run(orders, duration, latency=0.0):
        halves = {}  # (letter, stage, micro-batch) → where it is made
        for r, ops in enumerate(orders):
            for k, op in enumerate(ops):
                for letter, stage, i in pieces(op):
                    halves[letter, stage, i] = (r, k)
        stages = 1 + max(stage for _, stage, _ in halves)
        start = {(r, k): 0.0 for r, ops in enumerate(orders) for k in range(len(ops))}
        moved, rounds = True, 0
        while moved:
            moved, rounds = False, rounds + 1
            assert rounds <= len(start) + 1, "never settles"
            for r, ops in enumerate(orders):
                for k, op in enumerate(ops):
                    ready = start[r, k - 1] + duration(r, k - 1, ops[k - 1]) if k else 0.0
                    for need in needs(op, stages, halves):
                        made = halves[need]
                        end = start[made] + duration(*made, orders[made[0]][made[1]])
                        ready = max(ready, end + (latency if made[0] != r else 0.0))
                    if ready > start[r, k] + 1e-9:
                        start[r, k], moved = ready, True
        return {
            position: (begin, begin + duration(*position, orders[position[0]][position[1]]))
            for position, begin in start.items()
        }

    def pieces(op):
        if op.startswith("("):
            f, b = op[1:-1].split(";")
            return [*pieces(f), *pieces(b)]
        letter = next(c for c in op if c.isalpha())
        stage, i = map(int, op.split(letter))
        return [(letter, stage, i)]

    def needs(op, stages, halves):
        results = []
        for letter, stage, i in pieces(op):
            if letter == "F" and stage:
                results.append(("F", stage - 1, i))
            if letter in "BI":
                results.append(("F", stage, i))
                if stage + 1 < stages:
                    results.append(("B" if ("B", stage + 1, i) in halves else "I", stage + 1, i))
            if letter == "W":
                results.append(("I", stage, i))
        return results

    return run
