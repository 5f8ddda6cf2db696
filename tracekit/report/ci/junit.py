"""The gate's answer as JUnit XML: one test case a metric."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from xml.etree import ElementTree

from tracekit._util.text import terminal_lines
from tracekit.report.ci import words


def render(result: Mapping[str, Any]) -> str:
    """Return the XML. Regressed is a failure, inconclusive an error (skipped where it passes), waived is skipped."""
    strict = result["exit_code"] != 0
    suite = ElementTree.Element("testsuite", name="tracekit gate")
    counts = {"failure": 0, "error": 0, "skipped": 0}
    for check in result["checks"]:
        case = ElementTree.SubElement(
            suite, "testcase", classname="tracekit.gate", name=check["requirement"] or check["metric"]
        )
        kind = _kind(check, strict)
        if kind:
            counts[kind] += 1
            waiver = check["waiver"]
            message = f"waived until {waiver['until']}: {waiver['reason']}" if waiver else words.explain(check)
            ElementTree.SubElement(
                case, kind, message=message, **({} if kind == "skipped" else {"type": check["verdict"]})
            )
        ElementTree.SubElement(case, "system-out").text = words.explain(check)
    if result["verdict"] == "error":
        case = ElementTree.SubElement(suite, "testcase", classname="tracekit.gate", name="input")
        ElementTree.SubElement(case, "error", message=result["error"], type="unusable input")
        counts["error"] += 1
    _add_waivers(suite, result)
    suite.set("tests", str(len(suite.findall("testcase"))))
    suite.set("failures", str(counts["failure"]))
    suite.set("errors", str(counts["error"]))
    suite.set("skipped", str(counts["skipped"]))
    root = ElementTree.Element("testsuites")
    root.append(suite)
    ElementTree.indent(root)
    written = terminal_lines(ElementTree.tostring(root, encoding="unicode"))
    return f'<?xml version="1.0" encoding="utf-8"?>\n{written}\n'


def _kind(check: Mapping[str, Any], strict: bool) -> str | None:
    if check["verdict"] in ("pass", "improved"):
        return None
    if check["waiver"]:
        return "skipped"
    if check["verdict"] == "regressed":
        return "failure"
    return "error" if strict else "skipped"


def _add_waivers(suite: ElementTree.Element, result: Mapping[str, Any]) -> None:
    if result["waivers"]:
        table = ElementTree.SubElement(suite, "properties")
        for w in result["waivers"]:
            text = f"{w['status']} until {w['until']}: {w['reason']}"
            ElementTree.SubElement(table, "property", name=f"waiver {w['metric']}", value=text)
        suite.remove(table)
        suite.insert(0, table)  # the schema wants properties first
