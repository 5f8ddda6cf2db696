"""``python -m tests.mutants``: change one thing, run the tests of its room, count what they do not notice."""

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
WORDS = ("-x", "-q", "--no-header", "-p", "no:cacheprovider", "-o", "addopts=", "--import-mode=importlib")
SMALL = 8
"""Whole numbers up to which a step is one."""


@dataclass(frozen=True)
class Mutant:
    """One change: what the plugin is told, and the tests that should notice."""

    said: str
    change: dict = field(hash=False)
    tests: tuple[str, ...] = ()


def steps(value):
    """Return a value a little above and a little below: one of a small count, a quarter and a fifth of the rest.

    >>> steps(3), steps(100), steps(0.1)
    ((4, 2), (125, 80), (0.125, 0.08))
    """
    if isinstance(value, int) and abs(value) <= SMALL:
        return value + 1, value - 1
    moved = value * 1.25, value * 0.8
    return tuple(map(round, moved)) if isinstance(value, int) else tuple(float(f"{one:.6g}") for one in moved)


def value_of(module, name):
    """Return a module's number, and the module that names it, where it is imported from there."""
    tree = ast.parse((ROOT / f"{module.replace('.', '/')}.py").read_text(encoding="utf-8"))
    for node in tree.body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        if any(isinstance(target, ast.Name) and target.id == name for target in targets):
            return eval(compile(ast.Expression(node.value), module, "eval"), {})
        if isinstance(node, ast.ImportFrom) and any(alias.name == name for alias in node.names):
            return value_of(node.module, name)
    raise SystemExit(f"{module} has no {name}")


def thresholds(chosen):
    """Return both moves of every threshold that was chosen."""
    for entry in chosen["threshold"]:
        module = f"tracekit.{entry['module']}"
        for name in entry["names"]:
            for to in steps(value_of(module, name)):
                change = {"kind": "threshold", "module": module, "name": name, "to": repr(to)}
                yield Mutant(f"{entry['module']}.{name} = {to}", change, tuple(entry["tests"]))


def rules(chosen):
    """Return every rule left out, and every bound of a rule moved."""
    tests = tuple(chosen["rules"]["tests"])
    for pack in sorted(PACKS.glob("*.toml")):
        text = pack.read_text(encoding="utf-8")
        for rule in tomllib.loads(text).get("rule", ()):
            change = {"kind": "rule", "pack": pack.name, "name": rule["name"]}
            yield Mutant(f"without rule {rule['name']}", change, (f"{EXAMPLE}[{rule['name']}]", *tests))
        for at, found in enumerate(BOUND.finditer(text)):
            for to in steps(int(found[0])):
                change = {"kind": "bound", "pack": pack.name, "at": at, "to": str(to)}
                yield Mutant(f"{pack.stem}: bound {at} of {found[0]} = {to}", change, tests)


def notices(mutant):
    """Return whether a test fails; the tests must be able to run."""
    if mutant.change.get("kind") in ("rule", "bound"):
        with rules_changed(mutant.change):
            return any(_fails(test) for test in mutant.tests)
    told = json.dumps(mutant.change) if mutant.change else "null"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "tests.mutants.plugin", *WORDS, *mutant.tests],
        cwd=ROOT,
        env={**os.environ, "TRACEKIT_MUTANT": told, "POLARS_MAX_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    if done.returncode not in (0, 1):
        raise SystemExit(f"{mutant.said}: the tests do not run\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.returncode == 1


def _fails(test):
    """Run tests in this process; a rule without an example of its own is no failure."""
    with contextlib.redirect_stdout(io.StringIO()):
        return pytest.main([*WORDS, "--assert=plain", test]) == pytest.ExitCode.TESTS_FAILED


def main():
    """Run the chosen set; exit with 1 where a change that is not excused goes unnoticed."""
    words = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    words.add_argument("--only", default="", help="only changes whose name holds this")
    words.add_argument("--list", action="store_true", help="name the changes and run nothing")
    asked = words.parse_args()
    chosen = tomllib.loads((HERE / "chosen.toml").read_text(encoding="utf-8"))
    excused = {one["mutant"]: one["because"] for one in chosen.get("excused", ())}
    every = [m for m in (*thresholds(chosen), *rules(chosen)) if asked.only in m.said]
    if asked.list:
        sys.stdout.write("".join(f"{m.said}\n" for m in every))
        return 0
    for tests in sorted({m.tests for m in every if m.change["kind"] == "threshold"}):
        if notices(Mutant("as it is", {}, tests)):
            raise SystemExit(f"{' '.join(tests)}: fail without any change")
    left = []
    for number, mutant in enumerate(every, start=1):
        seen = notices(mutant)
        word = "noticed" if seen else "excused" if mutant.said in excused else "SURVIVED"
        left += [] if seen else [mutant.said]
        sys.stdout.write(f"{number}/{len(every)} {word}: {mutant.said}\n")
        sys.stdout.flush()
    open_ones = [said for said in left if said not in excused]
    share = 100 * (len(every) - len(left)) / max(1, len(every))
    sys.stdout.write(f"{len(every) - len(left)} of {len(every)} noticed ({share:.0f} %), {len(left)} survived\n")
    return 1 if open_ones else 0


if __name__ == "__main__":
    sys.exit(main())
