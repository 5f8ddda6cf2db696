"""A pytest plugin: analyse a trace inside a test and assert on its metrics.

    def test_overlap(tracekit):
        run = tracekit.analyze("traces/latest")
        assert run["overlap.ep_dispatch"] > 0.9
        run.check("bubble_fraction < 0.12")

    def test_no_regression(tracekit):
        tracekit.gate("traces/latest", baseline="perf/baseline.json", require=["step_ms < +3%"])

Installed with tracekit; nothing heavy is imported until a test uses the fixture.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec
import pytest

if TYPE_CHECKING:
    from tracekit.diffs import GateResult, Run

Path = str | os.PathLike[str]


class MeasuredRun(msgspec.Struct, frozen=True):
    """An analysed run, with its metrics by name."""

    run: Run

    def __getitem__(self, metric: str) -> float:
        from tracekit.diffs import stats

        values = self.steps(metric)
        if not values:
            raise KeyError(
                f"{metric}: this run does not have it; it has {', '.join(sorted(self.run.metric_names))}"
            )
        return stats.pseudomedian(values)

    def steps(self, metric: str) -> tuple[float, ...]:
        """Return one value per step."""
        from tracekit.diffs.metrics import resolve

        return self.run.values(resolve(metric, names_in_runs=self.run.metric_names).name)

    def check(self, *requirements: str) -> None:
        """Fail the test unless every limit, such as ``bubble_fraction < 0.12``, holds."""
        from tracekit.diffs import Side, gate

        _assert_passed(gate(Side((self.run,), {}), require=requirements))


class Tracekit:
    """Value of the ``tracekit`` fixture."""

    def analyze(self, *paths: Path) -> MeasuredRun:
        """Analyse one run: a trace, a folder, a store or a saved analysis."""
        from tracekit.diffs import read_side

        runs = read_side([os.fspath(p) for p in paths], what="run").runs
        if len(runs) != 1:
            raise ValueError(f"{len(runs)} runs were named; analyze takes one")
        return MeasuredRun(runs[0])

    def gate(
        self,
        candidate: Path | Sequence[Path],
        *,
        baseline: Path | Sequence[Path],
        require: Sequence[str] = (),
    ) -> GateResult:
        """Fail the test if *candidate* regressed against *baseline*.

        Skip it if that cannot be decided, unless a limit of *require* is broken by more than twice.
        """
        from tracekit.diffs import gate, load_config

        result = gate(candidate, baseline, require=require, config=load_config())
        _assert_passed(result)
        return result


def _assert_passed(result: GateResult) -> None:
    """Fail the test if *result* regressed, skip it if it is inconclusive, as the settings say.

    What breaks a given limit by more than twice fails although it is inconclusive: nobody reads why a
    test was skipped.
    """
    from tracekit.report.ci import words as gate_words

    lines = [
        gate_words.explain(check)
        for check in result.checks
        if check.verdict == result.verdict and not check.waiver
    ]
    text = "\n".join([gate_words.headline(result.to_document()), *(f"  {line}" for line in lines)])
    if result.verdict == "regressed":
        pytest.fail(text, pytrace=False)
    if result.verdict != "inconclusive" or result.config.inconclusive == "pass":
        return
    far_beyond = ", ".join(check.requirement or "" for check in result.far_beyond_limits)
    if far_beyond:
        pytest.fail(f"{text}\nbroken by more than twice: {far_beyond}", pytrace=False)
    if result.config.inconclusive == "fail":
        pytest.fail(text, pytrace=False)
    pytest.skip(text)


@pytest.fixture(scope="session")
def tracekit() -> Tracekit:
    """Analyse traces and assert on their metrics."""
    return Tracekit()
