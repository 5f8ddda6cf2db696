"""Pytest plugin that applies one mutant in the process that runs the tests; no file is changed.

``pytest -p tests.mutants.plugin`` reads the threshold to move from ``TRACEKIT_MUTANT``. The value
is replaced where the constant is used and not where it is defined, so that a test written with
``LIMIT + 1`` must notice too. Rules are data: they are changed when they are read.
"""

from __future__ import annotations

import ast
import contextlib
import importlib.abc
import importlib.machinery
import json
import os
import re
import sys

CHANGE = json.loads(os.environ.get("TRACEKIT_MUTANT", "null"))
BOUND = re.compile(r"(?<=[<>]= )\d+")
"""The number of a rule's bound, as in ``bytes = "<= 4096"``."""


def replace_uses(source, name, to):
    """Return *source* with every use of a name replaced; its definition stays.

    >>> replace_uses("A = 3\\ndef f(x):\\n    return x > A\\n", "A", "4")
    'A = 3\\ndef f(x):\\n    return x > 4\\n'
    """
    lines = source.encode().split(b"\n")
    uses = [
        node
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Name) and node.id == name
    ]
    uses = [node for node in uses if isinstance(node.ctx, ast.Load)]
    if not uses:
        raise ValueError(f"{name} is not used")
    for node in sorted(uses, key=lambda node: (node.lineno, node.col_offset), reverse=True):
        line = lines[node.lineno - 1]
        lines[node.lineno - 1] = line[: node.col_offset] + to.encode() + line[node.end_col_offset :]
    return b"\n".join(lines).decode()


class _Loader(importlib.machinery.SourceFileLoader):
    def get_code(self, fullname):
        path = self.get_filename(fullname)
        return self.source_to_code(
            replace_uses(self.get_data(path).decode(), CHANGE["name"], CHANGE["to"]), path
        )


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, fullname, path, target=None):
        if fullname != CHANGE["module"]:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        spec.loader = _Loader(fullname, spec.origin)
        return spec


def without_rule(text, name):
    """Return a pack of rules without the one of that name."""
    head, *rules = re.split(r"(?m)^(?=\[\[rule\]\])", text)
    return head + "".join(rule for rule in rules if f'name = "{name}"' not in rule.split("\n\n")[0])


def move_bound(text, index, to):
    """Return a pack of rules with its bound number *index* moved.

    >>> move_bound('a = "<= 10"\\nb = ">= 20"', 1, "25")
    'a = "<= 10"\\nb = ">= 25"'
    """
    match = list(BOUND.finditer(text))[index]
    return text[: match.start()] + to + text[match.end() :]


@contextlib.contextmanager
def rules_changed(change):
    """Read the packs with one rule left out, or one bound moved, within this process."""
    from tracekit.classify import rules

    def changed():
        packs = read()
        text = packs[change["pack"]]
        drop = change["kind"] == "rule"
        text = (
            without_rule(text, change["name"])
            if drop
            else move_bound(text, change["index"], change["to"])
        )
        return packs | {change["pack"]: text}

    read, rules.shipped_packs = rules.shipped_packs, changed
    rules.builtin_rules.cache_clear()
    try:
        yield
    finally:
        rules.shipped_packs = read
        rules.builtin_rules.cache_clear()


if CHANGE is not None:
    sys.meta_path.insert(0, _Finder())
