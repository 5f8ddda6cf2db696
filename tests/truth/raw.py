"""Answers from a recording's own JSON, worked out without tracekit: stacks around launches, sizes of products.

Reads PyTorch's JSON with the standard library alone. What counts as right comes from the published
architecture (classes of modules by hand, per model), from hand counts, or from
``torch.utils.flop_counter`` beside a recording.
"""

from __future__ import annotations

import gzip
import json
import re
from collections import Counter, defaultdict
from math import prod

GPU = ("kernel", "gpu_memcpy", "gpu_memset")
MODULE = "nn.Module: "
PRODUCTS = ("aten::mm", "aten::addmm", "aten::bmm", "aten::_scaled_mm")


class Recording:
    """GPU events of one file in order of start, with the operators and the classes of modules around their launches."""

    def __init__(self, path):
        with gzip.open(path, "rt") as file:
            data = json.load(file)
        events = [e for e in data["traceEvents"] if e.get("ph") == "X"]
        self.gpu = sorted((e for e in events if e.get("cat") in GPU), key=lambda e: e["ts"])
        calls = {}
        for e in events:
            if e.get("cat") in (
                "cuda_runtime",
                "cuda_driver",
                "hip_runtime",
            ) and "correlation" in e.get("args", {}):
                calls.setdefault(e["args"]["correlation"], e)
        ranges = defaultdict(list)
        for e in events:
            if e.get("cat") == "cpu_op" or e["name"].startswith(MODULE):
                ranges[e["pid"], e["tid"]].append(e)
        points = defaultdict(list)
        for index, e in enumerate(self.gpu):
            if (call := calls.get(e["args"].get("correlation"))) is not None:
                points[call["pid"], call["tid"]].append((call["ts"], index))
        self.stacks = [None] * len(self.gpu)  # None: the launch is not in the file
        for thread, launches in points.items():
            self._fill(sorted(ranges[thread], key=lambda e: (e["ts"], -e["dur"])), sorted(launches))

    def _fill(self, ranges, launches):
        stack, following = [], 0
        for time, index in launches:
            while following < len(ranges) and ranges[following]["ts"] <= time:
                stack = [e for e in stack if e["ts"] + e["dur"] > ranges[following]["ts"]] + [
                    ranges[following]
                ]
                following += 1
            self.stacks[index] = [e for e in stack if e["ts"] + e["dur"] >= time]

    def classes(self, index):
        """Classes of the modules around a launch, outermost first."""
        names = [e["name"] for e in self.stacks[index] or () if e["name"].startswith(MODULE)]
        return [re.sub(r"_\d+$", "", name.removeprefix(MODULE)) for name in names]

    def operator(self, index):
        """The innermost operator around a launch."""
        return next(
            (e for e in reversed(self.stacks[index] or ()) if e.get("cat") == "cpu_op"), None
        )

    def product_time(self):
        """Time of each operator in ``PRODUCTS`` by its weight's sizes: the sum of what it launched, in ms."""
        times = Counter()
        for index, event in enumerate(self.gpu):
            op = self.operator(index)
            if op is not None and op["name"] in PRODUCTS:
                sizes = [s for s in op["args"].get("Input Dims", []) if len(s) > 1]
                times[tuple(sizes[1][-2:])] += event["dur"] / 1000
        return times

    def product_flop(self):
        """Two per multiply-add of every call in ``PRODUCTS`` that launched a kernel."""
        calls = {
            id(op): op
            for i in range(len(self.gpu))
            if (op := self.operator(i)) and op["name"] in PRODUCTS
        }
        sizes = [[s for s in op["args"]["Input Dims"] if len(s) > 1][:2] for op in calls.values()]
        return sum(2 * prod(left) * right[-1] for left, right in sizes)


def modules_by_class(recording, kinds):
    """Kinds of module that are right for each event: that of the innermost class named in *kinds*; None: unknown."""
    right = []
    for index in range(len(recording.gpu)):
        named = (kinds[name] for name in reversed(recording.classes(index)) if name in kinds)
        kind = next(named, None)
        right.append({kind} if isinstance(kind, str) else kind)
    return right


def agreement(recording, modules, right):
    """Shares of the time the truth tells of: placed in the right module, and in a wrong one.

    And the worst mistakes.
    """
    total = good = bad = 0.0
    wrong = Counter()
    for event, module, allowed in zip(recording.gpu, modules, right, strict=True):
        if allowed is None or event["cat"] != "kernel" or "reduce_kernel<c10" in event["name"]:
            continue
        total += event["dur"]
        if module in allowed:
            good += event["dur"]
        elif module is not None:
            bad += event["dur"]
            wrong[module, "/".join(sorted(allowed)), event["name"][:60]] += event["dur"]
    return good / total, bad / total, wrong.most_common(5)
