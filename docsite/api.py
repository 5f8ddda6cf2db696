"""Python reference: every public name with its signature, result and tested example."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import types
from collections.abc import Iterator
from functools import cached_property
from typing import Any

import msgspec

from docsite.code import fields, markdown, row, table

PACKAGES = (
    "tracekit.analysis",
    "tracekit.diffs",
    "tracekit.doctor",
    "tracekit.redact",
    "tracekit.synthetic",
)
"""Public packages that are imported by name."""


def page() -> str:
    """Return the page of public names."""
    import tracekit

    out = [
        "# Python",
        "",
        "Every public name, made from the code. Examples are run by the tests, from the top of a clone.",
    ]
    for name in names(tracekit):
        value = getattr(tracekit, name)
        if isinstance(value, types.ModuleType):
            out += ["", f"## tracekit.{name}", "", markdown(value.__doc__)]
            for inner in names(value):
                out += _entry(f"tracekit.{name}.{inner}", getattr(value, inner), "###")
        else:
            out += _entry(f"tracekit.{name}", value, "##")
    for package in PACKAGES:
        module = importlib.import_module(package)
        out += ["", f"## {package}", "", markdown(module.__doc__)]
        for inner in names(module):
            if inner not in tracekit.__all__:  # shown above
                out += _entry(f"{package}.{inner}", getattr(module, inner), "###")
    return "\n".join(out) + "\n"


def names(module: types.ModuleType) -> list[str]:
    """Return a module's public names: functions and classes, then its modules."""
    public = [name for name in getattr(module, "__all__", ()) if not name.startswith("_")]
    return sorted(
        public, key=lambda name: (isinstance(getattr(module, name), types.ModuleType), name.lower())
    )


def _entry(name: str, value: Any, level: str) -> list[str]:
    out = ["", f"{level} {name}", ""]
    if inspect.isclass(value):
        return out + _class(name, value, level)
    if callable(value):
        return [
            *out,
            *_signature(name.rpartition(".")[2], value),
            "",
            markdown(inspect.getdoc(value)),
        ]
    return [*out, f"`{type(value).__name__}`", *_list(value)]


def _class(name: str, cls: type, level: str) -> list[str]:
    short = name.rpartition(".")[2]
    error = issubclass(cls, BaseException)
    out = [] if error else [*_signature(short, cls), ""]
    out.append(markdown(cls.__dict__.get("__doc__")))
    declared = (
        fields(cls) if dataclasses.is_dataclass(cls) or issubclass(cls, msgspec.Struct) else []
    )
    if declared:
        out += ["", *table("field", "type", "meaning")]
        out += [row(f"`{field}`", f"`{kind}`", markdown(text)) for field, kind, text in declared]
    for method, member in _members(cls):
        out += ["", f"{level}# {short}.{method}", ""]
        if callable(member):
            out += [*_signature(method, member), ""]
        out.append(markdown(inspect.getdoc(member)))
    return out


def _members(cls: type) -> Iterator[tuple[str, Any]]:
    """Yield the public methods and properties that a class itself defines."""
    for name, member in cls.__dict__.items():
        if name.startswith("_"):
            continue
        if isinstance(member, classmethod | staticmethod):
            yield name, member.__func__
        elif isinstance(member, property | cached_property) or inspect.isfunction(member):
            yield name, member


def _list(value: Any) -> list[str]:
    return (
        ["", ", ".join(f"`{item}`" for item in value)]
        if isinstance(value, tuple | list | dict)
        else []
    )


def _signature(name: str, value: Any) -> list[str]:
    try:
        signature = inspect.signature(value)
    except ValueError:
        return []
    parameters = [p for p in signature.parameters.values() if p.name not in ("self", "cls")]
    returns = signature.return_annotation
    end = (
        ""
        if inspect.isclass(value) or returns is signature.empty
        else f" -> {_annotation_text(returns)}"
    )
    parts = list(_parameters(parameters))
    line = f"{name}({', '.join(parts)}){end}"
    if len(line) > 100:
        line = f"{name}(\n" + "".join(f"    {part},\n" for part in parts) + f"){end}"
    return ["```python", line, "```"]


def _parameters(parameters: list[inspect.Parameter]) -> Iterator[str]:
    starred = False
    for p in parameters:
        if p.kind is p.KEYWORD_ONLY and not starred:
            starred = True
            yield "*"
        starred |= p.kind is p.VAR_POSITIONAL
        mark = {p.VAR_POSITIONAL: "*", p.VAR_KEYWORD: "**"}.get(p.kind, "")
        text = f"{mark}{p.name}" + (
            "" if p.annotation is p.empty else f": {_annotation_text(p.annotation)}"
        )
        yield text if p.default is p.empty else f"{text} = {_default(p.default)}"


def _default(value: Any) -> str:
    """Return the text of a default value; dots for an object without a readable repr."""
    shown = repr(value)
    return "…" if shown.startswith("<") else shown


def _annotation_text(annotation: Any) -> str:
    return annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
