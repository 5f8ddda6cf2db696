"""Mutation testing: whether the tests notice a changed constant, comparison or branch.

``python -m benchmarks.mutants --seed 1 --count 40 --jobs 2`` draws changes of the packages that
decide answers, runs for each the tests that import the changed module, the nearest and cheapest
first, and prints the survivors. Exit code 1 if more than one in ten survives.

A mutant counts as survivor if ``--budget`` seconds of tests do not notice it. The tests must pass
unchanged. Those that reach the changed line run first, as ``pytest -p tests.covering`` recorded
once in ``--covering`` (``make covering``); without the record, those that import the module. Each job
works in a copy of the repository, so that the working tree stays as it is.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import importlib
import json
import os
import queue
import random
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest

if TYPE_CHECKING:
    from coverage import CoverageData

ROOT = Path(__file__).resolve().parent.parent
WORK = ROOT / "build/mutants"
PACKAGES = ("align", "classify", "diffs", "findings", "metrics", "graph")
"""Packages whose constants, comparisons and branches decide answers."""
LEFT_OUT_OF_COPIES = {".git", ".venv", "build", "dist", ".mypy_cache"}
FIRST_PIECE_S = 25
"""Processor time of the tests that every mutant meets first: they notice most."""
UNKNOWN_S = 2.0
IMPORT_S = 0.1
"""Processor time of a test file of which nothing is known, and of importing it."""
RULE_EXAMPLES = "tests/classify/test_rules_covered.py"
"""Holds an event for each rule."""
MAX_TESTS_OF_A_FILE = 12
"""Tests of one file that run because they reach the changed line; of more the whole file runs."""
TIMEOUT_S = 600
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
    places: frozenset[tuple[str, int]]
    """Files and lines whose tests should notice: its own, or those that read the constant."""

    @property
    def paths(self) -> set[str]:
        """Modules whose tests should notice."""
        return {path for path, _line in self.places}

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


def readers_of_constants() -> dict[str, set[tuple[str, int]]]:
    """Files of the package and lines, in functions, that read each upper-case name."""
    readers: dict[str, set[tuple[str, int]]] = {}
    for file in (ROOT / "tracekit").rglob("*.py"):
        for node in nodes_in_functions(ast.parse(file.read_text(encoding="utf-8"))):
            name = node.id if isinstance(node, ast.Name) else getattr(node, "attr", "")
            if isinstance(node, ast.Name | ast.Attribute) and name.isupper():
                place = (str(file.relative_to(ROOT)), node.lineno)
                readers.setdefault(name, set()).add(place)
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

    def __init__(self, file: Path, readers: dict[str, set[tuple[str, int]]]) -> None:
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

    def _add_number(self, node: ast.expr, readers: set[tuple[str, int]] | None = None) -> None:
        value = eval(compile(ast.Expression(node), self.path, "eval"), {})
        for moved in moved_values(value):
            self._add(node, "constant", f"({moved!r})", readers)

    def _add(
        self, node: ast.expr, kind: str, new: str, readers: set[tuple[str, int]] | None = None
    ) -> None:
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
                frozenset(readers or {(self.path, node.lineno)}),
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
    reader = frozenset({("tracekit/classify/rules.py", 0)})
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


class Record(msgspec.Struct):
    """What is known of the tests of one run beside the lines that they reach.

    A context is a test, or a result that tests share (``tests.kept``): it is computed in one of them
    alone, but all that use it depend on its lines.
    """

    uses: dict[str, set[str]]
    """The shared results that each context takes."""
    seconds: dict[str, float]
    """Processor time of each context, without what it shares."""
    sources: dict[str, str]
    """Text of each file of the packages: lines move afterwards."""


class Covering:
    """Which tests reach a line, as recorded."""

    def __init__(self, folder: Path) -> None:
        self.runs: list[tuple[CoverageData, Record]] = []
        for file in sorted(folder.glob("*.coverage")):
            coverage = importlib.import_module("coverage")  # not needed without a record
            data = coverage.CoverageData(str(file))
            data.read()
            record = msgspec.json.decode(file.with_suffix(".json").read_bytes(), type=Record)
            self.runs.append((data, record))
        self.recorded_at = max(
            (file.stat().st_mtime for file in folder.glob("*.json")), default=None
        )
        self.seconds = {
            test: seconds
            for _data, record in self.runs
            for test, seconds in record.seconds.items()
            if "::" in test
        }

    def tests(self, path: str, line: int) -> dict[str, float]:
        """Return the tests that reach a line, with their processor time, what they share included."""
        found = {}
        for data, record in self.runs:
            recorded = data.contexts_by_lineno(str(ROOT / path))
            line_then = old_line(path, record.sources.get(path, ""), line)
            # An expression of several lines has no line of code for each.
            known = max((number for number in recorded if number <= line_then), default=None)
            reaching = set(recorded.get(known, ())) if known is not None else set()
            for test in record.seconds:
                needed = needed_results(test, record.uses)
                if "::" in test and (test in reaching or needed & reaching):
                    found[test] = sum(record.seconds.get(each, 0.0) for each in {test, *needed})
        return found

    def is_new(self, path: str) -> bool:
        """Whether a file of tests was written since, so that it is not known what it reaches."""
        is_test = Path(path).name.startswith("test_")
        is_known = any(test.startswith(f"{path}::") for test in self.seconds)
        if self.recorded_at is None or not is_test or is_known:
            return False
        return (ROOT / path).stat().st_mtime > self.recorded_at

    def file_s(self, path: str) -> float:
        """Return the processor time of a file's tests, as far as they were recorded."""
        of_file = [spent for test, spent in self.seconds.items() if test.split("::")[0] == path]
        return sum(of_file) if of_file else UNKNOWN_S


def needed_results(context: str, uses: dict[str, set[str]]) -> set[str]:
    """Return the shared results that a test takes, and those that they take.

    >>> sorted(needed_results("test", {"test": {"analysis"}, "analysis": {"tables"}}))
    ['analysis', 'tables']
    """
    found: set[str] = set()
    waiting = [context]
    for user in waiting:  # grows meanwhile
        waiting += uses.get(user, set()) - found
        found |= uses.get(user, set())
    return found


@cache
def old_line(path: str, text_then: str, line: int) -> int:
    """Return where a line of a file stood when its tests were recorded."""
    text_now = (ROOT / path).read_text(encoding="utf-8")
    if text_now == text_then:
        return line
    matcher = difflib.SequenceMatcher(
        None, text_now.splitlines(), text_then.splitlines(), autojunk=False
    )
    for tag, start, end, start_then, end_then in matcher.get_opcodes():
        if start < line <= end:
            moved = line - start + start_then
            return moved if tag == "equal" else min(moved, end_then)
    return line


@dataclass(frozen=True)
class Tests:
    """Chooses the tests that may notice a mutant."""

    imported_by: dict[str, set[str]]
    covering: Covering
    budget_s: float
    _file_s: dict[str, float] = field(default_factory=dict)

    def pieces(self, mutant: Mutant) -> list[list[str]]:
        """Return the tests to run, in pieces of one process each, the nearest and cheapest first."""
        package = mutant.path.split("/")[1]
        distance = distances(mutant.paths, self.imported_by)

        def place(path: str) -> tuple[bool, int]:
            near = path.startswith(f"tests/{package}/") or distance.get(path) == 1
            return not near, distance.get(path, len(distance))

        # The examples in the docstrings of the changed module are its nearest tests.
        chosen = [(0.0, path) for path in sorted(mutant.paths) if has_examples(path)]
        if mutant.kind == "rule":
            chosen.append((0.0, RULE_EXAMPLES))
        chosen += [
            (self.cost_s(path), path)
            for path in sorted(distance)
            if not place(path)[0] and self.covering.is_new(path)
        ]
        reaching = {
            test: seconds
            for path, line in sorted(mutant.places)
            for test, seconds in self.covering.tests(path, line).items()
        }
        by_file: dict[str, list[str]] = {}
        for test in sorted(reaching, key=reaching.__getitem__):
            by_file.setdefault(test.split("::")[0], []).append(test)
        for path in sorted(by_file, key=lambda path: (place(path), reaching[by_file[path][0]])):
            tests = by_file[path]
            if len(tests) > MAX_TESTS_OF_A_FILE:
                chosen.append((self.cost_s(path), path))
            else:
                chosen += [(reaching[test] + IMPORT_S, test) for test in tests]
        # Slow tests may not have been recorded.
        whole = {test for _seconds, test in chosen}
        files = [path for path in distance if Path(path).name.startswith("test_")]
        chosen += [
            (self.cost_s(path), path)
            for path in sorted(files, key=lambda path: (place(path), self.cost_s(path)))
            if path not in whole
        ]
        return self._cut(chosen)

    def _cut(self, chosen: list[tuple[float, str]]) -> list[list[str]]:
        """Cut tests, each with its seconds, into pieces; leave out what is beyond the budget."""
        pieces: list[list[str]] = [[]]
        spent_s = 0.0
        for seconds, test in chosen:
            if spent_s + seconds > self.budget_s:
                continue
            spent_s += seconds
            if spent_s > FIRST_PIECE_S and len(pieces) == 1:
                pieces.append([])
            pieces[-1].append(test)
        return [piece for piece in pieces if piece]

    def cost_s(self, path: str) -> float:
        """Return what a test file takes, its import included."""
        if path not in self._file_s:
            self._file_s[path] = IMPORT_S + self.covering.file_s(path)
        return self._file_s[path]


class Slot:
    """A copy of the repository and the process that runs tests in it."""

    def __init__(self, name: str) -> None:
        self.folder = make_copy(name)
        self.log = self.folder / "build/pytest.log"
        # Else each process compiles all tests again.
        kept_bytecode = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
        self.server = subprocess.Popen(
            [sys.executable, "-m", "tests.fork_server"],
            cwd=ROOT,
            env={**kept_bytecode, "POLARS_MAX_THREADS": "1", "OMP_NUM_THREADS": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def run_tests(self, words: list[str]) -> int | None:
        """Run pytest in the copy; return its exit code, None if it took too long."""
        job = {
            "folder": str(self.folder),
            "log": str(self.log),
            "words": ["-q", "-p", "no:cacheprovider", *words],
            "variables": {"PYTHONPATH": str(self.folder), "TMPDIR": str(self.folder / "build")},
            "timeout_s": TIMEOUT_S,
        }
        assert self.server.stdin is not None
        assert self.server.stdout is not None
        self.server.stdin.write(json.dumps(job).encode() + b"\n")
        self.server.stdin.flush()
        code: int | None = json.loads(self.server.stdout.readline())
        return code

    def notice(self, mutant: Mutant, piece: list[str]) -> str | None:
        """Return the test of *piece* that fails with the change; None if all pass."""
        file = self.folder / mutant.path
        original = file.read_bytes()
        file.write_bytes(changed(mutant, original))
        remove_compiled(file)
        try:
            code = self.run_tests(["-x", *piece])
        finally:
            file.write_bytes(original)
            remove_compiled(file)
        if code in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
            return None
        log = self.log.read_text(encoding="utf-8", errors="replace")
        if code in (pytest.ExitCode.USAGE_ERROR, pytest.ExitCode.INTERNAL_ERROR):
            # A test that is no longer there notices nothing.
            lost = [line for line in log.splitlines() if "not found" in line]
            raise SystemExit(f"record again which tests reach what (make covering): {lost or log}")
        failures = [line for line in log.splitlines() if line.startswith(("FAILED ", "ERROR "))]
        return failures[0][:120] if failures else f"exit code {code}"


# ---------------------------------------------------------------------------------------------
# Running mutants


def copy_or_link(source: str, target: str) -> None:
    """Copy a file of source, which may be edited meanwhile; link any other."""
    if source.endswith((".py", ".toml", ".txt")):
        shutil.copy2(source, target)
    else:
        os.link(source, target)


def make_copy(name: str) -> Path:
    """Make a copy of the repository, mostly out of hard links."""
    folder = WORK / name
    shutil.rmtree(folder, ignore_errors=True)

    def left_out(_folder: str, names: list[str]) -> set[str]:
        return LEFT_OUT_OF_COPIES & set(names)

    shutil.copytree(ROOT, folder, copy_function=copy_or_link, ignore=left_out)
    (folder / "build").mkdir()
    return folder


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

    def work(number_of_slot: int) -> None:
        slot = Slot(f"slot-{number_of_slot}")
        while True:
            try:
                i, number = waiting.get_nowait()
            except queue.Empty:
                slot.server.communicate()
                return
            if number in noticed:
                continue
            failure = slot.notice(mutants[number], pieces[number][i])
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
    parser.add_argument("--budget", type=float, default=120.0, help="seconds of tests per mutant")
    parser.add_argument("--covering", type=Path, default=WORK / "covering")
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
    tests = Tests(importers(), Covering(options.covering), options.budget)
    survivors = set(run(mutants, tests, options.jobs))
    for seed, of_seed in drawn.items():
        survived = [mutant for mutant in of_seed if mutant in survivors]
        for mutant in survived:
            print(f"SURVIVED (seed {seed}): {mutant}")
        print(f"seed {seed}: {len(of_seed) - len(survived)} of {len(of_seed)} noticed")
    return 1 if len(survivors) > MAX_SURVIVING_SHARE * len(mutants) else 0


if __name__ == "__main__":
    sys.exit(main())
