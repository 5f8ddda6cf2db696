"""Alarms of the gate on equal runs, and how often it finds a run that is 10 % slower, from resampled recordings.

    python benchmarks/gate_alarms.py [--trials 1000] [--steps 8 20]

A trial draws the steps of two runs from recorded steps and asks for the verdict on all default
metrics. An alarm is a verdict ``regressed`` on two equal runs; found is the same verdict after all
times of one side were made 10 % longer.

- ``one process``: both runs are made of blocks of consecutive steps of one process, drawn with
  replacement, so that they differ by chance alone and neighbouring steps still resemble each other.
- ``two processes``: consecutive steps of two processes of the same program, each at a place of its
  own.

Steps are those of data/steps.json (record_steps.py, NVIDIA H200), and of traces or folders that are
named.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np
from gate import DATA, Samples, as_run, part, profiled, slower

from tracekit import analyze
from tracekit.diffs.run_samples import from_analysis
from tracekit.diffs.samples import by_full_name, per_step_samples, slow_step_samples
from tracekit.diffs.verdict import judge

BLOCK_STEPS = 4
"""Steps that are drawn together."""
SLOWDOWN = 1.1
Pair = tuple[Samples, Samples]


def one_process(
    runs: Sequence[Samples], steps: int, random: np.random.Generator
) -> Callable[[], Pair]:
    """Return what draws two runs of *steps* steps each from blocks of one process."""

    def draw() -> Pair:
        process = runs[int(random.integers(len(runs)))]
        length = len(process["step_ms"])
        return part(process, blocks(length, steps, random)), part(
            process, blocks(length, steps, random)
        )

    return draw


def blocks(length: int, steps: int, random: np.random.Generator) -> np.ndarray:
    """Return the positions of *steps* steps in blocks of consecutive ones, which wrap around at the end."""
    starts = random.integers(0, length, -(-steps // BLOCK_STEPS))
    positions = (starts[:, None] + np.arange(BLOCK_STEPS)) % length
    return positions.ravel()[:steps]


def two_processes(
    runs: Sequence[Samples], steps: int, random: np.random.Generator
) -> Callable[[], Pair]:
    """Return what draws consecutive steps of two processes, each at a place of its own."""

    def draw() -> Pair:
        chosen = random.permutation(len(runs))[:2]
        pair = []
        for number in chosen:
            first = int(random.integers(0, len(runs[number]["step_ms"]) - steps + 1))
            pair.append(part(runs[number], slice(first, first + steps)))
        return pair[0], pair[1]

    return draw


def recorded(path: str) -> Samples:
    """Return the per-step samples of a trace or a folder."""
    run = from_analysis(analyze(path).to_document(), name=path)
    samples = by_full_name(per_step_samples(run.ranks))
    return {name: np.array(values) for name, values in samples.items()}


def verdict(candidate: Samples, baseline: Samples) -> str:
    """Return the gate's verdict on all default metrics."""
    runs = [as_run(complete(side)) for side in (candidate, baseline)]
    verdicts = {check.verdict for check in judge(runs[:1], runs[1:])}
    return next((word for word in ("regressed", "inconclusive") if word in verdicts), "pass")


def rates(draw: Callable[[], Pair], trials: int) -> tuple[Counter[str], Counter[str]]:
    """Return the verdicts on equal runs and on runs of which one is slower."""
    equal: Counter[str] = Counter()
    slow: Counter[str] = Counter()
    for _ in range(trials):
        candidate, baseline = draw()
        equal[verdict(candidate, baseline)] += 1
        slow[verdict(slower(candidate, SLOWDOWN), baseline)] += 1
    return equal, slow


def print_row(name: str, equal: Counter[str], slow: Counter[str], seconds: float) -> None:
    trials = equal.total()
    shares = [
        equal["regressed"],
        equal["inconclusive"],
        slow["regressed"],
        slow["inconclusive"],
        slow["pass"],
    ]
    cells = " | ".join(f"{100 * count / trials:.1f} %" for count in shares)
    print(f"| {name} | {trials} | {cells} |  ({seconds:.0f} s)", flush=True)


def programs(paths: Iterable[str]) -> dict[str, list[Samples]]:
    """Return the processes of each program: those of ``DATA``, and one of each path."""
    found = {}
    for name, program in json.loads(DATA.read_text())["programs"].items():
        found[name] = [profiled(run) for run in program["runs"]]
    for path in paths:
        found[Path(path).name] = [recorded(path)]
    return found


def complete(samples: Samples) -> Samples:
    """Return samples with those that follow from the step times that were drawn."""
    derived = slow_step_samples(tuple(samples["step_ms"].tolist()))
    return samples | {name: np.array(values) for name, values in derived.items()}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "paths", nargs="*", help="recordings to resample beside those of data/steps.json"
    )
    parser.add_argument("--trials", type=int, default=1000)
    parser.add_argument("--steps", type=int, nargs="+", default=[8, 20])
    parser.add_argument("--seed", type=int, default=4)
    options = parser.parse_args()
    random = np.random.default_rng(options.seed)
    print(
        "| recording | trials | equal: alarms | inconclusive | 10 % slower: found | inconclusive | passed |"
    )
    print("|---|---:|---:|---:|---:|---:|---:|")
    for name, runs in programs(options.paths).items():
        for steps in options.steps:
            draws = {"one process": one_process(runs, steps, random)}
            if len(runs) > 1:
                draws["two processes"] = two_processes(runs, steps, random)
            for how, draw in draws.items():
                started = time.perf_counter()
                equal, slow = rates(draw, options.trials)
                print_row(
                    f"{name}, {how}, {steps} steps", equal, slow, time.perf_counter() - started
                )


if __name__ == "__main__":
    main()
