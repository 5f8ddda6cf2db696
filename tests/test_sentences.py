"""Sentences are written for people: no code reads one to decide something."""

from __future__ import annotations

import ast
from pathlib import Path

PACKAGE = Path(__file__).parent.parent / "tracekit"
READING_METHODS = {
    "split",
    "partition",
    "rpartition",
    "startswith",
    "endswith",
    "find",
    "index",
    "replace",
}
ERRORS = {"error", "problem", "internal"}
"""Names of errors: the path in front of their message may be looked at, so that it is not written
twice."""


def reads_of_messages(tree):
    """Line numbers of what compares or takes apart the ``message`` of anything but an error."""

    def is_message(node):
        if not (isinstance(node, ast.Attribute) and node.attr == "message"):
            return False
        owner = (
            node.value.attr
            if isinstance(node.value, ast.Attribute)
            else getattr(node.value, "id", "")
        )
        return owner not in ERRORS

    for node in ast.walk(tree):
        if isinstance(node, ast.Compare) and any(map(is_message, [node.left, *node.comparators])):
            yield node.lineno
        if (
            isinstance(node, ast.Attribute)
            and node.attr in READING_METHODS
            and is_message(node.value)
        ):
            yield node.lineno
        if isinstance(node, ast.Subscript) and is_message(node.value):
            yield node.lineno


def test_the_search_finds_code_that_reads_a_sentence():
    asking = "any('their peer' in n.message for n in notices)"
    splitting = "notice.message.split(':')[0]"
    assert list(reads_of_messages(ast.parse(asking))) == [1]
    assert list(reads_of_messages(ast.parse(splitting))) == [1]
    assert list(reads_of_messages(ast.parse("print(notice.message)"))) == []


def test_no_code_reads_the_sentence_of_a_notice():
    readers = []
    for file in PACKAGE.rglob("*.py"):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        readers += [f"{file.relative_to(PACKAGE)}:{line}" for line in reads_of_messages(tree)]
    assert readers == []
