"""How words are taken and shown: help without types of the language, mistakes on one line, readers that leave."""

from __future__ import annotations

import difflib
import os
import re
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from tracekit._util.text import one_line

_TYPE = re.compile(r" <(list\[)?(str|Path|path|int)\]?>$")


_PLAIN: dict[Any, type] = {str: str, Path: Path, list[str]: str, list[Path]: Path}
"""What words become that need no looking at, by what a command calls its parameter."""


def _processed(param: Any, process: Callable[[Any, Any], Any], ctx: Any, value: Any) -> Any:
    """Return the value of a parameter as typer makes it of its words, where there is something to make.

    An option that nobody gave has its default, and a word or a path is what it is: for either typer would build a
    validator, 0.15 s for all of ``analyze``.
    """
    kind = _PLAIN.get(getattr(getattr(param, "type_descriptor", None), "annotation", None))
    if kind is not None and type(value) is str:
        value = kind(value)
    elif kind is not None and value and isinstance(value, list | tuple) and all(type(word) is str for word in value):
        value = [kind(word) for word in value]
    elif param.required or not (value is None or value is param.default):
        return process(ctx, value)
    return value if param.callback is None else param.callback(ctx, param, value)


class _Quick:
    """Whatever takes words: only those that are given, and that do not stay words, go through typer's validators."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the parameters, the help among them."""
        params: list[Any] = super().get_params(ctx)  # type: ignore[misc]  # that of a command, beside which it stands
        for param in params:
            if not isinstance(param.process_value, partial):
                param.process_value = partial(_processed, param, param.process_value)
        return params


class Command(_Quick, TyperCommand):
    """A command whose help names words as people type them: ``PATH``, not ``{PATH}`` or ``<list[str]>``."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return the words of the usage line."""
        return [re.sub(r"^\{(.*)\}", r"\1", piece) for piece in super().collect_usage_pieces(ctx)]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the arguments, then the options."""
        for title, kind in (("Arguments", "argument"), ("Options", "option")):
            listed = [p.get_help_record(ctx) for p in self.get_params(ctx) if p.param_type_name == kind]
            records = [(_TYPE.sub("", record[0]), record[1]) for record in listed if record]
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)


class Root(_Quick, TyperGroup):
    """All commands. A reader that leaves early (``| head``) has read enough: no word, exit code 0."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command that was named."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            hush()
            raise typer.Exit(0) from None


def say(text: object, *, err: bool = False) -> None:
    """Print one line; nothing in it moves the cursor or starts another line."""
    typer.echo(one_line(text), err=err)


def speak_plainly() -> None:
    """Let standard output and error write in ASCII what their encoding has no letters for."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="tracekit")


def hush() -> None:
    """Send what is still to be printed nowhere: its reader has left, and a flush at the end would complain."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def mistake(error: Any) -> str:
    """Return on one line what is wrong with the words of a command, and where to read on.

    >>> class Wrong(Exception):
    ...     ctx = None
    ...     def format_message(self):
    ...         return "Missing option '--output'."
    >>> mistake(Wrong())
    "missing option '--output'; see tracekit --help"
    """
    text = " ".join(error.format_message().split()).rstrip(".")
    context = error.ctx
    option = getattr(error, "option_name", None)
    if option and context is not None:
        near = nearest(option, [name for param in context.command.get_params(context) for name in param.opts])
        text = f"no such option: {option}" + (f"; did you mean {' or '.join(near)}?" if near else "")
    command = context.command_path if context is not None else "tracekit"
    return f"{text[:1].lower()}{text[1:]}; see {command} --help"


def nearest(word: str, known: list[str], *, most: int = 2) -> list[str]:
    """Return the words most like *word*.

    >>> nearest("--microbatch", ["--pp", "--microbatches", "--time"]), nearest("--mb", ["--time"])
    (['--microbatches'], [])
    """
    bare = {name.lstrip("-"): name for name in known}
    return [bare[name] for name in difflib.get_close_matches(word.lstrip("-"), bare, n=most, cutoff=0.6)]
