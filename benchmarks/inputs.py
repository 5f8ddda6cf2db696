"""Make a large trace by repeating a real one, each copy later in time and with ids of its own.

    python benchmarks/inputs.py big.json --megabytes 800

Repeating keeps the real mix of events, names and arguments; shifting keeps the copies apart, as in
a long recording.
"""

from __future__ import annotations

import argparse
import gzip
import re
import sys
from pathlib import Path

SAMPLE = Path(__file__).parent.parent / "sample_traces/1f1b/rank0.pt.trace.json.gz"

_NUMBER = re.compile(
    rb'("ts"|"id"|"correlation"|"External id"|"Ev Idx"|"Sequence number"): ?(\d+)(\.\d+)?'
)
_STEP = re.compile(rb"ProfilerStep#(\d+)")


def make(out: Path, megabytes: int, trace: Path = SAMPLE) -> int:
    """Write about *megabytes* of JSON to *out* (gzipped if its name says so).

    Returns the number of copies.
    """
    raw = trace.read_bytes()
    raw = gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw
    start = raw.index(b"[", raw.index(b'"traceEvents"')) + 1
    end = raw.rindex(b"]")
    head, events, tail = raw[:start], raw[start:end].rstrip(), raw[end:]
    template = _template(events)
    _, keys, values, _ = template
    times = [v for k, v in zip(keys, values, strict=True) if k == b'"ts"']
    ids = [v for k, v in zip(keys, values, strict=True) if k != b'"ts"']
    span, stride = max(times) - min(t for t in times if t) + 1000, max(ids) + 1
    copies = max(1, round(megabytes * 1_000_000 / len(raw)))
    with gzip.open(out, "wb", compresslevel=6) if out.suffix == ".gz" else out.open("wb") as file:
        file.write(head)
        for copy in range(copies):
            file.write(_copy(template, copy, span, stride))
            file.write(b"," if copy < copies - 1 else b"\n  ")
        file.write(tail)
    return copies


def _template(events):
    parts = _NUMBER.split(events)
    return parts[0::4], parts[1::4], [int(v) for v in parts[2::4]], [f or b"" for f in parts[3::4]]


def _copy(template, copy, span, stride):
    pieces, keys, values, fractions = template
    out = [pieces[0]]
    for key, value, fraction, piece in zip(keys, values, fractions, pieces[1:], strict=True):
        shifted = value + copy * (span if key == b'"ts"' else stride)
        out.append(b"%b: %d%b%b" % (key, shifted, fraction, piece))
    text = b"".join(out)
    return _STEP.sub(lambda m: b"ProfilerStep#%d" % (int(m.group(1)) + 10 * copy), text)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("--megabytes", type=int, default=800)
    parser.add_argument("--trace", type=Path, default=SAMPLE)
    args = parser.parse_args()
    copies = make(args.out, args.megabytes, args.trace)
    print(f"{args.out}: {copies} copies, {args.out.stat().st_size / 1e6:.0f} MB", file=sys.stderr)


if __name__ == "__main__":
    main()
