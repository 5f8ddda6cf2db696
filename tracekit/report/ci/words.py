"""How the gate's and the diff's numbers are written, the same in every report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tracekit._util.text import counted, signed, terminal
from tracekit.report.names import short_kernel

TYPICAL = "levels are of a typical step: the pseudo-median, which a single odd step cannot move; analyze prints means"
MEANS = "labels, modules and kernels: means over ranks; ranks and cells: their own"
MARKS = {"pass": "✓", "improved": "▲", "regressed": "✗", "inconclusive": "?"}
ORDER = ("regressed", "inconclusive", "improved", "pass")
Row = Mapping[str, Any]


def value(number: float | None, unit: str) -> str:
    """Write a level in its unit.

    >>> value(12.345, "ms"), value(0.1234, "ratio"), value(None, "ms")
    ('12.35 ms', '12.3 %', '–')
    """
    if number is None:
        return "–"
    if unit == "ms":
        return f"{number:,.{_digits(number)}f} ms"
    return f"{100 * number:.1f} %" if unit == "ratio" else f"{number:,.6g}"


def change(row: Row) -> str:
    """Write a check's change: a share of the baseline for times, points for shares.

    >>> change({"unit": "ms", "change": 0.5, "change_relative": 0.05})
    '+5.0 %'
    >>> change({"unit": "ratio", "change": -0.12, "change_relative": -0.5})
    '−12.0 points'
    """
    if row["change"] is None:
        return "–"
    if row["unit"] == "ratio":
        return f"{signed(100 * row['change'], 1)} points"
    if row["change_relative"] is None or abs(row["change_relative"]) > 10:
        return signed(row["change"], _digits(row["change"])) + (" ms" if row["unit"] == "ms" else "")
    return f"{signed(100 * row['change_relative'], 1)} %"


def milliseconds(row: Row) -> str:
    """Write a table row's change in time.

    >>> milliseconds({"change_ms": 1.5, "change_relative": 0.1})
    '+1.500 ms (+10.0 %)'
    """
    text = f"{signed(row['change_ms'], 3)} ms"
    share = row.get("change_relative")
    return f"{text} ({signed(100 * share, 1)} %)" if share is not None and abs(share) < 10 else text


def sure(row: Row) -> str:
    """Write how sure a check is: the interval of its change, or of its level.

    >>> sure({"interval": [0.5, 1.0], "unit": "ms", "p": 0.001})
    '+0.500 … +1.000 ms'
    """
    if not row["interval"]:
        return ""
    low, high = row["interval"]
    if row["unit"] == "ratio":
        return f"{signed(100 * low, 1)} … {signed(100 * high, 1)} points"
    digits = _digits(max(abs(low), abs(high)))
    return f"{signed(low, digits)} … {signed(high, digits)}" + (" ms" if row["unit"] == "ms" else "")


def headline(result: Row) -> str:
    """Say the outcome in one sentence.

    >>> headline({"verdict": "pass", "checks": [{"metric": "step_ms", "verdict": "pass", "waiver": None}]})
    'pass: 1 metric checked, none regressed'
    """
    if result["verdict"] == "error":
        return f"unusable input: {result['error']}"
    checks = result["checks"]
    waived = sum(1 for c in checks if c["waiver"])
    after = f" ({waived} waived)" if waived else ""
    if result["verdict"] == "inconclusive" and result["obstacles"]:
        return f"inconclusive: not comparable: {'; '.join(result['obstacles'])}"
    names = [c["metric"] for c in checks if c["verdict"] == result["verdict"] and not c["waiver"]]
    if result["verdict"] == "pass":
        return f"pass: {counted(len(checks), 'metric')} checked, none regressed{after}"
    if result["verdict"] == "inconclusive" and names:
        reasons = {c["reason"] for c in checks if c["metric"] in names}
        if len(reasons) == 1:
            return f"inconclusive: {reasons.pop()}"
    shown = ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
    return f"{result['verdict']}: {shown or 'nothing could be checked'}{after}"


def story(result: Row) -> list[str]:
    """Return what happened, each sentence with a capital.

    >>> story({"story": ["rank 1's mlp forward grew by 9.1 ms"]})
    ["Rank 1's mlp forward grew by 9.1 ms"]
    """
    return [f"{line[:1].upper()}{line[1:]}" for line in result.get("story") or ()]


def typical(result: Row) -> bool:
    """Return whether levels are typical steps of several, and not the only step there is.

    >>> typical({"before": {"runs": [{"steps": 1}]}, "after": {"runs": [{"steps": 8}]}}), typical({})
    (True, False)
    """
    return any(run["steps"] > 1 for side in ("before", "after") for run in (result.get(side) or {}).get("runs") or ())


def telling(rows: Sequence[Row]) -> list[Row]:
    """Return the rows whose change can be read: what rounds to nothing says nothing. All, where none can.

    >>> [row["change_ms"] for row in telling([{"change_ms": 0.2}, {"change_ms": -0.0001}])]
    [0.2]
    """
    return [row for row in rows if round(row["change_ms"], 3)] or list(rows)


def said_once(reasons: Sequence[str]) -> list[str]:
    """Return the reasons of a table's rows; one that stands above is not said again.

    >>> said_once(["too few steps", "too few steps", "", "breaks step_ms < +3%"])
    ['too few steps', 'as above', '', 'breaks step_ms < +3%']
    """
    above = ("", *reasons)
    return ["as above" if reason and reason == above[at] else reason for at, reason in enumerate(reasons)]


def explain(row: Row) -> str:
    """Say why a check has its verdict, in one line.

    >>> explain({"metric": "step_ms", "unit": "ms", "before": 10.0, "after": 11.0, "change": 1.0, "p": 0.001,
    ...     "change_relative": 0.1, "reason": "breaks step_ms < +3%", "interval": None, "floor": 0.3})
    'step_ms 10.00 ms → 11.00 ms (+10.0 %): breaks step_ms < +3%'
    """
    text = f"{row['metric']} {value(row['before'], row['unit'])} → {value(row['after'], row['unit'])} ({change(row)})"
    if row["before"] is None:
        text = f"{row['metric']} {value(row['after'], row['unit'])}"
    return f"{text}: {row['reason']}" if row["reason"] else text


def named(row: Row) -> str:
    """Name a kernel's, module's or cell's row.

    >>> named({"rank": 1, "op": "F", "stage": 0, "microbatch": 3}), named({"module": "mlp", "label": "wgrad"})
    ('rank 1, 0F3', 'mlp, wgrad')
    """
    if "op" in row:
        cell = f"{row.get('stage')}{row['op'] if row['op'] != 'FB' else 'F'}{row.get('microbatch')}"
        if row["op"] == "FB":
            cell = f"({cell};{row.get('b_stage')}B{row.get('b_microbatch')})"
        return f"rank {row['rank']}, {cell}"
    first = short_kernel(row["name"]) if row.get("name") else row.get("module")
    return ", ".join(terminal(part) for part in (first, row.get("label")) if part)


def _digits(number: float) -> int:
    return 0 if abs(number) >= 1000 else 1 if abs(number) >= 100 else 2 if abs(number) >= 10 else 3
