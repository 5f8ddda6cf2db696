"""Hand-made analyses, and the real command run in this process."""

from __future__ import annotations

import json
import sys

import numpy as np
import pytest

from tracekit.cli import main

QUIET = (100.1, 100.6, 99.4, 100.2, 99.8, 100.4, 99.6, 99.9)
"""Eight steps that vary by half a percent."""


def one_step(step, span_ms, *, compute=0.6, pp=0.25, hidden=0.2, scale=1.0):
    """One rank's step: compute, then exposed pp_comm, then idle.

    Pp_comm also runs *hidden* of itself under compute.
    """
    span, exposed = round(span_ms * 1e6), round(span_ms * pp * 1e6)
    work = round(span_ms * compute * 1e6)
    ran = round(exposed / (1 - hidden))
    idle = span - work - exposed
    return {
        "step": step,
        "span_ns": span,
        "budget_ns": {"compute": work, "exposed": {"pp_comm": exposed}, "idle": idle},
        "label_ns": {
            "forward": round(work * scale / 3),
            "backward": round(work * 2 / 3),
            "pp_comm": ran,
        },
        "set_ns": {"compute": work, "communication": ran, "copy": 0},
        "label_count": {"forward": 10, "backward": 20, "pp_comm": 4},
        "weak_ns": 0,
        "weak_share": 0.0,
        "overlap": {"communication": hidden, "copy": None, "pp_comm": hidden},
        "hidden_ns": {"pp_comm": {"forward": ran - exposed}},
        "wait_ns": {"pp_comm": 0},
        "blocking_ns": {"pp_comm": None},
        "exposed_because_ns": {},
        "bubble": {"idle_ns": idle, "wait_ns": 0, "fraction": idle / span, "lower_bound": False},
        "partial": False,
        "time_ns": span,
        "time_budget_ns": {"compute": work, "exposed": {"pp_comm": exposed}, "idle": idle},
    }


def step_time(steps):
    """The step time of these steps, which are alike on all ranks."""
    times = sorted(step["time_ns"] for step in steps)
    return {
        "time_ns": times[len(times) // 2],
        "per_step": [{"step": step["step"], "time_ns": step["time_ns"]} for step in steps],
        "unusual": [],
        "single": len(steps) == 1,
        "marked": True,
        "by_rank": [],
        "budget_ns": steps[0]["time_budget_ns"],
    }


def document(
    spans=QUIET,
    *,
    ranks=2,
    world_size=2,
    schedule="1f1b",
    gpu="H200",
    shapes=("mm [[8,8],[8,8]]",),
    reader="kineto",
    **step,
):
    """An analysis of *ranks* ranks with these step times."""
    steps = [one_step(2 + i, ms, **step) for i, ms in enumerate(spans)]
    rows = []
    for rank in range(ranks):
        whole = {k: v for k, v in steps[0].items() if k not in ("step", "partial")}
        whole["hidden_ns"] = {
            "pp_comm": {"forward": sum(s["hidden_ns"]["pp_comm"]["forward"] for s in steps)}
        }
        idle = {
            "phases": [],
            "idle_host_ns": None,
            "idle_host": [],
            "inside_launch_ns": 0,
            "idle_causes_ns": None,
        }
        rows.append(
            {"rank": rank, "steps": [s["step"] for s in steps], **whole, **idle, "per_step": steps}
        )
    makespans = {"measured_ns": 90_000_000, "ideal_ns": 80_000_000}
    gap_ns = {"imbalance": 4_000_000, "p2p": 5_000_000, "unexplained": 1_000_000}
    return {
        "tracekit": "0.1.0",
        "format": "tracekit.analysis/1",
        "source": {"paths": ["x"], "reader": reader, "ranks": list(range(ranks)), "world_size": world_size,
                   "devices": [gpu], "shapes": list(shapes)},
        "ranks": rows,
        "step": step_time(steps),
        "findings": [],
        "total": whole,
        "schedule": {"name": schedule, "pp": ranks, "microbatches": 8, "virtual": 1, "exact": True, "ranks": [],
                     "measured": {"makespan_ns": 90_000_000, "outside_cells": 0.2},
                     "ideal": {"makespan_ns": 80_000_000, "outside_cells": 0.1},
                     "gap_ns": gap_ns, "distance": 0, "differences": [], "fb_run_apart": 0, "step": 2,
                     "pipeline_ranks": list(range(ranks)), "stages_from": "messages", "confidence": 1.0, "by_rank": [],
                     "factors": {"stage": {}, "spread": 0.0, "slow_cells": []}, "lanes": [], "positions": {},
                     "what_if": [],
                     "pipelines": [{"ranks": list(range(ranks)), "step": 2, "name": schedule, "exact": True,
                                    **makespans, "gap_ns": gap_ns}]},
        "hiding": None,
        "stragglers": [],
        "clocks": {"residual_ns": None, "worst_ns": None, "ranks": []},
        "kernels": [{"name": "gemm<a|b>", "label": "forward", "module": "mlp", "count": 10, "ns": 20_000_000}],
        "copies": [],
        "reload": None,
        "rates": None,
        "memory": None,
        "warnings": [],
    }  # fmt: skip


@pytest.fixture
def save(tmp_path):
    """Write an analysis and return its path."""

    def write(name, spans=QUIET, **options):
        path = tmp_path / name
        path.write_text(json.dumps(document(spans, **options)))
        return path

    return write


@pytest.fixture
def make():
    return document


@pytest.fixture
def command(monkeypatch, capsys, tmp_path):
    """Run `tracekit WORDS` in an empty folder: exit code, stdout, stderr."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("GITHUB_ACTIONS", raising=False)
    monkeypatch.setenv("COLUMNS", "160")

    def run(*words):
        monkeypatch.setattr(sys, "argv", ["tracekit", *map(str, words)])
        with pytest.raises(SystemExit) as exit_:
            main()
        captured = capsys.readouterr()
        return exit_.value.code or 0, captured.out, captured.err

    return run


@pytest.fixture
def scaled():
    """The quiet steps, slower or faster, in another order."""
    return lambda factor, shift=3: tuple(float(v) for v in np.roll(np.array(QUIET) * factor, shift))
