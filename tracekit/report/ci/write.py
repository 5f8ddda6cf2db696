"""Output of ``gate`` and ``diff``: files by extension, JUnit XML, annotations and step summary of GitHub Actions."""

import os
import re
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from xml.etree import ElementTree

from tracekit._util.text import terminal_lines
from tracekit.analysis import Analysis
from tracekit.documents.coding import encode, known
from tracekit.documents.diff import DiffDocument
from tracekit.documents.gate import CheckResult, GateDocument
from tracekit.report.ci import words
from tracekit.report.ci.words import Compared
from tracekit.report.html import page
from tracekit.report.markdown import render_diff, render_gate
from tracekit.report.text import escape_workflow
from tracekit.report.write import write_by_extension


def to_json(result: Compared) -> str:
    """Return a diff or a verdict as JSON text."""
    return encode(result) + "\n"


def write_diff(
    result: DiffDocument,
    path: str | os.PathLike[str],
    *,
    analyses: tuple[Analysis, Analysis] | None = None,
) -> None:
    """Write a diff to *path*: .json, .md or .html, whose timeline needs the analyses of both runs."""
    render_page = partial(page.render_diff, analyses=analyses)
    write_by_extension(result, path, {**DIFF, ".html": render_page})


def write_gate(result: GateDocument, path: str | os.PathLike[str]) -> None:
    """Write a verdict to *path*: .json, .xml, .md or .txt."""
    write_by_extension(result, path, GATE)


def github(result: GateDocument, environment: Mapping[str, str] | None = None) -> list[str]:
    """Append to the step summary of GitHub Actions and return the annotations to print.

    Empty elsewhere.
    """
    environment = os.environ if environment is None else environment
    if environment.get("GITHUB_ACTIONS", "").lower() in ("", "0", "false"):
        return []
    summary = environment.get("GITHUB_STEP_SUMMARY")
    if summary:
        with Path(summary).open("a", encoding="utf-8") as file:  # other steps write to it as well
            file.write(render_gate(result))
    return github_annotations(result)


MAX_ANNOTATIONS = 10
"""Annotations of one run that GitHub shows."""


def render_junit(result: GateDocument) -> str:
    """Return the verdict as JUnit XML, one test case per metric.

    A regressed metric is a failure, a waived one is skipped, an inconclusive one is an error, or
    skipped if the gate passes in spite of it.
    """
    suite_name = " ".join(filter(None, ("tracekit gate", known(result.name, ""))))
    suite = ElementTree.Element("testsuite", name=suite_name)
    if result.waivers:  # the schema wants properties first
        properties = ElementTree.SubElement(suite, "properties")
        for waiver in result.waivers:
            text = f"{waiver.status} until {waiver.until}: {waiver.reason}"
            ElementTree.SubElement(
                properties, "property", name=f"waiver {waiver.metric}", value=text
            )
    for check in result.checks:
        case = _test_case(suite, check.requirement or check.metric)
        outcome = _junit_outcome(check, gate_passes=result.exit_code == 0)
        if outcome:
            message = words.reason(check) if check.waiver else words.explain(check)
            attributes = {"message": message}
            if outcome != "skipped":
                attributes["type"] = check.verdict
            ElementTree.SubElement(case, outcome, attributes)
        ElementTree.SubElement(case, "system-out").text = words.explain(check)
    if result.verdict == "error":
        case = _test_case(suite, "input")
        ElementTree.SubElement(
            case, "error", message=known(result.error, ""), type="unusable input"
        )
    for attribute, path in (
        ("tests", ""),
        ("failures", "/failure"),
        ("errors", "/error"),
        ("skipped", "/skipped"),
    ):
        suite.set(attribute, str(len(suite.findall(f"testcase{path}"))))
    root = ElementTree.Element("testsuites")
    root.append(suite)
    ElementTree.indent(root)
    text = terminal_lines(ElementTree.tostring(root, encoding="unicode"))
    return f'<?xml version="1.0" encoding="utf-8"?>\n{text}\n'


def render_metrics(result: GateDocument) -> str:
    r"""Return the candidate's level of each metric in the text format of Prometheus, which GitLab compares."""
    levels = {
        _METRIC_SEPARATORS.sub("_", check.metric): check.after
        for check in result.checks
        if check.after is not None
    }
    return "".join(f"tracekit_{name} {level:.6g}\n" for name, level in levels.items())


_METRIC_SEPARATORS = re.compile(r"[^a-zA-Z0-9_]+")


def _test_case(suite: ElementTree.Element, name: str) -> ElementTree.Element:
    return ElementTree.SubElement(suite, "testcase", classname="tracekit.gate", name=name)


def _junit_outcome(check: CheckResult, *, gate_passes: bool) -> str | None:
    """Return the element that marks the outcome of a check; None if it passes."""
    if check.verdict in ("pass", "improved"):
        return None
    if check.waiver:
        return "skipped"
    if check.verdict == "regressed":
        return "failure"
    return "skipped" if gate_passes else "error"


def github_annotations(result: GateDocument) -> list[str]:
    """Return the annotations as workflow commands of GitHub Actions, one line each, the worst first."""
    if result.verdict == "error":
        return [_annotation("error", "tracekit gate", words.headline(result))]
    if result.verdict == "inconclusive" and result.obstacles:
        return [_annotation("warning", "tracekit gate", words.headline(result))]
    lines = []
    for verdict in ("regressed", "inconclusive"):
        for check in result.checks:
            if check.verdict == verdict:
                lines.append(_check_annotation(check))
    for waiver in result.waivers:
        if waiver.status == "expired":
            title = f"waiver of {waiver.metric} expired"
            lines.append(_annotation("warning", title, f"on {waiver.until}: {waiver.reason}"))
    if len(lines) <= MAX_ANNOTATIONS:
        return lines
    shown = lines[: MAX_ANNOTATIONS - 1]
    return [
        *shown,
        _annotation(
            "notice", "tracekit gate", f"and {len(lines) - len(shown)} more in the summary"
        ),
    ]


def _check_annotation(check: CheckResult) -> str:
    metric = check.metric
    text = words.explain(check)
    if check.waiver:
        return _annotation("notice", f"waived: {metric}", f"{text} ({words.reason(check)})")
    level = "error" if check.verdict == "regressed" else "warning"
    return _annotation(level, f"{check.verdict}: {metric}", text)


def _annotation(level: str, title: str, text: str) -> str:
    return f"::{level} title={escape_workflow(title, also=':,')}::{escape_workflow(text)}"


GATE: Mapping[str, Callable[[GateDocument], str]] = {
    ".json": to_json,
    ".xml": render_junit,
    ".md": render_gate,
    ".txt": render_metrics,
}
DIFF: Mapping[str, Callable[[DiffDocument], str]] = {
    ".json": to_json,
    ".md": render_diff,
    ".html": page.render_diff,
}
"""Functions that return the text of a file, by extension."""
