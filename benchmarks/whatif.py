"""Accuracy of ``--what-if``: one model recorded under several schedules, each predicted from every other.

    python benchmarks/whatif.py RECORDINGS…

Each folder holds one model's recordings, a folder per schedule with a trace per rank. Every recorded schedule is
predicted from each of the others and held against what it took; following the first of the rows that were recorded
costs its makespan over the best one (regret). Exits 1 where a goal is missed: median error 10 %, none above 30 %,
regret 5 %.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from statistics import median

from tracekit.run.analyze import analyze

MEDIAN, WORST, REGRET = 0.10, 0.30, 0.05


def recorded(folder):
    """Return the analysis of every schedule recorded in *folder*, by (name, chunks)."""
    found = {}
    for run in sorted(path for path in folder.iterdir() if path.is_dir()):
        schedule = analyze(run, what_if=True).schedule
        if schedule is None:
            print(f"{run}: no schedule was found", file=sys.stderr)
            continue
        found[schedule.name, schedule.virtual] = schedule
    return found


def rows(runs):
    """Yield for every ordered pair: from, to, measured, predicted, low, high, ideal (ns)."""
    for source, ran in runs.items():
        for line in ran.what_if:
            target = (line.name, line.virtual)
            if line.change == "schedule" and target in runs and target != source:
                measured = runs[target].head.measured_ns
                low, high = line.predicted_range_ns or (None, None)
                yield source[0], target[0], measured, line.predicted_ns, low, high, line.ideal_ns


def regret(runs, source):
    """Return by what share the first row that was recorded is slower than the best, from *source*'s trace."""
    first = next(r for r in runs[source].what_if if r.change == "schedule" and (r.name, r.virtual) in runs)
    best = min(run.head.measured_ns for run in runs.values())
    return first.name, runs[first.name, first.virtual].head.measured_ns / best - 1


def report(folder, runs):
    """Print the table of one folder; return its errors and regrets."""
    print(f"\n{folder.name}: " + ", ".join(f"{k[0]} {r.head.measured_ns / 1e6:.1f}" for k, r in runs.items()) + " ms")
    print("\n| from | to | measured ms | predicted ms | between | error | ideal ms | its error |")
    print("|---|---|--:|--:|--:|--:|--:|--:|")
    errors, inside = [], 0
    for source, target, measured, predicted, low, high, ideal in rows(runs):
        if predicted is None:
            print(f"| {source} | {target} | {measured / 1e6:.1f} | – | – | – | {ideal / 1e6:.1f} | |")
            continue
        errors.append(predicted / measured - 1)
        inside += low <= measured <= high
        print(
            f"| {source} | {target} | {measured / 1e6:.1f} | {predicted / 1e6:.1f} "
            f"| {low / 1e6:.0f} – {high / 1e6:.0f} | {errors[-1]:+.1%} "
            f"| {ideal / 1e6:.1f} | {ideal / measured - 1:+.1%} |"
        )
    regrets = {source[0]: regret(runs, source) for source in runs}
    sizes = [abs(e) for e in errors]
    print(f"\nmedian error {median(sizes):.1%}, worst {max(sizes):.1%}; {inside} of {len(errors)} within their range")
    print("first row: " + "; ".join(f"from {k} {name} (regret {cost:.1%})" for k, (name, cost) in regrets.items()))
    return sizes, [cost for _, cost in regrets.values()]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recordings", nargs="+", type=Path, help="folders with a folder per schedule")
    asked = parser.parse_args()
    missed = False
    for folder in asked.recordings:
        runs = recorded(folder)
        if len(runs) < 2:
            print(f"{folder}: fewer than two schedules were recorded", file=sys.stderr)
            missed = True
            continue
        sizes, regrets = report(folder, runs)
        missed |= median(sizes) > MEDIAN or max(sizes) > WORST or max(regrets) > REGRET
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
