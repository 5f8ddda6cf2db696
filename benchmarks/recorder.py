"""Cost of the recorder outside the recorded steps: the time of one ``step()`` call.

    python benchmarks/recorder.py

Needs no GPU: PyTorch's profiler does not exist until the recorded steps begin.
"""

from __future__ import annotations

import argparse
import tempfile
import time

from tracekit.record import profiler

CALLS = 1_000_000


def main() -> None:
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    folder = tempfile.mkdtemp()
    with profiler(folder, steps=(10 * CALLS, 1), rank=0, world_size=1, answer=False) as recorder:
        began = time.perf_counter()
        for _ in range(CALLS):
            recorder.step()
        each_ns = (time.perf_counter() - began) / CALLS * 1e9
    print(
        f"a step outside the recorded ones: {each_ns:.0f} ns, {each_ns / 1e8:.7%} of a step of 100 ms"
    )


if __name__ == "__main__":
    main()
