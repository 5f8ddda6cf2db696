"""In the training loop: record what tracekit needs, and read the answer in the log.

    with tracekit.profiler("traces", steps=(10, 3)) as recorder:
        for batch in data:
            train(batch)
            recorder.step()

PyTorch is imported here and nowhere else, and only when a recorder is made.

>>> handler("traces", rank=0, world_size=2).place.of(1).name
'rank1.pt.trace.json.gz'
"""

from __future__ import annotations

from tracekit.record.callbacks import lightning_callback, transformers_callback
from tracekit.record.handler import Handler, handler
from tracekit.record.recorder import Recorder, profiler

__all__ = ["Handler", "Recorder", "handler", "lightning_callback", "profiler", "transformers_callback"]
