"""Weight updates of a running inference engine, and the ideal they are compared with.

``transfers`` finds the copies and broadcasts of each process, ``buckets`` matches them across
processes, ``updates`` measures every update against the two-buffer ideal, which ``two_buffers``
simulates, and ``summary`` gives the figures by rank and lane of a run whose processes both
broadcast and reload.

>>> from tracekit.weight_updates import ReloadTimes, weight_reload
>>> weight_reload(4, 2, ReloadTimes(H2D=4, BROADCAST=1, RELOAD=1)).makespan
17
"""

from tracekit.weight_updates.transfers import UpdateProcess, reload_events
from tracekit.weight_updates.two_buffers import ReloadTimes, WeightReload, weight_reload
from tracekit.weight_updates.updates import find_weight_updates

__all__ = [
    "ReloadTimes",
    "UpdateProcess",
    "WeightReload",
    "find_weight_updates",
    "reload_events",
    "weight_reload",
]
