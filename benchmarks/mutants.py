"""Mutation testing: whether the tests notice a changed constant, comparison or branch.

``python -m benchmarks.mutants --seed 1 --count 40 --jobs 2`` draws changes of the packages that
decide answers, runs for each the tests that import the changed module, the nearest and cheapest
first, and prints the survivors. Exit code 1 if more than one in ten survives.

A mutant counts as survivor if ``--budget`` seconds of tests do not notice it. The tests must pass
unchanged. What they take is read from ``--times``, a file that ``pytest --cpu-times`` wrote. Each
job works in a copy of the repository made of hard links, so that the working tree stays as it is.
"""

from __future__ import annotations

import argparse
import ast
import os
import queue
import random
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
WORK = ROOT / "build/mutants"
PACKAGES = ("align", "classify", "diffs", "findings", "metrics", "whatif")
"""Packages whose constants, comparisons and branches decide answers."""
LEFT_OUT_OF_COPIES = {".git", ".venv", "build", "dist", ".mypy_cache"}
FIRST_PIECE_S = 25
"""Processor time of the tests that every mutant meets first: they notice most."""
UNKNOWN_S = 2.0
IMPORT_S = 0.1
"""Processor time of a test file of which nothing is known, and of importing it."""
TIMEOUT_S = 1200
MAX_SURVIVING_SHARE = 0.1
"""Share of mutants that may survive: some changes make no difference that anyone could see."""
MAX_INTEGER_MOVED_BY_ONE = 8
"""Integers up to which a number is moved by one; larger ones are doubled or halved."""
NEGATED = {
    ast.Lt: ">=",
    ast.LtE: ">",
    ast.Gt: "<=",
    ast.GtE: "<",
    ast.Eq: "!=",
    ast.NotEq: "==",
    ast.Is: "is not",
    ast.IsNot: "is",
    ast.In: "not in",
    ast.NotIn: "in",
}
SHIFTED = {ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">"}
"""The comparison that decides the other way where both sides are equal: only of counts, because equal
times and shares hardly ever occur."""


@dataclass(frozen=True)
class Mutant:
    """One change of one file."""

    path: str
    """Relative to the repository."""
    line: int
    kind: str
    """``constant``, ``comparison``, ``branch`` or ``rule``."""
    start: int
    end: int
    """Bytes of the file that are replaced."""
    old: str
    new: str
    paths: frozenset[str]
    """Modules whose tests should notice: its own, or those that read the constant."""

    def __str__(self) -> str:
        old, new = (" ".join(text.split())[:60] for text in (self.old, self.new))
        return f"{self.path}:{self.line}: {self.kind}: {old} -> {new}"


# ---------------------------------------------------------------------------------------------
# Candidates


@cache
def candidates() -> list[Mutant]:
    """Every change that may be drawn, in the order of files and lines."""
    readers = readers_of_constants()
    mutants: list[Mutant] = []
    for package in PACKAGES:
        for file in sorted((ROOT / "tracekit" / package).rglob("*.py")):
            mutants += Finder(file, readers).mutants()
    for file in sorted((ROOT / "tracekit/classify/packs").glob("*.toml")):
        mutants += rule_mutants(file)
    return mutants


def readers_of_constants() -> dict[str, set[str]]:
    """Modules of the package with a function that reads each upper-case name."""
    readers: dict[str, set[str]] = {}
    for file in (ROOT / "tracekit").rglob("*.py"):
        for node in nodes_in_functions(ast.parse(file.read_text(encoding="utf-8"))):
            name = node.id if isinstance(node, ast.Name) else getattr(node, "attr", "")
            if isinstance(node, ast.Name | ast.Attribute) and name.isupper():
                readers.setdefault(name, set()).add(str(file.relative_to(ROOT)))
    return readers


def nodes_in_functions(tree: ast.AST, *, is_inside: bool = False) -> Iterator[ast.AST]:
    """Yield each node that stands in a function."""
    for node in ast.iter_child_nodes(tree):
        if is_inside:
            yield node
        if isinstance(node, ast.JoinedStr):
            continue  # Python 3.11 does not say where in the file its parts stand
        is_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        yield from nodes_in_functions(node, is_inside=is_inside or is_function)


class Finder:
    """Finds the changes of one module."""

    def __init__(self, file: Path, readers: dict[str, set[str]]) -> None:
        self.path = str(file.relative_to(ROOT))
        self.source = file.read_bytes()
        lines = self.source.split(b"\n")
        self.line_starts = [0, *accumulate(len(line) + 1 for line in lines)]
        self.readers = readers
        self.seen: list[Mutant] = []

    def mutants(self) -> list[Mutant]:
        """Return the changes in the order in which they stand in the file."""
        tree = ast.parse(self.source)
        for node in tree.body:
            if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
                target = node.targets[0] if isinstance(node, ast.Assign) else node.target
                if isinstance(target, ast.Name) and is_number(node.value):
                    self._add_number(node.value, self.readers.get(target.id, set()))
        for inner in nodes_in_functions(tree):
            self.visit(inner)
        return sorted(self.seen, key=lambda mutant: (mutant.start, mutant.new))

    def visit(self, node: ast.AST) -> None:
        """Add the changes of one node."""
        match node:
            case ast.Compare(ops=[op], left=left, comparators=[right]):
                self._add_comparison(node, op, left, right)
            case ast.BinOp(left=left, right=right, op=op) if not isinstance(op, ast.BitOr):
                for side in (left, right):
                    if is_number(side):
                        self._add_number(side)
            case ast.If(test=test) | ast.IfExp(test=test):
                if "TYPE_CHECKING" not in ast.unparse(test):
                    self._add(test, "branch", "False")
                    self._add(test, "branch", "True")
            case ast.BoolOp(values=values):
                word = "True" if isinstance(node.op, ast.And) else "False"
                for value in values:
                    if not isinstance(value, ast.Constant):  # ``bytes or 0``
                        self._add(value, "branch", word)

    def _add_comparison(
        self, node: ast.expr, op: ast.cmpop, left: ast.expr, right: ast.expr
    ) -> None:
        is_counted = is_count(left) or is_count(right)
        for table in (NEGATED, SHIFTED) if is_counted else (NEGATED,):
            if type(op) in table:
                sides = (f"({ast.unparse(side)})" for side in (left, right))
                self._add(node, "comparison", f"({f' {table[type(op)]} '.join(sides)})")
        for side in (left, right):
            if is_number(side):
                self._add_number(side)

    def _add_number(self, node: ast.expr, readers: set[str] | None = None) -> None:
        value = eval(compile(ast.Expression(node), self.path, "eval"), {})
        for moved in moved_values(value):
            self._add(node, "constant", f"({moved!r})", readers)

    def _add(self, node: ast.expr, kind: str, new: str, readers: set[str] | None = None) -> None:
        start, end = (
            self.line_starts[line - 1] + column
            for line, column in (
                (node.lineno, node.col_offset),
                (node.end_lineno or node.lineno, node.end_col_offset or 0),
            )
        )
        self.seen.append(
            Mutant(
                self.path,
                node.lineno,
                kind,
                start,
                end,
                self.source[start:end].decode(),
                new,
                frozenset(readers or {self.path}),
            )
        )


def is_count(node: ast.expr) -> bool:
    """Whether an expression is a whole number as it is written, or a length."""
    match node:
        case ast.Constant(value=int()) | ast.UnaryOp(operand=ast.Constant(value=int())):
            return True
        case ast.Call(func=ast.Name("len")):
            return True
    return False


def is_number(node: ast.expr) -> bool:
    """Whether an expression is made of numbers alone."""
    allowed = (ast.Constant, ast.UnaryOp, ast.BinOp, ast.operator, ast.unaryop)
    parts = list(ast.walk(node))
    numbers = [part.value for part in parts if isinstance(part, ast.Constant)]
    return all(isinstance(part, allowed) for part in parts) and all(
        type(number) in (int, float) for number in numbers
    )


def moved_values(value: float) -> tuple[float, float]:
    """Return a larger and a smaller value.

    >>> moved_values(3), moved_values(100), moved_values(0.1)
    ((4, 2), (200, 50), (0.2, 0.05))
    """
    if isinstance(value, int) and abs(value) <= MAX_INTEGER_MOVED_BY_ONE:
        return value + 1, value - 1
    return value * 2, value // 2 if isinstance(value, int) else value / 2


def rule_mutants(file: Path) -> list[Mutant]:
    """One change for each rule of a pack: the rule left out."""
    text = file.read_text(encoding="utf-8")
    path = str(file.relative_to(ROOT))
    reader = frozenset({"tracekit/classify/rules.py"})
    mutants = []
    start = text.find("[[rule]]")
    while start >= 0:
        following = text.find("[[rule]]", start + 1)
        end = following if following >= 0 else len(text)
        old = text[start:end]
        name = tomllib.loads(old)["rule"][0]["name"]
        bytes_before = len(text[:start].encode())
        mutants.append(
            Mutant(
                path,
                text.count("\n", 0, start) + 1,
                "rule",
                bytes_before,
                bytes_before + len(old.encode()),
                f"rule {name}",
                "",
                reader,
            )
        )
        start = following
    return mutants


def changed(mutant: Mutant, original: bytes) -> bytes:
    """Return the content of a file with the change."""
    return original[: mutant.start] + mutant.new.encode() + original[mutant.end :]


def compiles(mutant: Mutant) -> bool:
    """Whether the changed module is still Python: an error of syntax defends nothing."""
    try:
        ast.parse(changed(mutant, (ROOT / mutant.path).read_bytes()))
    except SyntaxError:
        return False
    return True


def draw(seed: int, count: int) -> list[Mutant]:
    """Return *count* mutants, of each kind equally many, at most one of each line."""
    generator = random.Random(seed)
    by_kind: dict[str, list[Mutant]] = {}
    for mutant in candidates():
        by_kind.setdefault(mutant.kind, []).append(mutant)
    rules = by_kind.pop("rule")
    kinds = sorted(by_kind)
    for mutants in by_kind.values():
        generator.shuffle(mutants)
    # A rule is a branch written as data.
    chosen = generator.sample(rules, max(1, count // 20))
    lines = set()
    while len(chosen) < count:
        mutant = by_kind[kinds[len(chosen) % len(kinds)]].pop()
        if (mutant.path, mutant.line) not in lines and compiles(mutant):
            lines.add((mutant.path, mutant.line))
            chosen.append(mutant)
    return sorted(chosen, key=lambda mutant: (mutant.path, mutant.line))


# ---------------------------------------------------------------------------------------------
# Which tests are near


def imported_files(file: Path) -> set[str]:
    """Return the modules of the package and of the tests that a file imports, relative to the repository."""
    files = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        match node:
            case ast.ImportFrom(module=str(module), names=names, level=0):
                dotted = [module, *(f"{module}.{name.name}" for name in names)]
            case ast.Import(names=names):
                dotted = [name.name for name in names]
            case _:
                continue
        for name in dotted:
            if name.split(".")[0] in ("tests", "tracekit"):
                stem = name.replace(".", "/")
                files |= {path for path in (f"{stem}.py", f"{stem}/__init__.py") if is_file(path)}
    return files


def is_file(path: str) -> bool:
    """Whether the repository has a file."""
    return (ROOT / path).is_file()


def has_examples(path: str) -> bool:
    """Whether a module has examples in its docstrings."""
    return path.endswith(".py") and ">>> " in (ROOT / path).read_text(encoding="utf-8")


def importers() -> dict[str, set[str]]:
    """Return which files of the package and of the tests import each of them."""
    found: dict[str, set[str]] = {}
    for folder in ("tests", "tracekit"):
        for file in (ROOT / folder).rglob("*.py"):
            for imported in imported_files(file):
                found.setdefault(imported, set()).add(str(file.relative_to(ROOT)))
    return found


def distances(paths: Collection[str], imported_by: dict[str, set[str]]) -> dict[str, int]:
    """Return over how many imports each file depends on the nearest of *paths*.

    >>> distances({"a.py"}, {"a.py": {"b.py"}, "b.py": {"c.py"}})
    {'a.py': 0, 'b.py': 1, 'c.py': 2}
    """
    found = dict.fromkeys(sorted(paths), 0)
    waiting = list(found)
    for path in waiting:  # grows meanwhile
        for importer in sorted(imported_by.get(path, ())):
            if importer not in found:
                found[importer] = found[path] + 1
                waiting.append(importer)
    return found


def read_times(file: Path) -> dict[str, float]:
    """Return the processor time of each test file."""
    seconds: dict[str, float] = {}
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    for line in lines:
        spent, test = line.split(maxsplit=1)
        path = test.split("::")[0]
        seconds[path] = seconds.get(path, 0.0) + float(spent)
    return seconds


@dataclass(frozen=True)
class Tests:
    """Chooses the tests that may notice a mutant."""

    imported_by: dict[str, set[str]]
    seconds: dict[str, float]
    """Processor time of each test file."""
    budget_s: float

    def pieces(self, mutant: Mutant) -> list[list[str]]:
        """Return the test files to run, in pieces of one process each, the nearest and cheapest first."""
        package = mutant.path.split("/")[1]
        distance = distances(mutant.paths, self.imported_by)
        files = [path for path in distance if Path(path).name.startswith("test_")]

        def place(path: str) -> tuple[bool, int, float]:
            is_near = path.startswith(f"tests/{package}/") or distance[path] == 1
            return not is_near, distance[path], self.cost_s(path)

        # The examples in the docstrings of the changed module are its nearest tests.
        pieces = [[path for path in sorted(mutant.paths) if has_examples(path)]]
        spent_s = 0.0
        for path in sorted(files, key=place):
            spent_s += self.cost_s(path)
            if spent_s > self.budget_s:
                break
            if spent_s > FIRST_PIECE_S and len(pieces) == 1:
                pieces.append([])
            pieces[-1].append(path)
        return [piece for piece in pieces if piece]

    def cost_s(self, path: str) -> float:
        """Return what a test file takes, its import included."""
        return IMPORT_S + self.seconds.get(path, UNKNOWN_S)


def run_tests(folder: Path, words: list[str], timeout: float, **variables: str) -> int | None:
    """Run pytest in a copy of the repository; return its exit code, None if it took too long."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(folder),
        "POLARS_MAX_THREADS": "1",
        "OMP_NUM_THREADS": "1",
        "TMPDIR": str(folder / "build"),
        **variables,
    }
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *words]
    with (
        (folder / "build/pytest.log").open("wb") as log,
        subprocess.Popen(
            command,
            cwd=folder,
            env=environment,
            stdout=log,
            stderr=log,
            start_new_session=True,
        ) as process,
    ):
        try:
            return process.wait(timeout)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            return None


# ---------------------------------------------------------------------------------------------
# Running mutants


def make_copy(name: str) -> Path:
    """Make a copy of the repository out of hard links."""
    folder = WORK / name
    shutil.rmtree(folder, ignore_errors=True)

    def left_out(_folder: str, names: list[str]) -> set[str]:
        return LEFT_OUT_OF_COPIES & set(names)

    shutil.copytree(ROOT, folder, copy_function=os.link, ignore=left_out)
    (folder / "build").mkdir()
    return folder


def notice(folder: Path, mutant: Mutant, piece: list[str]) -> str | None:
    """Return the test of *piece* that fails with the change; None if all pass."""
    file = folder / mutant.path
    original = file.read_bytes()
    file.unlink()  # a hard link: the original stays
    file.write_bytes(changed(mutant, original))
    remove_compiled(file)
    try:
        code = run_tests(folder, ["-x", *piece], TIMEOUT_S)
    finally:
        file.write_bytes(original)
        remove_compiled(file)
    if code in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        return None
    log = (folder / "build/pytest.log").read_text(encoding="utf-8", errors="replace")
    failures = [line for line in log.splitlines() if line.startswith(("FAILED ", "ERROR "))]
    return failures[0][:120] if failures else f"exit code {code}"


def remove_compiled(file: Path) -> None:
    """Remove what Python compiled of a module: two changes within a second look alike to it."""
    for compiled in (file.parent / "__pycache__").glob(f"{file.stem}.*"):
        compiled.unlink()


def run(mutants: list[Mutant], tests: Tests, jobs: int) -> list[Mutant]:
    """Run all mutants and return those that no test notices."""
    waiting: queue.PriorityQueue[tuple[int, int]] = queue.PriorityQueue()
    pieces = [tests.pieces(mutant) for mutant in mutants]
    for number, of_mutant in enumerate(pieces):
        for i, _piece in enumerate(of_mutant):
            waiting.put((i, number))
    noticed: set[int] = set()

    def work(slot: int) -> None:
        folder = make_copy(f"slot-{slot}")
        while True:
            try:
                i, number = waiting.get_nowait()
            except queue.Empty:
                return
            if number in noticed:
                continue
            failure = notice(folder, mutants[number], pieces[number][i])
            if failure is not None:
                noticed.add(number)
            count = f"{len(noticed)} of {len(mutants)}"
            outcome = f"noticed ({count}) by {failure}" if failure else f"passed piece {i + 1}"
            print(f"{mutants[number]}: {outcome}", flush=True)

    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(work, range(jobs)))
    return [mutant for number, mutant in enumerate(mutants) if number not in noticed]


def main() -> int:
    """Draw, run and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, nargs="+", default=[1])
    parser.add_argument("--count", type=int, default=40, help="mutants of each seed")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--budget", type=float, default=300.0, help="seconds of tests per mutant")
    parser.add_argument("--times", type=Path, default=WORK / "cpu-times.txt")
    parser.add_argument("--only", default="", help="only mutants whose description contains this")
    parser.add_argument("--list", action="store_true", help="print the mutants and run nothing")
    options = parser.parse_args()
    drawn = {
        seed: [mutant for mutant in draw(seed, options.count) if options.only in str(mutant)]
        for seed in options.seed
    }
    if options.list:
        for seed, mutants in drawn.items():
            print(*(f"seed {seed}: {mutant}" for mutant in mutants), sep="\n")
        return 0
    mutants = [mutant for of_seed in drawn.values() for mutant in of_seed]
    tests = Tests(importers(), read_times(options.times), options.budget)
    survivors = set(run(mutants, tests, options.jobs))
    for seed, of_seed in drawn.items():
        survived = [mutant for mutant in of_seed if mutant in survivors]
        for mutant in survived:
            print(f"SURVIVED (seed {seed}): {mutant}")
        print(f"seed {seed}: {len(of_seed) - len(survived)} of {len(of_seed)} noticed")
    return 1 if len(survivors) > MAX_SURVIVING_SHARE * len(mutants) else 0


if __name__ == "__main__":
    sys.exit(main())
