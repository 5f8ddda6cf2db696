"""Export of ``.nsys-rep`` reports, which only Nsight's own ``nsys export`` can read."""

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
NSYS_VARIABLE = "TRACEKIT_NSYS"
"""Environment variable with the path of nsys; worker processes inherit it."""
_TIMEOUT_S = 3600
_PAYLOAD_OPTIONS = ("--include-json", "--include-blobs")
"""Options that keep payloads of NVTX ranges, such as arguments of NCCL's calls; exporters before 2022 lack them."""


@contextlib.contextmanager
def export_report(path: Path, nsys: str | None) -> Iterator[Path]:
    """Yield an sqlite export of a report, in a temporary folder that is removed afterwards."""
    program = _find_nsys(path, nsys)
    options_in_help = _help_text(program)
    with tempfile.TemporaryDirectory(prefix="tracekit-") as folder:
        target = Path(folder) / f"{path.stem}.sqlite"
        command = [program, "export", "--type=sqlite", "--force-overwrite=true", f"--output={target}"]
        command += [f"{option}=true" for option in _PAYLOAD_OPTIONS if option in options_in_help]
        process = _run([*command, str(path)])
        if process.returncode or not target.exists():
            raise InputError(
                f"{path}: `nsys export` could not read it (exit code {process.returncode})",
                hint=f"the exporter must be at least as new as the recording: {_export_command(path)}",
            )
        yield target


def _find_nsys(path: Path, nsys: str | None) -> str:
    nsys = nsys or os.environ.get(NSYS_VARIABLE)
    if nsys:
        program = shutil.which(nsys)
        if program is None:
            raise OptionError(f"{nsys}: is not a program that can be run", hint="give the path of nsys itself")
        return program
    program = shutil.which("nsys")
    if program is None:
        raise InputError(
            f"{path}: a report must be exported first, and nsys is not on the PATH",
            hint=f"on a machine with Nsight Systems: {_export_command(path)} (or give its path with --nsys PATH)",
        )
    return program


def _export_command(path: Path) -> str:
    return f"nsys export --type sqlite {path.name}"


def _help_text(program: str) -> str:
    """Return the exporter's help, which lists its options."""
    process = _run([program, "export", "--help"])
    return process.stdout + process.stderr


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
