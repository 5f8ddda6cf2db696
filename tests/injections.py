"""Names that try to be more than names, in every place of a trace that reaches an output."""

from __future__ import annotations

import json

MARK = "PWNED"
"""What a browser's page or title holds only if one of the names was run."""
NAMES = (
    "<img src=x onerror=\"window.PWNED=1;document.title='PWNED'\">",
    "</script><script>window.PWNED=2;document.title='PWNED'</script>",
    "\x1b]0;PWNED-title\x07\x1b[31mRED\x1b[2J\x9b31m\x1b]8;;http://evil/\x07link\x1b]8;;\x07",
    "|x|`a`[click](javascript:alert(1))<img src=x onerror=alert(1)>\n# H1 \n::error file=a::pwn",
    "=cmd|' /C calc'!A0",
    "{{7*7}}${7*7}$x^",
    "--><svg onload=window.PWNED=3>",
    "'\"><a href=javascript:window.PWNED=4>x</a>",
    "]]><x/>",
    "\u202egnp.exe",
    "a\u2028b\u2029c",
    "[/red][bold]markup[/] :skull:",
    "cut \ud800 in two",
    "\r\n::add-mask::x",
    "$(touch PWNED)",
    "!--<script>",
    "a\N{HANGUL FILLER}\N{HALFWIDTH HANGUL FILLER}b\N{VARIATION SELECTOR-16}\N{VARIATION SELECTOR-17}c\u200bd",
)


def trace(rank, *, scale=1):
    """Return a trace of two steps whose kernels, operators, groups, devices and keys are called so."""
    events, t, c = [], 1000 + rank, 0  # no two ranks have the same times
    for step in (2, 3):
        events.append(
            _event("user_annotation", f"ProfilerStep#{step}", t - 5, len(NAMES) * 200 + 400)
        )
        events.append(_event("user_annotation", "ann " + NAMES[step - 2], t - 4, len(NAMES) * 200))
        for name in NAMES:
            c += 2
            events += [
                _event("cpu_op", "op" + name, t, 50, **{"External id": c, "Sequence number": c}),
                _event(
                    "cuda_runtime",
                    "cudaLaunchKernel",
                    t + 5,
                    5,
                    **{"correlation": c, "External id": c},
                ),
                _gpu(name, t + 20, 150 * scale, 7, **{"correlation": c, "External id": c}),
                _event("cuda_runtime", "cudaLaunchKernel", t + 11, 5, correlation=c + 1),
                _gpu(
                    "ncclDevKernel_AllReduce" + name,
                    t + 60,
                    130 * scale,
                    9,
                    **_collective(name, c + 1),
                ),
            ]
            t += 200
        t += 500
    every = "".join(NAMES)
    groups = [{"pg_name": NAMES[1], "pg_desc": every, "ranks": [0, 1]}]
    return json.dumps(
        {
            "schemaVersion": 1,
            "deviceProperties": [{"id": 0, "name": "GPU " + every}],
            "distributedInfo": {
                "backend": "nccl",
                "rank": rank,
                "world_size": 2,
                "pg_config": groups,
                "nccl_version": "2.1<b>",
            },
            "cuda_driver_version": NAMES[1],
            "traceName": NAMES[0],
            "baseTimeNanoseconds": 1700000000000000000,
            "traceEvents": events,
        }
    )


def _event(cat, name, ts, dur, **args):
    return {
        "ph": "X",
        "cat": cat,
        "name": name,
        "pid": 1,
        "tid": 1,
        "ts": ts,
        "dur": dur,
        "args": args,
    }


def _gpu(name, ts, dur, stream, **args):
    return {
        **_event("kernel", name, ts, dur, device=0, stream=stream, **args),
        "pid": 0,
        "tid": stream,
    }


def _collective(name, correlation):
    return {
        "correlation": correlation,
        "Collective name": "allreduce" + name,
        "Process Group Name": name,
        "Process Group Description": name,
        "Process Group Ranks": "[0, 1]",
        "In msg nelems": 10,
        "Out msg nelems": 10,
        "dtype": "Float",
    }
