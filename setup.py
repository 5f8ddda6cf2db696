"""Build of the compiled loops and of the package's description.

Everything else stands in ``pyproject.toml``.

The modules of ``tracekit/_loops`` are compiled by Cython. They are optional: where no compiler or
no ``Python.h`` can be found the installation still succeeds, a warning says what is missing, and
the same modules run uncompiled.

Environment variables:
    TRACEKIT_CHECKED=1: build for fuzzing, with every bounds check on, also those that a loop
    switches off, and with the
        address sanitizer (start Python with its library in LD_PRELOAD, as ``make fuzz-checked``
        does).
"""

from __future__ import annotations

import ast
import os
import re
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

from build_backend import has_c_compiler

try:
    from Cython.Build import cythonize
except ImportError:  # an installation without build isolation and without Cython
    cythonize = None

ROOT = Path(__file__).parent
SOURCE_URL = "https://github.com/tracekit-ml/tracekit"
RELATIVE_LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!https?:|#)([^)\s]+)\)")
SHARED_CODE = "tracekit._loops._cyutility"
"""Module for what Cython would otherwise compile into each of the others; building takes half as
long with it."""
JOBS = min(os.cpu_count() or 1, 8)
"""Modules that are compiled side by side."""
CHECKED = os.environ.get("TRACEKIT_CHECKED") == "1"
COMPILER_FLAGS = ["-O3", "-g0"]
"""Optimized, and without the debug information that Python's own flags ask for, which costs two fifths
of the time to compile."""
SHARED_COMPILER_FLAGS = ["-O1", "-g0"]
"""Of ``SHARED_CODE``, in which no loop runs: it compiles in half the time."""
SANITIZER_FLAGS = ["-fsanitize=address,undefined", "-fno-omit-frame-pointer", "-g", "-O1"]


def readme_with_absolute_links() -> str:
    """Return the README with its links pointing into the repository, as the package index shows it."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    return RELATIVE_LINK.sub(
        lambda link: (
            f"{link[1]}[{link[2]}]({SOURCE_URL}/{'raw' if link[1] else 'blob'}/main/{link[3]})"
        ),
        text,
    )


def loop_modules() -> list[str]:
    """Return the modules to compile, read from ``tracekit/_loops/__init__.py`` without importing it."""
    tree = ast.parse((ROOT / "tracekit/_loops/__init__.py").read_text(encoding="utf-8"))
    assignments = [node for node in tree.body if isinstance(node, ast.Assign)]
    (modules,) = [node.value for node in assignments if ast.unparse(node.targets[0]) == "MODULES"]
    return list(ast.literal_eval(modules))


def checked_source(module: str) -> str:
    """Return a copy of a loop's source in which no function switches bounds checks off."""
    source = ROOT / f"{module.replace('.', '/')}.py"
    copy = ROOT / "build/checked" / source.relative_to(ROOT)
    copy.parent.mkdir(parents=True, exist_ok=True)
    copy.write_text(
        source.read_text(encoding="utf-8").replace("boundscheck(False)", "boundscheck(True)"),
        "utf-8",
    )
    types = source.with_suffix(".pxd")
    if types.exists():
        copy.with_suffix(".pxd").write_text(types.read_text(encoding="utf-8"), "utf-8")
    return str(copy.relative_to(ROOT))


def extensions() -> list[Extension]:
    """Return the extension modules, or none where Cython is not installed."""
    if cythonize is None:
        return []
    sources = {
        module: checked_source(module) if CHECKED else f"{module.replace('.', '/')}.py"
        for module in loop_modules()
    }
    sources[SHARED_CODE] = f"{SHARED_CODE.replace('.', '/')}.c"  # Cython writes it
    flags = dict.fromkeys(sources, COMPILER_FLAGS) | {SHARED_CODE: SHARED_COMPILER_FLAGS}
    loops = [
        Extension(
            module,
            [source],
            extra_compile_args=SANITIZER_FLAGS if CHECKED else flags[module],
            extra_link_args=SANITIZER_FLAGS if CHECKED else [],
        )
        for module, source in sources.items()
    ]
    directives = {
        "language_level": 3,
        "infer_types": True,
        "wraparound": False,
        "cdivision": True,
        "initializedcheck": False,
    }
    compiled = cythonize(
        loops,
        build_dir="build/cython",
        quiet=True,
        force=CHECKED,
        nthreads=JOBS,
        shared_utility_qualified_name=SHARED_CODE,
        compiler_directives=directives,
    )
    for extension in compiled:
        extension.optional = True  # cythonize does not pass it on
    return compiled


class BuildLoops(build_ext):
    """``build_ext`` that uses ziglang where there is no C compiler, and says what is missing where nothing works."""

    def finalize_options(self) -> None:
        """Compile side by side unless the caller says how."""
        super().finalize_options()
        self.parallel = self.parallel or JOBS

    def build_extensions(self) -> None:
        """Compile every loop; a failure is a warning."""
        if not has_c_compiler():
            zig = [sys.executable, "-m", "ziglang", "cc"]
            self.compiler.set_executables(
                compiler=zig,
                compiler_so=[*zig, "-fPIC"],
                linker_so=[*zig, "-shared"],
                linker_exe=zig,
            )
        super().build_extensions()
        missing = [name for name in self.get_outputs() if not Path(name).exists()]
        if missing:
            self.warn(
                f"{len(missing)} loops of tracekit could not be compiled: commands will run uncompiled, much slower. "
                "Install a C compiler and Python's headers (python3-dev), then install again with --force-reinstall"
            )


setup(
    ext_modules=extensions(),
    cmdclass={"build_ext": BuildLoops},
    long_description=readme_with_absolute_links(),
    long_description_content_type="text/markdown",
)
