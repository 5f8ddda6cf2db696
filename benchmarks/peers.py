"""Time and memory of tracekit, ``json.loads`` and other tools on the same traces, each in its own process.

    python benchmarks/peers.py --only tracekit,json

    python -m venv /tmp/hta && /tmp/hta/bin/pip install traceinsight
    python -m venv /tmp/tracelens && /tmp/tracelens/bin/pip install git+https://github.com/AMD-AGI/TraceLens
    python benchmarks/peers.py --hta /tmp/hta/bin/python --tracelens /tmp/tracelens/bin/python

    python -m venv /tmp/nsys-ai && /tmp/nsys-ai/bin/pip install nsys-ai
    python benchmarks/peers.py rank0.sqlite --nsys-ai /tmp/nsys-ai/bin/python

Without a trace, the sample ``1f1b`` is repeated to the ``--megabytes`` that are asked for;
``--repeat TRACE`` repeats another one, such as a trace as the profiler wrote it. The first form needs
tracekit and the standard library alone.

Whole processes, imports and all, as their user waits for them: processor seconds (what counts on a
busy machine), wall seconds and peak memory. Tools take turns, and the best of all rounds counts. A
tool that is not there, or cannot read the trace, has a row that says why.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

if __name__ == "__main__":  # a script's folder is on the path, the repository is not
    sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.inputs import SAMPLE, make

ANALYZE = "import sys; from tracekit.cli import main; sys.argv[1:1] = ['analyze']; main()"
LOAD = "import sys, tracekit; tracekit.load(sys.argv[1]).parts[0].events"
JSON = (
    "import gzip, json, sys; opened = gzip.open if sys.argv[1].endswith('.gz') else open; "
    "json.loads(opened(sys.argv[1], 'rb').read())"
)
HTA_TABLE = (
    "import sys; from hta.common.trace_parser import parse_trace_dataframe; "
    "from hta.configs.parser_config import ParserConfig; "
    "parse_trace_dataframe(sys.argv[1], ParserConfig.get_default_cfg())"
)
HTA_ANSWERS = (
    "import sys; from hta.trace_analysis import TraceAnalysis; "
    "t = TraceAnalysis(trace_files={0: sys.argv[1]}, trace_dir='/', include_last_profiler_step=True); "
    "t.get_temporal_breakdown(visualize=False); t.get_comm_comp_overlap(visualize=False)"
)
TRACELENS_TIMELINE = (
    "import sys; from TraceLens import TreePerfAnalyzer; "
    "TreePerfAnalyzer.from_file(sys.argv[1]).get_df_gpu_timeline()"
)
TRACELENS_ANSWERS = (
    "import sys; from TraceLens import TreePerfAnalyzer; "
    "t = TreePerfAnalyzer.from_file(sys.argv[1]); t.get_df_gpu_timeline(); "
    "k = t.get_df_kernel_launchers(include_kernel_details=True); t.get_df_kernel_launchers_summary(k)"
)
NSYS_AI = (
    "import runpy, sys; sys.argv[:1] = ['nsys-ai', 'evidence', 'build']; "
    "runpy.run_module('nsys_ai', run_name='__main__')"
)


@dataclass(frozen=True)
class Way:
    """One way to read a trace."""

    tool: str
    answers: str
    code: str


KINETO = (
    Way("tracekit", "all events in a table", LOAD),
    Way(
        "tracekit",
        "`analyze`: step time and findings, labels, overlap, exposed communication with causes, idle time with causes, "
        "critical path, kernels, rates",
        ANALYZE,
    ),
    Way("json", "nothing: the file as Python objects", JSON),
    Way("hta", "events in a table", HTA_TABLE),
    Way("hta", "busy and idle time, overlap of communication", HTA_ANSWERS),
    Way("tracelens", "GPU timeline: busy, exposed communication, idle", TRACELENS_TIMELINE),
    Way("tracelens", "the same, and kernels by the operator that launched them", TRACELENS_ANSWERS),
)
NSIGHT = (*KINETO[:2], Way("nsys-ai", "evidence", NSYS_AI))
NAMES = {
    "tracekit": "tracekit",
    "json": "`json.loads`",
    "hta": "HTA",
    "tracelens": "TraceLens",
    "nsys-ai": "nsys-ai",
}
RUNNER = """
import json, resource, subprocess, sys, time
began = time.perf_counter()
done = subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
took, used = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
print(json.dumps([done.returncode, used.ru_utime + used.ru_stime, took, used.ru_maxrss / 1024, done.stderr[-400:]]))
"""


@dataclass(frozen=True)
class Measured:
    """What one process took."""

    cpu_s: float
    wall_s: float
    peak_mb: float


def measure(python: str, code: str, trace: Path) -> Measured | str:
    """Run *code* on a trace in a process of its own; return the last line of its errors if it failed."""
    words = [sys.executable, "-c", RUNNER, python, "-W", "ignore", "-c", code, str(trace)]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    if python != sys.executable:
        environment.pop("PYTHONPATH")
    done = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True, env=environment)
    code_returned, cpu_s, wall_s, peak_mb, errors = json.loads(done.stdout)
    if code_returned:
        last_line = (errors.strip().splitlines() or ["it failed"])[-1]
        return str(last_line[:80])
    return Measured(cpu_s, wall_s, peak_mb)


def measure_in_turns(
    ways: tuple[Way, ...], pythons: dict[str, str | None], trace: Path, rounds: int
) -> dict[Way, Measured | str]:
    """Return the best of several rounds for each way; within a round the ways take turns."""
    best: dict[Way, Measured | str] = {}
    for _ in range(rounds):
        for way in ways:
            python = pythons[way.tool]
            if python is None:
                best[way] = "not installed"
                continue
            result = measure(python, way.code, trace)
            previous = best.get(way)
            both_measured = isinstance(result, Measured) and isinstance(previous, Measured)
            if both_measured and previous.cpu_s <= result.cpu_s:
                continue
            best[way] = result
    return best


def print_table(title: str, results: dict[Way, Measured | str]) -> None:
    """Print a Markdown table; the last column is the processor time over that of `tracekit analyze`."""
    own = [
        result
        for way, result in results.items()
        if way.code == ANALYZE and isinstance(result, Measured)
    ]
    print(f"\n{title}\n\n| tool | answers | CPU s | s | peak MB | × `analyze` |")
    print("|---|---|--:|--:|--:|--:|")
    for way, result in results.items():
        name = NAMES[way.tool]
        if isinstance(result, str):
            print(f"| {name} | {result} | | | | |", flush=True)
            continue
        ratio = f"{result.cpu_s / own[0].cpu_s:.1f}" if own else ""
        figures = f"{result.cpu_s:.1f} | {result.wall_s:.1f} | {result.peak_mb:,.0f} | {ratio}"
        print(f"| {name} | {way.answers} | {figures} |", flush=True)


def main() -> None:
    """Measure the tools that are asked for on each trace."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "traces", type=Path, nargs="*", help="read these instead of repeated traces"
    )
    parser.add_argument("--only", default="", help="tools, such as tracekit,json")
    parser.add_argument("--megabytes", default="10,50", help="sizes of repeated traces")
    parser.add_argument("--repeat", type=Path, action="append", help="traces to repeat")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--hta", help="a Python that has traceinsight")
    parser.add_argument("--tracelens", help="a Python that has TraceLens")
    parser.add_argument("--nsys-ai", help="a Python that has nsys-ai")
    wanted = parser.parse_args()
    pythons = {
        "tracekit": sys.executable,
        "json": sys.executable,
        "hta": wanted.hta,
        "tracelens": wanted.tracelens,
        "nsys-ai": wanted.nsys_ai,
    }
    tools = wanted.only.split(",") if wanted.only else list(pythons)
    if unknown := set(tools) - set(pythons):
        parser.error(f"--only {','.join(sorted(unknown))}: choose from {', '.join(pythons)}")
    load = "" if not hasattr(os, "getloadavg") else f", load {os.getloadavg()[0]:.1f}"
    machine = f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"
    print(f"{machine}{load}; best of {wanted.rounds} rounds in turns")
    with tempfile.TemporaryDirectory() as folder:
        inputs = [(f"{path.name}", path) for path in wanted.traces]
        if not inputs:
            for trace in wanted.repeat or [SAMPLE]:
                for megabytes in map(int, wanted.megabytes.split(",")):
                    out = Path(folder) / f"{len(inputs)}.json"
                    copies = make(out, megabytes, trace)
                    inputs.append((f"{trace.parent.name}/{trace.name}, {copies} times", out))
        for name, path in inputs:
            ways = NSIGHT if path.suffix == ".sqlite" else KINETO
            chosen = tuple(way for way in ways if way.tool in tools)
            results = measure_in_turns(chosen, pythons, path, wanted.rounds)
            print_table(f"{name}: {path.stat().st_size / 1e6:.0f} MB", results)


if __name__ == "__main__":
    main()
