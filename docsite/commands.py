"""Reference of commands and options, from the command line's own help."""

from __future__ import annotations

from typing import Any

import typer.main

from docsite.code import row, table


def page() -> str:
    """Return the page of commands."""
    from tracekit.cli import make_app

    root = typer.main.get_command(make_app())
    out = [
        "# Commands",
        "",
        "What `tracekit COMMAND --help` says, made from the command line itself. Results go to stdout, progress and"
        " notes to stderr. Exit codes: 0; 2 for input or words that cannot be used; 130 interrupted; 70 a fault of"
        " tracekit's own; `gate` adds 1 (regressed) and 3 (inconclusive).",
    ]
    for name, command in root.commands.items():  # type: ignore[attr-defined]
        out += ["", f"## tracekit {name}", "", *_command(name, command)]
    return "\n".join(out) + "\n"


def _command(name: str, command: Any) -> list[str]:
    arguments = [p for p in command.params if p.param_type_name == "argument"]
    options = [p for p in command.params if p.param_type_name == "option"]
    words = " ".join(_word(p) for p in arguments)
    out = [
        _plain(command.help),
        "",
        "```console",
        f"$ tracekit {name} {words} [OPTIONS]".replace("  ", " "),
        "```",
    ]
    if arguments:
        out += [
            "",
            *table("argument", "meaning"),
            *(row(f"`{_word(p)}`", _plain(p.help)) for p in arguments),
        ]
    if options:
        out += ["", *table("option", "meaning", "default"), *(_option(p) for p in options)]
    return out


def _word(argument: Any) -> str:
    word = argument.metavar or argument.name.upper()
    return word + ("…" if argument.nargs == -1 and not word.endswith("…") else "")


def _option(option: Any) -> str:
    names = ", ".join(
        f"`{name}`" for name in sorted([*option.opts, *option.secondary_opts], key=len)
    )
    value = "" if option.is_flag else f" `{option.metavar or 'WORD'}`"
    default = option.default
    shown = (
        ""
        if callable(default) or default in (None, False, (), []) or option.required
        else f"`{default}`"
    )
    return row(names + value, _plain(option.help), "required" if option.required else shown)


def _plain(text: str | None) -> str:
    """Help is text, not Markdown: signs that Markdown reads are quoted."""
    words = " ".join((text or "").replace("\b", "").split())
    return words.replace("*", "\\*").replace("_", "\\_").replace("<", "&lt;").replace("[", "\\[")
