"""Fuzz for a while: ``python -m tests.fuzz.run --seconds 60 --seed 1``.

What fails is kept in ``tests/fuzz/found``.

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
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import count
from multiprocessing import get_context
from pathlib import Path

from tests.fuzz import (
    agents,
    forged,
    gate,
    kineto,
    others,
    perfetto,
    query,
    recorders,
    redact,
    scan,
    snapshots,
)

FOUND = Path(__file__).parent / "found"
LONGEST_S = 60
"""An input that takes longer hangs: the process ends and says where it was."""
TARGETS: dict[str, tuple[Callable[[random.Random], bytes], Callable[[bytes, Path], None]]] = {
    "scan": (scan.make, scan.check),
    "kineto": (kineto.make, kineto.check),
    "perfetto": (perfetto.make, perfetto.check),
    "nsight": (others.make_nsight, others.check_nsight),
    "store": (others.make_store, others.check_store),
    "rules": (others.make_rules, others.check_rules),
    "redact": (redact.make, redact.check),
    "gate": (gate.make, gate.check),
    "saved": (gate.make_saved, gate.check_saved),
    "query": (query.make, query.check),
    "agents": (agents.make, agents.check),
    "recorders": (recorders.make, recorders.check),
    "snapshots": (snapshots.make, snapshots.check),
    "forged": (forged.make, forged.check),
}


def chooser(target: str, seed: int, number: int) -> random.Random:
    """Where everything about an input comes from."""
    return random.Random(f"{target} {seed} {number}")


def inputs(target: str, seed: int) -> Iterator[tuple[int, bytes]]:
    """Yield inputs of a target, numbered."""
    for number in count():
        yield number, TARGETS[target][0](chooser(target, seed, number))


def keep(target: str, raw: bytes) -> Path:
    """Keep an input that failed, for the tests."""
    path = FOUND / f"{target}-{hashlib.sha256(raw).hexdigest()[:12]}"
    path.write_bytes(raw)
    return path


def fuzz(
    target: str, *, seed: int, seconds: float, first: int = 0, every: int = 1
) -> tuple[int, int]:
    """Try inputs *first*, *first* + *every*, … for some seconds.

    How many were tried, and how many failed.
    """
    make, check = TARGETS[target]
    until, tried, failures = time.monotonic() + seconds, 0, 0
    with tempfile.TemporaryDirectory() as folder:
        while time.monotonic() < until:
            number = first + tried * every
            raw = make(chooser(target, seed, number))
            tried += 1
            faulthandler.dump_traceback_later(LONGEST_S, exit=True)
            try:
                check(raw, Path(folder))
            except Exception as error:
                failures += 1
                said = " ".join(f"{type(error).__name__}: {error}".split())[:200]
                sys.stdout.write(f"{target} {number}: {said}; kept as {keep(target, raw)}\n")
            finally:
                faulthandler.cancel_dump_traceback_later()
    return tried, failures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--jobs", type=int, default=1, help="processes; each takes every n-th input"
    )
    parser.add_argument("--target", choices=TARGETS, action="append")
    options = parser.parse_args()
    targets = options.target or list(TARGETS)
    share = options.seconds / len(targets)
    failures = 0
    with ProcessPoolExecutor(
        options.jobs, mp_context=get_context("spawn")
    ) as pool:  # a process that dies fails the run
        for target in targets:
            began = time.monotonic()
            same = partial(fuzz, target, seed=options.seed, seconds=share, every=options.jobs)
            done = [
                one.result()
                for one in [pool.submit(same, first=first) for first in range(options.jobs)]
            ]
            took = time.monotonic() - began
            failures += sum(failed for _, failed in done)
            sys.stdout.write(
                f"{target}: {sum(n for n, _ in done):,} inputs, seed {options.seed}, {took:.0f} s\n"
            )
            sys.stdout.flush()
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
