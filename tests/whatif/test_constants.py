"""Constants of predictions: all in one file, each with its source and date."""

from __future__ import annotations

import ast
import re
from itertools import pairwise
from pathlib import Path

import pytest

from tracekit import whatif

PACKAGE = Path(whatif.__file__).parent
NEEDS_NO_SOURCE = {"Estimate", "LOW, MIDDLE, HIGH"}
"""Names in the file that are no figures."""


def assigned_name(node):
    """Return what a statement assigns to; None if it assigns nothing."""
    if isinstance(node, ast.AnnAssign):
        return ast.unparse(node.target)
    if isinstance(node, ast.Assign):
        return ast.unparse(node.targets[0]).strip("()")
    return None


def is_figure(node):
    """Return whether a statement assigns a number, or a tuple of numbers."""
    try:
        value = ast.literal_eval(node.value)
    except (AttributeError, ValueError):
        return False
    values = [value]
    while values and isinstance(values[0], tuple):
        values = [number for group in values for number in group]
    return bool(values) and all(isinstance(number, int | float) for number in values)


def test_every_constant_says_where_it_is_from_and_when_it_was_set():
    body = ast.parse((PACKAGE / "constants.py").read_text()).body
    without_source = []
    for node, following in pairwise([*body, ast.Pass()]):
        name = assigned_name(node)
        if name is None or name in NEEDS_NO_SOURCE:
            continue
        text = " ".join(ast.unparse(following).replace("\\n", " ").split())
        if not re.search(
            r"(By choice|[Ff]rom |Median of|Set with|a guess|seen).*20\d\d-\d\d-\d\d",
            text,
            re.DOTALL,
        ):
            without_source.append(name)
    assert without_source == []


@pytest.mark.parametrize(
    "module", sorted(path.stem for path in PACKAGE.glob("*.py") if path.stem != "constants")
)
def test_no_other_module_has_figures_of_its_own(module):
    body = ast.parse((PACKAGE / f"{module}.py").read_text()).body
    assert [assigned_name(node) for node in body if is_figure(node)] == []
