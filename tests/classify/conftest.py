"""A trace written in a few lines: ops, annotations, autograd nodes and the kernels they launch."""

from __future__ import annotations

import polars as pl
import pytest

from tracekit.parsers import kineto
from tracekit.schema import EVENTS, conform

NODE = "autograd::engine::evaluate_function: "
MAIN, ENGINE = 1, 2


class Program:
    """Events of one rank. Times are in microseconds; a kernel starts right after its launch."""

    def __init__(self):
        self.rows = []

    def add(self, kind, name, start, end, **more):
        row = {"rank": 0, "id": len(self.rows), "kind": kind, "name": name, "pid": 1}
        row |= {"start_ns": int(start * 1000), "end_ns": int(end * 1000), "step": 1}
        self.rows.append(row | more)
        return row["id"]

    def op(self, name, start, end, tid=MAIN, **more):
        return self.add("cpu_op", name, start, end, tid=tid, **more)

    def note(self, name, start, end, tid=MAIN, **more):
        return self.add("annotation", name, start, end, tid=tid, **more)

    def node(self, name, start, end, sequence=None, tid=ENGINE):
        self.op(NODE + name, start, end, tid=tid, sequence=sequence, fwd_thread=1)
        return self.op(name, start + 0.1, end - 0.1, tid=tid, sequence=sequence, fwd_thread=1)

    def kernel(
        self, name, launch_us, *, tid=MAIN, kind="kernel", stream=7, lasts=1, launched=True, **more
    ):
        correlation = len(self.rows)
        if launched:
            self.add(
                "runtime",
                "cudaLaunchKernel",
                launch_us,
                launch_us + 0.2,
                tid=tid,
                correlation=correlation,
            )
        more = {"device": 0, "stream": stream, "correlation": correlation} | more
        return self.add(kind, name, launch_us + 0.3, launch_us + 0.3 + lasts, **more)

    def copy(self, name, launch_us, **more):
        return self.kernel(f"Memcpy {name}", launch_us, kind="memcpy", **more)

    def nccl(self, collective, launch_us, **more):
        more = {"stream": 20} | more
        return self.kernel("ncclDevKernel_Generic(args)", launch_us, collective=collective, **more)

    def trained(self):
        """A backward elsewhere in the trace, far after everything else."""
        self.op("aten::relu", 9000, 9001, sequence=900)
        self.node("ReluBackward0", 9500, 9501, 900)
        return self

    def deferred(self):
        """Weight gradients outside the engine, far after everything else."""
        self.trained()
        self.note("later", 9700, 9710)
        self.kernel("fused_wgrad_kernel", 9701)
        return self

    def events(self):
        return conform(pl.DataFrame(self.rows, infer_schema_length=None), EVENTS)


@pytest.fixture
def program():
    return Program()


def event_row(labelled, target):
    """The row of an event, by its id."""
    return labelled.filter(pl.col("id") == target).row(0, named=True)


@pytest.fixture(scope="session")
def load():
    """The events of a capture; every file is read once."""
    events_of_file = {}

    def read_once(path):
        if path not in events_of_file:
            events_of_file[path] = kineto.read(path).events
        return events_of_file[path]

    return read_once


def without_shapes(events):
    return events.with_columns(shapes=pl.lit(None, dtype=pl.Categorical()))


def renamed(events):
    """Every matrix kernel under one name that says nothing."""
    name = pl.col("name").cast(pl.String)
    gemm = (pl.col("kind") == "kernel") & name.str.contains("nvjet|gemm|xmma|cutlass")
    return events.with_columns(
        name=pl.when(gemm).then(pl.lit("gemm_kernel")).otherwise(name).cast(pl.Categorical())
    )


def unannotated(events):
    step = pl.col("name").cast(pl.String).str.starts_with("ProfilerStep")
    return events.filter((pl.col("kind") != "annotation") | step)


def undescribed(events):
    return events.with_columns(group_desc=pl.lit(None, dtype=pl.Categorical()))


def nothing(events):
    return events


def bare(events):
    return without_shapes(renamed(events))


@pytest.fixture(
    params=[nothing, without_shapes, renamed, bare, unannotated, undescribed],
    ids=lambda f: f.__name__,
)
def stripped(request):
    """A way to take evidence out of a trace."""
    return request.param
