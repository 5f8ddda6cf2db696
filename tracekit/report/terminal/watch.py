"""One line per recording, for those who watch."""

from __future__ import annotations

from tracekit._util.text import counted, ms, percent, terminal
from tracekit.diffs import Run, Side, from_analysis
from tracekit.gates import gate
from tracekit.report.view.pace import pace
from tracekit.run.watch import Recording


def run_of(landed: Recording) -> Run | None:
    """Return the recording as the gate sees it; None where it could not be analysed."""
    if landed.analysis is None or not landed.analysis.total.budget.span_ns:
        return None
    return from_analysis(landed.analysis.to_dict(), name=landed.name)


def line(landed: Recording, *, first: Run | None = None) -> str:
    """Return what became of a recording, and whether it is slower than the *first* one beyond noise."""
    name = terminal(landed.name)
    if landed.analysis is None:
        return f"{name}: {landed.error}"
    total = landed.analysis.total
    span = total.budget.span_ns
    if not span:
        return f"{name}: no GPU events"
    found = pace(landed.analysis)
    exposed = sum(total.budget.exposed_ns.values())
    parts = [
        f"step {ms(found.ns)} ({counted(found.steps, 'step')})",
        f"compute {percent(total.budget.compute_ns, span)}",
    ]
    parts += [f"exposed {percent(exposed, span)}"]
    if total.idle_known:
        parts.append(f"idle {percent(total.budget.idle_ns, span)}")
    return f"{name}: {', '.join(parts)}{_mark(landed, first)}"


def _mark(landed: Recording, first: Run | None) -> str:
    run = run_of(landed)
    if first is None or run is None or run.name == first.name:
        return ""
    result = gate(Side((run,), {}), Side((first,), {}))
    if result.verdict != "regressed":
        return ""
    worst = next(check for check in result.to_dict()["checks"] if check["verdict"] == "regressed")
    return f"  << slower than {terminal(first.name)}: {worst['metric']}"
