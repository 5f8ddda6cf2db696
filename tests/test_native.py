"""Native code: kept, found again, and never trusted when it is not what it says."""

import importlib
import importlib.util
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from tracekit._util import compilers, kept, llvm
from tracekit._util import native as _native
from tracekit._util.native import Native, native
from tracekit.errors import TracekitError

SUM = "int64(int64[::1], int64)"
SOURCE = """
def total(values, more):
    found = more
    for value in values:
        found += value
    return found
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Where native code is kept in a test."""
    monkeypatch.setenv(kept.FOLDER, str(tmp_path / "kept"))
    return tmp_path / "kept"


def function(tmp_path, source=SOURCE, name="total"):
    """A function written in a file of its own."""
    file = tmp_path / "written.py"
    file.write_text(source)
    spec = importlib.util.spec_from_file_location("written", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return Native(SUM, getattr(module, name), file)


def loads(made, monkeypatch):
    """Whether a function is loaded rather than compiled."""
    compiled = []
    with monkeypatch.context() as patch:
        patch.setattr(Native, "_compiled", lambda self, key: compiled.append(key) or self.python)
        made.load()
    return not compiled


def test_a_function_is_compiled_once_and_then_found(tmp_path, folder, monkeypatch):
    first = function(tmp_path)
    assert not loads(function(tmp_path), monkeypatch)
    assert first(np.array([1, 2, 3]), 4) == 10
    assert [file.suffix for file in folder.iterdir()] == [".native"]
    again = function(tmp_path)
    assert loads(again, monkeypatch)
    assert again(np.array([1, 2, 3]), -7) == -1


def test_a_changed_source_is_compiled_anew(tmp_path, folder, monkeypatch):
    function(tmp_path).load()
    changed = function(tmp_path, SOURCE.replace("+= value", "+= 2 * value"))
    assert not loads(changed, monkeypatch)
    changed = function(tmp_path, SOURCE.replace("+= value", "+= 2 * value"))
    assert changed(np.array([1, 2, 3]), 0) == 12
    assert len(list(folder.iterdir())) == 1  # the new code took the old one's place


def test_another_numba_or_processor_has_files_of_its_own(tmp_path, folder, monkeypatch):
    function(tmp_path).load()
    monkeypatch.setattr(_native, "_machine", lambda: b"another")
    assert not loads(function(tmp_path), monkeypatch)
    function(tmp_path).load()
    assert len(list(folder.iterdir())) == 2


@pytest.mark.parametrize(
    "damage",
    [
        lambda kept: b"",
        lambda kept: kept[:20],
        lambda kept: kept[: len(kept) // 2],
        lambda kept: kept[:200] + bytes([kept[200] ^ 1]) + kept[201:],
        lambda kept: bytes(32) + kept[32:],
        lambda kept: kept + b"more",
        lambda kept: os.urandom(len(kept)),
    ],
)
def test_a_damaged_file_is_never_run(tmp_path, folder, monkeypatch, damage):
    function(tmp_path).load()
    (file,) = folder.iterdir()
    whole = file.read_bytes()
    file.write_bytes(damage(whole))
    assert not loads(function(tmp_path), monkeypatch)
    assert function(tmp_path)(np.array([5]), 6) == 11
    assert loads(function(tmp_path), monkeypatch)  # and the file is whole again


def test_one_functions_file_does_not_do_for_another(tmp_path, folder, monkeypatch):
    source = SOURCE + SOURCE.replace("total", "other").replace("+= value", "-= value")
    function(tmp_path, source).load()
    (file,) = folder.iterdir()
    other = function(tmp_path, source, name="other")
    (folder / file.name.replace("total", "other")).write_bytes(file.read_bytes())
    assert not loads(other, monkeypatch)
    assert function(tmp_path, source, name="other")(np.array([5]), 6) == 1


def test_with_nowhere_to_keep_code_it_is_compiled_and_runs(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv(kept.FOLDER, str(tmp_path / "file" / "below"))
    assert function(tmp_path)(np.array([1, 2]), 0) == 3
    assert not loads(function(tmp_path), monkeypatch)


def test_the_users_folder_does_where_the_package_cannot_be_written(tmp_path, monkeypatch):
    monkeypatch.delenv(kept.FOLDER, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    (tmp_path / "__pycache__").touch()  # a file where the folder would be
    assert function(tmp_path)(np.array([1, 2]), 0) == 3
    assert [file.parent.name for file in tmp_path.rglob("*.native")] == ["tracekit"]
    assert loads(function(tmp_path), monkeypatch)


def test_without_a_home_nothing_is_kept(tmp_path, monkeypatch):
    monkeypatch.delenv(kept.FOLDER, raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", lambda: (_ for _ in ()).throw(RuntimeError("no home")))
    (tmp_path / "__pycache__").touch()
    assert function(tmp_path)(np.array([1, 2]), 0) == 3


def test_a_function_native_code_cannot_hold_runs_all_the_same(tmp_path, folder):
    source = SOURCE.replace("found = more", "found = more + np.zeros(1, np.int64)[0]")
    made = function(tmp_path, "import numpy as np\n" + source)
    assert made(np.array([1, 2]), 4) == 7
    assert not folder.exists()


def test_a_code_that_cannot_be_loaded_is_compiled(tmp_path, folder, monkeypatch):
    function(tmp_path).load()
    linked, tries = Native._linked, []

    def fails_first(self, code):
        tries.append(code)
        if len(tries) == 1:
            raise RuntimeError("no such function")
        return linked(self, code)

    monkeypatch.setattr(Native, "_linked", fails_first)
    assert function(tmp_path)(np.array([1, 2]), 4) == 7


@pytest.mark.parametrize(
    ("args", "error"),
    [
        ((np.zeros(3, np.int32), 1), TypeError),
        ((np.zeros(3, ">i8"), 1), TypeError),
        ((np.zeros((3, 3), np.int64), 1), TypeError),
        ((np.zeros(6, np.int64)[::2], 1), TypeError),
        (([1, 2, 3], 1), AttributeError),
        ((np.zeros(3, np.int64),), ValueError),
        ((np.zeros(3, np.int64), 1, 2), ValueError),
        ((np.zeros(3, np.int64), "one"), ValueError),
    ],
)
def test_only_what_the_signature_says_is_passed_on(tmp_path, folder, args, error):
    with pytest.raises(error):
        function(tmp_path)(*args)


def test_two_dimensions_and_booleans(folder):
    @native("void(boolean[:,::1], int64[:,::1])")
    def count(flags, found):
        for i in range(flags.shape[0]):
            for k in range(flags.shape[1]):
                if flags[i, k]:
                    found[k, i] += i + 1

    flags, found = np.array([[True, False, True], [False, True, True]]), np.zeros((3, 2), np.int64)
    assert count(flags, found) is None
    assert found.tolist() == [[1, 0], [0, 2], [1, 2]]


def test_processes_at_once_do_not_disturb_each_other(tmp_path, folder):
    code = (
        "import sys, numpy as np; sys.path.insert(0, sys.argv[1])\n"
        "import written; from tracekit._util.native import Native\n"
        f"total = Native('{SUM}', written.total, written.__file__)\n"
        "print(total(np.arange(100), 1))"
    )
    (tmp_path / "written.py").write_text(SOURCE)
    words = [sys.executable, "-c", code, str(tmp_path)]
    running = [subprocess.Popen(words, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    assert [process.communicate(timeout=120)[0] for process in running] == ["4951\n"] * 3
    assert len(list(folder.iterdir())) == 1


def test_threads_that_call_at_once_compile_once(tmp_path, folder, monkeypatch):
    made, compiled, count = function(tmp_path), Native._compiled, []
    monkeypatch.setattr(Native, "_compiled", lambda self, key: count.append(1) or compiled(self, key))
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda more: made(np.arange(10), more), range(4))) == [45, 46, 47, 48]
    assert count == [1]


def test_compiling_one_function_compiles_all_so_that_it_is_said_once(tmp_path, folder, monkeypatch):
    rest, helped = [], []
    monkeypatch.setattr(_native, "_compile_the_rest", lambda: rest.append(1))
    monkeypatch.setattr(compilers, "start", helped.append)
    made = function(tmp_path)
    monkeypatch.setattr(_native, "MODULES", (made.name.rpartition(".")[0],))
    made.load()
    assert rest == [1]
    made._run = None
    made.load()  # kept: nothing to compile, here or elsewhere
    assert rest == [1]
    assert helped == [made.name]


def test_nobody_helps_where_nothing_can_be_kept_or_to_those_who_help(tmp_path, monkeypatch):
    made = function(tmp_path)
    monkeypatch.setattr(_native, "MODULES", (made.name.rpartition(".")[0],))
    monkeypatch.setattr(_native, "_compile_the_rest", lambda: None)
    monkeypatch.setattr(compilers, "start", lambda _: pytest.fail("started"))
    (tmp_path / "cache").write_text("a file where a folder should be")
    monkeypatch.setenv(kept.FOLDER, str(tmp_path / "cache" / "deeper"))
    made.load()
    made._run = None
    monkeypatch.setenv(kept.FOLDER, str(tmp_path))
    monkeypatch.setattr(compilers, "helping", threading.Event())
    compilers.helping.set()
    made.load()


def test_those_who_help_share_all_functions_but_the_first(monkeypatch):
    class Function:
        def __init__(self, name):
            self.name = name

        def load(self):
            loaded.append(self.name)

    monkeypatch.setattr(_native, "package_functions", lambda: [Function(name) for name in "abcdefg"])
    monkeypatch.setattr(compilers, "helping", threading.Event())
    loaded = []
    for share in range(3):
        compilers.compile_share(share, 3, "c")
    assert sorted(loaded) == list("abdefg")
    assert loaded[:2] == ["a", "e"]
    assert compilers.helping.is_set()


@pytest.mark.parametrize(("cores", "started"), [(1, 0), (2, 1), (4, 3), (64, 3)])
def test_helpers_are_started_where_cores_are_there_and_once(monkeypatch, cores, started):
    words = []
    monkeypatch.setattr(compilers, "_running", [])
    monkeypatch.setattr(compilers, "cores", lambda: cores)
    monkeypatch.setattr(subprocess, "Popen", lambda line, **_: words.append(line[-1]))
    for _ in range(2):
        compilers.start("first")
    assert len(words) == started
    for share, code in enumerate(words):
        assert code.endswith(f"compilers.compile_share({share}, {started}, 'first')")


def test_where_nothing_can_be_kept_the_folder_is_named_once(tmp_path, monkeypatch, capsys):
    (tmp_path / "cache").write_text("a file where a folder should be")
    monkeypatch.setenv(kept.FOLDER, str(tmp_path / "cache"))
    monkeypatch.setattr(_native, "_compile_the_rest", lambda: pytest.fail("nothing was kept"))
    _native._tell_unkept.cache_clear()
    for _ in range(2):
        function(tmp_path).load()
    assert capsys.readouterr().err.count(kept.FOLDER) == 1


def test_what_we_lean_on_of_numba_is_as_it_was():
    """Not promised by numba: if a newer one fails here, its functions run through numba itself and nothing is kept.

    Whoever meets this adapts ``Native._code`` and ``_Argument.ctypes``, or lets the fallback be.
    """
    import numba
    from llvmlite import binding

    def total(values, more):
        found = more
        for value in values:
            found += value
        return found

    compiled = numba.njit(SUM, **_native.OPTIONS)(total)  # private options are taken
    (types,) = compiled.signatures
    symbol = compiled.overloads[types].fndesc.llvm_func_name
    module = binding.parse_assembly(compiled.inspect_llvm(types))
    defined = {function.name for function in module.functions if not function.is_declaration}
    assert symbol in defined
    assert not [name for name in defined if name.startswith("cpython.")], "a wrapper for Python was made all the same"
    # Room for the result and the error; of an array its owner (two), size, item's size, address, shape, stride.
    taken = [str(argument.type) for argument in module.get_function(symbol).arguments]
    assert taken == ["ptr", "ptr", "ptr", "ptr", "i64", "i64", "ptr", "i64", "i64", "i64"]
    assert str(module.get_function(symbol).type) == "ptr"
    assert binding.get_process_triple()
    assert llvm.target_machine().emit_object(module)


@pytest.mark.parametrize("gone", ["numba", "llvmlite"])
def test_without_its_compiler_it_says_what_to_install(tmp_path, folder, monkeypatch, gone):
    _native._machine.cache_clear()
    monkeypatch.setitem(sys.modules, gone, None)  # as if it were not installed
    if gone == "llvmlite":
        monkeypatch.setitem(sys.modules, "numba", None)  # which cannot be imported without it
    with pytest.raises(TracekitError, match=r"numba, which compiles tracekit once on a machine, cannot be imported"):
        function(tmp_path)(np.array([1, 2]), 0)
    monkeypatch.undo()
    _native._machine.cache_clear()


def test_code_that_was_kept_needs_no_compiler(tmp_path, folder, monkeypatch):
    function(tmp_path).load()
    monkeypatch.setitem(sys.modules, "numba", None)
    assert function(tmp_path)(np.array([1, 2]), 4) == 7
