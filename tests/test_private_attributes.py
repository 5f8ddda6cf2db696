"""No module of the package uses a private name of another package.

Private names (one leading underscore) may change in any release. Two things are looked for in the
syntax tree: a private name reached through an import, and a private attribute that no code of
tracekit defines, on any object.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import tracekit

PACKAGE = Path(tracekit.__file__).parent
MODULES = sorted(PACKAGE.rglob("*.py"))

ALLOWED = {
    "_exit": "os._exit is documented; a worker process that must end at once calls it",
    "_asdict": "documented method of named tuples",
    "_fields": "documented attribute of named tuples",
    "_replace": "documented method of named tuples",
    "_fields_": "documented attribute of ctypes structures",
    "_set_group_desc": "PyTorch has no public way to describe a process group that exists; its absence is handled",
    "_dump_nccl_trace": "PyTorch documents it, and has no other name for dumping the flight recorder",
}
"""Names with an underscore that are public all the same, and why."""
ONLY_IN = {"_exit": "_util/workers.py", "_dump_nccl_trace": "record/slow_steps.py"}
"""The one module that may use an allowed name; the others are allowed everywhere."""


@cache
def nodes_of(tree: ast.Module) -> list[ast.AST]:
    return list(ast.walk(tree))


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name not in ALLOWED


def is_foreign(module: str | None, level: int = 0) -> bool:
    # Cython's way to name our own declarations.
    own = (
        "tracekit",
        "__future__",
        "cython.cimports.tracekit",
    )
    return level == 0 and not any(f"{module}.".startswith(f"{package}.") for package in own)


def foreign_names(tree: ast.Module) -> set[str]:
    """Return the names that a module binds by importing from other packages."""
    names = set()
    for node in nodes_of(tree):
        if isinstance(node, ast.Import):
            names |= {a.asname or a.name.split(".")[0] for a in node.names if is_foreign(a.name)}
        elif isinstance(node, ast.ImportFrom) and is_foreign(node.module, node.level):
            names |= {a.asname or a.name for a in node.names}
    return names


def root_name(node: ast.expr) -> str | None:
    """Return the name that an expression such as ``name.x(...)[...].y`` begins with."""
    while True:
        match node:
            case ast.Name():
                return node.id
            case ast.Attribute() | ast.Subscript():
                node = node.value
            case ast.Call():
                node = node.func
            case _:
                return None


def attribute_accesses(tree: ast.Module) -> Iterator[tuple[ast.expr, str, int]]:
    """Yield object, attribute name and line of each attribute access, ``getattr(x, "name")`` and the like included."""
    for node in nodes_of(tree):
        match node:
            case ast.Attribute():
                yield node.value, node.attr, node.lineno
            case ast.Call(
                func=ast.Name("getattr" | "setattr" | "hasattr"),
                args=[obj, ast.Constant(str(name)), *_],
            ):
                yield obj, name, node.lineno


def defined_names(tree: ast.Module) -> set[str]:
    """Return the names that a module defines: functions, classes, variables, fields, and attributes it assigns."""
    names = set()
    for node in nodes_of(tree):
        match node:
            case (
                ast.FunctionDef(name=name)
                | ast.AsyncFunctionDef(name=name)
                | ast.ClassDef(name=name)
            ):
                names.add(name)
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                names.add(name)
    return names


def private_imports(tree: ast.Module) -> Iterator[tuple[str, int]]:
    for node in nodes_of(tree):
        if isinstance(node, ast.Import):
            paths = [a.name for a in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            paths = [f"{node.module}.{a.name}" for a in node.names]
        else:
            continue
        yield from (
            (p, node.lineno) for p in paths if is_foreign(p) and any(map(is_private, p.split(".")))
        )


def private_uses(tree: ast.Module, own_names: set[str], module: str = "") -> list[tuple[str, int]]:
    """Return each private name of another package that a module uses, with its line."""
    foreign = foreign_names(tree)
    uses = list(private_imports(tree))
    for obj, name, line in attribute_accesses(tree):
        misplaced = ONLY_IN.get(name, module) != module
        if misplaced or (is_private(name) and (root_name(obj) in foreign or name not in own_names)):
            uses.append((ast.unparse(obj) + "." + name, line))
    return uses


@pytest.fixture(scope="module")
def trees():
    return {file: ast.parse(file.read_text(encoding="utf-8")) for file in MODULES}


@pytest.fixture(scope="module")
def own_names(trees):
    return {name for tree in trees.values() for name in defined_names(tree)}


@pytest.mark.parametrize("file", MODULES, ids=lambda file: file.relative_to(PACKAGE).as_posix())
def test_a_module_uses_no_private_name_of_another_package(file, trees, own_names):
    module = file.relative_to(PACKAGE).as_posix()
    uses = private_uses(trees[file], own_names, module)
    assert not uses, "\n".join(f"{module}:{line}: {name}" for name, line in uses)


@pytest.mark.parametrize(
    "code",
    [
        "import polars as pl\npl._x",
        "import typer.core\ntyper.core._x()",
        "from typer import core\ncore.Group()._x",
        "from x import _y",
        "from x._y import z",
        "import x._y",
        "import polars as pl\ngetattr(pl, '_x')",
        "def f(frame):\n    return frame._x",
        "import os\nos._exit(0)",
    ],
)
def test_a_private_use_is_found(code):
    assert private_uses(ast.parse(code), own_names=set())


@pytest.mark.parametrize(
    "code",
    [
        "from tracekit._util import text\ntext.x",
        "from __future__ import annotations",
        "import os\nos.getpid()",
        "import x\nx.__name__",
        "class A:\n    def f(self):\n        self._x = 1\n        return self._x",
    ],
)
def test_other_uses_are_not(code):
    tree = ast.parse(code)
    assert not private_uses(tree, defined_names(tree))
