"""One name, one meaning: classes and constants of the package, and the names that docstrings refer to."""

from __future__ import annotations

import ast
import re
import tomllib
from collections import defaultdict
from functools import cache
from pathlib import Path

import tracekit

PACKAGE = Path(tracekit.__file__).parent
LISTED = tomllib.loads(
    (Path(__file__).parent / "names_used_twice.toml").read_text(encoding="utf-8")
)
DATA_FILES = {"toml", "txt", "json", "zip", "py"}
REFERENCE = re.compile(r"``(?:tracekit\.)?([a-z_]\w*(?:\.\w+)+)``")
"""A dotted name in a docstring, such as ``metrics.budget.Budget``."""


@cache
def modules():
    """The syntax tree of every module, by its dotted name without ``tracekit``."""
    trees = {}
    for file in sorted(PACKAGE.rglob("*.py")):
        parts = file.relative_to(PACKAGE).with_suffix("").parts
        name = ".".join(word for word in parts if word != "__init__")
        trees[name] = ast.parse(file.read_text(encoding="utf-8"))
    return trees


def class_names():
    """The modules that define each class name; a leading underscore makes no other name of it."""
    homes = defaultdict(list)
    for module, tree in modules().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                homes[node.name.lstrip("_")].append(module)
    return homes


def constant_values():
    """The values of each constant's name, as they are written."""
    values = defaultdict(set)
    for tree in modules().values():
        for node in tree.body:
            if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
                for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                    if isinstance(target, ast.Name) and target.id.isupper():
                        values[target.id.lstrip("_")].add(ast.unparse(node.value))
    return values


def check_list(twice, listed):
    assert twice - set(listed) == set(), (
        "the name stands for something else already: choose one that says what it holds"
    )
    assert set(listed) - twice == set(), (
        "no longer used twice: delete it from tests/names_used_twice.toml"
    )


def test_no_class_name_is_defined_twice():
    check_list({name for name, homes in class_names().items() if len(homes) > 1}, LISTED["classes"])


def test_no_constant_has_two_values():
    check_list(
        {name for name, values in constant_values().items() if len(values) > 1}, LISTED["constants"]
    )


def test_the_lists_of_names_used_twice_only_shrink():
    assert len(LISTED["classes"]) <= LISTED["most_classes"]
    assert len(LISTED["constants"]) <= LISTED["most_constants"]


def test_module_docstrings_are_noun_phrases():
    questions = [
        name
        for name, tree in modules().items()
        if (ast.get_docstring(tree) or "").startswith("What ")
    ]
    assert questions == []


def defined_names(tree):
    """Every name that a module defines or imports, those inside its classes and functions included."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.ImportFrom):
            names |= {alias.asname or alias.name for alias in node.names}
    return names


@cache
def names_by_ending():
    """Names of the modules that a dotted ending such as ``metrics.budget`` or ``budget`` may mean."""
    names = defaultdict(set)
    for module, tree in modules().items():
        parts = module.split(".")
        for i in range(len(parts)):
            names[".".join(parts[i:])] |= defined_names(tree)
    return names


def leads_somewhere(reference):
    """Whether a dotted name is a module, or a name in a module.

    Of names that begin with no module nothing is known.
    """
    parts = reference.split(".")
    if (
        reference in names_by_ending()
        or parts[0] not in names_by_ending()
        or parts[-1] in DATA_FILES
    ):
        return True
    longest = max(i for i in range(1, len(parts)) if ".".join(parts[:i]) in names_by_ending())
    return parts[longest] in names_by_ending()[".".join(parts[:longest])]


def docstrings(tree):
    """Every text that stands alone in a module: docstrings of modules, functions, classes and constants."""
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
        ):
            yield node.value.value


def test_references_in_docstrings_lead_somewhere():
    nowhere = set()
    for module, tree in modules().items():
        for text in docstrings(tree):
            for reference in REFERENCE.findall(text):
                if not leads_somewhere(reference):
                    nowhere.add(f"{module}: {reference}")
    assert nowhere == set(LISTED["examples"])
