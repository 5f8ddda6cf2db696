"""``.nsys-rep`` files: only Nsight's own exporter reads them, so ask it."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tracekit.errors import InputError, OptionError

SUFFIXES = (".nsys-rep", ".qdrep")
PROGRAM = "TRACEKIT_NSYS"
"""The variable that names nsys where it is not on the PATH; worker processes inherit it."""
_TIMEOUT_S = 3600
_PAYLOADS = ("--include-json", "--include-blobs")


@contextlib.contextmanager
def exported(path: Path, nsys: str | None) -> Iterator[Path]:
    """Yield an sqlite export of a report, in a temporary folder that goes away afterwards."""
    program = _exporter(path, nsys)
    with tempfile.TemporaryDirectory(prefix="tracekit-") as folder:
        target = Path(folder) / f"{path.name.removesuffix(path.suffix)}.sqlite"
        command = [program, "export", "--type=sqlite", "--force-overwrite=true", f"--output={target}"]
        command += [f"{option}=true" for option in _PAYLOADS if option in _help(program)]
        done = _run([*command, str(path)])
        if done.returncode or not target.exists():
            raise InputError(
                f"{path}: `nsys export` could not read it (exit code {done.returncode})",
                hint=f"the exporter must be at least as new as the recording: {_command(path)}",
            )
        yield target


def _exporter(path: Path, nsys: str | None) -> str:
    nsys = nsys or os.environ.get(PROGRAM)
    if nsys:
        program = shutil.which(nsys)
        if program is None:
            raise OptionError(f"{nsys}: is not a program that can be run", hint="give the path of nsys itself")
        return program
    program = shutil.which("nsys")
    if program is None:
        raise InputError(
            f"{path}: a report must be exported first, and nsys is not on the PATH",
            hint=f"on a machine with Nsight Systems: {_command(path)} (or give its path with --nsys PATH)",
        )
    return program


def _command(path: Path) -> str:
    return f"nsys export --type sqlite {path.name}"


def _help(program: str) -> str:
    """Which options this exporter has; payload options came in 2022."""
    done = _run([program, "export", "--help"])
    return done.stdout + done.stderr


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            stdin=subprocess.DEVNULL,
            timeout=_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise InputError(
            f"{command[0]}: did not run ({type(error).__name__})", hint="check it with: nsys --version"
        ) from error
