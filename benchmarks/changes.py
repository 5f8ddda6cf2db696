"""Accuracy of ``--change``: a run predicted with changes, held against a recording that has them.

    python benchmarks/changes.py BEFORE AFTER CHANGE…

Prints a row of docs/maintainers/predictions.csv: the time per step of both recordings and what was predicted; last
the error with the measured ratio of the transfers as one more change, because the links of two
recordings differ. ``RUN@STEPS`` takes some steps of a recording. Exits 1 where the
prediction misses by more than 10 %.
"""

from __future__ import annotations

import argparse
import sys

from tracekit import analyze
from tracekit.graph.change import FasterLinks, parse_change

WORST = 0.10


def run(text):
    """Return the graph of a recording; ``RUN@4,5,6`` are some of its steps."""
    path, _, steps = text.partition("@")
    return analyze(path, steps=steps or None, what_if=True).graph


def transfer_ns(run):
    """Return the time per rank and step that matched communication transfers."""
    graph = run.graph
    return graph.transfer_ns[graph.decisive >= 0].sum() / len(graph.ranks) / len(graph.steps)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("before", help="recording that is predicted from")
    parser.add_argument("after", help="recording of the same program with the changes")
    parser.add_argument("changes", nargs="+", metavar="CHANGE")
    options = parser.parse_args()
    before, after = run(options.before), run(options.after)
    changes = [parse_change(text) for text in options.changes]
    step, became = before.predict(changes), after.measured_ns
    if step.predicted_ns is None:
        print(f"{step.change}: {step.why_not}", file=sys.stderr)
        return 1
    speed = transfer_ns(before) / transfer_ns(after)
    corrected = before.predict([*changes, FasterLinks(round(speed, 4))]).predicted_ns
    low, high = step.predicted_range_ns
    error = step.predicted_ns / became - 1
    print(
        f"change,{options.before},{step.change},{options.after},{step.measured_ns / 1e6:.1f},"
        f"{step.predicted_ns / 1e6:.1f},{low / 1e6:.0f},{high / 1e6:.0f},{became / 1e6:.1f},"
        f"{100 * (corrected / became - 1):.1f},"
    )
    return int(abs(error) > WORST)


if __name__ == "__main__":
    sys.exit(main())
