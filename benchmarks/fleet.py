"""Throughput, memory and shares of ``tracekit ingest`` and ``analyze`` against the number of ranks.

    python benchmarks/fleet.py curves [--ranks 16 64] [--megabytes 20] [--folder FOLDER]
        traces written, ingested and analyzed
    python benchmarks/fleet.py store STORE [--ranks 1024]
        one pipeline ingested, the tables of the others made from its own
    python benchmarks/fleet.py combine STORE [--ranks 64 256 1024]
        `tracekit analyze STORE --full`, the schedule drawn, of a store's first pipelines
    python benchmarks/fleet.py shares [--megabytes 20] [--trace TRACE]
        where one rank's time goes
    python benchmarks/fleet.py same [--ranks 128]
        one answer: from traces, and from stores made serially, by processes and by Dask

The run is synthetic (``fleet_inputs.py``). Processor seconds are what counts on a busy machine;
wall seconds are printed beside them. All but ``shares`` run in ``make nightly`` at a small size.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from fleet_inputs import PP, copied, stages, write

from tracekit.pipeline.schedules import generate
from tracekit.synthetic import Recipe, write_run

# Compiling the modules takes half a second, which pip spends once.
AS_INSTALLED = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
COMMAND = [sys.executable, "-c", "from tracekit.cli import main; main()"]


def timed(words, **options):
    """Run a command in a fresh process: wall seconds, processor seconds, peak memory of its largest process in MB."""
    code = (
        "import json, resource, subprocess, sys, time\n"
        "began = time.perf_counter()\n"
        "done = subprocess.run(sys.argv[1:], stdout=subprocess.PIPE, text=True)\n"
        "took = time.perf_counter() - began\n"
        "used = resource.getrusage(resource.RUSAGE_CHILDREN)\n"
        "print(json.dumps([done.returncode, took, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024]))\n"
        "sys.stdout.write(done.stdout)"
    )
    out = subprocess.run(
        [sys.executable, "-c", code, *map(str, words)],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        env=AS_INSTALLED,
        **options,
    ).stdout
    first, _, rest = out.partition("\n")
    code, *figures = json.loads(first)
    if code:
        raise SystemExit(f"{words}: exit code {code}")
    return figures, rest


def curves(wanted):
    folder = wanted.folder or Path(tempfile.mkdtemp(prefix="tracekit-fleet-"))
    made, texts = stages(wanted.megabytes)
    print(f"load {os.getloadavg()[0]:.1f}; {wanted.workers} workers")
    print(
        "| ranks | GB | ingest s | CPU s | MB a CPU s | peak MB a process | analyze CPU s | its peak MB |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for ranks in wanted.ranks:
        store = folder / f"store-{ranks}"
        shutil.rmtree(store, ignore_errors=True)
        size, wall, cpu, peak = ingested(made, texts, store, ranks, wanted)
        (_, cpu2, peak2), text = timed([*COMMAND, "analyze", store, "--json"])
        found = json.loads(text)
        assert len(found["ranks"]) == ranks
        assert found["schedule"]["exact"]
        print(f"| {ranks} | {size / 1e3:.2f} | {wall:.0f} | {cpu:.0f} | {size / cpu:.1f} | {peak:.0f} | {cpu2:.1f} "
              f"| {peak2:.0f} |", flush=True)  # fmt: skip
        if not wanted.keep:
            shutil.rmtree(store)


def ingested(made, texts, store, ranks, wanted):
    """Write the traces and ingest them, a piece at a time: megabytes, wall and processor seconds, the largest peak."""
    total, replicas, traces = (
        [0.0, 0.0, 0.0, 0.0],
        range(ranks // PP),
        store.with_name(f"traces-{ranks}"),
    )
    for first in replicas[:: wanted.piece // PP]:
        write(made, texts, traces, ranks, replicas[first : first + wanted.piece // PP])
        size = sum(file.stat().st_size for file in traces.iterdir()) / 1e6
        words = [
            "ingest",
            traces,
            "-o",
            store,
            "--workers",
            wanted.workers,
            *(["--resume"] if first else []),
        ]
        (wall, cpu, peak), _ = timed([*COMMAND, *words])
        total = [total[0] + size, total[1] + wall, total[2] + cpu, max(total[3], peak)]
        print(
            f"{first * PP} of {ranks}: {wall:.0f} s, {cpu:.1f} CPU s, {peak:.0f} MB",
            file=sys.stderr,
            flush=True,
        )
        shutil.rmtree(traces)
    return total


def store(wanted):
    """Ingest the first pipeline of a run.

    Write the tables of the others, which differ in numbers alone.
    """
    from tracekit.analysis.persistence import read_tables
    from tracekit.rooms import ROOM_MEASURES
    from tracekit.store.files import open_store
    from tracekit.store.writer import StoreWriter

    place, ranks = Path(wanted.store), wanted.ranks[-1]
    first, traces = place.with_name(f"{place.name}.first"), place.with_name(f"{place.name}.traces")
    made, texts = stages(wanted.megabytes)
    write(made, texts, traces, ranks, [0])
    timed([*COMMAND, "ingest", traces, "-o", first, "--workers", wanted.workers])
    shutil.rmtree(traces)
    one = open_store(first)
    tables = [read_tables(first / f"rank={rank}", rooms=ROOM_MEASURES) for rank in one.ranks]
    entries = []
    for replica in range(ranks // PP):
        for entry, own in zip(one.entries, tables, strict=True):
            entries.append(copied(entry, own, replica, place))
    StoreWriter(
        place, one.labelled_by, entries={entry.rank: entry for entry in entries}, complete=True
    ).write()
    shutil.rmtree(first)


def combine(wanted):
    """Processor seconds and peak memory of the whole command on stores of the first pipelines of *wanted.store*."""
    print(f"load {os.getloadavg()[0]:.1f}")
    print("| ranks | CPU s | s | peak MB | JSON |")
    print("|---|---|---|---|---|")
    for ranks in wanted.ranks:
        with tempfile.TemporaryDirectory(prefix="tracekit-fleet-") as folder:
            store, answer = Path(folder) / "store", Path(folder) / "answer.json"
            first_ranks(Path(wanted.store), ranks, store)
            (wall, cpu, peak), _ = timed([*COMMAND, "analyze", store, "--full", "-o", answer])
            text = answer.read_text(encoding="utf-8")
        assert len(json.loads(text)["ranks"]) == ranks
        print(f"| {ranks} | {cpu:.1f} | {wall:.0f} | {peak:.0f} | {digest(text)[:8]} |", flush=True)


def first_ranks(place, ranks, target):
    """Make a store of the first *ranks* ranks of another one, its first pipelines; tables are linked, not copied."""
    from tracekit.store.files import open_store
    from tracekit.store.writer import StoreWriter

    whole = open_store(place)
    replicas = len(whole.entries) // PP
    kept = [entry for entry in whole.entries if entry.rank % replicas < ranks // PP]
    target.mkdir()
    for entry in kept:
        (target / f"rank={entry.rank}").symlink_to((place / f"rank={entry.rank}").resolve())
    entries = {entry.rank: entry for entry in kept}
    StoreWriter(target, whole.labelled_by, entries=entries, complete=True).write()


def shares(wanted):
    """Processor seconds of each part of one rank's work, the best of three."""
    from tracekit.analysis.measure.tables import label_rank, measure_rank
    from tracekit.analysis.persistence import write_tables
    from tracekit.classify import classify
    from tracekit.rooms import ROOM_MEASURES
    from tracekit.store.files import write_rank
    from tracekit.store.sources import find, read_ref

    with tempfile.TemporaryDirectory() as folder:
        traces = wanted.trace or Path(folder) / "traces"
        if wanted.trace is None:
            write(*stages(wanted.megabytes), traces, PP)
        ref = find(traces).refs[0]
        best = {}
        for turn in range(4):  # the first compiles and warms
            at = [time.process_time()]
            part = read_ref(ref)[0]
            at.append(time.process_time())
            labelled = classify(part.events)
            at.append(time.process_time())
            tables = measure_rank(label_rank(part, labelled=labelled), rooms=ROOM_MEASURES)
            at.append(time.process_time())
            target = Path(folder) / str(turn)
            target.mkdir()
            write_rank(
                target,
                part,
                labelled,
                beside=lambda place, tables=tables: write_tables(tables, place),
            )
            at.append(time.process_time())
            parts = ("parse", "label", "measure", "write")
            spent = {
                name: b - a for name, (a, b) in zip(parts, itertools.pairwise(at), strict=True)
            }
            if turn:
                best = {name: min(s, best.get(name, s)) for name, s in spent.items()}
        total = sum(best.values())
        size = Path(ref.path).stat().st_size / 1e6
        print(
            f"one rank of {size:.1f} MB, {len(part.events):,} events, {len(labelled):,} of them on the GPU:"
        )
        for name, seconds in best.items():
            print(
                f"  {name:8} {seconds:6.2f} s  {seconds / total:5.1%}  {size / seconds:7.1f} MB/s"
            )
        kilobytes = (target / f"rank={ref.rank}" / "tables.zip").stat().st_size / 1e3
        print(
            f"  all      {total:6.2f} s          {size / total:7.1f} MB/s; tables that cross ranks: {kilobytes:.0f} kB"
        )


def same(wanted):
    """Check that the JSON of an analysis does not depend on who did the work."""
    with tempfile.TemporaryDirectory(prefix="tracekit-fleet-") as folder:
        place = Path(folder)
        ranks = wanted.ranks[-1]
        tiny = Recipe(
            generate("1f1b", pp=PP, microbatches=2),
            replicas=ranks // PP,
            layers=1,
            jitter=0.05,
            p2p_ns=20_000,
        )
        write_run(tiny, place / "traces")
        (_, cpu, _), text = timed([*COMMAND, "analyze", place / "traces", "--json", "--workers", 1])
        print(f"from traces: {cpu:.0f} CPU s", flush=True)
        answers = {"traces": digest(text)}
        with dask(place) as address:
            ways = {
                "serially": ["--workers", 1],
                "processes": ["--workers", 2],
                "Dask": ["--dask", address],
            }
            for name, words in ways.items():
                store = place / "store"
                shutil.rmtree(store, ignore_errors=True)
                timed([*COMMAND, "ingest", place / "traces", "-o", store, *words])
                (_, cpu, _), text = timed([*COMMAND, "analyze", store, "--json"])
                print(f"store written {name}: {cpu:.0f} CPU s to analyze", flush=True)
                answers[name] = digest(text)
    print(f"{ranks} ranks, {len(text) / 1e6:.1f} MB of JSON: {answers}")
    if len(set(answers.values())) > 1:
        raise SystemExit("the answers differ")


def digest(text):
    """The digest of an analysis without the paths that it was read from."""
    document = json.loads(text)
    document["source"]["paths"] = None
    return hashlib.sha256(json.dumps(document).encode()).hexdigest()[:16]


@contextlib.contextmanager
def dask(place):
    """A scheduler and two workers on loopback."""
    started = []
    try:
        file = place / "scheduler.json"
        words = [
            sys.executable,
            "-m",
            "distributed.cli.dask_scheduler",
            "--host",
            "127.0.0.1",
            "--port",
            "0",
        ]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "cwd": place}
        started.append(
            subprocess.Popen([*words, "--no-dashboard", "--scheduler-file", str(file)], **quiet)
        )
        while not (file.exists() and file.read_text().strip().endswith("}")):
            time.sleep(0.1)
        address = json.loads(file.read_text())["address"]
        worker = [
            sys.executable,
            "-m",
            "distributed.cli.dask_worker",
            address,
            "--nthreads",
            "1",
            "--no-dashboard",
        ]
        started += [subprocess.Popen(worker, **quiet) for _ in range(2)]
        ready = (
            f"from distributed import Client\nClient('{address}').wait_for_workers(2, timeout=120)"
        )
        subprocess.run([sys.executable, "-c", ready], check=True)
        yield address
    finally:
        for process in started:
            process.terminate()
            process.wait()


def main():
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("what", choices=("curves", "store", "combine", "shares", "same"))
    options.add_argument(
        "store", nargs="?", help="combine: a store that ingest wrote; store: where to write one"
    )
    options.add_argument("--ranks", type=int, nargs="+", default=[16, 32, 64, 128, 256])
    options.add_argument("--megabytes", type=float, default=20)
    options.add_argument(
        "--trace", type=Path, help="shares: of this trace instead of a synthetic one"
    )
    options.add_argument("--workers", type=int, default=2)
    options.add_argument("--piece", type=int, default=128, help="traces on disk at a time")
    options.add_argument("--folder", type=Path)
    options.add_argument(
        "--keep", action="store_true", help="leave traces and stores in the folder"
    )
    wanted = options.parse_args()
    parts = {
        "curves": curves,
        "store": store,
        "combine": combine,
        "shares": shares,
        "same": same,
    }
    parts[wanted.what](wanted)


if __name__ == "__main__":
    main()
