"""Throughput, memory and shares of ``tracekit ingest`` and ``analyze`` against the number of ranks.

    python benchmarks/fleet.py curves [--ranks 16 64] [--megabytes 20] [--folder FOLDER]
        traces written, ingested and analyzed
    python benchmarks/fleet.py store STORE [--ranks 1024]
        one pipeline ingested, the tables of the others made from its own
    python benchmarks/fleet.py combine STORE [--ranks 64 256 1024] [--workers 1]
        a store's tables read and put together, with findings
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
import multiprocessing
import os
import shutil
import subprocess
import sys
import tempfile
import threading
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
    from tracekit.store.files import open_store
    from tracekit.store.writer import StoreWriter

    place, ranks = Path(wanted.store), wanted.ranks[-1]
    first, traces = place.with_name(f"{place.name}.first"), place.with_name(f"{place.name}.traces")
    made, texts = stages(wanted.megabytes)
    write(made, texts, traces, ranks, [0])
    timed([*COMMAND, "ingest", traces, "-o", first, "--workers", wanted.workers])
    shutil.rmtree(traces)
    one = open_store(first)
    tables = [read_tables(first / f"rank={rank}") for rank in one.ranks]
    entries = []
    for replica in range(ranks // PP):
        for entry, own in zip(one.entries, tables, strict=True):
            entries.append(copied(entry, own, replica, place))
    StoreWriter(
        place, one.labelled_by, entries={entry.rank: entry for entry in entries}, complete=True
    ).write()
    shutil.rmtree(first)


def combine(wanted):
    """Processor seconds of reading a store's tables and putting them together: its first pipelines, alone or shared."""
    print(f"load {os.getloadavg()[0]:.1f}")
    print(
        "| ranks | workers | reading, CPU s | combining, CPU s | of it workers | s | peak MB | of a worker | JSON |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    for ranks in wanted.ranks:
        for workers in sorted({1, wanted.workers}):
            words = [
                sys.executable,
                __file__,
                "combine-one",
                wanted.store,
                "--ranks",
                ranks,
                "--workers",
                workers,
            ]
            words = list(map(str, words))
            print(
                subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True).stdout.strip(),
                flush=True,
            )


def combine_one(wanted):
    """One row of ``combine``, in a process of its own."""
    from tracekit.analysis.combine.combine_ranks import combine as together
    from tracekit.analysis.persistence import TableInFile
    from tracekit.results import AnalysisResult
    from tracekit.run.driver import find_sources, pipeline_map
    from tracekit.run.measure import Options

    refs = find_sources(wanted.store).refs
    replicas = len(refs) // PP
    refs = [ref for at, ref in enumerate(refs) if at % replicas < wanted.ranks[0] // PP]
    options = Options().for_ranks(len(refs))
    tables = list(options.stored_tables(refs).values())
    assert len(tables) == len(refs)
    late = [0.0]  # what combining reads itself is reading, too
    read_later = TableInFile.load

    def reading(self):
        since = time.process_time()
        try:
            return read_later(self)
        finally:
            late[0] += time.process_time() - since

    TableInFile.load = reading
    read, began = os.times(), time.perf_counter()
    peaks = watched_peaks()
    found = together(tables, schedule="auto", map_function=pipeline_map(wanted.workers, None))
    text = AnalysisResult.of(found).to_json()  # with findings
    done, took = os.times(), time.perf_counter() - began
    own, others = (done.user + done.system - read.user - read.system,
                   done.children_user + done.children_system - read.children_user - read.children_system)  # fmt: skip
    peak, first = peak_mb("self"), read.user + read.system + late[0]
    print(f"| {len(tables)} | {wanted.workers} | {first:.1f} | {own + others - late[0]:.1f} | {others:.1f} "
          f"| {took:.0f} | {peak:.0f} | {max(peaks.values(), default=0):.0f} | {digest(text)[:8]} |")  # fmt: skip


def peak_mb(process):
    """The most memory a process has had.

    What it was forked from does not count, as it does for its parent.
    """
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM")), 0.0)


def watched_peaks():
    """Peaks of this process's children, filled in while they run."""
    peaks = {}

    def watch():
        while True:
            for process in multiprocessing.active_children():
                with contextlib.suppress(OSError):
                    peaks[process.pid] = max(peaks.get(process.pid, 0), peak_mb(process.pid))
            time.sleep(0.2)

    threading.Thread(target=watch, daemon=True).start()
    return peaks


def shares(wanted):
    """Processor seconds of each part of one rank's work, the best of three."""
    from tracekit.analysis.measure.tables import rank_tables
    from tracekit.analysis.persistence import write_tables
    from tracekit.classify import classify
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
            tables = rank_tables(part, labelled=labelled)
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
    options.add_argument(
        "what", choices=("curves", "store", "combine", "combine-one", "shares", "same")
    )
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
        "combine-one": combine_one,
        "shares": shares,
        "same": same,
    }
    parts[wanted.what](wanted)


if __name__ == "__main__":
    main()
