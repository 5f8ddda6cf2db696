"""Commands and options that were removed, and what takes their place: one error line for one version."""

from __future__ import annotations

_STORE = "tracekit ingest PATH -o STORE, then tracekit analyze STORE"

REMOVED_COMMANDS = {"open": "tracekit export --open"}
"""What takes the place of a command, by its name."""
REMOVED_OPTIONS: dict[str | None, dict[str, str]] = {
    None: {
        "--rank": "--file-rank N says which rank a file is, --ranks reads some of them",
        "--nsys": "set the environment variable TRACEKIT_NSYS to the path of nsys",
    },
    "analyze": {
        "--critical-path": "use --show critical-path",
        "--definitions": "use --show definitions",
        "--store": f"use {_STORE}",
        "--resume": f"use {_STORE} (ingest has --resume)",
        "--overwrite": f"use {_STORE} (ingest has --overwrite)",
        "--dask": f"use {_STORE} (ingest has --dask)",
    },
    "ingest": {
        "--lenient": "a damaged file is read as far as it can be, unless --strict is given",
        "--no-lenient": "use --strict",
    },
}
"""What takes the place of an option, by command; under None those of every command that had them."""


def successor_of_option(command: str, option: str) -> str | None:
    """Return what takes the place of a removed option; None if there was none of this name.

    >>> successor_of_option("analyze", "--definitions")
    'use --show definitions'
    >>> successor_of_option("analyze", "--jsn")
    """
    of_command = REMOVED_OPTIONS.get(command, {})
    return of_command.get(option) or REMOVED_OPTIONS[None].get(option)
