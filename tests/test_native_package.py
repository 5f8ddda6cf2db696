"""The package's own native functions: all are known, kept, and loaded without a compiler."""

import ast
import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

import tracekit
from tracekit._util import compilers, kept, llvm, objects
from tracekit._util import native as _native
from tracekit._util.native import Native
from tracekit.parsers.refs import SourceRef
from tracekit.store.reading import prepare

ROOT = Path(tracekit.__file__).parent


def test_a_warm_process_imports_no_compiler():
    code = (
        "import sys, tracekit; tracekit.analyze('sample_traces/1f1b')\n"
        "imported = {name.partition('.')[0] for name in sys.modules}\n"
        "print(sorted(imported & {'numba', 'llvmlite', 'scipy', 'pandas', 'matplotlib'}))"
    )
    for _ in range(2):  # the first may have to compile
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT.parent)
    assert done.stdout == "[]\n"
    assert done.stderr == ""


def declared():
    """Every function the package declares."""
    for file in ROOT.rglob("*.py"):
        if re.search(r"^from tracekit._util.native import .*[nN]ative", file.read_text(), re.MULTILINE):
            module = ".".join(file.relative_to(ROOT.parent).with_suffix("").parts)
            importlib.import_module(module.removesuffix(".__init__"))
    mine = [made for made in _native._declared if made.name.startswith("tracekit.")]
    return [made for made in mine if made._source.exists()]  # an example in a docstring declares one too


def test_work_in_processes_starts_with_everything_compiled(monkeypatch):
    made = declared()
    for one in made:
        monkeypatch.setattr(one, "_run", None)
    prepare([SourceRef("rank0.json", "kineto")])
    assert all(one._run for one in made)


def test_no_function_of_the_package_falls_back_to_numba():
    made = declared()
    assert len(made) > 10
    for one in made:
        assert one.load().__qualname__.startswith("Native."), one.name


def test_every_function_of_the_package_is_loaded_without_llvm(monkeypatch):
    """And by LLVM, where the system has no memory that can be placed into: on macOS, say."""
    monkeypatch.setattr(llvm, "place", lambda *_: pytest.fail("LLVM was asked"))
    made = [one for one in declared() if one._kept(one._key())]
    assert len(made) > 10
    monkeypatch.undo()
    monkeypatch.setattr(objects, "place", lambda *_: (_ for _ in ()).throw(objects.PlacingError("another system")))
    assert all(one._kept(one._key()) for one in made)


def imported_from(module, within, seen=None):
    """What a module of the package imports of it, and what that imports as far as it is *within* a folder."""
    seen = set() if seen is None else seen
    for node in ast.walk(ast.parse((ROOT.parent / Path(*module.split("."))).with_suffix(".py").read_text())):
        used = (node.module or "") if isinstance(node, ast.ImportFrom) else ""
        if used.startswith("tracekit") and used not in seen:
            seen.add(used)
            if used.startswith(within + "."):
                imported_from(used, within, seen)
    return seen


def test_native_code_depends_only_on_what_its_key_covers():
    """A constant from another file could change without the kept code being seen as stale."""
    for one in declared():
        if isinstance(one._function, str):
            module = one._function.partition(":")[0]
            own = ".".join(one._source.relative_to(ROOT.parent).parts)
            elsewhere = {used for used in imported_from(module, own) if not used.startswith(own)}
            assert elsewhere <= {"tracekit._util.native", "tracekit._util.compiled"}, one.name
    for one in declared():
        if isinstance(one._function, str):
            continue
        tree = ast.parse(Path(one._function.__code__.co_filename).read_text())
        imported = {
            alias.asname or alias.name
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tracekit")
            for alias in node.names
        }
        assert not imported & set(one._function.__code__.co_names), one.name


def test_every_module_with_native_functions_is_known_to_the_compiler():
    root = Path(_native.__file__).parent.parent
    using = {
        ".".join(("tracekit", *path.relative_to(root).with_suffix("").parts)).removesuffix(".__init__")
        for path in root.rglob("*.py")
        if path != Path(_native.__file__)
        if re.search(r"^\s*@native\(|^\w+ = Native\(|\bnative\(\"", path.read_text(), re.MULTILINE)
    }
    assert using == set(_native.MODULES)


def test_with_another_numba_the_package_runs_all_the_same(monkeypatch, tmp_path):
    """The fallback, on functions of the package: what they give is what native code gives."""
    from tracekit.schedules import Times, generate, simulate

    monkeypatch.setattr("tracekit.schedules.simulator.NATIVE_OPS", 0)
    plan, times = generate("1f1b", pp=3, microbatches=5), Times(F=3, I=2, W=1)
    expected = simulate(plan, times).end.tolist()
    monkeypatch.setenv(kept.FOLDER, str(tmp_path))
    monkeypatch.setattr(compilers, "start", lambda _: None)
    monkeypatch.setattr(Native, "_code", lambda self: (_ for _ in ()).throw(AttributeError("no fndesc")))
    fell_back = [one for one in declared() if one.name.startswith("tracekit.schedules.simulator")]
    assert fell_back
    for one in fell_back:
        monkeypatch.setattr(one, "_run", None)
    assert simulate(plan, times).end.tolist() == expected
    assert any("Dispatcher" in type(one._run).__name__ for one in fell_back), "nothing fell back"
    assert list(tmp_path.iterdir()) == []
