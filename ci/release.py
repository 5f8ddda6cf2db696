"""Build what a release publishes, try it on every Python that is here, and say what is left to do.

python ci/release.py [PYTHON …]     (``make release`` does the same)

The source archive is built once. From it each Python builds its wheel, and each wheel is installed
into an empty environment and run outside the checkout. Pythons are looked for on the path, under
pyenv and with uv; others can be named. Needs nothing but Python 3.11 and the package index.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DIST = ROOT / "dist"
WORK = ROOT / "build" / "release"
ABOUT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
TOOLS = ("build>=1.2", "pip>=25.1", "twine>=6.1")

SHOW_LOOPS = (
    "from tracekit import _loops; import sys; "
    "sys.exit(None if _loops.is_compiled() else 'the loops are not compiled')"
)
STEPS = ROOT / "sample_traces" / "steps"
TRIALS: tuple[tuple[tuple[str, ...], int], ...] = (
    (("python", "-c", SHOW_LOOPS), 0),
    (("tracekit", "--version"), 0),
    (("tracekit-ml", "--version"), 0),
    (("tracekit", "demo", "-o", "demo"), 0),
    (("tracekit", "analyze", "demo/1f1b", "-o", "report.html", "-o", "run.json"), 0),
    (("tracekit", "doctor", "demo/1f1b"), 0),
    (("tracekit", "gate", str(STEPS / "a"), "--baseline", str(STEPS / "b")), 0),
    (("tracekit", "gate", str(STEPS / "straggler"), "--baseline", str(STEPS / "a")), 1),
)
"""What an installed wheel has to do, and the exit codes: the second gate must find the slower run."""


class ReleaseError(Exception):
    """A step that failed, in one line."""


def main(named_pythons: Sequence[str]) -> None:
    """Run every step; the first that fails ends the script with its line and exit code 1."""
    version = read_version()
    print(f"tracekit-ml {version}")
    try:
        check_version(version)
        missing = build_and_try(version, named_pythons)
    except ReleaseError as error:
        sys.exit(f"release: {error}")
    print(f"\nReady in {DIST.relative_to(ROOT)}/. Left to do:")
    for number, sentence in enumerate(what_is_left(version, missing), 1):
        print(f"{number}. {sentence}")


def read_version() -> str:
    """Return the version of the package, without importing it."""
    text = (ROOT / "tracekit" / "_version.py").read_text(encoding="utf-8")
    return re.search(r'__version__ = "(.+)"', text)[1]


def check_version(version: str) -> None:
    """Raise if the changelog or the citation does not belong to this version."""
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    if not re.search(rf"^## {re.escape(version)} \(\d{{4}}-\d\d-\d\d\)$", changelog, re.MULTILINE):
        raise ReleaseError(f"CHANGELOG.md has no section '## {version} (YYYY-MM-DD)'")
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    if f"\nversion: {version}\n" not in citation:
        raise ReleaseError(f"CITATION.cff does not name version {version}")


def build_and_try(version: str, named_pythons: Sequence[str]) -> list[str]:
    """Build the source archive and the wheels, try each wheel, and return the Pythons that are not here."""
    for folder in (DIST, WORK):
        shutil.rmtree(folder, ignore_errors=True)
    tools = WORK / "tools" / "bin" / "python"
    run("make an environment for build and twine", [sys.executable, "-m", "venv", WORK / "tools"])
    run("install build and twine", [tools, "-m", "pip", "install", "--quiet", *TOOLS])
    run("build the source archive", [tools, "-m", "build", "--sdist", "--outdir", DIST, ROOT])
    source_archive = DIST / f"tracekit_ml-{version}.tar.gz"
    missing = []
    for python_version in supported_pythons():
        interpreter = find_python(python_version, named_pythons)
        if interpreter is None:
            missing.append(python_version)
            print(f"Python {python_version} is not here: not tried")
        else:
            try_on(python_version, interpreter, tools, source_archive)
    if len(missing) < len(supported_pythons()):
        run_notebooks(tools, source_archive)
    run("check the descriptions", [tools, "-m", "twine", "check", "--strict", *DIST.iterdir()])
    return missing


def supported_pythons() -> list[str]:
    """Return the Python versions that the package names, such as ``3.11``."""
    classifiers = "\n".join(ABOUT["classifiers"])
    return re.findall(r"^Programming Language :: Python :: (3\.\d+)$", classifiers, re.MULTILINE)


def find_python(version: str, named_pythons: Iterable[str] = ()) -> str | None:
    """Return an interpreter of a version, or None if there is none."""
    for candidate in candidate_pythons(version, named_pythons):
        # A pyenv shim is on the path even where it has no such version to start: only its answer counts.
        if interpreter_version(candidate) == version:
            return candidate
    return None


def candidate_pythons(version: str, named_pythons: Iterable[str]) -> Iterator[str]:
    """Yield interpreters that may be of a version, those that were named first."""
    yield from named_pythons
    yield sys.executable
    yield f"python{version}"
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    yield from sorted(map(str, pyenv.glob(f"versions/{version}.*/bin/python{version}")))
    if shutil.which("uv"):
        search = ["uv", "python", "find", "--no-project", version]
        yield subprocess.run(search, capture_output=True, text=True, check=False).stdout.strip()


def interpreter_version(interpreter: str) -> str | None:
    """Return the version that an interpreter says it has, or None if it does not start."""
    code = "import sys; print('%d.%d' % sys.version_info[:2])"
    try:
        done = subprocess.run([interpreter, "-c", code], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()


def make_environment(interpreter: str, folder: Path) -> Path:
    """Make an empty environment, without pip, and return its Python."""
    run(f"make {folder.name}", [interpreter, "-m", "venv", "--clear", "--without-pip", folder])
    return folder / "bin" / "python"


def try_on(python_version: str, interpreter: str, tools: Path, source_archive: Path) -> None:
    """Build the wheel of a Python from the source archive, install it alone, and run it."""
    name = f"Python {python_version}"
    python = make_environment(interpreter, WORK / python_version)
    pip = [tools, "-m", "pip", "--python", python]
    build_wheel = [*pip, "wheel", "--quiet", "--no-deps", "--wheel-dir", DIST, source_archive]
    run(f"{name}: build the wheel", build_wheel)
    wheel = wheel_of(python)
    run(f"{name}: install the wheel", [*pip, "install", "--quiet", wheel])
    with tempfile.TemporaryDirectory() as empty_folder:
        for (program, *arguments), exit_code in TRIALS:
            command = [python.parent / program, *arguments]
            words = " ".join([program, *arguments[:1]])
            run(f"{name}: {words}", command, folder=empty_folder, exit_code=exit_code)
    print(f"{name}: {wheel.name} works")


def wheel_of(python: Path) -> Path:
    """Return the wheel that was built for the Python of an environment such as ``…/3.12/bin/python``."""
    python_version = python.parent.parent.name
    (wheel,) = DIST.glob(f"*-cp{python_version.replace('.', '')}-*.whl")
    return wheel


def run_notebooks(tools: Path, source_archive: Path) -> None:
    """Run the notebooks with one of the installed wheels, outside the checkout."""
    python = min(WORK.glob("3.*")) / "bin" / "python"
    pip = [tools, "-m", "pip", "--python", python]
    needed = ("ipykernel", "nbclient", "pip", f"tracekit-ml[sql] @ {wheel_of(python).as_uri()}")
    run("notebooks: install Jupyter's kernel", [*pip, "install", "--quiet", *needed])
    with tempfile.TemporaryDirectory() as empty_folder:
        script = ROOT / "ci" / "run_notebooks.py"
        run("notebooks: run all", [python, script, source_archive], folder=empty_folder)
    print("Notebooks: all run in an empty folder")


def run(
    step: str, command: Sequence[str | Path], *, folder: str | Path = ROOT, exit_code: int = 0
) -> None:
    """Run one command, with its output in a log file, or raise in one line if it fails."""
    print(f"  {step}", flush=True)
    WORK.mkdir(parents=True, exist_ok=True)
    log = WORK / (re.sub(r"[^\w.]+", "-", step.lower()) + ".log")
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYTHON", "TRACEKIT_")) and name != "VIRTUAL_ENV"
    }
    done = subprocess.run(
        list(map(str, command)),
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    log.write_text(done.stdout, encoding="utf-8")
    if done.returncode != exit_code:
        last_line = (done.stdout.strip().splitlines() or ["no output"])[-1]
        raise ReleaseError(
            f"{step} failed (exit code {done.returncode}, expected {exit_code}): {last_line} "
            f"(all of it: {log.relative_to(ROOT)})"
        )


def what_is_left(version: str, missing: Sequence[str]) -> Iterator[str]:
    """Yield what only a person can do, in order."""
    repository = ABOUT["urls"]["Source"].removeprefix("https://github.com/")
    changed = uncommitted_files()
    if missing:
        versions = " ".join(missing)
        yield f"Not tried here: Python {', '.join(missing)} (`uv python install {versions}` gets it)."
    if changed:
        yield f"Commit what is not committed ({len(changed)} files, {changed[0]} the first)."
    yield (
        "Once, on PyPI: add a trusted publisher for tracekit-ml (a pending one before the first release): "
        f"repository {repository}, workflow release.yml, environment pypi."
    )
    yield (
        f"Once, on GitHub: make the environments pypi and github-pages in {repository}, and choose "
        "'GitHub Actions' as the source of Pages."
    )
    yield (
        f"git tag -a v{version} -m 'tracekit {version}' && git push origin v{version}   "
        "(the workflow builds the wheels of all systems, publishes them and the site, and makes the release)"
    )
    yield "When the workflow is green: uvx tracekit-ml demo, and open one notebook from docs/notebooks.md in Colab."


def uncommitted_files() -> list[str]:
    """Return the files that differ from the last commit; none outside a clone."""
    command = ["git", "status", "--porcelain"]
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return []
    return [line[3:] for line in done.stdout.splitlines()]


if __name__ == "__main__":
    main(sys.argv[1:])
