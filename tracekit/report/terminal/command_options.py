"""Options that several commands share: their types, help and parsing."""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tracekit.errors import QUIET, OptionError

if TYPE_CHECKING:
    from tracekit.store.sources import OneRole
    from tracekit.store.sources import Paths as RunPaths


def with_quiet(run: Callable[..., None]) -> Callable[..., None]:
    """Return a command's function with the option ``--quiet``, which every command has."""

    @functools.wraps(run)
    def run_quietly(*args: Any, quiet: bool = False, **options: Any) -> None:
        if quiet:
            os.environ[QUIET] = "1"  # read by this process and its workers
        run(*args, **options)

    signature = inspect.signature(run, eval_str=True)
    added = inspect.Parameter(
        "quiet", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=Quiet
    )
    run_quietly.__signature__ = signature.replace(  # type: ignore[attr-defined]
        parameters=[*signature.parameters.values(), added]
    )
    annotations = {name: parameter.annotation for name, parameter in signature.parameters.items()}
    run_quietly.__annotations__ = {**annotations, "quiet": Quiet}
    return run_quietly


def output(text: str, *, metavar: str = "FILE") -> Any:
    """Return the option ``--output``, ``-o``; *text* is its help."""
    return typer.Option("-o", "--output", help=text, metavar=metavar)


def value(text: str, metavar: str, **settings: Any) -> Any:
    """Return an option that takes a value and is named like its parameter; *text* is its help."""
    return typer.Option(help=text, metavar=metavar, **settings)


def flag(name: str, text: str) -> Any:
    """Return the option *name*, which takes no value; *text* is its help."""
    return typer.Option(name, help=text)


Paths = Annotated[
    list[str] | None,
    typer.Argument(
        help="Traces: files, a folder, a quoted glob, a URL or a store.", metavar="PATH"
    ),
]
Ranks = Annotated[str | None, value("Read only these ranks: 0,2 or 0-7.", "RANKS")]
FileRank = Annotated[
    int | None,
    typer.Option(
        "--file-rank",
        help="The rank that a single file is, if it does not say.",
        metavar="N",
        min=0,
    ),
]
Rules = Annotated[Path | None, value("Rules file to label with, before the built-in ones.", "FILE")]
Workers = Annotated[
    int | None, value("Number of worker processes; by default as many as help.", "N", min=1)
]
Strict = Annotated[
    bool, flag("--strict", "A damaged, unreadable or missing rank is an error, not a warning.")
]
Resume = Annotated[
    bool,
    flag("--resume", "Go on with the store: read only traces that are not in it or have changed."),
]
Overwrite = Annotated[bool, flag("--overwrite", "Replace the store that is there.")]
Dask = Annotated[
    str | None,
    value(
        "Work on the Dask cluster whose scheduler is at this address: tcp://host:8786.", "ADDRESS"
    ),
]
_QUIET_HELP = "Print no notes and no progress, and with -o not the result either."
Quiet = Annotated[bool, typer.Option("-q", "--quiet", help=_QUIET_HELP)]
Json = Annotated[bool, flag("--json", "Print the result as JSON.")]
_ROLES_HELP = (
    "A role's traces, as NAME=PATH, repeated for each role; or the NAME of the role to read alone."
)
Roles = Annotated[list[str] | None, typer.Option("--role", help=_ROLES_HELP, metavar="ROLE")]
Role = Annotated[
    str | None, value("Compare this role alone, where ranks have several processes.", "NAME")
]


def role_paths(
    paths: list[str] | None, roles: list[str] | None, command: str
) -> RunPaths | OneRole:
    """Return the paths that *command* reads: those named, of one role alone, or each role's own.

    >>> role_paths(None, ["trainer=a", "rollout=b"], "analyze")
    {'trainer': ['a'], 'rollout': ['b']}
    >>> role_paths(["run"], None, "analyze")
    ['run']
    """
    by_role: dict[str, list[str]] = {}
    chosen = [role for role in roles or () if "=" not in role]
    for role in roles or ():
        name, separator, path = role.partition("=")
        if separator and (not name or not path or "/" in name):
            raise OptionError(
                f"--role {role}: write a name and its path",
                hint="as in --role trainer=runs/trainer",
            )
        if separator:
            by_role.setdefault(name, []).append(path)
    if by_role and (paths or chosen):
        raise OptionError(
            "--role NAME=PATH names all that is read", hint="leave the other paths and roles out"
        )
    if by_role:
        return by_role
    if not paths:
        raise OptionError("missing argument 'PATH'", hint=f"see tracekit {command} --help")
    if len(chosen) > 1:
        raise OptionError("--role NAME picks one role", hint="leave it out to read all")
    if not chosen:
        return paths
    from tracekit.store.sources import OneRole

    return OneRole(tuple(paths), chosen[0])
