"""Error rates of the gate: false alarms between equal runs, and missed slowdowns of 5 %.

    python benchmarks/gate.py [--pairs 4000]

Steps are real: data/steps.json holds what record_steps.py measured on an H200, every run in a
process of its own. A pair is eight steps from each of two processes of the same program:
consecutive ones at the same place, as a gate in CI compares them, or any eight of each
(``shuffled``). The slowdown is injected into all the times of one side. In ``offload`` the GPU sets
the pace; in ``1f1b`` (loopback sockets) and ``host-bound`` equal runs differ by 2 % to 24 %, almost
all of it waiting. Of plain steps only the time is known; the share that waits is the process's
profiled one.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np

from tracekit.diffs.noise_thresholds import calibrate
from tracekit.diffs.runs import Run
from tracekit.diffs.samples import make_samples
from tracekit.diffs.verdict import judge

DATA = Path(__file__).parent / "data" / "steps.json"
STEPS = 8
Samples = dict[str, np.ndarray]


def plain(run) -> Samples:
    """Step time alone, as CUDA events saw it, and how much of it waits."""
    steps, traced = np.array(run["plain_ms"]), profiled(run)
    waits = (traced["idle_ms"] + traced.get("exposed_ms.communication", 0.0)) / traced["step_ms"]
    return {"step_ms": steps, "idle_ms": steps * np.median(waits)}


def profiled(run) -> Samples:
    """Every default metric that the reduced trace holds."""
    ranks = [{k: np.array(v, float) / 1e3 for k, v in rank.items()} for rank in run["ranks"]]
    span = np.sum([r["span_us"] for r in ranks], axis=0)
    found = {
        "step_ms": np.median([r["span_us"] for r in ranks], axis=0),
        "bubble_fraction": 1 - np.sum([r["busy_us"] for r in ranks], axis=0) / span,
        "compute_ms": np.mean([r["compute_us"] for r in ranks], axis=0),
        "idle_ms": np.mean([r["span_us"] - r["busy_us"] for r in ranks], axis=0),
    }
    if len(ranks) > 1:
        found["slowest_rank_ms"] = np.max([r["span_us"] for r in ranks], axis=0)
    for label, key in (("pp_comm", "comm"), ("offload", "copy")):
        if all(f"{key}_us" in r for r in ranks):
            ran = np.mean([r[f"{key}_us"] for r in ranks], axis=0)
            hidden = np.mean([r.get(f"{key}_hidden_us", 0 * ran) for r in ranks], axis=0)
            found |= {
                f"label_ms.{label}": ran,
                f"exposed_ms.{label}": ran - hidden,
                f"overlap.{label}": hidden / ran,
            }
    if "exposed_ms.pp_comm" in found:
        found["exposed_ms.communication"] = found["exposed_ms.pp_comm"]
    return found


def part(run: Samples, at) -> Samples:
    return {name: values[at] for name, values in run.items()}


def slower(run: Samples, factor: float) -> Samples:
    """Stretch every time; shares stay what they are."""
    return {name: values * factor if "_ms" in name else values for name, values in run.items()}


def as_run(samples: Samples) -> Run:
    return Run("", make_samples(samples))


def outcome(candidate: Samples, baseline: list[Samples], *, calibrated: bool) -> str:
    """Return the gate's word: regressed, else inconclusive, else pass."""
    before = [as_run(b) for b in baseline]
    noise = calibrate(before) if calibrated else None
    verdicts = {c.verdict for c in judge([as_run(candidate)], before, noise=noise)}
    return next((v for v in ("regressed", "inconclusive") if v in verdicts), "pass")


def measure(
    draw: Callable[[], tuple[Samples, list[Samples]]], pairs: int, factors, *, calibrated=False
) -> dict:
    counts = {factor: Counter() for factor in factors}
    for _ in range(pairs):
        candidate, baseline = draw()
        for factor in factors:
            counts[factor][outcome(slower(candidate, factor), baseline, calibrated=calibrated)] += 1
    return counts


def from_runs(
    runs: list[Samples], seed: np.random.Generator, baselines: int = 1, *, shuffled: bool = False
):
    length = min(len(v) for run in runs for v in run.values())

    def draw():
        chosen = seed.permutation(len(runs))[: baselines + 1]
        first = int(seed.integers(0, length - STEPS + 1))
        at = [
            np.sort(seed.choice(length, STEPS, replace=False))
            if shuffled
            else slice(first, first + STEPS)
            for _ in chosen
        ]
        return part(runs[chosen[0]], at[0]), [
            part(runs[i], a) for i, a in zip(chosen[1:], at[1:], strict=True)
        ]

    return draw


def line(name: str, counts: dict, pairs: int, seconds: float) -> None:
    parts = []
    for factor, count in counts.items():
        if factor == 1:
            parts.append(f"false alarms {100 * count['regressed'] / pairs:5.2f} %")
            parts.append(f"inconclusive {100 * count['inconclusive'] / pairs:5.2f} %")
        else:
            parts.append(
                f"+{100 * (factor - 1):.0f} % caught {100 * count['regressed'] / pairs:6.2f} %"
            )
            parts.append(f"passed {100 * count['pass'] / pairs:5.2f} %")
    print(f"{name:<46} {pairs:>5} pairs  " + "  ".join(parts) + f"  ({seconds:.0f} s)", flush=True)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", type=int, default=4000)
    options = parser.parse_args()
    programs = json.loads(DATA.read_text())["programs"]
    seed = np.random.default_rng(9)
    cases = []
    for program in ("offload", "1f1b", "host-bound"):
        runs = programs[program]["runs"]
        for what, reduce in (("step time", plain), ("all metrics", profiled)):
            reduced = [reduce(r) for r in runs]
            cases.append((f"{program}, {what}", from_runs(reduced, seed), (1, 1.05), False))
            if program == "offload":
                draw = from_runs(reduced, seed, shuffled=True)
                cases.append((f"{program}, {what}, shuffled", draw, (1, 1.05), False))
            if len(runs) > 5:
                draw = from_runs(reduced, seed, 5)
                cases.append((f"{program}, {what}, 5 runs calibrated", draw, (1, 1.05, 1.5), True))
    for name, draw, factors, calibrated in cases:
        started = time.perf_counter()
        pairs = options.pairs
        line(
            name,
            measure(draw, pairs, factors, calibrated=calibrated),
            pairs,
            time.perf_counter() - started,
        )


if __name__ == "__main__":
    main()
