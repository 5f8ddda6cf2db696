"""Fuzz for a while: ``python -m tests.fuzz.run --seconds 60 --seed 1``.

What fails is kept in ``tests/fuzz/found``. With ``--inputs 1000000`` all targets take turns until
so many were tried, however busy the machine is.

Each input follows from the seed and its number alone, so that a failure can be made again anywhere.
"""

from __future__ import annotations

import argparse
import faulthandler
import hashlib
import os
import platform
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from importlib import import_module
from importlib.util import find_spec
from itertools import count
from multiprocessing import get_context
from pathlib import Path

FOUND = Path(__file__).parent / "found"
LONGEST_S = 60
"""Processor time of an input that hangs: the process ends and says where it was."""
LONGEST_WAIT_S = 1800
"""The same by the clock, for an input that waits and never ends."""
TARGETS = {
    "scan": ("scan", "make", "check"),
    "kineto": ("kineto", "make", "check"),
    "perfetto": ("perfetto", "make", "check"),
    "nsight": ("others", "make_nsight", "check_nsight"),
    "tools": ("tools", "make", "check"),
    "store": ("others", "make_store", "check_store"),
    "rules": ("others", "make_rules", "check_rules"),
    "redact": ("redact", "make", "check"),
    "gate": ("gate", "make", "check"),
    "saved": ("gate", "make_saved", "check_saved"),
    "query": ("query", "make", "check"),
    "agents": ("agents", "make", "check"),
    "recorders": ("recorders", "make", "check"),
    "snapshots": ("snapshots", "make", "check"),
    "forged": ("forged", "make", "check"),
    "pickles": ("pickles", "make", "check"),
    "captures": ("captures", "make", "check"),
    "clocks": ("clocks", "make", "check"),
    "alignment": ("clocks", "make", "check_alignment"),
    "archives": ("archives", "make", "check"),
    "answers": ("answers", "make", "check"),
    "listings": ("listings", "make", "check"),
    "dumps": ("dumps", "make", "check"),
    "ci": ("ci", "make", "check"),
}
"""Module of each target, its function that makes an input, and its function that tries one."""
Make = Callable[[random.Random], bytes]
Check = Callable[[bytes, Path], None]


def functions(target: str) -> tuple[Make, Check]:
    """Return what makes the inputs of a target and what tries one; only its own module is imported."""
    module_name, make_name, check_name = TARGETS[target]
    module = import_module(f"tests.fuzz.{module_name}")
    return getattr(module, make_name), getattr(module, check_name)


NEEDS = {
    "answers": ("markdown_it", "pytest"),
    "ci": ("yaml",),
    "gate": ("pytest",),
    "perfetto": ("perfetto",),
    "query": ("duckdb",),
    "saved": ("pytest",),
}
"""Packages that a target needs and that tracekit does not install by itself."""


def missing_packages(target: str) -> list[str]:
    """Return the packages that a target needs and that are not installed."""
    return [name for name in NEEDS.get(target, ()) if find_spec(name) is None]


def chooser(target: str, seed: int, number: int) -> random.Random:
    """Where everything about an input comes from."""
    return random.Random(f"{target} {seed} {number}")


def inputs(target: str, seed: int) -> Iterator[tuple[int, bytes]]:
    """Yield inputs of a target, numbered."""
    make, _ = functions(target)
    for number in count():
        yield number, make(chooser(target, seed, number))


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
    make, check = functions(target)
    # The default action, which follows, ends the process.
    faulthandler.register(signal.SIGPROF, chain=True)
    until, tried, failures = time.monotonic() + seconds, 0, 0
    with tempfile.TemporaryDirectory() as folder:
        while time.monotonic() < until:
            number = first + tried * every
            raw = make(chooser(target, seed, number))
            tried += 1
            signal.setitimer(signal.ITIMER_PROF, LONGEST_S)
            faulthandler.dump_traceback_later(LONGEST_WAIT_S, exit=True)
            try:
                check(raw, Path(folder))
            except Exception as error:
                failures += 1
                message = " ".join(f"{type(error).__name__}: {error}".split())[:200]
                sys.stdout.write(f"{target} {number}: {message}; kept as {keep(target, raw)}\n")
            finally:
                signal.setitimer(signal.ITIMER_PROF, 0)
                faulthandler.cancel_dump_traceback_later()
    return tried, failures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60, help="of one round over all targets")
    parser.add_argument(
        "--inputs", type=int, default=0, help="repeat rounds until so many inputs were tried"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--jobs", type=int, default=1, help="processes; each takes every n-th input"
    )
    parser.add_argument("--target", choices=TARGETS, action="append")
    parser.add_argument("--record", type=Path, help="file whose record is replaced: SECURITY.md")
    options = parser.parse_args()
    targets = []
    for target in options.target or list(TARGETS):
        if missing := missing_packages(target):
            sys.stdout.write(f"{target}: skipped, {', '.join(missing)} not installed\n")
        else:
            targets.append(target)
    if not targets:
        return 1
    share = options.seconds / len(targets)
    # Each process has a core: threads of its own would only wait for others. They are read at import.
    os.environ.setdefault("POLARS_MAX_THREADS", "1")
    results = dict.fromkeys(targets, (0, 0, 0.0))
    # Inputs that each process has tried of each target: its next round goes on behind them.
    tried_by_job = {target: [0] * options.jobs for target in targets}
    with ProcessPoolExecutor(
        options.jobs, mp_context=get_context("spawn")
    ) as pool:  # a process that dies fails the run
        while True:
            for target in targets:
                began = time.monotonic()
                tried_before = tried_by_job[target]
                runs = [
                    pool.submit(
                        fuzz,
                        target,
                        seed=options.seed,
                        seconds=share,
                        first=job + tried_before[job] * options.jobs,
                        every=options.jobs,
                    )
                    for job in range(options.jobs)
                ]
                tried_now, failed_now = zip(*(run.result() for run in runs), strict=True)
                tried_by_job[target] = list(map(sum, zip(tried_before, tried_now, strict=True)))
                _, failed, seconds = results[target]
                failed += sum(failed_now)
                seconds += time.monotonic() - began
                results[target] = sum(tried_by_job[target]), failed, seconds
                sys.stdout.write(f"{target}: {results[target][0]:,} inputs, {failed} failed\n")
                sys.stdout.flush()
            text = record(results, seed=options.seed, jobs=options.jobs)
            if options.record:  # also before the last round: a run of hours may be stopped
                replace_record(options.record, text)
            if sum(tried for tried, _, _ in results.values()) >= options.inputs:
                break
    sys.stdout.write(f"\n{text}")
    return 1 if any(failed for _, failed, _ in results.values()) else 0


BEGIN = "<!-- begin of the record that tests.fuzz.run --record writes -->\n"
END = "<!-- end of the record -->\n"


def record(results: Mapping[str, tuple[int, int, float]], *, seed: int, jobs: int) -> str:
    """Return a sentence and a table of a run: inputs, failures and seconds of each target."""
    tried = sum(tried for tried, _, _ in results.values())
    failed = sum(failed for _, failed, _ in results.values())
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    lines = [
        f"{tried:,} inputs over {len(results)} targets, {failed} failed: seed {seed}, {jobs} "
        f"{'process' if jobs == 1 else 'processes'}, {platform.machine()}, Python {version}.",
        "",
        "| target | inputs | failed | seconds |",
        "|---|--:|--:|--:|",
    ]
    for target, (tried_here, failed_here, seconds) in results.items():
        lines.append(f"| `{target}` | {tried_here:,} | {failed_here:,} | {seconds:.0f} |")
    return "\n".join(lines) + "\n"


def replace_record(file: Path, text: str) -> None:
    """Put a record in the place of the one in a file."""
    content = file.read_text(encoding="utf-8")
    before, _, rest = content.partition(BEGIN)
    _, _, after = rest.partition(END)
    file.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
