"""Documentation extracted from source code: docstrings as Markdown, trailing comments, strings under fields."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any


def markdown(docstring: str | None) -> str:
    r"""Return a docstring as Markdown: examples as code blocks, sections such as ``Args:`` as lists.

    >>> markdown("Sum.\n\n>>> 1 + 1\n2").splitlines()[2:]
    ['```pycon', '>>> 1 + 1', '2', '```']
    >>> markdown("Add.\n\nArgs:\n    a: First\n        number.\n    b: Second.").splitlines()[2:]
    ['**Args**', '', '- `a`: First number.', '- `b`: Second.']
    """
    out: list[str] = []
    fenced = False
    for line in _sections_as_lists(inspect.cleandoc(docstring or "").splitlines()):
        if line.startswith(">>>") and not fenced:
            out += ["```pycon"] if not out or out[-1] == "" else ["", "```pycon"]
            fenced = True
        if fenced and not line.strip():
            out.append("```")
            fenced = False
        out.append(re.sub(r"``([^`]+)``", r"`\1`", line) if not fenced else line)
    return "\n".join([*out, "```"] if fenced else out)


def _sections_as_lists(lines: list[str]) -> list[str]:
    """Return the lines of a docstring with the sections ``Args:``, ``Returns:`` and ``Raises:`` as Markdown lists."""
    out: list[str] = []
    in_section = False
    for line in lines:
        heading = re.fullmatch(r"(Args|Returns|Raises):", line)
        entry = re.fullmatch(r" {4}(\*{0,2}\w+): (.+)", line)
        if heading:
            in_section = True
            out += [f"**{heading[1]}**", ""]
        elif in_section and entry:
            out.append(f"- `{entry[1]}`: {entry[2]}")
        elif in_section and line.startswith("    ") and out[-1]:  # continues the entry above
            out[-1] += f" {line.strip()}"
        elif in_section and line.startswith("    "):
            out.append(line.strip())
        else:
            in_section = in_section and not line
            out.append(line)
    return out


def row(*cells: object) -> str:
    """Return one line of a Markdown table. A bar inside code needs no quoting.

    >>> row("a | b `c|d`", 2)
    '| a &#124; b `c|d` | 2 |'
    """
    return "| " + " | ".join(_cell(str(cell)) for cell in cells) + " |"


def _cell(text: str) -> str:
    parts = re.split(r"(`+.+?`+)", " ".join(text.split()))
    return "".join(part if part.startswith("`") else part.replace("|", "&#124;") for part in parts)


def table(*heads: str) -> list[str]:
    """Return the first two lines of a Markdown table."""
    return [row(*heads), row(*("---" for _ in heads))]


def comments(module: Any, variable: str) -> dict[str, str]:
    """Return the comments beside the keys of the mapping that *module* assigns to *variable*."""
    source = inspect.getsource(module)
    lines = source.splitlines()
    for node in ast.parse(source).body:
        if isinstance(node, ast.Assign) and any(
            getattr(target, "id", None) == variable for target in node.targets
        ):
            return dict(_keys(lines[node.lineno - 1 : node.end_lineno]))
    raise LookupError(variable)


def _keys(lines: list[str]) -> Iterator[tuple[str, str]]:
    above = ""  # a comment on a line of its own belongs to the key below it
    for line in lines:
        match = re.match(r'\s+"(\w+)":[^#]*(?:#\s*(.+))?$', line)
        if match:
            yield match[1], match[2] or above
        own_line = re.match(r"\s+#\s*(.+)$", line)
        above = own_line[1] if own_line else ""


def docstring_under(module: Any, variable: str) -> str:
    """Return the string under an assignment in *module*; empty where there is none."""
    body = ast.parse(inspect.getsource(module)).body
    for node, after in pairwise(body):
        names = [
            getattr(target, "id", None)
            for target in getattr(node, "targets", [getattr(node, "target", None)])
        ]
        if (
            variable in names
            and isinstance(after, ast.Expr)
            and isinstance(after.value, ast.Constant)
        ):
            return str(after.value.value)
    return ""


@cache
def _classes_of(path: str) -> tuple[list[str], dict[str, ast.ClassDef]]:
    """Return a module's lines and its classes by name.

    ``inspect.getsource`` reads the whole module for each class.
    """
    source = Path(path).read_text(encoding="utf-8")
    classes = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ClassDef)]
    return source.splitlines(), {node.name: node for node in classes}


def fields(cls: type) -> list[tuple[str, str, str]]:
    """Return the fields a class declares: name, type as written, and the string under or the comment beside it."""
    lines, classes = _classes_of(inspect.getfile(cls))
    body = classes[cls.__name__]
    out = []
    for node, after in zip(body.body, [*body.body[1:], None], strict=True):
        if (
            not isinstance(node, ast.AnnAssign)
            or not isinstance(node.target, ast.Name)
            or node.target.id[0] == "_"
        ):
            continue
        text = ""
        if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
            text = str(after.value.value)
        elif "#" in lines[node.lineno - 1]:
            text = lines[node.lineno - 1].partition("#")[2].strip()
        out.append((node.target.id, ast.unparse(node.annotation), text))
    return out
