"""Mutation testing: ``python -m tests.mutants`` changes one threshold or rule at a time and runs its tests.

chosen.toml names the thresholds and the tests that should fail. A mutant that no test notices is
reported as survived.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import io
import json
import os
import subprocess
import sys
import tomllib
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.mutants.plugin import BOUND, rules_changed

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
PACKS = ROOT / "tracekit" / "classify" / "packs"
EXAMPLE = "tests/classify/test_rules_covered.py::test_the_example_is_decided_by_its_rule"
PYTEST_OPTIONS = (
    "-x",
    "-q",
    "--no-header",
    "-p",
    "no:cacheprovider",
    "-o",
    "addopts=",
    "--import-mode=importlib",
)
MAX_INTEGER_MOVED_BY_ONE = 8
"""Integers up to which a threshold is moved by one; larger ones are moved by a share."""


@dataclass(frozen=True)
class Mutant:
    """A change of one threshold or rule, and the tests that should notice it."""

    name: str
    change: dict = field(hash=False)  # input of the plugin
    tests: tuple[str, ...] = ()


def moved_values(value):
    """Return a larger and a smaller value: by one for a small integer, else 1.25 and 0.8 times *value*.

    >>> moved_values(3), moved_values(100), moved_values(0.1)
    ((4, 2), (125, 80), (0.125, 0.08))
    """
    if isinstance(value, int) and abs(value) <= MAX_INTEGER_MOVED_BY_ONE:
        return value + 1, value - 1
    moved = value * 1.25, value * 0.8
    if isinstance(value, int):
        return tuple(map(round, moved))
    return tuple(float(f"{number:.6g}") for number in moved)


def constant_value(module, name):
    """Return the value of a module's constant, also of one that the module imports.

    Raises:
        LookupError: The module or the constant does not exist; it was probably renamed.
    """
    file = ROOT / f"{module.replace('.', '/')}.py"
    if not file.is_file():
        raise LookupError(f"{module}:{name}: there is no module {module}")
    tree = ast.parse(file.read_text(encoding="utf-8"))
    for node in tree.body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        if any(isinstance(target, ast.Name) and target.id == name for target in targets):
            return eval(compile(ast.Expression(node.value), module, "eval"), {})
        if isinstance(node, ast.ImportFrom) and any(alias.name == name for alias in node.names):
            return constant_value(node.module, name)
    raise LookupError(f"{module}:{name}: {module} has no constant {name}")


DECIDING = (
    "classify",
    "align",
    "metrics/causes.py",
    "metrics/host_time.py",
    "reconstruct",
    "against_ideal",
    "whatif",
    "findings",
    "store/checks.py",
    "parsers/long_names.py",
)
"""Packages and modules whose constants decide answers."""


def numeric_constants():
    """Yield module and name of every number that is a constant of a deciding module."""
    for module_name in DECIDING:
        path = ROOT / "tracekit" / module_name
        for file in sorted(path.glob("*.py")) if path.is_dir() else [path]:
            module = ".".join(file.relative_to(ROOT).with_suffix("").parts)
            for node in ast.parse(file.read_text(encoding="utf-8")).body:
                if isinstance(node, ast.Assign | ast.AnnAssign) and _is_number(node.value):
                    target = node.targets[0] if isinstance(node, ast.Assign) else node.target
                    if isinstance(target, ast.Name) and target.id.isupper():
                        yield module, target.id


def _is_number(expression):
    """Return whether an expression is made of numbers alone.

    >>> [_is_number(ast.parse(text, mode="eval").body) for text in ("2**62", "-1", "True", "len(NAMES)")]
    [True, True, False, False]
    """
    allowed = (ast.Constant, ast.UnaryOp, ast.BinOp, ast.operator, ast.unaryop)
    parts = [] if expression is None else list(ast.walk(expression))
    numbers = [node.value for node in parts if isinstance(node, ast.Constant)]
    is_arithmetic = bool(parts) and all(isinstance(node, allowed) for node in parts)
    return is_arithmetic and all(type(number) in (int, float) for number in numbers)


def read_chosen():
    """Return chosen.toml."""
    return tomllib.loads((HERE / "chosen.toml").read_text(encoding="utf-8"))


def threshold_mutants(chosen):
    """Yield two mutants for each chosen threshold: a larger and a smaller value."""
    for entry in chosen["threshold"]:
        for constant in entry["constants"]:
            module, name = constant.split(":")
            for value in moved_values(constant_value(module, name)):
                change = {"kind": "threshold", "module": module, "name": name, "to": repr(value)}
                yield Mutant(f"{constant} = {value}", change, tuple(entry["tests"]))


def rule_mutants(chosen):
    """Yield one mutant for each rule left out, and two for each bound of a rule."""
    tests = tuple(chosen["rules"]["tests"])
    for pack in sorted(PACKS.glob("*.toml")):
        text = pack.read_text(encoding="utf-8")
        for rule in tomllib.loads(text).get("rule", ()):
            change = {"kind": "rule", "pack": pack.name, "name": rule["name"]}
            yield Mutant(
                f"without rule {rule['name']}", change, (f"{EXAMPLE}[{rule['name']}]", *tests)
            )
        for index, match in enumerate(BOUND.finditer(text)):
            for value in moved_values(int(match[0])):
                change = {"kind": "bound", "pack": pack.name, "index": index, "to": str(value)}
                yield Mutant(f"{pack.stem}: bound {index} of {match[0]} = {value}", change, tests)


def is_noticed(mutant):
    """Return whether a test fails with the change; exit if the tests cannot run at all."""
    if mutant.change.get("kind") in ("rule", "bound"):
        with rules_changed(mutant.change):
            return any(_fails(test) for test in mutant.tests)
    change = json.dumps(mutant.change) if mutant.change else "null"
    result = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-p",
            "tests.mutants.plugin",
            *PYTEST_OPTIONS,
            *mutant.tests,
        ],
        cwd=ROOT,
        env={**os.environ, "TRACEKIT_MUTANT": change, "POLARS_MAX_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    if result.returncode not in (0, 1):
        raise SystemExit(
            f"{mutant.name}: the tests do not run\n{result.stdout[-2000:]}{result.stderr[-2000:]}"
        )
    return result.returncode == 1


def _fails(test):
    """Return whether *test* fails in this process.

    A rule without an example of its own does not fail.
    """
    with contextlib.redirect_stdout(io.StringIO()):
        return (
            pytest.main([*PYTEST_OPTIONS, "--assert=plain", test]) == pytest.ExitCode.TESTS_FAILED
        )


def main():
    """Run all mutants; return 1 if one survives that chosen.toml does not excuse."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--only", default="", help="only mutants whose name contains this")
    parser.add_argument("--list", action="store_true", help="list the mutants and run nothing")
    options = parser.parse_args()
    chosen = read_chosen()
    excused = {entry["mutant"] for entry in chosen.get("excused", ())}
    try:
        mutants = [*threshold_mutants(chosen), *rule_mutants(chosen)]
    except LookupError as error:
        raise SystemExit(f"tests/mutants/chosen.toml: {error.args[0]}") from None
    mutants = [mutant for mutant in mutants if options.only in mutant.name]
    if options.list:
        sys.stdout.write("".join(f"{mutant.name}\n" for mutant in mutants))
        return 0
    for tests in sorted(
        {mutant.tests for mutant in mutants if mutant.change["kind"] == "threshold"}
    ):
        if is_noticed(Mutant("no change", {}, tests)):
            raise SystemExit(f"{' '.join(tests)}: fail without any change")
    survivors = []
    for number, mutant in enumerate(mutants, start=1):
        noticed = is_noticed(mutant)
        if not noticed:
            survivors.append(mutant.name)
        status = "noticed" if noticed else "excused" if mutant.name in excused else "SURVIVED"
        sys.stdout.write(f"{number}/{len(mutants)} {status}: {mutant.name}\n")
        sys.stdout.flush()
    count = len(mutants) - len(survivors)
    share = 100 * count / max(1, len(mutants))
    sys.stdout.write(
        f"{count} of {len(mutants)} noticed ({share:.0f} %), {len(survivors)} survived\n"
    )
    return 1 if set(survivors) - excused else 0


if __name__ == "__main__":
    sys.exit(main())
