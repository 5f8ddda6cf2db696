"""Accuracy of ``--what-if``: one model recorded under several schedules, each predicted from every other.

    python benchmarks/whatif.py RECORDINGS…

Each folder holds one model's recordings, a folder per schedule with a trace per rank. Every
recorded schedule is predicted from each of the others and held against what it took; following the
first of the rows that were recorded costs its makespan over the best one (regret). Exits 1 where a
goal is missed: median error 10 %, none above 30 %, regret 5 %.

``--parts`` prints what each error consists of: the GPU times of ops, the times of hosts and the
messages are replaced by those of the predicted recording, in all orders; what is left then is the
engine's own error.
"""

from __future__ import annotations

import argparse
import math
import sys
from itertools import permutations
from pathlib import Path
from statistics import median

from msgspec.structs import replace

from tracekit.graph.constants import MIDDLE
from tracekit.graph.pipeline import fit_to_comparison
from tracekit.graph.rank_programs import write_program
from tracekit.run.analyze import analyze

MEDIAN, WORST, REGRET = 0.10, 0.30, 0.05


def recorded(folder):
    """Return the analysis of every schedule recorded in *folder*, by (name, chunks)."""
    found = {}
    for run in sorted(path for path in folder.iterdir() if path.is_dir()):
        schedule = analyze(run, what_if=True).comparison
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
    first = next(
        r for r in runs[source].what_if if r.change == "schedule" and (r.name, r.virtual) in runs
    )
    best = min(run.head.measured_ns for run in runs.values())
    return first.name, runs[first.name, first.virtual].head.measured_ns / best - 1


def report(folder, runs):
    """Print the table of one folder; return its errors and regrets."""
    print(
        f"\n{folder.name}: "
        + ", ".join(f"{k[0]} {r.head.measured_ns / 1e6:.1f}" for k, r in runs.items())
        + " ms"
    )
    print("\n| from | to | measured ms | predicted ms | between | error | ideal ms | its error |")
    print("|---|---|--:|--:|--:|--:|--:|--:|")
    errors, inside = [], 0
    for source, target, measured, predicted, low, high, ideal in rows(runs):
        if predicted is None:
            print(
                f"| {source} | {target} | {measured / 1e6:.1f} | – | – | – | {ideal / 1e6:.1f} | |"
            )
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
    print(
        f"\nmedian error {median(sizes):.1%}, worst {max(sizes):.1%}; {inside} of {len(errors)} within their range"
    )
    print(
        "first row: "
        + "; ".join(f"from {k} {name} (regret {cost:.1%})" for k, (name, cost) in regrets.items())
    )
    return sizes, [cost for _, cost in regrets.values()]


PARTS = {
    "gpu": ("gpu_ns", "gpu_slowdowns", "block_factor"),
    "host": (
        "launch_ns",
        "before_ns",
        "post_ns",
        "last_launch_to_end_ns",
        "host_waits",
        "host_starts",
        "gpu_starts",
    ),
    "messages": (),
}
"""Parts of a predictor, and the fields of ``MeasuredOps`` that belong to each; messages are those
of the machine."""


def with_parts(source, target, parts):
    """Return the predictor of *source* with some parts of that of *target*."""
    fields = [field for part in parts for field in PARTS[part]]
    ops = list(source.ops)
    ops[MIDDLE] = replace(
        ops[MIDDLE], **{field: getattr(target.ops[MIDDLE], field) for field in fields}
    )
    machine = target.machine if "messages" in parts else source.machine
    return type(source)(source.own, machine, tuple(ops), source.measured_ns, source.own_program)


def simulated_ns(predictor, schedule):
    """Return the makespan of a schedule in nanoseconds, its messages in the order that is written for it."""
    program = write_program(schedule, predictor.machine.machines[MIDDLE].queues)
    return predictor.simulate(program, schedule).makespan


def error_parts(source, target):
    """Return by part what the logarithm of predicted / measured consists of, the engine's own error last."""
    schedule = target.own
    sums = dict.fromkeys(PARTS, 0.0)
    orders = list(permutations(PARTS))
    for order in orders:
        replaced = []
        before = simulated_ns(source, schedule)
        for part in order:
            replaced.append(part)
            after = simulated_ns(with_parts(source, target, replaced), schedule)
            sums[part] += math.log(before / after) / len(orders)
            before = after
    return {**sums, "engine": math.log(simulated_ns(target, schedule) / target.measured_ns)}


def report_parts(folder, runs):
    """Print what the error of every pair consists of."""
    fitted = {key[0]: fit_to_comparison(run) for key, run in runs.items()}
    print(f"\n{folder.name}\n\n| from | to | " + " | ".join((*PARTS, "engine")) + " | sum |")
    print("|---|---|" + "--:|" * (len(PARTS) + 2))
    for target_name, target in fitted.items():
        for source_name, source in fitted.items():
            if source_name == target_name or isinstance(source, str) or isinstance(target, str):
                continue
            parts = error_parts(source, target)
            shares = [
                f"{math.expm1(value):+.1%}" for value in (*parts.values(), sum(parts.values()))
            ]
            print(f"| {source_name} | {target_name} | " + " | ".join(shares) + " |")


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "recordings", nargs="+", type=Path, help="folders with a folder per schedule"
    )
    parser.add_argument(
        "--parts", action="store_true", help="print what the error of every pair consists of"
    )
    asked = parser.parse_args()
    missed = False
    for folder in asked.recordings:
        runs = recorded(folder)
        if len(runs) < 2:
            print(f"{folder}: fewer than two schedules were recorded", file=sys.stderr)
            missed = True
            continue
        sizes, regrets = report(folder, runs)
        if asked.parts:
            report_parts(folder, runs)
        missed |= median(sizes) > MEDIAN or max(sizes) > WORST or max(regrets) > REGRET
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
