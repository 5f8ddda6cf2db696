"""Definitions of the numbers, in the same words in every report."""

from __future__ import annotations

DEFINITIONS = (
    ("U(X)", "the union of X's intervals on one rank's GPU: never a sum of durations"),
    ("span", "start of the first to end of the last GPU event launched in the steps analyzed"),
    ("compute", "U(forward … optimizer, other); shares are of the span"),
    ("hidden", "|U(X) ∩ U(compute)| / |U(X)|"),
    ("exposed", "|U(X) − U(compute)|; two labels at once: charged to the first. compute + exposed + idle = span"),
    ("wait", "own duration − shortest duration among the ranks of the same operation"),
    ("because", "what the next compute waited for while the label was exposed; the causes sum to the exposed time"),
    ("bubble", "(idle + exposed wait of pp_comm) / span; a run without a pipeline has idle and no bubble"),
)
SCHEDULE_DEFINITIONS = (
    ("cell", "one op of one stage on one micro-batch: its first kernel's start to its last kernel's end on the rank"),
    ("outside cells", "share of ranks × makespan in no cell, so that a cell's own stalls are not in it"),
    ("ideal", "the same order simulated with the median time of every op, messages free"),
    ("saves", "measured makespan − makespan of the what-if"),
)
