"""How often the gate is wrong: false alarms between equal runs, and slowdowns of 5 % that it misses.

    python benchmarks/gate.py [--pairs 4000]

Steps are real: data/steps.json holds what record_steps.py measured on an H200, in processes of their own. A pair takes
eight consecutive steps, at the same place, from two processes of the same program, as a gate in CI does. Few processes
were recorded, so pairs overlap; the last program is a model fitted to the first (noise that lasts over steps, runs that
differ, rare slow steps), of which every pair is new.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np

from tracekit.gate.floors import calibrate
from tracekit.gate.samples import Run
from tracekit.gate.verdict import judge

DATA = Path(__file__).parent / "data" / "steps.json"
STEPS = 8
Samples = dict[str, np.ndarray]


def plain(run) -> Samples:
    """Step time alone, as CUDA events saw it."""
    return {"step_ms": np.array(run["plain_ms"])}


def profiled(run) -> Samples:
    """Every default metric that the reduced trace holds."""
    ranks = [{k: np.array(v, float) / 1e3 for k, v in rank.items()} for rank in run["ranks"]]
    span = np.sum([r["span_us"] for r in ranks], axis=0)
    found = {
        "step_ms": np.max([r["span_us"] for r in ranks], axis=0),
        "bubble_fraction": 1 - np.sum([r["busy_us"] for r in ranks], axis=0) / span,
        "label_ms.forward": np.mean([r["compute_us"] for r in ranks], axis=0),  # all compute: the trace is reduced
    }
    for label, key in (("pp_comm", "comm"), ("offload", "copy")):
        if all(f"{key}_us" in r for r in ranks):
            ran = np.mean([r[f"{key}_us"] for r in ranks], axis=0)
            hidden = np.mean([r.get(f"{key}_hidden_us", 0 * ran) for r in ranks], axis=0)
            found |= {f"label_ms.{label}": ran, f"exposed_ms.{label}": ran - hidden, f"overlap.{label}": hidden / ran}
    return found


def fitted(runs: list[Samples]) -> Callable[[np.random.Generator], Samples]:
    """Fit a model to what two processes do not share at the same step: spread, persistence, and how runs differ."""
    times = [run["step_ms"] for run in runs]
    apart = [np.log(b / a) for i, a in enumerate(times) for b in times[i + 1 :]]
    each = np.mean([d.std() for d in apart]) / np.sqrt(2)
    lasts = float(np.mean([np.corrcoef(d[:-1], d[1:])[0, 1] for d in apart]))
    differ = np.std([np.median(t) for t in times], ddof=1) / np.mean(times)
    print(
        f"model: steps {100 * each:.2f} %, of which {lasts:.2f} lasts; runs {100 * differ:.2f} %; 1 in 100 steps slow"
    )

    def draw(seed: np.random.Generator) -> Samples:
        noise = seed.normal(0, each, STEPS)
        for i in range(1, STEPS):
            noise[i] = lasts * noise[i - 1] + noise[i] * np.sqrt(1 - lasts**2)
        slow = (seed.random(STEPS) < 0.01) * seed.uniform(0.1, 0.5, STEPS)
        return {"step_ms": 24 * (1 + seed.normal(0, differ)) * (1 + noise + slow)}

    return draw


def window(run: Samples, at: int) -> Samples:
    return {name: values[at : at + STEPS] for name, values in run.items()}


def slower(run: Samples, factor: float) -> Samples:
    """Stretch every time; shares stay what they are."""
    return {name: values * factor if "_ms" in name else values for name, values in run.items()}


def as_run(samples: Samples) -> Run:
    return Run("", {name: tuple(map(float, values)) for name, values in samples.items()})


def outcome(candidate: Samples, baseline: list[Samples], *, calibrated: bool) -> str:
    """Return the gate's word: regressed, else inconclusive, else pass."""
    before = [as_run(b) for b in baseline]
    noise = calibrate(before) if calibrated else None
    verdicts = {c.verdict for c in judge([as_run(candidate)], before, noise=noise)}
    return next((v for v in ("regressed", "inconclusive") if v in verdicts), "pass")


def measure(draw: Callable[[], tuple[Samples, list[Samples]]], pairs: int, factors, *, calibrated=False) -> dict:
    counts = {factor: Counter() for factor in factors}
    for _ in range(pairs):
        candidate, baseline = draw()
        for factor in factors:
            counts[factor][outcome(slower(candidate, factor), baseline, calibrated=calibrated)] += 1
    return counts


def from_runs(runs: list[Samples], seed: np.random.Generator, baselines: int = 1):
    length = min(len(v) for run in runs for v in run.values())

    def draw():
        chosen = seed.permutation(len(runs))[: baselines + 1]
        at = int(seed.integers(0, length - STEPS + 1))
        return window(runs[chosen[0]], at), [window(runs[i], at) for i in chosen[1:]]

    return draw


def line(name: str, counts: dict, pairs: int, seconds: float) -> None:
    parts = []
    for factor, count in counts.items():
        if factor == 1:
            parts.append(f"false alarms {100 * count['regressed'] / pairs:5.2f} %")
            parts.append(f"inconclusive {100 * count['inconclusive'] / pairs:5.2f} %")
        else:
            parts.append(f"+{100 * (factor - 1):.0f} % caught {100 * count['regressed'] / pairs:6.2f} %")
    print(f"{name:<46} {pairs:>5} pairs  " + "  ".join(parts) + f"  ({seconds:.0f} s)", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=4000)
    options = parser.parse_args()
    programs = json.loads(DATA.read_text())["programs"]
    seed = np.random.default_rng(9)
    model = fitted([profiled(r) for r in programs["offload"]["runs"]])
    cases = [
        ("offload, step time", from_runs([plain(r) for r in programs["offload"]["runs"]], seed), (1, 1.05), False),
        ("offload, all metrics", from_runs([profiled(r) for r in programs["offload"]["runs"]], seed), (1, 1.05), False),
        ("model, step time", lambda: (model(seed), [model(seed)]), (1, 1.05), False),
    ]
    for name, runs, reduce in (
        ("1f1b, step time", programs["1f1b"]["runs"], plain),
        ("1f1b, all metrics", programs["1f1b"]["runs"], profiled),
        ("host-bound, step time", programs["host-bound"]["runs"], plain),
        ("host-bound, all metrics", programs["host-bound"]["runs"], profiled),
    ):
        reduced = [reduce(r) for r in runs]
        count = min(5, len(runs) - 1)
        cases.append((f"{name}, one run each", from_runs(reduced, seed), (1, 1.05), False))
        cases.append((f"{name}, {count} runs calibrated", from_runs(reduced, seed, count), (1, 1.05, 1.5), True))
    for name, draw, factors, calibrated in cases:
        started = time.perf_counter()
        pairs = options.pairs if "all metrics" not in name else options.pairs // 2
        line(name, measure(draw, pairs, factors, calibrated=calibrated), pairs, time.perf_counter() - started)


if __name__ == "__main__":
    main()
