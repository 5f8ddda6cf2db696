"""The gate itself: two sides in, one outcome out. What the command line prints and every report renders."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import date
from os import PathLike
from typing import Any, Literal

import msgspec

from tracekit._util.html import html_table
from tracekit._util.text import json_text
from tracekit._version import __version__
from tracekit.diffs.changes import moved
from tracekit.diffs.comparable import check_formats, obstacles
from tracekit.diffs.floors import calibrate
from tracekit.diffs.limits import Requirement
from tracekit.diffs.sides import Comparable, Side, side_of
from tracekit.diffs.story import story
from tracekit.diffs.verdict import Check, Outcome, judge
from tracekit.errors import InputError, OptionError
from tracekit.gates.config import Config, Waiver, apply_waivers
from tracekit.gates.expr import check_syntax, parse

FORMAT = "tracekit.gate/1"
EXIT = {"pass": 0, "improved": 0, "regressed": 1, "inconclusive": 3}


class GateResult(msgspec.Struct, frozen=True):
    """The verdict of one gate and everything it rests on.

    >>> from tracekit.diffs import Run
    >>> slow = Side((Run("slow", {"step_ms": (20.0, 20.1, 19.9, 20.0, 20.2, 19.8)}),), {})
    >>> result = gate(slow, require=["step_ms < 12"])
    >>> result.verdict, result.exit_code
    ('regressed', 1)
    """

    verdict: Literal["pass", "regressed", "inconclusive"]
    checks: tuple[Check, ...]
    obstacles: tuple[str, ...]
    candidate: Side
    baseline: Side
    config: Config
    today: date

    @property
    def exit_code(self) -> int:
        """0 pass, 1 regressed, 3 inconclusive (or as the policy says)."""
        if self.verdict == "inconclusive" and self.config.inconclusive:
            return 0 if self.config.inconclusive == "pass" else 1
        return EXIT[self.verdict]

    def to_dict(self) -> dict[str, Any]:
        """Plain data (``format: tracekit.gate/1``): what reports are drawn from."""
        return {
            "tracekit": __version__,
            "format": FORMAT,
            "verdict": self.verdict,
            "exit_code": self.exit_code,
            "obstacles": list(self.obstacles),
            "checks": [c.to_dict() for c in self.checks],
            "waivers": [w.to_dict(self.today) for w in self.config.waivers],
            "before": _side(self.baseline),
            "after": _side(self.candidate),
            "story": story(self.baseline.runs, self.candidate.runs),
            "moved": moved(self.baseline.runs, self.candidate.runs),
            "settings": {
                "alpha": self.config.alpha,
                "min_steps": self.config.min_steps,
                "inconclusive": self.config.inconclusive,
                "allow": list(self.config.allow),
                "file": self.config.path,
            },
        }

    def to_json(self, *, indent: int | None = 1) -> str:
        """Return ``to_dict`` as text."""
        return json_text(json.dumps(self.to_dict(), indent=indent, ensure_ascii=False, allow_nan=False))

    def save(self, path: str | PathLike[str]) -> None:
        """Write it to *path* as its extension says: .json, .xml (JUnit) or .md."""
        from tracekit.report.ci.write import write_gate

        write_gate(self.to_dict(), path)

    def _repr_html_(self) -> str:
        rows = [(check.metric.name, check.verdict, check.reason) for check in self.checks]
        title = f"{self.verdict}: {len(self.checks)} checked"
        return html_table(title, ("metric", "verdict", "why"), rows, notes=self.obstacles)


def gate(
    candidate: Comparable,
    baseline: Comparable | None = None,
    *,
    require: Sequence[str] = (),
    config: Config | None = None,
    today: date | None = None,
) -> GateResult:
    """Return the verdict on *candidate* against *baseline*; *require* replaces the requirements of *config*.

    Either is a trace, a folder, a store, a saved analysis or a baseline file, by its path; an ``Analysis``; or several
    runs in a list. Limits such as ``bubble_fraction < 0.12`` need no baseline. *config* is what ``load_config`` read
    from the project's settings; without it there are none.

    >>> from tracekit.diffs.samples import Run
    >>> base = Side((Run("a", {"step_ms": (10.0, 10.1, 9.9, 10.0, 10.2, 9.8)}),), {})
    >>> gate(base, base, require=["step_ms < 12"]).verdict
    'pass'
    """
    for text in require:
        check_syntax(text)
    new = side_of(candidate, what="candidate")
    old = Side((), {}) if baseline is None else side_of(baseline, what="baseline")
    return _judged(new, old, require, config, today)


def _judged(
    candidate: Side, baseline: Side, require: Sequence[str], config: Config | None, today: date | None
) -> GateResult:
    config, today = config or Config(), today or date.today()
    check_formats(candidate.runs, baseline.runs)
    known = sorted({name for run in (*candidate.runs, *baseline.runs) for name in run.samples})
    requirements = [parse(text, known=known) for text in (require or config.require)]
    _check_ranks(requirements, candidate)
    if not baseline.runs and any(r.kind != "limit" for r in requirements or [parse("step_ms < +1%")]):
        raise InputError("there is no baseline to compare with", hint="give --baseline, or only limits without a sign")
    differences = obstacles(candidate.runs, baseline.runs, allow=config.allow) if baseline.runs else []
    checks = judge(
        candidate.runs,
        baseline.runs,
        requirements,
        rules=config.rules,
        noise=_noise(baseline),
        obstacle="not comparable: " + "; ".join(differences) if differences else "",
    )
    checks = apply_waivers(checks, config.waivers, today)
    return GateResult(_verdict(checks), tuple(checks), tuple(differences), candidate, baseline, config, today)


def _check_ranks(requirements: Sequence[Requirement], candidate: Side) -> None:
    """Refuse a rank that no run of the candidate has: it can never be decided."""
    documents = [run.document for run in candidate.runs if run.document]
    ranks = {rank["rank"] for document in documents for rank in document["ranks"]}
    for asked in requirements:
        if ranks and asked.metric.rank is not None and asked.metric.rank not in ranks:
            raise OptionError(
                f"{asked.metric.name}: the candidate has no rank {asked.metric.rank}",
                hint=f"it has ranks {min(ranks)} to {max(ranks)}",
            )


def _verdict(checks: Sequence[Check]) -> Literal["pass", "regressed", "inconclusive"]:
    open_verdicts: set[Outcome] = {c.verdict for c in checks if c.waiver is None}
    if "regressed" in open_verdicts:
        return "regressed"
    return "inconclusive" if "inconclusive" in open_verdicts or not checks else "pass"


def _noise(baseline: Side) -> dict[str, Any]:
    """Return what was calibrated and stored; else, from five runs on, what the baseline's own runs show."""
    if baseline.noise or len(baseline.runs) < 5:
        return baseline.noise
    return dict(calibrate(baseline.runs))


def _side(side: Side) -> dict[str, Any]:
    return {
        "runs": [{"name": r.name, "steps": r.steps} for r in side.runs],
        "facts": dict(side.runs[0].facts) if side.runs else {},
        "calibrated": bool(side.noise),
    }


__all__ = ["FORMAT", "GateResult", "Waiver", "gate"]
