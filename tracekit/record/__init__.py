"""Recording inside the training loop: one trace per rank, and the answer in the log.

    with tracekit.profiler("traces", steps=(10, 5)) as recorder:
        for batch in data:
            train(batch)
            recorder.step()

PyTorch is imported only by this package, and only when a recorder is created.

>>> handler("traces", rank=0, world_size=2).process.file_of(1).name
'rank1.pt.trace.json.gz'
"""

from tracekit.record.handler import Handler, handler
from tracekit.record.recorder import Recorder, lightning_callback, profiler, transformers_callback
from tracekit.record.slow_steps import SlowStepDumps, dump_flight_recorder

__all__ = [
    "Handler",
    "Recorder",
    "SlowStepDumps",
    "dump_flight_recorder",
    "handler",
    "lightning_callback",
    "profiler",
    "transformers_callback",
]
