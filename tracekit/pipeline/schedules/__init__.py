"""Ideal pipeline schedules: generate them by name, simulate them on a clock, read and register your own.

>>> from tracekit.pipeline.schedules import Times, generate, simulate
>>> done = simulate(generate("dualpipe", pp=8, microbatches=20), Times(F=1, I=1, W=1, B=2, FB=3))
>>> done.makespan, set(done.bubble)
(66, {6})
"""

from tracekit.pipeline.schedules.blocks import BlockTimes, block, block_times
from tracekit.pipeline.schedules.ops import Op
from tracekit.pipeline.schedules.order_files import read_orders, write_orders
from tracekit.pipeline.schedules.registry import (
    Entry,
    Sizes,
    describe,
    generate,
    names,
    register,
    unregister,
)
from tracekit.pipeline.schedules.schedule import Schedule
from tracekit.pipeline.schedules.simulation import Simulation, simulate
from tracekit.pipeline.schedules.times import Times
from tracekit.pipeline.schedules.two_buffers import ReloadTimes, WeightReload, weight_reload

__all__ = [
    "BlockTimes", "Entry", "Op", "ReloadTimes", "Schedule", "Simulation", "Sizes", "Times", "WeightReload", "block",
    "block_times", "describe", "generate", "names", "read_orders", "register", "simulate", "unregister",
    "weight_reload", "write_orders",
]  # fmt: skip


def __dir__() -> list[str]:
    """Return the public names: modules of the package and private helpers are not shown."""
    return __all__
