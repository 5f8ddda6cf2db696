"""Mutation testing: whether the tests notice a changed constant, comparison or branch.

``python -m benchmarks.mutants --seed 1 --count 40 --jobs 16`` draws changes of the packages that
decide answers, runs the tests that execute the changed function, the nearest and cheapest first,
and prints the survivors. Exit code 1 if more than one in ten survives.

Which tests execute which functions is recorded once, one process per test file, in
``build/mutants/map.json`` (delete it when tests or code moved). Each job works in a copy of the
repository made of hard links, so that the working tree stays as it is.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import queue
import random
import resource
import shutil
import subprocess
import sys
import threading
import tomllib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
WORK = ROOT / "build/mutants"
PACKAGES = ("align", "classify", "diffs", "findings", "metrics", "whatif")
"""Packages whose constants, comparisons and branches decide answers."""
LEFT_OUT_OF_COPIES = {".git", ".venv", "build", "dist", "__pycache__", ".mypy_cache"}
FIRST_PIECE_S = 20
PIECE_S = 60
"""Processor time of the tests that one process runs: the first piece notices most mutants."""
MAX_SURVIVING_SHARE = 0.1
"""Share of mutants that may survive: some changes make no difference that anyone could see."""
MAX_INTEGER_MOVED_BY_ONE = 8
"""Integers up to which a number is moved by one; larger ones are doubled or halved."""
RUN_TO_THE_END = (
    pytest.ExitCode.OK,
    pytest.ExitCode.TESTS_FAILED,
    pytest.ExitCode.NO_TESTS_COLLECTED,
)
RECORDED = "TRACEKIT_EXECUTED"
"""Environment variable: the file to which the plugin writes the functions that tests execute."""

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
    functions: frozenset[str]
    """``path:qualified name`` of the functions whose tests should notice; empty: of the whole module."""

    def __str__(self) -> str:
        old, new = (" ".join(text.split())[:60] for text in (self.old, self.new))
        return f"{self.path}:{self.line}: {self.kind}: {old} -> {new}"


# ---------------------------------------------------------------------------------------------
# Candidates


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
    """Functions of the package that read each upper-case name, as ``path:qualified name``."""
    readers: dict[str, set[str]] = {}
    for file in (ROOT / "tracekit").rglob("*.py"):
        path = str(file.relative_to(ROOT))
        for scope, node in scoped_nodes(ast.parse(file.read_text(encoding="utf-8"))):
            name = node.id if isinstance(node, ast.Name) else getattr(node, "attr", "")
            if scope and isinstance(node, ast.Name | ast.Attribute) and name.isupper():
                readers.setdefault(name, set()).add(f"{path}:{scope}")
    return readers


def scoped_nodes(tree: ast.AST, scope: str = "") -> Iterator[tuple[str, ast.AST]]:
    """Yield each node with the qualified name of the outermost function that it stands in."""
    for node in ast.iter_child_nodes(tree):
        inner = scope
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            in_function = scope and not scope.endswith(".")
            if not in_function:
                is_class = isinstance(node, ast.ClassDef)
                inner = scope + node.name + ("." if is_class else "")
        yield scope if scope and not scope.endswith(".") else "", node
        if isinstance(node, ast.JoinedStr):
            continue  # Python 3.11 does not say where in the file its parts stand
        yield from scoped_nodes(node, inner)


class Finder:
    """Finds the changes of one module."""

    def __init__(self, file: Path, readers: dict[str, set[str]]) -> None:
        self.path = str(file.relative_to(ROOT))
        self.source = file.read_bytes()
        self.lines = self.source.split(b"\n")
        self.readers = readers
        self.scope = ""
        self.seen: list[Mutant] = []

    def mutants(self) -> list[Mutant]:
        """Return the changes in the order in which they stand in the file."""
        tree = ast.parse(self.source)
        for node in tree.body:
            if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
                self.scope = ""
                target = node.targets[0] if isinstance(node, ast.Assign) else node.target
                if isinstance(target, ast.Name) and is_number(node.value):
                    self._add_number(node.value, self.readers.get(target.id, set()))
        for scope, node in scoped_nodes(tree):
            if scope:
                self.scope = scope
                self.visit(node)
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
            sum(len(line) + 1 for line in self.lines[: line - 1]) + column
            for line, column in (
                (node.lineno, node.col_offset),
                (node.end_lineno or node.lineno, node.end_col_offset or 0),
            )
        )
        functions = {f"{self.path}:{self.scope}"} if readers is None else readers
        self.seen.append(
            Mutant(
                self.path,
                node.lineno,
                kind,
                start,
                end,
                self.source[start:end].decode(),
                new,
                frozenset(functions),
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
    reader = frozenset({"tracekit/classify/rules.py:builtin_rules"})
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
# Which tests execute which functions. This part is loaded by pytest too (``-p benchmarks.mutants``).


class Recorder:
    """Pytest plugin that writes the functions of tracekit which a process called, and the tests that failed."""

    def __init__(self, file: str) -> None:
        self.file = Path(file)
        self.codes: set[object] = set()
        self.failed: list[str] = []
        package = f"{ROOT / 'tracekit'}{os.sep}"
        codes = self.codes

        def called(frame, event, arg):
            # Called for every function of the process: it must be short.
            code = frame.f_code
            if code not in codes:
                codes.add(code)

        self.package = package
        threading.settrace(called)
        sys.settrace(called)

    def pytest_runtest_logreport(self, report) -> None:
        """Remember what fails without any change."""
        if report.failed:
            self.failed.append(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        """Write the record."""
        sys.settrace(None)
        functions = set()
        for code in self.codes:
            if code.co_filename.startswith(self.package):
                path = os.path.relpath(code.co_filename, ROOT)
                functions.add(f"{path}:{code.co_qualname.split('.<')[0]}")
        usage = [
            resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
        ]
        seconds = sum(part.ru_utime + part.ru_stime for part in usage)
        record = {"seconds": seconds, "failed": self.failed, "functions": sorted(functions)}
        self.file.write_text(json.dumps(record), encoding="utf-8")


def pytest_configure(config: pytest.Config) -> None:
    if RECORDED in os.environ:
        config.pluginmanager.register(Recorder(os.environ.pop(RECORDED)))


def units() -> list[str]:
    """What one process of the map runs: a test file, or the examples of a package."""
    tests = sorted(str(file.relative_to(ROOT)) for file in (ROOT / "tests").rglob("test_*.py"))
    return tests + [f"tracekit/{package}" for package in PACKAGES]


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


def record_map(jobs: int) -> dict[str, dict]:
    """Run every test file on its own and return the functions that it calls, its time and what fails."""
    file = WORK / "map.json"
    if file.exists():
        return json.loads(file.read_text(encoding="utf-8"))
    folder = make_copy("map")
    waiting = units()

    def record(unit: str) -> dict:
        out = folder / "build" / unit.replace("/", "+")
        words = ["-p", "benchmarks.mutants", unit]
        code = run_tests(folder, words, 900, **{RECORDED: str(out)})
        if code not in RUN_TO_THE_END:  # a package is missing, say: these tests cannot be used
            return {"seconds": 0.0, "failed": [unit], "functions": []}
        return json.loads(out.read_text(encoding="utf-8"))

    with ThreadPoolExecutor(jobs) as pool:
        records = dict(zip(waiting, pool.map(record, waiting), strict=True))
    file.write_text(json.dumps(records), encoding="utf-8")
    return records


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


def pieces_of(mutant: Mutant, records: dict[str, dict]) -> list[list[str]]:
    """Return the test files that execute the changed function, nearest and cheapest first, in pieces."""
    package = mutant.path.split("/")[1]
    functions = mutant.functions

    def executes(record: dict) -> bool:
        called = record["functions"]
        if functions:
            return not functions.isdisjoint(called)
        return any(function.startswith(f"{mutant.path}:") for function in called)

    covering = [unit for unit, record in records.items() if executes(record)]
    covering.sort(key=lambda unit: (f"/{package}" not in unit, records[unit]["seconds"]))
    pieces: list[list[str]] = []
    room_s = 0.0
    for unit in covering:
        seconds = records[unit]["seconds"]
        if seconds > room_s:
            pieces.append([])
            room_s = PIECE_S if len(pieces) > 1 else FIRST_PIECE_S
        room_s -= seconds
        pieces[-1].append(unit)
    return pieces


def notices(folder: Path, mutant: Mutant, piece: list[str], records: dict[str, dict]) -> bool:
    """Return whether a test of *piece* fails with the change."""
    file = folder / mutant.path
    original = file.read_bytes()
    file.unlink()  # a hard link: the original stays
    file.write_bytes(changed(mutant, original))
    for compiled in (file.parent / "__pycache__").glob(f"{file.stem}.*"):
        compiled.unlink()
    failing = [test for unit in piece for test in records[unit]["failed"]]
    deselected = [f"--deselect={test}" for test in failing]
    seconds = sum(records[unit]["seconds"] for unit in piece)
    try:
        code = run_tests(folder, ["-x", *deselected, *piece], 120 + 10 * seconds)
    finally:
        file.unlink()
        os.link(ROOT / mutant.path, file)
        for compiled in (file.parent / "__pycache__").glob(f"{file.stem}.*"):
            compiled.unlink()
    no_tests = pytest.ExitCode.NO_TESTS_COLLECTED
    return code not in (pytest.ExitCode.OK, no_tests)


def run(mutants: list[Mutant], records: dict[str, dict], jobs: int) -> list[Mutant]:
    """Run all mutants and return those that no test notices."""
    waiting: queue.PriorityQueue = queue.PriorityQueue()
    pieces = [pieces_of(mutant, records) for mutant in mutants]
    for number, of_mutant in enumerate(pieces):
        for i, _piece in enumerate(of_mutant):
            waiting.put((i, number))
    noticed: set[int] = set()
    lock = threading.Lock()

    def work(slot: int) -> None:
        folder = make_copy(f"slot-{slot}")
        while True:
            try:
                i, number = waiting.get_nowait()
            except queue.Empty:
                return
            if number in noticed:
                continue
            if notices(folder, mutants[number], pieces[number][i], records):
                with lock:
                    if number not in noticed:
                        noticed.add(number)
                        print(
                            f"noticed {len(noticed)}/{len(mutants)}: {mutants[number]}", flush=True
                        )

    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(work, range(jobs)))
    return [mutant for number, mutant in enumerate(mutants) if number not in noticed]


def main() -> int:
    """Draw, run and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, nargs="+", default=[1])
    parser.add_argument("--count", type=int, default=40, help="mutants of each seed")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--only", default="", help="only mutants whose description contains this")
    parser.add_argument("--map", action="store_true", help="only record which tests run what")
    parser.add_argument("--list", action="store_true", help="print the mutants and run nothing")
    options = parser.parse_args()
    drawn = {seed: draw(seed, options.count) for seed in options.seed}
    if options.list:
        for seed, mutants in drawn.items():
            print(*(f"seed {seed}: {mutant}" for mutant in mutants), sep="\n")
        return 0
    WORK.mkdir(parents=True, exist_ok=True)
    records = record_map(options.jobs)
    for unit, record in records.items():
        if record["failed"]:
            print(f"left out, because it fails unchanged: {' '.join(record['failed'])} ({unit})")
    if options.map:
        return 0
    drawn = {
        seed: [mutant for mutant in mutants if options.only in str(mutant)]
        for seed, mutants in drawn.items()
    }
    mutants = [mutant for of_seed in drawn.values() for mutant in of_seed]
    survivors = set(run(mutants, records, options.jobs))
    for seed, of_seed in drawn.items():
        survived = [mutant for mutant in of_seed if mutant in survivors]
        for mutant in survived:
            print(f"SURVIVED (seed {seed}): {mutant}")
        print(f"seed {seed}: {len(of_seed) - len(survived)} of {len(of_seed)} noticed")
    return 1 if len(survivors) > MAX_SURVIVING_SHARE * len(mutants) else 0


if __name__ == "__main__":
    sys.exit(main())
