"""The option ``--role`` of several commands."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from tracekit.errors import OptionError

if TYPE_CHECKING:
    from tracekit.store.sources import OneRole
    from tracekit.store.sources import Paths as RunPaths

Roles = Annotated[
    list[str] | None,
    typer.Option(
        "--role",
        help="A role's traces, as NAME=PATH, repeated for each role; or the NAME of the role to read alone.",
        metavar="ROLE",
    ),
]
Role = Annotated[
    str | None, typer.Option(help="Compare this role alone, where ranks have several processes.", metavar="NAME")
]


def role_paths(paths: list[str] | None, roles: list[str] | None, command: str) -> RunPaths | OneRole:
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
            raise OptionError(f"--role {role}: write a name and its path", hint="as in --role trainer=runs/trainer")
        if separator:
            by_role.setdefault(name, []).append(path)
    if by_role and (paths or chosen):
        raise OptionError("--role NAME=PATH names all that is read", hint="leave the other paths and roles out")
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
