"""Weight updates of a running inference engine, held against the two-buffer ideal (schedule ``weight-reload``).

``transfers`` finds the copies and broadcasts of each process, ``buckets`` matches them across
processes, ``updates`` measures every update against its ideal, and ``summary`` gives the figures by
rank and lane of a run whose processes both broadcast and reload.

>>> from tracekit import load
>>> reload_events(load("sample_traces/reload", ranks=[0]).labelled).columns
['rank', 'lane', 'start_ns', 'end_ns', 'bytes']
"""

from tracekit.roles.weight_updates.transfers import UpdateProcess, reload_events
from tracekit.roles.weight_updates.updates import find_weight_updates

__all__ = ["UpdateProcess", "find_weight_updates", "reload_events"]
