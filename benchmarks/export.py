"""Time and memory of an export of a large trace (a real one, repeated), measured in its own process.

python benchmarks/export.py --megabytes 1000
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from inputs import make

CODE = """
import json, resource, sys, threading, time
import tracekit.run.export as module

peak = {"now": 0}
def watch():
    while True:
        with open("/proc/self/statm") as file:
            peak["now"] = max(peak["now"], int(file.read().split()[1]) * 4096)
        time.sleep(0.02)
threading.Thread(target=watch, daemon=True).start()
parts = {}
def measured(name):
    function = getattr(module, name)
    def timed(*args, **options):
        peak["now"], start = 0, time.perf_counter()
        result = function(*args, **options)
        parts[name] = {"s": round(time.perf_counter() - start, 1), "peak_mb": peak["now"] // 1_000_000}
        return result
    setattr(module, name, timed)
for name in ("ingest", "analyze", "write_perfetto"):
    measured(name)
done = module.export(sys.argv[1], sys.argv[2])
print(json.dumps({"events": done.events, **parts}))
"""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--megabytes", type=int, nargs="+", default=[250, 500, 1000])
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for megabytes in args.megabytes:
            trace, out = Path(folder) / "rank0.json", Path(folder) / "out.json.gz"
            make(trace, megabytes)
            ran = subprocess.run(
                [sys.executable, "-c", CODE, trace, out], capture_output=True, text=True, check=True
            )
            found = json.loads(ran.stdout)
            print(f"{megabytes} MB in, {out.stat().st_size / 1e6:.0f} MB out: {found}", flush=True)


if __name__ == "__main__":
    main()
