"""Rows of diffs and verdicts of the gate, with what a test does not look at filled in."""

from __future__ import annotations

from tracekit.documents import diff, gate


def metric(**changes):
    """A metric of a diff."""
    row = {
        "metric": "step_ms",
        "unit": "ms",
        "better": "down",
        "verdict": "pass",
        "reason": "",
        "before": None,
        "after": None,
        "change": None,
        "change_relative": None,
        "interval": None,
        "every_step": None,
    }
    return diff.MetricChange(**row | changes)


def check(**changes):
    """A check of the gate."""
    fields = {name: getattr(metric(), name) for name in diff.MetricChange.__struct_fields__}
    rest = {
        "requirement": None,
        "floor": None,
        "p": None,
        "method": None,
        "steps": gate.Counts(8, 8),
        "runs": gate.Counts(1, 1),
        "waiver": None,
        "limit": None,
        "limit_on": "change",
    }
    return gate.CheckResult(**fields | rest | changes)


def verdict(**changes):
    """A verdict of the gate."""
    document = {
        "tracekit": "0",
        "format": gate.GATE_FORMAT,
        "verdict": "pass",
        "exit_code": 0,
        "obstacles": [],
        "checks": [],
        "waivers": [],
    }
    return gate.GateDocument(**document | changes)


def unusable(error):
    """The verdict on input that cannot be used."""
    return verdict(verdict="error", exit_code=2, error=error)


def side(*steps):
    """One side of a comparison: runs called a, b, … with so many steps each."""
    runs = [diff.ComparedRun(chr(ord("a") + i), count) for i, count in enumerate(steps)]
    return diff.SideEntry(runs=runs, facts={})


def difference(**changes):
    """A diff."""
    document = {
        "tracekit": "0",
        "format": diff.DIFF_FORMAT,
        "before": side(8),
        "after": side(8),
        "obstacles": [],
        "same_recording": False,
        "story": [],
        "free_step": None,
        "work": None,
        "waterfall": None,
        "timelines": None,
        "metrics": [],
        "labels": [],
        "ranks": [],
        "findings": None,
        "savings": None,
        "kernels": [],
        "modules": [],
        "cells": [],
        "comparable_cells": None,
        "notes": [],
    }
    return diff.DiffDocument(**document | changes)


def time_of(row_type, **fields):
    """A row whose time changed from 1 to 2.5 ms."""
    times = {"before_ms": 1.0, "after_ms": 2.5, "change_ms": 1.5, "change_relative": None}
    counts = {}
    if issubclass(row_type, diff.CountedChange):
        counts = {"count_before": 1, "count_after": 1}
    return row_type(**times | counts | fields)


def finding(**changes):
    """A finding that is new and costs 5 ms, a quarter of the step."""
    row = {
        "code": "data_loading",
        "case": "",
        "kind": "new",
        "ranks": [],
        "cost_before_ns": 0,
        "cost_after_ns": 5_000_000,
        "share_before": 0.0,
        "share_after": 0.25,
        "cost_before_bytes": None,
        "cost_after_bytes": None,
        "step_agrees": True,
        "text": "the GPU waits for data",
        "text_before": "",
        "advice": "",
        "predicted_saving_ns": None,
        "predicted_range_ns": None,
    }
    return diff.FindingChange(**row | changes)
