"""Fuzz for a while: ``python -m tests.fuzz.run --seconds 60 --seed 1``.

What fails is kept in ``tests/fuzz/found``.

Each input follows from the seed and its number alone, so that a failure can be made again anywhere.
"""

from __future__ import annotations

import argparse
import faulthandler
import hashlib
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from importlib.util import find_spec
from itertools import count
from multiprocessing import get_context
from pathlib import Path

from tests.fuzz import (
    agents,
    answers,
    archives,
    captures,
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
    "captures": (captures.make, captures.check),
    "archives": (archives.make, archives.check),
    "answers": (answers.make, answers.check),
}
NEEDS = {"query": ("duckdb",), "answers": ("markdown_it",)}
"""Packages that a target needs and that tracekit does not install by itself."""


def missing_packages(target: str) -> list[str]:
    """Return the packages that a target needs and that are not installed."""
    return [name for name in NEEDS.get(target, ()) if find_spec(name) is None]


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
                message = " ".join(f"{type(error).__name__}: {error}".split())[:200]
                sys.stdout.write(f"{target} {number}: {message}; kept as {keep(target, raw)}\n")
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
    targets = []
    for target in options.target or list(TARGETS):
        if missing := missing_packages(target):
            sys.stdout.write(f"{target}: skipped, {', '.join(missing)} is not installed\n")
        else:
            targets.append(target)
    if not targets:
        return 1
    share = options.seconds / len(targets)
    # Each process has a core: threads of its own would only wait for others. They are read at import.
    os.environ.setdefault("POLARS_MAX_THREADS", "1")
    failures = total = 0
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
            failed = sum(failed for _, failed in done)
            failures += failed
            tried = sum(tried for tried, _ in done)
            total += tried
            sys.stdout.write(
                f"{target}: {tried:,} inputs, seed {options.seed}, {took:.0f} s, {failed} failed\n"
            )
            sys.stdout.flush()
    sys.stdout.write(f"{total:,} inputs over {len(targets)} targets, {failures} failed\n")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
