"""Time and memory of tracekit and of other tools on the same trace, each in its own process.

    python -m venv /tmp/hta && /tmp/hta/bin/pip install traceinsight
    python -m venv /tmp/peers && /tmp/peers/bin/pip install nsys-ai perfetto
    /tmp/peers/bin/pip install git+https://github.com/AMD-AGI/TraceLens
    python benchmarks/peers.py big.json --hta /tmp/hta/bin/python --peers /tmp/peers/bin/python
    python benchmarks/peers.py rank0.sqlite --peers /tmp/peers/bin/python

Whole processes, imports and all, as their user waits for them: processor seconds (what counts on a
busy machine), wall seconds and peak memory. A tool that is not there, or cannot read the trace, has
a row that says why.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

CLI = "import sys; from tracekit.cli import main; sys.argv[1:1] = ['analyze']; main()"
KINETO = {
    "tracekit: events in a table": ("tracekit", "import sys, tracekit; tracekit.load(sys.argv[1])"),
    "tracekit: `analyze`, all of it": ("tracekit", CLI),
    "HTA: events in a table": (
        "hta",
        "import sys; from hta.common.trace_parser import parse_trace_dataframe; "
        "from hta.configs.parser_config import ParserConfig; "
        "parse_trace_dataframe(sys.argv[1], ParserConfig.get_default_cfg())",
    ),
    "HTA: temporal breakdown, overlap": (
        "hta",
        "import sys; from hta.trace_analysis import TraceAnalysis; t = TraceAnalysis(trace_files={0: sys.argv[1]}); "
        "t.get_temporal_breakdown(visualize=False); t.get_comm_comp_overlap(visualize=False)",
    ),
    "TraceLens: GPU timeline": (
        "peers",
        "import sys; from TraceLens import TreePerfAnalyzer; "
        "TreePerfAnalyzer.from_file(sys.argv[1]).get_df_gpu_timeline()",
    ),
    "Perfetto's trace processor: one count": (
        "peers",
        "import sys; from perfetto.trace_processor import TraceProcessor; "
        "list(TraceProcessor(trace=sys.argv[1]).query('select count(*) from slice'))",
    ),
}
NSIGHT = {
    "tracekit: events in a table": KINETO["tracekit: events in a table"],
    "tracekit: `analyze`, all of it": ("tracekit", CLI),
    "nsys-ai: evidence": (
        "peers",
        "import runpy, sys; sys.argv[:1] = ['nsys-ai', 'evidence', 'build']; "
        "runpy.run_module('nsys_ai', run_name='__main__')",
    ),
}
RUNNER = """
import json, resource, subprocess, sys, time
began = time.perf_counter()
done = subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
took, used = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
print(json.dumps([done.returncode, used.ru_utime + used.ru_stime, took, used.ru_maxrss / 1024, done.stderr[-400:]]))
"""


def measure(python, code, trace):
    """Exit code, processor seconds, wall seconds, peak memory in MB, and the end of stderr."""
    words = [sys.executable, "-c", RUNNER, python, "-W", "ignore", "-c", code, str(trace)]
    return json.loads(subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True).stdout)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("trace", type=Path)
    parser.add_argument("--hta", help="a Python that has traceinsight")
    parser.add_argument("--peers", help="a Python that has TraceLens, nsys-ai and perfetto")
    wanted = parser.parse_args()
    pythons = {"tracekit": sys.executable, "hta": wanted.hta, "peers": wanted.peers}
    print(
        f"{wanted.trace.stat().st_size / 1e6:.0f} MB\n\n| tool | CPU s | s | peak MB |\n|---|---|---|---|"
    )
    for name, (which, code) in (NSIGHT if wanted.trace.suffix == ".sqlite" else KINETO).items():
        if pythons[which] is None:
            print(f"| {name} | not installed | | |", flush=True)
            continue
        failed, cpu, seconds, peak, said = measure(pythons[which], code, wanted.trace)
        last = (said.strip().splitlines() or ["it failed"])[-1][:80]
        print(
            f"| {name} | {last} | | |"
            if failed
            else f"| {name} | {cpu:.1f} | {seconds:.1f} | {peak:.0f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
