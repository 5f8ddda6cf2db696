"""Answers about several ranks from their recordings' own JSON, worked out without tracekit.

Times are integer nanoseconds of the clock that the ranks of one machine share. A step's GPU events are
those whose launch lies between its mark and the next one. Collectives are matched by their order,
counted from the end, where all ranks stopped recording together.
"""

from __future__ import annotations

import gzip
import json
import re
from bisect import bisect_right
from collections import Counter
from itertools import pairwise
from statistics import mean, median
from typing import NamedTuple

GPU = ("kernel", "gpu_memcpy", "gpu_memset")
CALLS = ("cuda_runtime", "cuda_driver")
STEP = "ProfilerStep#"
ELEMENT_BYTES = {"Float": 4, "BFloat16": 2}


class GpuEvent(NamedTuple):
    """A kernel, copy or memset."""

    kind: str
    name: str
    start: int
    end: int
    step: int | None
    """Step that launched it; None if its launch is not in the file."""
    launched: int | None
    args: dict

    @property
    def is_collective(self):
        return "nccl" in self.name

    @property
    def is_compute(self):
        """Whether it counts as computation where TraceLens counts: any kernel or memset but a collective's."""
        return self.kind != "gpu_memcpy" and not self.is_collective


class RawRank(NamedTuple):
    """GPU events of a rank in order of start, and its steps' marks: number, start and end."""

    gpu: list[GpuEvent]
    marks: list[tuple[int, int, int]]

    def collectives(self):
        return [event for event in self.gpu if event.is_collective]

    def compute(self):
        return union((event.start, event.end) for event in self.gpu if event.is_compute)


def read_rank(path):
    with gzip.open(path, "rt") as file:
        events = [e for e in json.load(file)["traceEvents"] if e.get("ph") == "X"]
    times = {id(e): _times(e) for e in events}
    marks = sorted(
        (int(e["name"].removeprefix(STEP)), *times[id(e)])
        for e in events
        if e.get("cat") == "user_annotation" and e["name"].startswith(STEP)
    )
    starts = [start for _, start, _ in marks]
    launches = {
        e["args"]["correlation"]: times[id(e)][0]
        for e in events
        if e.get("cat") in CALLS and "correlation" in e.get("args", {})
    }
    gpu = []
    for e in events:
        if e.get("cat") in GPU:
            launched = launches.get(e["args"].get("correlation"))
            following = 0 if launched is None else bisect_right(starts, launched)
            step = marks[following - 1][0] if following else None
            gpu.append(GpuEvent(e["cat"], e["name"], *times[id(e)], step, launched, e["args"]))
    return RawRank(sorted(gpu, key=lambda event: event.start), marks)


def read_ranks(folder):
    """The ranks of a folder, by number."""
    files = {int(re.search(r"rank(\d+)", p.name)[1]): p for p in folder.glob("rank*.json.gz")}
    return {rank: read_rank(files[rank]) for rank in sorted(files)}


def _times(event):
    start = round(event["ts"] * 1000)
    return start, start + round(event["dur"] * 1000)


def union(intervals):
    """Disjoint intervals in order that cover the same time."""
    merged = []
    for start, end in sorted(intervals):
        if merged and start <= merged[-1][1]:
            merged[-1][1] = max(merged[-1][1], end)
        else:
            merged.append([start, end])
    return merged


def length(intervals):
    return sum(end - start for start, end in intervals)


def outside(start, end, covered):
    """Time between two moments that no interval of a union covers."""
    first = max(bisect_right(covered, [start]) - 1, 0)
    rest = end - start
    for low, high in covered[first:]:
        if low >= end:
            break
        rest -= max(0, min(high, end) - max(low, start))
    return rest


def whole_budget(rank):
    """Time of a rank's whole recording as TraceLens divides it: compute, communication, copies, idle."""
    compute = length(rank.compute())
    kernels = length(union((e.start, e.end) for e in rank.gpu if e.kind != "gpu_memcpy"))
    busy = length(union((e.start, e.end) for e in rank.gpu))
    whole = max(e.end for e in rank.gpu) - min(e.start for e in rank.gpu)
    return {
        "compute": compute,
        "exposed_communication": kernels - compute,
        "exposed_copies": busy - kernels,
        "idle": whole - busy,
        "whole": whole,
    }


class Collective(NamedTuple):
    """One collective: the events of all ranks, by rank."""

    events: dict[int, GpuEvent]

    @property
    def step(self):
        return next(iter(self.events.values())).step

    @property
    def last_rank(self):
        return max(self.events, key=lambda rank: self.events[rank].start)

    @property
    def last_start(self):
        return self.events[self.last_rank].start

    def wait(self, rank):
        """Time from a rank's start to that of the last one, at most its own duration."""
        event = self.events[rank]
        return min(self.last_start, event.end) - event.start

    @property
    def bytes(self):
        """The larger of what a rank puts in and takes out, as nccl-tests counts it."""
        args = next(iter(self.events.values())).args
        elements = max(args["In msg nelems"], args["Out msg nelems"])
        return elements * ELEMENT_BYTES[args["dtype"]]

    @property
    def transfer(self):
        """Time from the last start to the last end."""
        return max(event.end for event in self.events.values()) - self.last_start


def match_collectives(ranks):
    """Collectives whose launch all ranks recorded."""
    of_ranks = {number: rank.collectives() for number, rank in ranks.items()}
    count = min(len(events) for events in of_ranks.values())
    matched = [
        Collective({number: of_ranks[number][-back] for number in ranks})
        for back in range(count, 0, -1)
    ]
    return [c for c in matched if None not in {event.step for event in c.events.values()}]


def exposed_communication(ranks, collectives):
    """Time in collectives beside which a rank computes nothing, mean of ranks and steps: waiting, and the rest."""
    waiting = transfer = 0
    for number, rank in ranks.items():
        computing = rank.compute()
        for collective in collectives:
            event = collective.events[number]
            waited_until = event.start + collective.wait(number)
            waiting += outside(event.start, waited_until, computing)
            transfer += outside(waited_until, event.end, computing)
    rank_steps = sum(len(rank.marks) for rank in ranks.values())
    return waiting / rank_steps, transfer / rank_steps


def waits_by_step(collectives):
    """Mean time of a step that ranks wait for each rank, the longest first."""
    waits = {}
    for collective in collectives:
        of_step = waits.setdefault(collective.step, Counter())
        waited = [collective.wait(rank) for rank in collective.events]
        of_step[collective.last_rank] += sum(waited) / len(waited)
    return {step: of_step.most_common() for step, of_step in waits.items()}


def step_times(ranks):
    """Time of each step but the last, median of ranks, by step.

    A step begins with its mark, or when the GPU has ended the work before it if that is later, but
    with its first GPU event at the latest. The first one, whose GPU may be behind with earlier work,
    begins with its first GPU event unless the GPU is idle before the next step.
    """
    times = {}
    for rank in ranks.values():
        first, end = {}, {}
        for event in rank.gpu:
            first.setdefault(event.step, event.start)
            end[event.step] = max(end.get(event.step, 0), event.end)
        numbers = [number for number, *_ in rank.marks if number in first]
        mark = {number: start for number, start, _ in rank.marks}
        begins = {}
        for before, number in pairwise(numbers):
            begins[number] = min(first[number], max(mark[number], end[before]))
        is_idle = first[numbers[1]] - end[numbers[0]] >= 20_000
        begins[numbers[0]] = mark[numbers[0]] if is_idle else first[numbers[0]]
        for number, following in pairwise(numbers):
            times.setdefault(number, []).append(begins[following] - begins[number])
    return {number: median(of_ranks) for number, of_ranks in times.items()}


def compute_per_step(rank):
    """Time of a rank's compute kernels, mean of its steps; memsets are no computation here."""
    kernels = [e for e in rank.gpu if e.kind == "kernel" and e.is_compute and e.step is not None]
    return length(union((e.start, e.end) for e in kernels)) / len(rank.marks)


def host_step(rank):
    """Time between two steps' marks on the host, mean."""
    return mean(end - start for _, start, end in rank.marks)


def launched_ahead(rank):
    """Time from a launch to the start of what it launched, median of all steps."""
    return median(e.start - e.launched for e in rank.gpu if e.step is not None)


def bus_rates(collectives):
    """Median bus bandwidth in GB/s of collectives above 1 MB, by operation and type."""
    rates = {}
    for collective in collectives:
        args = next(iter(collective.events.values())).args
        if collective.bytes > 1_000_000:
            # Each rank's link carries all parts but the rank's own; bytes per ns are GB/s.
            ranks = len(collective.events)
            rate = collective.bytes * (ranks - 1) / ranks / collective.transfer
            rates.setdefault(f"{args['Collective name']} {args['dtype']}", []).append(rate)
    return {name: median(of_name) for name, of_name in rates.items()}
