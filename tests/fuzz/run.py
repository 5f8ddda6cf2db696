"""Fuzz for a while: ``python -m tests.fuzz.run --seconds 60 --seed 1``; what fails is kept in ``tests/fuzz/found``.

Each input follows from the seed and its number alone, so that a failure can be made again anywhere.
"""

from __future__ import annotations

import argparse
import faulthandler
import hashlib
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.fuzz import kineto, others, scan

FOUND = Path(__file__).parent / "found"
LONGEST_S = 60
"""An input that takes longer hangs: the process ends and says where it was."""
TARGETS: dict[str, tuple[Callable[[random.Random], bytes], Callable[[bytes, Path], None]]] = {
    "scan": (scan.make, scan.check),
    "kineto": (kineto.make, kineto.check),
    "nsight": (others.make_nsight, others.check_nsight),
    "store": (others.make_store, others.check_store),
    "rules": (others.make_rules, others.check_rules),
}


def inputs(target: str, seed: int, first: int = 0) -> Iterator[tuple[int, bytes]]:
    """Yield inputs of a target, numbered."""
    number = first
    while True:
        yield number, TARGETS[target][0](random.Random(f"{target} {seed} {number}"))
        number += 1


def keep(target: str, raw: bytes) -> Path:
    """Keep an input that failed, for the tests."""
    path = FOUND / f"{target}-{hashlib.sha256(raw).hexdigest()[:12]}"
    path.write_bytes(raw)
    return path


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--target", choices=TARGETS, action="append")
    options = parser.parse_args()
    failures = 0
    for target in options.target or TARGETS:
        share = options.seconds / len(options.target or TARGETS)
        began, count = time.monotonic(), 0
        with tempfile.TemporaryDirectory() as folder:
            for number, raw in inputs(target, options.seed):
                if time.monotonic() - began > share:
                    break
                count += 1
                faulthandler.dump_traceback_later(LONGEST_S, exit=True)
                try:
                    TARGETS[target][1](raw, Path(folder))
                except Exception as error:
                    failures += 1
                    said = " ".join(f"{type(error).__name__}: {error}".split())[:200]
                    sys.stdout.write(f"{target} {number}: {said}; kept as {keep(target, raw)}\n")
                finally:
                    faulthandler.cancel_dump_traceback_later()
        took = time.monotonic() - began
        sys.stdout.write(f"{target}: {count:,} inputs, seed {options.seed}, {took:.0f} s\n")
        sys.stdout.flush()
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
