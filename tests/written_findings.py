"""Findings as they are written, from the evidence that matters for their words."""

from __future__ import annotations

from docsite.finding_examples import example_of

FACTS_OF_RUNS = ("vendor", "generates", "steps_marked", "between_steps_share")


def written(code, case="", *, evidence=None, **effect):
    """Return the document of a finding; what its run is known for may stand among the evidence."""
    evidence = {"steps_marked": True, **(evidence or {})}
    run = {name: evidence[name] for name in FACTS_OF_RUNS if name in evidence}
    run["is_inference"] = evidence.pop("workload", None) == "inference"
    effect = {"cost_ns": 1, "share": 0.1, **effect}
    return example_of(code, case, run=run, **effect, **evidence).to_document()
